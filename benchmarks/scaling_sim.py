"""Simulates larger clusters from a finished run: seconds per step with N explorers and M learners, and the bottleneck.

    python -m benchmarks.scaling_sim RUN --explorers 1,2,4 [--learners 1,2] [--env-seconds 0.1] [name=value ...]

Constants come from the run's metrics, config and trajectories; without RUN all are given as `name=value`. How well
forecasts fit runs, and a worked example: benchmarks/scaling_sim.md.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, RunError, TurnwiseError, did_you_mean
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import read_trajectories
from turnwise.sync.sync_schedule import SyncRules, list_policies

_FAR = float("inf")
_NUM_WARM = 2
"""Steps at the start that are not counted: caches fill, and threads are made."""
_TOKEN_BYTES = 4 + 1 + 4 + 4
"""Of a token in an experience: its id, its mask, its log-prob, its turn."""
_MIN_EPISODES = 20
"""From so many on, recorded episodes say how long episodes are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Seconds are those of one worker that has what it needs for itself."""

    episodes: int = 64
    """Of one rollout, all siblings counted."""
    turns: float = 5.0
    """Of an episode, on average."""
    turn_counts: tuple[int, ...] = ()
    """Of recorded episodes; without any, lengths are spread as if each turn might be the last one."""
    max_turns: int = 10
    reply_tokens: float = 16.0
    pass_s: float = 0.0
    """A forward pass of an engine, whatever is in it."""
    row_s: float = 0.0
    """What each sequence in it adds."""
    turn_s: float = 0.0
    """Of the explorer's own time for one turn: the prompt, reading the reply, a world that answers at once."""
    env_s: float = 0.0
    """How long the world is waited for in each turn."""
    learn_s: float = 1.0
    """One update by one learner."""
    reduce_s: float = 0.0
    """What learners add to an update to exchange gradients, if they sent them once around a ring."""
    post_s: float = 0.0
    """For the trainer to publish weights."""
    load_s: float = 0.0
    """For an engine to load them."""
    buffer_s: float = 0.0
    """To store one rollout and take it out again."""
    other_s: float = 0.0
    """To write down what a step did."""
    max_concurrent: int | None = None
    """Episodes of a rollout at the same time in one explorer; None: all."""
    max_rows: int = 512
    experience_bytes: float = 0.0
    experiences: float = 0.0
    """Of one rollout."""
    sync_bytes: float = 0.0

    def draw_turns(self, num_episodes: int, dice: np.random.Generator) -> list[int]:
        """How many turns each of so many episodes has."""
        if self.turn_counts:
            return [int(n) for n in dice.choice(self.turn_counts, num_episodes)]
        return [int(n) for n in np.minimum(dice.geometric(1 / max(self.turns, 1.0), num_episodes), self.max_turns)]


def read_numbers(words: Sequence[str], base: Constants) -> Constants:
    """The constants with some of them given: `learn_s=2.5`."""
    given: dict[str, Any] = {}
    kinds = {field.name: field.type for field in fields(Constants) if field.name != "turn_counts"}
    for word in words:
        name, _, text = word.partition("=")
        if name not in kinds:
            raise ConfigError(f"'{name}' is no constant of the simulator. {did_you_mean(name, kinds)}")
        try:
            given[name] = int(text) if str(kinds[name]).startswith("int") else float(text)
        except ValueError as error:
            raise ConfigError(f"{name}: {text!r} given; expected a number.") from error
        if not 0 <= given[name] < float("inf"):
            raise ConfigError(f"{name}: {text} given; expected a number that is not below 0.")
    if given.keys() & {"turns", "max_turns"}:
        given["turn_counts"] = ()
    return replace(base, **given)


