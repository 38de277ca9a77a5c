"""A built-in workflow that thinks and acts in turns (arXiv 2210.03629), in plain text.

`rollout.workflow: react` with `workflow_args: {tools: ['package.module:function', …]}`. It needs nothing of the chat
template: tools are explained in the first message, and the model calls one by a line `Action: NAME {"argument": …}`.
What comes of it is the next message. A reply without such a line is the action in the environment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from turnwise.config.component import import_target
from turnwise.context.answer import build_messages, num_visible_turns
from turnwise.context.recorder import Response
from turnwise.errors import ConfigError, RewardError
from turnwise.rollout.scoring import FunctionScorer
from turnwise.rollout.tool_calling import ToolCallingWorkflow
from turnwise.rollout.workflow import EnvironmentWorkflow, StepWiseEnvironmentWorkflow, read_count
from turnwise.types import Message, ToolCall, ToolSchema, Trajectory

_ACTION, _OBSERVATION = "Action:", "Observation:"
_EXPLAIN = """\
Before you answer you may use tools. Think, then write one call in a line of its own:
Thought: what you need to know
Action: NAME {"argument": value}
You are told what came of it in a line that begins with Observation. When you know enough, answer without an action.
Tools:
"""


class ReactWorkflow(ToolCallingWorkflow):
    """`rollout.workflow: react`: thoughts, calls and the answer after them are the calls of one step."""

    needs_tool_syntax = False

    async def run(self) -> Trajectory:
        await self.play_episode(_EXPLAIN + "".join(map(_describe, self.schemas)) + "\n")
        return self.end()

    async def answer(self, messages: list[Message]) -> Response:
        """The first reply without an action, or the one after the last call that is allowed."""
        prefix = self.task.context.answer.forced_prefix
        (reply,) = await self.model.chat_async(messages, prefix=prefix)
        for _ in range(self.max_calls):
            call = read_action(reply.response_text)
            if call is None:
                break
            result = await self.run_call(call)
            messages += [Message("assistant", reply.response_text), Message("user", f"{_OBSERVATION} {result.text}")]
            (reply,) = await self.model.chat_async(messages, prefix=prefix)
        return reply


def read_action(text: str) -> ToolCall | None:
    """The first line that calls a tool; what a model writes behind it, such as a made-up observation, is not read.

    Example: `Thought: 2 and 3\\nAction: add {"a": 2, "b": 3}` calls `add`.
    """
    for line in text.splitlines():
        if line.strip().startswith(_ACTION):
            name, _, arguments = line.strip().removeprefix(_ACTION).strip().partition(" ")
            return ToolCall(name, arguments.strip())
    return None


def _describe(schema: ToolSchema) -> str:
    about = " ".join(schema.description.split())
    return f"{schema.name}: {about} Arguments: {schema.parameters}\n"


_ASK = "\n\nBefore you act, write a short plan. Do not act yet."
_GO = "Now act on your plan."


class PlanAndActWorkflow(EnvironmentWorkflow):
    """See the module's text."""

    arg_names = frozenset({"replan_every"})

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        _replan_every(workflow_args, 1)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._plans: dict[int, str] = {}
        """By the turn that they were made before."""

    async def play_turn(self, notes: str = "") -> None:
        turn = len(self.episode.history) - 1
        if turn % _replan_every(self.task.workflow_args, turn + 1) == 0:
            (plan,) = await self.model.chat_async(self._converse(asks=turn))
            self._plans[turn] = plan.response_text
        await super().play_turn(notes)

    def show(self, notes: str = "") -> list[Message]:
        return self._converse()

    def _converse(self, *, asks: int | None = None) -> list[Message]:
        """The turns that the window shows, with plans where they were made; at turn `asks`, the question for one."""
        episode, context = self.episode, self.task.context
        turn = len(episode.history) - num_visible_turns(len(episode.history), context)
        hidden = [plan for number, plan in self._plans.items() if number < turn]
        notes = f"Your plan: {hidden[-1]}\n" if hidden else ""
        messages: list[Message] = []
        for message in build_messages(episode.about, episode.history, context, notes=notes):
            if message.role == "user" and (turn in self._plans or turn == asks):
                message = Message("user", message.text + _ASK)
            messages.append(message)
            if message.role == "user":
                if turn in self._plans:
                    messages += [Message("assistant", self._plans[turn]), Message("user", _GO)]
                turn += 1
        return messages


def _replan_every(workflow_args: Mapping[str, Any], never: int) -> int:
    return read_count(workflow_args, "replan_every", never)


_ASK_FOR_BEST = "\n\nWhich of these replies is best? Write its number.\n"
_POLICY = "policy"


