"""N explorers and M learners on paper: what a run would do, simulated event by event from measured constants.

The loop is the one that runs: rollout n is admitted by the rules of `sync`, its episodes are dealt out among the
explorers, update n learns from it, and weights are published and loaded as the rules say. In: constants, and who takes
part. Out: a `Forecast`. What is learnt is not simulated: every step plays episodes as long as the measured ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from turnwise.lab.scale_clock import Clock, Then
from turnwise.lab.scale_constants import Constants
from turnwise.lab.scale_explorer import SimulatedExplorer

_NUM_STEPS = 24
_NUM_TRIES = 14
"""Of the search for what no metric tells."""
_FAR = float("inf")


class Rules(Protocol):
    """When weights move: `sync.styles.SyncRules`."""

    def needed_for(self, rollout: int) -> int: ...

    def may_load(self, rollout: int) -> bool: ...

    def should_ask(self, num_rollouts: int) -> bool: ...

    def should_publish(self, done: int, published: int, requested: int | None) -> bool: ...

    def should_answer(self, done: int, published: int, requested: int | None) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Who takes part, and what they share."""

    rules: Rules
    max_running: int
    """Rollouts that are begun and not yet learnt from, at most."""
    explorers: int = 1
    learners: int = 1
    cores: float = _FAR
    """That all of them share; without a number, each has its own."""
    is_one_process: bool = True
    """Whether the first explorer and the trainer share a process, as in the loops of one machine."""
    is_engine_apart: bool = False
    """Whether engines are servers, which compute while their explorers do something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What such a run would do, once it runs steadily."""

    step_s: float
    tokens_per_s: float
    """Sampled."""
    staleness_mean: float
    staleness_max: int
    learn_share: float
    """Of the time in which the learners work; the others: the trainer waits for rollouts, or publishes and writes."""
    wait_share: float
    engine_share: float
    """Of the time in which an explorer computes, on average; the rest it waits for worlds, or has nothing to play."""

    @property
    def steps_per_s(self) -> float:
        return 1 / self.step_s


def simulate(constants: Constants, placement: Placement, *, seed: int = 0, num_steps: int = _NUM_STEPS) -> Forecast:
    """Play the loop until it has made its steps; the first ones are not counted."""
    return _Cluster(constants, placement, seed).run(num_steps)


def calibrate(constants: Constants, placement: Placement, *, step_s: float) -> Constants:
    """The same with `turn_s`: what explains the rest of a measured step, where all else is known."""

    def is_too_fast(turn_s: float) -> bool:
        return simulate(replace(constants, turn_s=turn_s), placement, num_steps=12).step_s < step_s

    if not is_too_fast(0.0):
        return replace(constants, turn_s=0.0)
    low, high = 0.0, step_s
    for _ in range(_NUM_TRIES):
        middle = (low + high) / 2
        low, high = (middle, high) if is_too_fast(middle) else (low, middle)
    return replace(constants, turn_s=(low + high) / 2)


@dataclass(slots=True)
class _Rollout:
    number: int
    seen: list[int]
    """The weights of each turn."""
    num_shares_left: int

    @property
    def is_over(self) -> bool:
        return self.num_shares_left == 0


