"""Rewards from a judge: for worlds that give none of their own, or beside theirs.

In come finished trajectories; out come the same ones with the judge's score as the reward of their last turn, or added
to it: what a workflow pays itself is never replaced. A reward model scores all in one go, a function one after each
episode. A trajectory that failed is left alone, and one that cannot be scored becomes a failure: data, not an
exception. It refuses to know how a score is found.
"""

from __future__ import annotations

import asyncio
import reprlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, SupportsFloat, TypeAlias

import numpy as np
from numpy.typing import NDArray

from turnwise.config.schema_learn import BesideEnv, FilterScore, NoFilter, ThresholdFilter, TopKFilter, TopPFilter
from turnwise.errors import RewardError
from turnwise.infra.threads import DaemonThreads
from turnwise.infra.untrusted import format_error, parse_reward, show
from turnwise.protocols import Judge
from turnwise.types import Group, Info, Message, Metrics, StopReason, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """One turn as `reward.shaping` sees it, when its episode is over."""

    tag: str
    """Which environment."""
    number: int
    """Counted from 0."""
    is_last: bool
    observation: str
    response: str
    """The whole reply."""
    actions: tuple[str, ...]
    reward: float
    """Raw."""
    is_valid: bool
    is_effective: bool
    is_success: bool | None
    """Whether the episode succeeded with this turn, the last; None: nobody said. False in all before it."""
    metrics: Metrics
    info: Info


Shaping: TypeAlias = Callable[[PlayedTurn], SupportsFloat]
"""The reward that is learnt from, in place of the raw one."""


def shape_rewards(trajectories: Sequence[Trajectory], shaping: Shaping) -> list[Trajectory]:
    """The trajectories in the same order; those that failed are left alone."""
    return [t if t.stop_reason.is_error else _shape(t, shaping) for t in trajectories]


def _shape(trajectory: Trajectory, shaping: Shaping) -> Trajectory:
    try:
        return replace(trajectory, turns=tuple(_shaped_turns(trajectory, shaping)))
    except RewardError as error:
        return fail(trajectory, f"reward.shaping: {error}")


def fail(trajectory: Trajectory, failure: str) -> Trajectory:
    """The same episode where its rewards cannot be told; whether it would have said if it succeeded stays as it is."""
    is_success = None if trajectory.is_success is None else False
    return replace(trajectory, stop_reason=StopReason.ENV_ERROR, failure=failure, is_success=is_success)


def _shaped_turns(trajectory: Trajectory, shaping: Shaping) -> Iterator[Turn]:
    for turn in trajectory.turns:
        is_last = turn is trajectory.turns[-1]
        played = PlayedTurn(
            tag=trajectory.task.tag,
            number=turn.index,
            is_last=is_last,
            observation=turn.observation,
            response=turn.response_text,
            actions=turn.actions,
            reward=turn.reward,
            is_valid=turn.is_valid,
            is_effective=turn.is_effective,
            is_success=trajectory.is_success if is_last else False,
            metrics=turn.metrics,
            info=turn.info,
        )
        yield replace(turn, shaping=_ask(shaping, played) - turn.reward)


def _ask(shaping: Shaping, played: PlayedTurn) -> float:
    name = getattr(shaping, "__name__", repr(shaping))
    try:
        given: object = shaping(played)
    except Exception as error:
        raise RewardError(f"{name} failed at turn {played.number}: {format_error(error)}") from error
    return parse_reward(given, f"{name}, at turn {played.number}, returned")


