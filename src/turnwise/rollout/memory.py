"""A built-in workflow for long plays: what was said becomes a summary, and the summary stands in its place.

`rollout.workflow: summarized_memory` with `workflow_args: {compact_above_tokens: 1000}`. Remembering is an action of
the policy: a reply with `<memory>…</memory>` in it replaces everything before it, and where a conversation has grown
above `compact_above_tokens` the model is asked for one. What was dropped is out of the context from then on, and is
trained as it was sampled, in the context that it was sampled in; the summary is trained too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.context.answer import show_history
from turnwise.rollout.environment import EnvironmentWorkflow
from turnwise.rollout.workflow import read_count
from turnwise.types import Message

_OPENING, _CLOSING = "<memory>", "</memory>"
_EXPLAIN = f"You may write {_OPENING}what matters{_CLOSING} in a reply: it replaces everything said before.\n"
_ASK = "\n\nThe conversation is too long. Write down what you must remember; you will see nothing else of it."


class SummarizedMemoryWorkflow(EnvironmentWorkflow):
    """See the module's text. A summary is a call of the step that it is made for."""

    arg_names = frozenset({"compact_above_tokens"})

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        read_count(workflow_args, "compact_above_tokens", 1)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        default = max(self.task.context.max_tokens // 2, 1)
        self._limit = read_count(self.task.workflow_args, "compact_above_tokens", default)
        self._memory = ""
        self._first_shown = 0
        """The turns before it are out of the context."""

    async def play_turn(self, notes: str = "") -> None:
        if self._num_tokens > self._limit and len(self.episode.history) - self._first_shown > 1:
            *earlier, last = self.show()
            (reply,) = await self.model.chat_async([*earlier, Message(last.role, last.text + _ASK)])
            self._compact(_between_tags(reply.response_text) or reply.response_text)
        await super().play_turn(notes)
        if remembered := _between_tags(self.model.calls[-1].response_text):
            self._compact(remembered)

    def show(self, notes: str = "") -> list[Message]:
        memory = f"What you remember: {self._memory}\n" if self._memory else ""
        shown = self.episode.history[self._first_shown :]
        return show_history(self.episode.about, shown, self.task.context, notes=notes + _EXPLAIN + memory)

    def _compact(self, memory: str) -> None:
        """Go on from the state of now with nothing but this."""
        self._memory, self._first_shown = memory.strip(), len(self.episode.history) - 1

    @property
    def _num_tokens(self) -> int:
        """Of the conversation up to the last reply."""
        if not self.model.calls:
            return 0
        last = self.model.calls[-1]
        return last.prompt_length + len(last.tokens)


def _between_tags(text: str) -> str:
    _, _, behind = text.partition(_OPENING)
    memory, closing, _ = behind.partition(_CLOSING)
    return memory.strip() if closing else ""
