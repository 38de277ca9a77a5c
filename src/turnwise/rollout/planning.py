"""A built-in workflow that plans before it acts, and plans again on the way.

`rollout.workflow: plan_and_act` with `workflow_args: {replan_every: 5}`; without it there is one plan, at the start. A
plan is a call of the step that it is made for, so it earns what its step leads to. It stays in the conversation where
it was made, and stands before the first state where a window hides that turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.context.answer import count_shown, show_history
from turnwise.rollout.environment import EnvironmentWorkflow
from turnwise.rollout.workflow import read_count
from turnwise.types import Message

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
        turn = len(episode.history) - count_shown(len(episode.history), context)
        hidden = [plan for number, plan in self._plans.items() if number < turn]
        notes = f"Your plan: {hidden[-1]}\n" if hidden else ""
        messages: list[Message] = []
        for message in show_history(episode.about, episode.history, context, notes=notes):
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
