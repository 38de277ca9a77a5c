"""Rewards from a judge: for worlds that give none of their own, or beside theirs.

In come finished trajectories; out come the same ones with the judge's score as the reward of their last turn, or added
to it: what a workflow pays itself is never replaced. A reward model scores all in one go, a function one after each
episode. A trajectory that failed is left alone, and one that cannot be scored becomes a failure: data, not an
exception. It refuses to know how a score is found.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from typing import SupportsFloat

from turnwise.config.schema_learn import BesideEnv
from turnwise.errors import RewardError
from turnwise.infra.threads import DaemonThreads
from turnwise.infra.untrusted import read_reward, show, tell_error
from turnwise.protocols import Judge
from turnwise.rollout.reward_shaping import fail
from turnwise.types import Message, Trajectory

_MAX_CALLS = 32
"""Calls of a user's function that run at the same time; further ones wait for their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """Who judges which environments, how much a score counts, and from where on it is a success."""

    judge: Judge
    tags: frozenset[str]
    """The environments without rewards of their own."""
    success_above: float
    """There a score above this is a success; other environments, and workflows, say themselves what one is."""
    weight: float = 1.0
    """What a score is multiplied with."""
    beside_env: BesideEnv = "leave"
    """What is done in all other environments."""
    is_beside_workflow: bool = False
    """Whether the workflow pays rewards of its own, also in environments without any."""

    @property
    def scores_singly(self) -> bool:
        """Whether an episode can be scored as soon as it has ended; a reward model wants all in one batch."""
        return isinstance(self.judge, FunctionJudge)

    def apply(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories in the same order, the judged ones with their scores."""
        judged = [t for t in trajectories if self._is_judged(t)]
        scores = self.judge.score([conversation_of(t) for t in judged]) if judged else []
        return self._with_scores(trajectories, judged, scores)

    async def apply_async(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """`apply` for coroutines: the event loop is free while a user's function scores."""
        if not isinstance(self.judge, FunctionJudge):
            return self.apply(trajectories)
        judged = [t for t in trajectories if self._is_judged(t)]
        scores = await self.judge.score_async([conversation_of(t) for t in judged])
        return self._with_scores(trajectories, judged, scores)

    def _with_scores(
        self,
        trajectories: Sequence[Trajectory],
        judged: Sequence[Trajectory],
        scores: Sequence[float | RewardError],
    ) -> list[Trajectory]:
        done = {t.id: self._with_score(t, score) for t, score in zip(judged, scores, strict=True)}
        return [done.get(trajectory.id, trajectory) for trajectory in trajectories]

    def _is_judged(self, trajectory: Trajectory) -> bool:
        if not trajectory.turns or trajectory.stop_reason.is_error:
            return False
        if self._gives_alone(trajectory):
            return True
        if self.beside_env == "fill":
            return _earned_nothing(trajectory)
        return trajectory.task.tag in self.tags or self.beside_env == "add"

    def _gives_alone(self, trajectory: Trajectory) -> bool:
        is_unpaid = not self.is_beside_workflow or _earned_nothing(trajectory)
        return trajectory.task.tag in self.tags and is_unpaid

    def _with_score(self, trajectory: Trajectory, score: float | RewardError) -> Trajectory:
        if not isinstance(score, RewardError):
            try:
                score = read_reward(score, "the judge's score is")
            except RewardError as error:
                score = error
        if isinstance(score, RewardError):
            return fail(trajectory, f"reward.judge: {score}")
        *earlier, last = trajectory.turns
        given, is_alone = self.weight * score, self._gives_alone(trajectory)
        paid = replace(last, reward=given if is_alone else last.reward + given, judged=given)
        is_success = score > self.success_above if self._decides(trajectory) else trajectory.is_success
        return replace(trajectory, turns=(*earlier, paid), is_success=is_success)

    def _decides(self, trajectory: Trajectory) -> bool:
        """Whether the score says what a success is: where no environment does, and no workflow has."""
        is_said = self.is_beside_workflow and trajectory.is_success is not None
        return trajectory.task.tag in self.tags and not is_said


def _earned_nothing(trajectory: Trajectory) -> bool:
    return all(turn.reward == 0 for turn in trajectory.turns)


def conversation_of(trajectory: Trajectory) -> list[Message]:
    """What was said: each turn's observation and the reply to it."""
    return [
        message
        for turn in trajectory.turns
        for message in (Message("user", turn.observation), Message("assistant", turn.response_text))
    ]


class FunctionJudge:
    """`reward.judge: {type: function}`: a user's function, plain or a coroutine, scores the first prompt and the last
    reply.

    Calls run in threads of their own, so that a slow one holds up neither the others nor the event loop of the run.
    """

    def __init__(self, function: Callable[[str, str], SupportsFloat | Awaitable[SupportsFloat]]) -> None:
        self._function = function
        self._threads = DaemonThreads(_MAX_CALLS, "scorer")

    def score(self, conversations: Sequence[Sequence[Message]]) -> list[float | RewardError]:
        return [call.result() for call in self._submit(conversations)]

    async def score_async(self, conversations: Sequence[Sequence[Message]]) -> list[float | RewardError]:
        return await asyncio.gather(*map(asyncio.wrap_future, self._submit(conversations)))

    def _submit(self, conversations: Sequence[Sequence[Message]]) -> list[Future[float | RewardError]]:
        return [self._threads.submit(self._score_one, conversation) for conversation in conversations]

    def _score_one(self, conversation: Sequence[Message]) -> float | RewardError:
        prompt, response = conversation[0].text, conversation[-1].text
        name = getattr(self._function, "__name__", repr(self._function))
        try:
            score: object = self._function(prompt, response)
            if isinstance(score, Awaitable):
                score = asyncio.run_coroutine_threadsafe(_await(score), _event_loop()).result()
        except Exception as error:  # noqa: BLE001 - the boundary: a user's function may raise whatever it likes
            return RewardError(f"{name}({show(prompt)}, {show(response)}) failed: {tell_error(error)}")
        try:
            # A text such as "0.5" has no __float__, so it is refused although float() would read it.
            return read_reward(score, f"{name} returned")
        except RewardError as error:
            return error


async def _await(score: Awaitable[object]) -> object:
    return await score


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Where coroutines of scorers run: one loop for the whole process, so that a client which they keep open stays
    usable from one rollout to the next."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="scorer-loop", daemon=True).start()
    return loop
