"""What things take: the measured constants of a run, from which a larger one is predicted.

In: the directory of a finished run, or numbers as `name=value`. Out: `Constants`. It refuses to know how a cluster is
simulated; `turn_s`, which no metric tells, is found there.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, RunError, did_you_mean
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import read_trajectories

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