def read_constants(directory: RunDirectory, settings: TurnwiseSettings, *, env_s: float = 0.0) -> Constants:
    """What a run's metrics tell, all but `turn_s`; `env_s` is how long its world was waited for in each turn."""
    rows = read_steps(directory)
    explored = directory.read_explorer_metrics()[_NUM_WARM:] or rows
    num_episodes = sum(groups for groups in (settings.rollout.groups, *_mixed_groups(settings)))
    pass_s, row_s = _fit_passes(explored)
    post_s = _mean(rows, "time/sync_s")
    row_tokens = _mean(rows, "learn/tokens") / max(_mean(rows, "learn/rows"), 1.0)
    return Constants(
        episodes=num_episodes * settings.rollout.group_size,
        turns=max(_mean(explored, "rollout/num_turns"), 1.0),
        turn_counts=_turn_counts(directory),
        max_turns=settings.rollout.max_turns,
        reply_tokens=max(_mean(explored, "rollout/response_tokens"), 1.0),
        pass_s=pass_s,
        row_s=row_s,
        env_s=env_s,
        learn_s=_mean(rows, "time/learn_s"),
        post_s=post_s,
        # The same bytes once more; a run does not say it apart.
        load_s=post_s,
        # Evaluations and checkpoints are charged to a few steps; the others show what writing takes.
        other_s=statistics.median(row["time/other_s"] for row in rows),
        max_concurrent=settings.rollout.max_concurrent,
        max_rows=getattr(settings.engine, "max_rows", 512),
        experience_bytes=row_tokens * _TOKEN_BYTES,
        experiences=_mean(rows, "learn/unmerged_rows"),
        sync_bytes=_policy_bytes(directory),
    )


def read_steps(directory: RunDirectory) -> list[dict[str, float]]:
    """The metrics of all steps that count."""
    steps = [row for row in directory.read_metrics() if row.get("time/learn_s") is not None]
    if len(steps) <= _NUM_WARM:
        raise RunError(
            f"run {directory.path} has {len(steps)} steps with their times; expected more than {_NUM_WARM}, of which "
            "the first ones are left out."
        )
    return steps[_NUM_WARM:]


def measured_step_s(directory: RunDirectory) -> float:
    """How long a step of a run took, without evaluations and checkpoints."""
    rows = read_steps(directory)
    other_s = statistics.median(row["time/other_s"] for row in rows)
    return other_s + sum(_mean(rows, f"time/{name}_s") for name in ("rollout", "env", "learn", "sync"))


def measured_staleness(directory: RunDirectory) -> float:
    """How many updates old the weights were that an update learnt from, on average."""
    return _mean(read_steps(directory), "sync/staleness_mean")


def measured_tokens(directory: RunDirectory) -> float:
    """Sampled tokens that an update learnt from, on average."""
    return _mean(read_steps(directory), "learn/action_tokens")


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float:
    values = [row[name] for row in rows if row.get(name) is not None]
    return statistics.fmean(values) if values else 0.0


def _mixed_groups(settings: TurnwiseSettings) -> list[int]:
    return [other.groups for other in settings.mix.by_tag().values()]