class _Cluster:
    """Admits rollouts, learns from them in order, moves weights; the numbers are steps, as in `sync/styles.py`."""

    def __init__(self, constants: Constants, placement: Placement, seed: int) -> None:
        self._constants = constants
        self._placement = placement
        self._dice = np.random.default_rng(seed)
        self._clock = Clock(placement.cores)
        self._explorers = [
            SimulatedExplorer(self._clock, constants, is_engine_apart=placement.is_engine_apart)
            for _ in range(placement.explorers)
        ]
        self._rollouts: dict[int, _Rollout] = {}
        self._next = 1
        self._is_admitting = False
        self._mark = 0
        self._num_admitted = 0
        """Since the weights were loaded."""
        self._done, self._published, self._requested = 0, 0, -1
        self._is_updating = False
        self._waiting_since_s = 0.0
        self._ends_s: list[float] = []
        self._waits_s: list[float] = []
        self._staleness: list[list[int]] = []
        self._counted: list[tuple[float, float]] = []
        """After each update: how long explorers have worked, and what they have sampled."""

    def run(self, num_steps: int) -> Forecast:
        self._go_on()
        self._clock.run_until(lambda: self._done >= num_steps)
        # Until as many rollouts are under way as may be, and one more.
        first = min(self._placement.max_running + 2, num_steps // 2)
        span_s = self._ends_s[-1] - self._ends_s[first - 1]
        steps = num_steps - first
        (busy_before, tokens_before), (busy_s, tokens) = self._counted[first - 1], self._counted[-1]
        ages = [age for of_step in self._staleness[first:] for age in of_step]
        return Forecast(
            step_s=span_s / steps,
            tokens_per_s=(tokens - tokens_before) / span_s,
            staleness_mean=float(np.mean(ages)),
            staleness_max=max(ages),
            learn_share=self._learn_s * steps / span_s,
            wait_share=sum(self._waits_s[first:]) / span_s,
            engine_share=(busy_s - busy_before) / span_s / len(self._explorers),
        )

    @property
    def _learn_s(self) -> float:
        learners = self._placement.learners
        # A ring sends all but one part of everything, twice.
        return self._constants.learn_s / learners + self._constants.reduce_s * 2 * (learners - 1) / learners

    def _go_on(self) -> None:
        self._admit()
        self._update()

    # --- the explorers -----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """The next rollout, as soon as there is room for it and its weights are there."""
        if self._is_admitting or len(self._rollouts) >= self._placement.max_running:
            return
        rules, number = self._placement.rules, self._next
        if rules.may_load(number) and self._published > self._mark:
            self._is_admitting = True
            self._load(self._published)
        elif self._mark >= rules.needed_for(number):
            self._begin(number)
            self._admit()
        elif self._requested < rules.needed_for(number):
            self._requested = rules.needed_for(number)
            self._answer()

    def _load(self, version: int) -> None:
        def loaded() -> None:
            self._mark, self._num_admitted, self._is_admitting = version, 0, False
            self._go_on()

        then = _after_all(len(self._explorers), loaded)
        for explorer in self._explorers:
            explorer.load(version, then)

    def _begin(self, number: int) -> None:
        self._next += 1
        self._num_admitted += 1
        if self._placement.rules.should_ask(self._num_admitted):
            self._requested = max(self._requested, self._mark + 1)
        turns = self._constants.draw_turns(self._constants.episodes, self._dice)
        rollout = _Rollout(number=number, seen=[], num_shares_left=len(self._explorers))
        self._rollouts[number] = rollout

        def share_is_over() -> None:
            rollout.num_shares_left -= 1
            if rollout.is_over:
                self._go_on()

        for place, explorer in enumerate(self._explorers):
            explorer.play(turns[place :: len(self._explorers)], rollout.seen, share_is_over)

    # --- the trainer -------------------------------------------------------------------------------------------------

    def _update(self) -> None:
        rollout = self._rollouts.get(self._done + 1)
        if self._is_updating or rollout is None or not rollout.is_over:
            return
        self._is_updating = True
        del self._rollouts[rollout.number]
        self._waits_s.append(self._clock.now - self._waiting_since_s)
        self._staleness.append([rollout.number - 1 - version for version in rollout.seen])
        learnt = _after_all(self._placement.learners, self._write_down)

        def learn() -> None:
            for _ in range(self._placement.learners):
                self._clock.work(self._learn_s, learnt)

        self._do(self._constants.buffer_s, learn)
        self._admit()

    def _write_down(self) -> None:
        self._do(self._constants.other_s, self._finish_update)

    def _finish_update(self) -> None:
        self._done += 1
        self._ends_s.append(self._clock.now)
        self._counted.append((sum(e.busy_s for e in self._explorers), sum(e.tokens for e in self._explorers)))
        requested = self._requested if self._requested >= 0 else None
        if self._placement.rules.should_publish(self._done, self._published, requested):
            self._publish()
        else:
            self._rest()

    def _answer(self) -> None:
        """A trainer that waits gives the explorers what they ask for, if there is any."""
        if not self._is_updating and self._placement.rules.should_answer(self._done, self._published, self._requested):
            self._is_updating = True
            self._publish()

    def _publish(self) -> None:
        def published() -> None:
            self._published = self._done
            self._rest()

        self._do(self._constants.post_s, published)

    def _rest(self) -> None:
        self._is_updating = False
        self._waiting_since_s = self._clock.now
        self._go_on()

    def _do(self, seconds: float, then: Then) -> None:
        """What the trainer's process does itself; where it also plays, nothing is played meanwhile."""
        if self._placement.is_one_process:
            self._explorers[0].do(seconds, then)
        else:
            self._clock.work(seconds, then)


def _after_all(number: int, then: Then) -> Then:
    """To be called so many times; the last call goes on."""
    left = number

    def one() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            then()

    return one


# --- what would help --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """Something that could be twice as fast, and what that would be worth."""

    name: str
    gain: float
    """By which share there would be more steps in the same time."""


def find_levers(constants: Constants, placement: Placement, forecast: Forecast, *, seed: int = 0) -> list[Lever]:
    """Every part of a run made twice as fast by itself; what helps most is the bottleneck, and stands first."""
    half = {
        "explorer": ("pass_s", "row_s", "turn_s"),
        "environment": ("env_s",),
        "learner": ("learn_s", "reduce_s"),
        "sync": ("post_s", "load_s"),
        "buffer": ("buffer_s",),
        "report": ("other_s",),
    }
    tried = [
        (name, replace(constants, **{key: getattr(constants, key) / 2 for key in keys}))
        for name, keys in half.items()
        if any(getattr(constants, key) for key in keys)
    ]
    levers = [
        Lever(name=name, gain=forecast.step_s / simulate(faster, placement, seed=seed).step_s - 1)
        for name, faster in tried
    ]
    return sorted(levers, key=lambda lever: -lever.gain)