_MAX_CALLS = 32
"""Calls of a user's function that run at the same time; further ones wait for their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardScoring:
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
        return isinstance(self.judge, FunctionScorer)

    def apply(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories in the same order, the judged ones with their scores."""
        judged = [t for t in trajectories if self._is_judged(t)]
        scores = self.judge.score([conversation_of(t) for t in judged]) if judged else []
        return self._with_scores(trajectories, judged, scores)

    async def apply_async(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """`apply` for coroutines: the event loop is free while a user's function scores."""
        if not isinstance(self.judge, FunctionScorer):
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
                score = parse_reward(score, "the judge's score is")
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


class FunctionScorer:
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
            return RewardError(f"{name}({show(prompt)}, {show(response)}) failed: {format_error(error)}")
        try:
            # A text such as "0.5" has no __float__, so it is refused although float() would read it.
            return parse_reward(score, f"{name} returned")
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


RewardFn: TypeAlias = Callable[[list[Trajectory]], Sequence[Any]]
"""One score for each trajectory: a number for its end, or a list with a number for each of its turns."""


def score_groups(groups: Sequence[Group], reward_fn: RewardFn) -> list[Group]:
    """All episodes of a rollout, greedy ones included, scored in one call."""
    plays = [play for group in groups for play in _plays(group) if play.turns and not play.stop_reason.is_error]
    if not plays:
        return list(groups)
    scores = reward_fn(plays)
    if not hasattr(scores, "__len__") or len(scores) != len(plays):
        raise RewardError(
            f"reward_fn returned {reprlib.repr(scores)}; expected one score for each of {len(plays)} trajectories."
        )
    done = {id(play): _with_score(play, score) for play, score in zip(plays, scores, strict=True)}
    return [
        replace(
            group,
            trajectories=tuple(done.get(id(play), play) for play in group.trajectories),
            greedy=done.get(id(group.greedy), group.greedy),
        )
        for group in groups
    ]


def _plays(group: Group) -> Iterator[Trajectory]:
    yield from group.trajectories
    if group.greedy is not None:
        yield group.greedy


def _with_score(play: Trajectory, score: object) -> Trajectory:
    num_turns = len(play.turns)
    given = [*[0.0] * (num_turns - 1), score] if isinstance(score, SupportsFloat) else score
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != num_turns:
        raise RewardError(
            f"reward_fn returned {reprlib.repr(score)} for {play.id}; expected a number, or one for each of its "
            f"{num_turns} turns."
        )
    rewards = [parse_reward(one, f"reward_fn, for {play.id}, returned") for one in given]
    return replace(
        play,
        turns=tuple(
            replace(turn, reward=reward, metrics={**turn.metrics, "env_reward": turn.reward})
            for turn, reward in zip(play.turns, rewards, strict=True)
        ),
    )


Scores = NDArray[np.float64]


def score_group(group: Group, by: FilterScore) -> float:
    """Over the siblings that did not fail; a group of failures has no score and never passes."""
    played = [t for t in group.trajectories if not t.stop_reason.is_error]
    if not played:
        return float("nan")
    match by:
        case "reward_std":
            return float(np.std([t.episode_return for t in played]))
        case "reward_mean":
            return float(np.mean([t.episode_return for t in played]))
        case "length":
            return float(np.mean([len(t.turns) for t in played]))


def filter_groups(
    groups: Sequence[Group], settings: NoFilter | TopKFilter | TopPFilter | ThresholdFilter
) -> list[Group]:
    """The groups that pass, in playing order."""
    if isinstance(settings, NoFilter):
        return list(groups)
    scores = np.array([score_group(group, settings.by) for group in groups])
    known = np.flatnonzero(~np.isnan(scores))
    match settings:
        case TopKFilter():
            kept = _top_k(scores, known, settings)
        case TopPFilter():
            kept = _top_p(scores, known, settings.share)
        case ThresholdFilter():
            above = -np.inf if settings.above is None else settings.above
            below = np.inf if settings.below is None else settings.below
            kept = known[(scores[known] > above) & (scores[known] < below)]
    return [groups[number] for number in sorted(kept)]


def _top_k(scores: Scores, known: NDArray[np.int64], settings: TopKFilter) -> NDArray[np.int64]:
    sign = -1 if settings.order == "largest" else 1
    num_kept = max(1, int(settings.share * len(scores)))
    return known[np.argsort(sign * scores[known], kind="stable")][:num_kept]


def _top_p(scores: Scores, known: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """The fewest groups, largest first, whose scores add up to `share` of the total."""
    weights = np.maximum(scores[known], 0.0)
    order = np.argsort(-weights, kind="stable")
    summed = np.cumsum(weights[order])
    if not len(known) or summed[-1] == 0:
        return known[:0]
    # The smallest prefix that reaches the share; rounding must not demand a group of weight zero.
    num_kept = int(np.searchsorted(summed, share * summed[-1] * (1 - 1e-12))) + 1
    return known[order[:num_kept]]