def _fit_passes(rows: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """What a pass and each of its rows take: a straight line through all passes that an engine counted, if it did."""
    names = [f"time/engine_{name}" for name in ("passes", "rows", "rows_squared", "busy_s", "busy_row_s")]
    counted = [[row[name] for name in names] for row in rows if all(name in row for name in names)]
    if len(counted) < _NUM_WARM:
        return 0.0, 0.0
    passes, num_rows, squared, seconds, row_s = np.subtract(counted[-1], counted[0])
    if not passes:
        return 0.0, 0.0
    spread = passes * squared - num_rows**2
    slope = max(0.0, (passes * row_s - num_rows * seconds) / spread) if spread > 0 else 0.0
    start = (seconds - slope * num_rows) / passes
    # A line that begins below nothing begins at nothing.
    return (float(start), float(slope)) if start >= 0 else (0.0, float(seconds / num_rows))


def _turn_counts(directory: RunDirectory) -> tuple[int, ...]:
    files = sorted(directory.trajectories.glob("step-*.jsonl"))[_NUM_WARM:]
    counts = tuple(len(played.turns) for file in files for played in read_trajectories(file) if played.turns)
    return counts if len(counts) >= _MIN_EPISODES else ()


def _policy_bytes(directory: RunDirectory) -> float:
    checkpoint = directory.latest_checkpoint()
    files = checkpoint.glob("policy/*.safetensors") if checkpoint else ()
    return float(sum(file.stat().st_size for file in files))


Then: TypeAlias = Callable[[], None]
_NOTHING = 1e-12
"""Work that is left over by rounding."""


class Clock:
    """`cores` is how many can work at full speed; more share them evenly. Waits need none."""

    def __init__(self, cores: float) -> None:
        self.now = 0.0
        self._cores = cores
        self._waits: list[tuple[float, int, Then]] = []
        self._numbers = count()
        self._work: dict[int, tuple[float, Then]] = {}

    def wait(self, seconds: float, then: Then) -> None:
        heapq.heappush(self._waits, (self.now + seconds, next(self._numbers), then))

    def work(self, seconds: float, then: Then) -> None:
        """`seconds` of a core that nobody else wants."""
        self._work[next(self._numbers)] = (seconds, then)

    def run_until(self, is_over: Callable[[], bool]) -> None:
        """Raises RuntimeError where nothing is left to happen before that."""
        while not is_over():
            if not self._waits and not self._work:
                raise RuntimeError("the simulated cluster stands still: everybody waits for somebody else")
            self._advance()

    def _advance(self) -> None:
        """To the next thing that happens."""
        speed = min(1.0, self._cores / len(self._work)) if self._work else 1.0
        to_work = min((left for left, _ in self._work.values()), default=float("inf")) / speed
        to_wait = self._waits[0][0] - self.now if self._waits else float("inf")
        passed = max(0.0, min(to_work, to_wait))
        self.now += passed
        ended: list[Then] = []
        for number, (left, then) in list(self._work.items()):
            left -= passed * speed
            if left <= _NOTHING:
                del self._work[number]
                ended.append(then)
            else:
                self._work[number] = (left, then)
        while self._waits and self._waits[0][0] <= self.now + _NOTHING:
            ended.append(heapq.heappop(self._waits)[2])
        for then in ended:
            then()


_MAX_BITES = 4
"""Passes that stand for one reply, at most: a long reply is computed in pieces of several tokens."""


@dataclass(slots=True)
class _Reply:
    left: float
    """Tokens that are not sampled yet."""
    then: Then


class SimulatedExplorer:
    """One engine with its episodes; `version` are the weights that it has.

    An engine that is a server computes while the explorer's process reads replies and writes prompts; one that is in
    the process cannot.
    """

    def __init__(self, clock: Clock, constants: Constants, *, is_engine_apart: bool = False) -> None:
        self.version = 0
        self.busy_s = 0.0
        self.num_playing = 0
        self.tokens = 0.0
        self._clock = clock
        self._constants = constants
        self._bite = max(1.0, constants.reply_tokens / _MAX_BITES)
        self._waiting: list[_Reply] = []
        self._running: list[_Reply] = []
        self._loads: deque[tuple[int, Then]] = deque()
        self._chores: deque[tuple[float, Then]] = deque()
        self._is_engine_apart = is_engine_apart
        self._is_working = False
        """The engine; and the process beside it, where they are two."""
        self._is_process_working = False

    def play(self, turn_counts: Sequence[int], seen: list[int], then: Then) -> None:
        """Episodes of so many turns each, at most `max_concurrent` at a time; `seen` hears the weights of each turn."""
        waiting, left = deque(turn_counts), len(turn_counts)
        self.num_playing += 1

        def end() -> None:
            nonlocal left
            left -= 1
            if waiting:
                self._play_episode(waiting.popleft(), seen, end)
            elif left == 0:
                self.num_playing -= 1
                then()

        if not turn_counts:
            left = 1
            end()
        for _ in range(min(self._constants.max_concurrent or len(turn_counts), len(turn_counts))):
            self._play_episode(waiting.popleft(), seen, end)

    def load(self, version: int, then: Then) -> None:
        """Replace the weights once what is running has ended."""
        self._loads.append((version, then))
        self._go_on()

    def do(self, seconds: float, then: Then) -> None:
        """Something else that takes this process its time."""
        self._chores.append((seconds, then))
        self._go_on()

    def _play_episode(self, turns: int, seen: list[int], then: Then) -> None:
        def act() -> None:
            nonlocal turns
            turns -= 1
            if turns > 0:
                self._clock.wait(self._constants.env_s, ask)
            else:
                self._clock.wait(self._constants.env_s, then)

        def ask() -> None:
            if self._is_engine_apart:
                self.do(self._constants.turn_s, reach_engine)
            else:
                reach_engine()

        def reach_engine() -> None:
            seen.append(self.version)
            self._waiting.append(_Reply(self._constants.reply_tokens, act))
            self._settle()

        ask()

    # --- the engine --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Go on when all that happens at this moment has happened, so that who asks now shares the next pass."""
        self._clock.wait(0.0, self._go_on)

    def _go_on(self) -> None:
        """Whatever is next, if nothing is being done."""
        if self._is_engine_apart and self._chores and not self._is_process_working:
            self._do_chore(*self._chores.popleft())
        if self._is_working:
            return
        if self._chores and not self._is_engine_apart:
            self._work(*self._chores.popleft())
        elif self._loads and not self._running:
            version, then = self._loads.popleft()
            self._work(self._constants.load_s, lambda: self._have(version, then))
        elif self._running or (self._waiting and not self._loads):
            self._pass()

    def _do_chore(self, seconds: float, then: Then) -> None:
        self._is_process_working = True

        def end() -> None:
            self._is_process_working = False
            then()
            self._settle()

        self._clock.work(seconds, end)

    def _pass(self) -> None:
        constants, new = self._constants, 0
        if not self._loads:
            room = constants.max_rows - len(self._running)
            joining, self._waiting = self._waiting[:room], self._waiting[room:]
            self._running += joining
            new = len(joining)
        per_token_s = constants.pass_s + constants.row_s * len(self._running)
        own_s = 0.0 if self._is_engine_apart else constants.turn_s * new
        self._work(self._bite * per_token_s + own_s, self._sampled)

    def _sampled(self) -> None:
        self.tokens += sum(min(self._bite, reply.left) for reply in self._running)
        ended: list[_Reply] = []
        going_on: list[_Reply] = []
        for reply in self._running:
            reply.left -= self._bite
            (going_on if reply.left > 0 else ended).append(reply)
        self._running = going_on
        for reply in ended:
            reply.then()

    def _have(self, version: int, then: Then) -> None:
        self.version = version
        then()

    def _work(self, seconds: float, then: Then) -> None:
        self._is_working = True

        def end() -> None:
            self._is_working = False
            self.busy_s += seconds
            then()
            self._settle()

        self._clock.work(seconds, end)


_NUM_STEPS = 24
_NUM_TRIES = 14
"""Of the search for what no metric tells."""


class Rules(Protocol):
    """When weights move: `sync.styles.SyncRules`."""

    def required_version(self, rollout: int) -> int: ...

    def may_load(self, rollout: int) -> bool: ...

    def should_request(self, num_rollouts: int) -> bool: ...

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
    """Admits rollouts, learns from them in order, moves weights; numbers are steps, as in `sync/sync_schedule.py`."""

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
        elif self._mark >= rules.required_version(number):
            self._begin(number)
            self._admit()
        elif self._requested < rules.required_version(number):
            self._requested = rules.required_version(number)
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
        if self._placement.rules.should_request(self._num_admitted):
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


_SMALL_GAIN = 0.02
"""Below that, nothing stands in the way by itself."""
_WORDS = {
    "explorer": "the explorers: what they compute for each turn",
    "environment": "the environments: what they are waited for",
    "learner": "the learners: the update itself",
    "sync": "moving weights from the trainer to the engines",
    "buffer": "storing experience and taking it out",
    "report": "writing down what a step did",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One placement, what it would do, and what would help it."""

    explorers: int
    learners: int
    forecast: Forecast
    levers: tuple[Lever, ...]
    """Parts that would be twice as fast; what helps most stands first."""
    choices: tuple[Lever, ...]
    """Settings that could be chosen instead; what helps most stands first."""

    @property
    def bottleneck(self) -> str:
        return self.levers[0].name if self.levers and self.levers[0].gain > _SMALL_GAIN else "none alone"

    def to_dict(self) -> dict[str, object]:
        gains = {lever.name: lever.gain for lever in (*self.levers, *self.choices)}
        return {
            "explorers": self.explorers,
            "learners": self.learners,
            "steps_per_s": self.forecast.steps_per_s,
            **asdict(self.forecast),
            "bottleneck": self.bottleneck,
            "gains": gains,
        }


def to_table(rows: Sequence[Row]) -> Table:
    """N explorers and M learners; shares are of the time in which learners learn, and explorers compute."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("N x M", "step s", "tokens/s", "speed", "staleness", "learner", "explorer"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bottleneck", no_wrap=True)
    for row in rows:
        told = row.forecast
        table.add_row(
            f"{row.explorers} x {row.learners}",
            f"{told.step_s:.3g}",
            f"{told.tokens_per_s:,.0f}",
            f"{rows[0].forecast.step_s / told.step_s:.2f}",
            f"{told.staleness_mean:.2f} ({told.staleness_max})",
            f"{told.learn_share:.0%}",
            f"{told.engine_share:.0%}",
            row.bottleneck,
        )
    return table


def describe_row(row: Row) -> Text:
    """Where the bottleneck is, and what would help, in plain words."""
    who = f"{_count(row.explorers, 'explorer')}, {_count(row.learners, 'learner')}: "
    text = Text(who, style="bold")
    if row.bottleneck == "none alone":
        text.append("no part holds up the others by itself.", style="not bold")
    else:
        gain = f"twice as fast, there would be {row.levers[0].gain:.0%} more steps"
        text.append(f"the bottleneck is {_WORDS[row.bottleneck]}; {gain}.", style="not bold")
    helping = [f"{lever.name} ({lever.gain:+.0%})" for lever in row.choices if lever.gain > _SMALL_GAIN]
    text.append(f" What helps: {', '.join(helping)}." if helping else "", style="not bold")
    return text


def describe_constants(constants: Constants) -> list[str]:
    """What the forecast is made from, one line each."""
    speeds = ", ".join(f"{_tokens_per_s(constants, rows)} tokens/s with {rows}" for rows in (1, 16, 128))
    weights = f"{constants.sync_bytes / 1e6:.2f} MB, {constants.post_s:.2g} s to publish"
    stored = f"{constants.experiences:.0f} experiences of {constants.experience_bytes:,.0f} bytes"
    played = f"{constants.turns:.1f} turns with {constants.reply_tokens:.1f} tokens"
    passes = f"{1e3 * constants.pass_s:.2f} ms a pass and {1e3 * constants.row_s:.3f} ms for each row"
    told = {
        "rollout": f"{constants.episodes} episodes of {played}",
        "engine": f"{passes}: {speeds}",
        "explorer": f"{1e3 * constants.turn_s:.2f} ms of its own for each turn",
        "world": f"{1e3 * constants.env_s:.0f} ms waited for in each turn",
        "learner": f"{constants.learn_s:.3g} s an update",
        "sync": f"{weights}, {constants.load_s:.2g} s to load",
        "buffer": f"{stored} a step, {constants.buffer_s:.2g} s",
        "report": f"{constants.other_s:.2g} s a step",
    }
    return [f"{name:10}{words}" for name, words in told.items()]


def to_numbers(constants: Constants) -> dict[str, object]:
    """The constants for JSON; recorded lengths are told by their mean."""
    return {field.name: getattr(constants, field.name) for field in fields(Constants) if field.name != "turn_counts"}


def _tokens_per_s(constants: Constants, rows: int) -> str:
    pass_s = constants.pass_s + rows * constants.row_s
    return f"{rows / pass_s:,.0f}" if pass_s else "unknown"


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


_RUNNING_UNBOUNDED = 2
"""As `loop/split_processes.py` plays where nothing bounds staleness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleStudy:
    """What is asked for."""

    run: str | None = None
    explorers: tuple[int, ...] = (1, 2, 4, 8)
    learners: tuple[int, ...] = (1,)
    env_s: float | None = None
    """How long the world is waited for in each turn; None: as in the run."""
    run_env_s: float = 0.0
    """The same in the run itself: where others play meanwhile, its metrics do not say."""
    max_staleness: int | None = None
    """None: as in the run."""
    cores: float = _FAR
    constants: tuple[str, ...] = ()
    """`name=value`, over what the run tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleReport:
    constants: Constants
    rows: tuple[Row, ...]


def study_scale(study: ScaleStudy) -> ScaleReport:
    if study.run is None:
        bound = study.max_staleness or 0
        constants, own = Constants(), Placement(rules=_bounded(bound), max_running=bound + 1, is_engine_apart=True)
    else:
        directory = RunDirectory.open(Path(study.run))
        settings = load_settings(str(directory.config), ["context.template=null"])
        constants = measure(directory, settings, env_s=study.run_env_s, cores=study.cores)
        own = place(settings, max_staleness=study.max_staleness)
    if study.env_s is not None:
        constants = replace(constants, env_s=study.env_s)
    constants = read_numbers(study.constants, constants)
    rows = [
        _forecast(
            constants,
            replace(
                own,
                explorers=explorers,
                learners=learners,
                cores=study.cores,
                # Whoever has others beside it is a process of its own.
                is_one_process=explorers == learners == 1,
            ),
        )
        for learners in study.learners
        for explorers in study.explorers
    ]
    return ScaleReport(constants=constants, rows=tuple(rows))


def measure(
    directory: RunDirectory, settings: TurnwiseSettings, *, env_s: float, cores: float, known: Sequence[str] = ()
) -> Constants:
    """The constants of a run, some `known` as `name=value`; what no metric tells explains the rest of a step."""
    constants = read_numbers(known, read_constants(directory, settings, env_s=env_s))
    placement = replace(place(settings), cores=cores)
    # What one learner takes is not measured where several shared the work.
    constants = replace(constants, learn_s=constants.learn_s * placement.learners)
    return calibrate(constants, placement, step_s=measured_step_s(directory))


def place(settings: TurnwiseSettings, *, max_staleness: int | None = None) -> Placement:
    """Where the parts of a run are, and when its weights move."""
    cluster: Any = getattr(settings, "cluster", None)
    parallel: Any = getattr(settings.learn, "parallel", None)
    is_alone = settings.run.mode != "both"
    if max_staleness is not None:
        rules, max_running = _bounded(max_staleness, settings.sync.style, settings.sync.interval), max_staleness + 1
    elif settings.loop.type == "serial" and not is_alone:
        rules, max_running = _bounded(0, interval=settings.sync.interval), 1
    else:
        rules = list_policies(settings.sync, is_alone=is_alone)
        max_running = _RUNNING_UNBOUNDED if rules.max_staleness is None else rules.max_staleness + 1
    return Placement(
        rules=rules,
        max_running=max_running,
        explorers=getattr(cluster, "explorers", 1),
        learners=getattr(parallel, "ranks", 1),
        is_one_process=not is_alone and getattr(cluster, "type", "none") == "none",
        # Any other is taken for a server.
        is_engine_apart=settings.engine.type != "local",
    )


def _bounded(max_staleness: int, style: Any = "fixed", interval: int = 1) -> SyncRules:
    needed = max(max_staleness, interval - 1)
    return SyncRules(style=style, interval=interval, offset=needed - interval + 1, max_staleness=needed)


def _forecast(constants: Constants, placement: Placement) -> Row:
    forecast = simulate(constants, placement)
    levers = find_levers(constants, placement, forecast)
    instead = {
        "twice the explorers": replace(placement, explorers=2 * placement.explorers, is_one_process=False),
        "twice the learners": replace(placement, learners=2 * placement.learners, is_one_process=False),
        **_one_staler(placement),
    }
    choices = [
        Lever(name=name, gain=forecast.step_s / simulate(constants, other).step_s - 1)
        for name, other in instead.items()
    ]
    return Row(
        explorers=placement.explorers,
        learners=placement.learners,
        forecast=forecast,
        levers=tuple(levers),
        choices=tuple(sorted(choices, key=lambda lever: -lever.gain)),
    )


def _one_staler(placement: Placement) -> dict[str, Placement]:
    rules = placement.rules
    if not isinstance(rules, SyncRules) or rules.max_staleness is None:
        return {}
    staler = rules.max_staleness + 1
    changed = _bounded(staler, rules.style, rules.interval)
    return {f"sync.max_staleness={staler}": replace(placement, rules=changed, max_running=placement.max_running + 1)}


def read_counts(text: str, option: str) -> tuple[int, ...]:
    """`1,2,4` as numbers."""
    try:
        counts = tuple(int(word) for word in text.split(","))
    except ValueError:
        counts = (0,)
    if min(counts) < 1:
        raise ConfigError(f"{option}: '{text}' given; expected numbers above 0 with commas between, such as 1,2,4.")
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = _parse(arguments)
        report = study_scale(_read_study(options))
    except TurnwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console()
    if options.json:
        rows = [row.to_dict() for row in report.rows]
        console.print_json(json.dumps({"constants": to_numbers(report.constants), "rows": rows}))
        return 0
    for line in describe_constants(report.constants):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print("", to_table(report.rows), "")
    for row in report.rows:
        console.print(describe_row(row), soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", metavar="RUN", help="a finished run, whose constants are measured")
    parser.add_argument("constants", nargs="*", metavar="name=value", help="constants that replace those of RUN")
    parser.add_argument("--explorers", default="1,2,4,8", metavar="N,N", help="numbers of explorers (default: 1,2,4,8)")
    parser.add_argument("--learners", default="1", metavar="N,N", help="numbers of learners (default: 1)")
    parser.add_argument("--env-seconds", type=float, metavar="X", help="seconds that an environment takes per turn")
    parser.add_argument("--run-env-seconds", type=float, default=0.0, metavar="X", help="the same in RUN (default: 0)")
    parser.add_argument("--max-staleness", type=int, metavar="N", help="updates that weights may be behind")
    parser.add_argument("--cores", type=float, default=_FAR, metavar="N", help="shared by all (default: each its own)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_intermixed_args(arguments)
    if "=" in (options.run or "") and not Path(options.run).exists():
        options.constants, options.run = [options.run, *options.constants], None
    return options


def _read_study(options: argparse.Namespace) -> ScaleStudy:
    numbers = {
        "--env-seconds": options.env_seconds,
        "--run-env-seconds": options.run_env_seconds,
        "--cores": options.cores,
        "--max-staleness": options.max_staleness,
    }
    for name, number in numbers.items():
        if number is not None and (number < 0 or (name == "--cores" and number == 0)):
            raise ConfigError(f"{name} must be at least 0, got {number:g}.")
    return ScaleStudy(
        run=options.run,
        explorers=read_counts(options.explorers, "--explorers"),
        learners=read_counts(options.learners, "--learners"),
        env_s=options.env_seconds,
        run_env_s=options.run_env_seconds,
        max_staleness=options.max_staleness,
        cores=options.cores,
        constants=tuple(options.constants),
    )


if __name__ == "__main__":
    sys.exit(main())
