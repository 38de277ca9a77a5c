"""Groups, numbers and the clock come in; the metrics of a step go out, to every sink that still works.

Names are `room/name`. Refuses to know what a number means to the learner, and never stops a run: a sink that fails is
dropped.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from turnwise.errors import RunError
from turnwise.infra.atomic_files import reason
from turnwise.infra.untrusted import success_flags, success_rate
from turnwise.protocols import Sink
from turnwise.report.run_dir import TIME_SECTIONS
from turnwise.types import Group, Metrics, Trajectory, Turn

log = logging.getLogger(__name__)

_SAME = 1e-9
"""Sums of equal rewards differ by less, in whichever order they were added."""


class JsonlSink:
    """Appends one JSON object per step to `metrics.jsonl`: `{"step": 3, "time_s": 12.5, "rollout/success": 0.25}`."""

    def __init__(self, path: Path, *, time_offset_s: float = 0.0) -> None:
        """`time_offset_s` is the `time_s` a resumed run goes on from."""
        self._started_s = time.perf_counter() - time_offset_s
        try:
            self._file = path.open("a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise RunError(f"Cannot append to {path}: {reason(error)}. Check that its folder is writable.") from error

    def write(self, step: int, metrics: Metrics) -> None:
        row: dict[str, float | None] = {"step": step, "time_s": round(time.perf_counter() - self._started_s, 3)}
        for name, value in metrics.items():
            number = float(value)
            # JSON has no NaN; null keeps the fact that the number was there and was bad.
            row[name] = number if math.isfinite(number) else None
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@runtime_checkable
class MediaSink(Protocol):
    """A sink that also shows how numbers are spread, and texts."""

    def draw(self, step: int, histograms: Mapping[str, object], texts: Mapping[str, str]) -> None: ...


class Sinks:
    """Passes metrics on to several sinks. One that raises is dropped with a warning; the others and the run go on."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def write(self, step: int, metrics: Metrics) -> None:
        self._call(step, lambda sink: sink.write(step, metrics))

    def draw(self, step: int, histograms: Mapping[str, object], texts: Mapping[str, str]) -> None:
        """For sinks that can show how numbers are spread, and texts."""
        self._call(step, lambda sink: sink.draw(step, histograms, texts) if isinstance(sink, MediaSink) else None)

    def _call(self, step: int, call: Callable[[Sink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                call(sink)
            except Exception as error:  # noqa: BLE001 - the boundary: reporting must never stop training
                log.warning("%s failed at step %d and is dropped: %s", type(sink).__name__, step, error)
                self._sinks.remove(sink)
                with suppress(Exception):
                    sink.close()

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 - the boundary: reporting must never stop training
                log.warning("%s could not be closed: %s", type(sink).__name__, error)
        self._sinks.clear()


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What the rollouts of one step were like. A trajectory that ended in an error counts, as no success."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if not trajectories:
        return {}
    return {
        **_success_metrics([group.trajectories for group in groups]),
        "rollout/return": _mean([t.episode_return for t in trajectories]),
        "rollout/rewarded": _mean([any(turn.reward or turn.shaping for turn in t.turns) for t in trajectories]),
        "rollout/num_turns": _mean([len(t.turns) for t in trajectories]),
        "rollout/truncated": _mean([t.stop_reason.is_truncated for t in trajectories]),
        "rollout/errors": _mean([t.stop_reason.is_error for t in trajectories]),
        **_within_group_metrics([group.trajectories for group in groups if group.trajectories]),
        **_turn_metrics(trajectories),
        **{f"reward/{source}": amount for source, amount in reward_sources(trajectories).items()},
        **_shaping_metrics(trajectories),
        **_tag_metrics(trajectories),
    }


def _success_metrics(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """Over the episodes that say whether they reached their goal; beside it, the share of those that do not."""
    said = success_flags([t for siblings in groups for t in siblings])
    one_by_one = iter(said)
    by_group = [[next(one_by_one) for _ in siblings] for siblings in groups]
    found = {
        "rollout/success": success_rate(said),
        "rollout/pass_at_k": success_rate(_holds_success(siblings) for siblings in by_group),
        "rollout/success_unknown": said.count(None) / len(said) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _holds_success(siblings: Sequence[bool | None]) -> bool | None:
    known = [one for one in siblings if one is not None]
    return any(known) if known else None


def _shaping_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What an episode earned before and after `reward.shaping`; nothing where there is none."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    added = [turn.shaping for turn in turns if turn.shaping is not None]
    raw = sum(turn.reward for turn in turns) / len(trajectories)
    return {"reward/raw": raw, "reward/shaped": raw + sum(added) / len(trajectories)} if added else {}


def reward_sources(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Who gave how much to an episode, on average: the environment and, where one was asked, a judge."""
    if not trajectories:
        return {}
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    judged = [turn.judged for turn in turns if turn.judged is not None]
    total = sum(turn.reward for turn in turns)
    given = {"env": total - sum(judged), **({"judge": sum(judged)} if judged else {})}
    return {source: amount / len(trajectories) for source, amount in given.items()}


def _within_group_metrics(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    returns = [[t.episode_return for t in siblings] for siblings in groups]
    return {
        "rollout/in_group_std": _mean([float(np.std(values)) for values in returns]),
        **_dead_group_metrics(groups),
    }


def _dead_group_metrics(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """The share of groups whose siblings all earn the same in what is learnt from, shaping and penalties included."""
    learnt_from = [[t for t in siblings if not t.stop_reason.is_error] for siblings in groups]
    earned = [[sum(turn.learnt_reward for turn in t.turns) for t in siblings] for siblings in learnt_from]
    # A trajectory without siblings has nobody to differ from.
    is_dead = [max(values) - min(values) < _SAME for values in earned if len(values) > 1]
    return {"rollout/dead_groups": _mean(is_dead)} if is_dead else {}


def _turn_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    if not turns:
        return {}
    num_tokens = sum(segment.num_action_tokens for trajectory in trajectories for segment in trajectory.segments)
    return {
        "rollout/invalid_actions": _mean([_is_invalid(turn) for turn in turns]),
        "rollout/response_tokens": num_tokens / len(turns),
        **_repetition_metrics(trajectories),
    }


def _repetition_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The share of 3-grams of sampled tokens that the same reply had before; nothing where all replies are shorter."""
    num_grams = num_distinct = 0
    for segment in (segment for trajectory in trajectories for segment in trajectory.segments):
        ids, turns = segment.token_ids[segment.loss_mask].tolist(), segment.turn_ids[segment.loss_mask].tolist()
        neighbours = zip(turns, turns[2:], ids, ids[1:], ids[2:], strict=False)
        grams = [(turn, *gram) for turn, turn_of_last, *gram in neighbours if turn == turn_of_last]
        num_grams += len(grams)
        num_distinct += len(set(grams))
    return {"rollout/repetition": 1 - num_distinct / num_grams} if num_grams else {}


def _is_invalid(turn: Turn) -> bool:
    return turn.penalty < 0 or not turn.is_valid


def _tag_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    by_tag = split_by_tag(trajectories)
    apart: dict[str, float] = {}
    for tag, plays in by_tag.items() if len(by_tag) > 1 else ():
        if (share := success_rate(success_flags(plays))) is not None:
            apart[f"rollout/success/{tag}"] = share
        apart[f"rollout/return/{tag}"] = _mean([t.episode_return for t in plays])
    told = {f"env/{tag}/{name}": value for tag, plays in by_tag.items() for name, value in env_metrics(plays).items()}
    return apart | told


def split_by_tag(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    """The plays of each environment, in the order of their tags."""
    by_tag: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda t: t.task.tag):
        by_tag.setdefault(trajectory.task.tag, []).append(trajectory)
    return by_tag


def env_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What an environment says in numbers of its own: the last in each episode, as a mean over those that have it."""
    last: dict[str, list[float]] = {}
    for trajectory in trajectories:
        at_the_end = {name: value for turn in trajectory.turns for name, value in turn.metrics.items()}
        for name, value in at_the_end.items():
            last.setdefault(name, []).append(value)
    return {name: _mean(values) for name, values in sorted(last.items())}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


class Timed(Protocol):
    """What measures its own time in environments."""

    @property
    def env_seconds(self) -> float: ...


class Stopwatch:
    """Charges every moment to exactly one section: the innermost that is open, or `other`.

    The parts therefore sum to the time since the stopwatch was made. For one thread; an inner section must not contain
    an `await`, because another task could then open a section inside it.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._open: list[str] = ["other"]
        self._charged_until_s = time.perf_counter()

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self._charge()
        self._open.append(name)
        depth = len(self._open)
        try:
            yield
        finally:
            assert len(self._open) == depth, f"section {name!r} ended while {self._open[depth:]} were open"
            self._charge()
            self._open.pop()

    @contextmanager
    def rollout(self, environments: Timed) -> Iterator[None]:
        """A section `rollout`, of which the time in environments counts as `env`."""
        before_s = environments.env_seconds
        with self.section("rollout"):
            yield
        self.move("rollout", "env", environments.env_seconds - before_s)

    def move(self, source: str, target: str, seconds: float) -> None:
        """Charge to `target` what was measured elsewhere and counted under `source`."""
        self._seconds[source] = self._seconds.get(source, 0.0) - seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def seconds(self, name: str) -> float:
        """What a section has taken until now, without the sections inside it."""
        self._charge()
        return self._seconds.get(name, 0.0)

    def time_split(self) -> dict[str, float]:
        """Seconds until now for exactly `TIME_SECTIONS`; sections of any other name count as `other`."""
        self._charge()
        split = dict.fromkeys(TIME_SECTIONS, 0.0)
        for name, seconds in self._seconds.items():
            split[name if name in split else "other"] += seconds
        return split

    def _charge(self) -> None:
        now_s = time.perf_counter()
        current = self._open[-1]
        self._seconds[current] = self._seconds.get(current, 0.0) + now_s - self._charged_until_s
        self._charged_until_s = now_s


_ARGUMENTS = re.compile(r"^([\w.]+)\(.*?\)(?= failed: )", re.DOTALL)
"""Of the call that failed, at the start of a failure; brackets further on belong to what it says."""
_MAX_CAUSES = 20
"""Causes that differ in every episode must not fill a summary."""
_MAX_LENGTH = 200
OTHER = "other causes"


def count_failures(groups: Sequence[Group], before: Mapping[str, int]) -> dict[str, int]:
    """`before` and the failures of these groups, by cause."""
    counts = Counter(before)
    for group in groups:
        for trajectory in group.trajectories:
            if trajectory.stop_reason.is_error:
                cause = cause_of(trajectory.failure)
                counts[cause if cause in counts or len(counts) < _MAX_CAUSES else OTHER] += 1
    return dict(counts)


def cause_of(failure: str) -> str:
    """The first line of a failure without the arguments of the call, which differ from episode to episode."""
    first_line = _ARGUMENTS.sub(r"\1", failure).strip().split("\n")[0]
    return first_line[:_MAX_LENGTH] or "no reason given"
