"""A built-in workflow that says several things and does the best of them.

`rollout.workflow: best_of_n` with `workflow_args: {n: 4, judge: policy}`. Each turn samples `n` replies, and the judge
chooses the one that is played. The judge is the policy itself, asked which one is best, or a function `(prompt,
response) -> number`: `judge: 'package.module:function'`. All of it is one step: what is learnt is to be good at saying
`n` things and choosing, so the reward of the step counts for the candidates that were not chosen as well.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from turnwise.config.component import import_target
from turnwise.context.recorder import Response
from turnwise.errors import ConfigError, RewardError
from turnwise.rollout.environment import StepWiseEnvironmentWorkflow
from turnwise.rollout.judges import FunctionJudge
from turnwise.rollout.workflow import read_count
from turnwise.types import Message

_ASK = "\n\nWhich of these replies is best? Write its number.\n"
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
        (verdict,) = await self.model.chat_async([*earlier, Message(last.role, last.text + _ASK + listed)])
        found = re.search(r"\d{1,3}", verdict.response_text)
        number = int(found.group()) if found else 1
        return number - 1 if 1 <= number <= len(candidates) else 0

    async def _ask_function(
        self, judge: FunctionJudge, messages: Sequence[Message], candidates: Sequence[Response]
    ) -> int:
        said = [[messages[-1], Message("assistant", reply.response_text)] for reply in candidates]
        given = await asyncio.get_running_loop().run_in_executor(self.task.threads, judge.score, said)
        scores = [float("-inf") if isinstance(score, RewardError) else score for score in given]
        if all(isinstance(score, RewardError) for score in given):
            raise cast(RewardError, given[0])
        return scores.index(max(scores))


def _find_judge(workflow_args: Mapping[str, Any]) -> FunctionJudge | None:
    """None: the policy judges."""
    where, given = "rollout.workflow_args.judge", workflow_args.get("judge", _POLICY)
    if given == _POLICY:
        return None
    if not isinstance(given, str) or ":" not in given:
        raise ConfigError(f"{where} is {given!r}; expected 'policy' or 'package.module:function'.")
    function = import_target(given, where)
    if not callable(function):
        raise ConfigError(f"{where}: '{given}' is {function!r}, which cannot be called; expected a function.")
    return FunctionJudge(cast(Any, function))