class BestOfNWorkflow(StepWiseEnvironmentWorkflow):
    """See the module's text."""

    arg_names = frozenset({"n", "judge", "max_env_steps"})

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        read_count(workflow_args, "n", 4)
        _find_judge(workflow_args)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._n = read_count(self.task.workflow_args, "n", 4)
        self._judge = _find_judge(self.task.workflow_args)

    async def answer(self, messages: list[Message]) -> Response:
        replies = await self.model.chat_async(messages, n=self._n, prefix=self.task.context.answer.forced_prefix)
        # Of equal texts the first stands for all, here as in the recorder; played greedily there is but one.
        candidates = list({reply.response_text: reply for reply in reversed(replies)}.values())[::-1]
        if len(candidates) == 1:
            return candidates[0]
        if self._judge is None:
            return candidates[await self._ask_policy(messages, candidates)]
        return candidates[await self._ask_function(self._judge, messages, candidates)]

    async def _ask_policy(self, messages: Sequence[Message], candidates: Sequence[Response]) -> int:
        *earlier, last = messages
        listed = "\n".join(f"{number}. {reply.response_text}" for number, reply in enumerate(candidates, start=1))
        (verdict,) = await self.model.chat_async([*earlier, Message(last.role, last.text + _ASK_FOR_BEST + listed)])
        found = re.search(r"\d{1,3}", verdict.response_text)
        number = int(found.group()) if found else 1
        return number - 1 if 1 <= number <= len(candidates) else 0

    async def _ask_function(
        self, judge: FunctionScorer, messages: Sequence[Message], candidates: Sequence[Response]
    ) -> int:
        said = [[messages[-1], Message("assistant", reply.response_text)] for reply in candidates]
        given = await asyncio.get_running_loop().run_in_executor(self.task.threads, judge.score, said)
        scores = [float("-inf") if isinstance(score, RewardError) else score for score in given]
        if all(isinstance(score, RewardError) for score in given):
            raise cast(RewardError, given[0])
        return scores.index(max(scores))


def _find_judge(workflow_args: Mapping[str, Any]) -> FunctionScorer | None:
    """None: the policy judges."""
    where, given = "rollout.workflow_args.judge", workflow_args.get("judge", _POLICY)
    if given == _POLICY:
        return None
    if not isinstance(given, str) or ":" not in given:
        raise ConfigError(f"{where} is {given!r}; expected 'policy' or 'package.module:function'.")
    function = import_target(given, where)
    if not callable(function):
        raise ConfigError(f"{where}: '{given}' is {function!r}, which cannot be called; expected a function.")
    return FunctionScorer(cast(Any, function))


_OPENING, _CLOSING = "<memory>", "</memory>"
_EXPLAIN_MEMORY = f"You may write {_OPENING}what matters{_CLOSING} in a reply: it replaces everything said before.\n"
_ASK_FOR_MEMORY = (
    "\n\nThe conversation is too long. Write down what you must remember; you will see nothing else of it."
)


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
            (reply,) = await self.model.chat_async([*earlier, Message(last.role, last.text + _ASK_FOR_MEMORY)])
            self._compact(_between_tags(reply.response_text) or reply.response_text)
        await super().play_turn(notes)
        if remembered := _between_tags(self.model.calls[-1].response_text):
            self._compact(remembered)

    def show(self, notes: str = "") -> list[Message]:
        memory = f"What you remember: {self._memory}\n" if self._memory else ""
        shown = self.episode.history[self._first_shown :]
        return build_messages(self.episode.about, shown, self.task.context, notes=notes + _EXPLAIN_MEMORY + memory)

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


_ASK_FOR_REFLECTION = "You did not succeed. Say in one sentence what you will do differently."


class ReflectAndRetryWorkflow(EnvironmentWorkflow):
    """See the module's text. Turns and reflections are steps, counted through all attempts."""

    arg_names = frozenset({"max_attempts"})
    is_cut_at_calls = True

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        _max_attempts(workflow_args)

    async def run(self) -> Trajectory:
        notes = ""
        for _ in range(_max_attempts(self.task.workflow_args) - 1):
            await self.play_episode(notes)
            if self.episode.is_success or self.episode.failure:
                return self.end()
            # Only the last attempt is paid for.
            self.facts = {step: replace(known, reward=0.0) for step, known in self.facts.items()}
            notes = await self._reflect()
        await self.play_episode(notes)
        return self.end()

    async def _reflect(self) -> str:
        episode = self.episode
        conversation = build_messages(episode.about, episode.history, self.task.context)
        conversation[-1] = Message("user", f"{conversation[-1].text}\n{_ASK_FOR_REFLECTION}")
        (reply,) = await self.model.chat_async(conversation)
        self.model.step += 1
        return f"Earlier you failed and said: {reply.response_text}\n"


def _max_attempts(workflow_args: Mapping[str, Any]) -> int:
    return read_count(workflow_args, "max_attempts", 2)
