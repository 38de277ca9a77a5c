"""Results of an evaluation per task: computed from trajectories, saved to `eval.json`, read for a comparison.

The file is in a folder of its own, beside the trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from turnwise.errors import RunError
from turnwise.infra.atomic_files import atomic_write, encode_object, read_object
from turnwise.infra.untrusted import success_flags, success_rate
from turnwise.report.statistics import mean_interval, wilson_interval
from turnwise.types import Task, Trajectory

RESULT = "eval.json"
PAGE = "eval.md"
_PLAY_KINDS: dict[str, type | tuple[type, ...]] = {
    "is_success": (bool, type(None)), "episode_return": (int, float), "turns": int, "sampled_tokens": int,
    "read_tokens": int, "stop_reason": str,
}  # fmt: skip
_TASK_KINDS: dict[str, type | tuple[type, ...]] = {"tag": str, "seed": int, "split": str}
TRAJECTORIES = "step-000000.jsonl"
"""As `TrajectoryWriter` names the file of an evaluation, which has no steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """Result of one episode of a task."""

    is_success: bool | None
    """None: not reported."""
    episode_return: float
    turns: int
    sampled_tokens: int
    read_tokens: int
    """What was put before the model: prompts, observations, and what stands between replies."""
    stop_reason: str

    @classmethod
    def of(cls, trajectory: Trajectory, is_success: bool | None) -> Play:
        sampled = sum(segment.num_action_tokens for segment in trajectory.segments)
        return cls(
            is_success=is_success,
            episode_return=trajectory.episode_return,
            turns=len(trajectory.turns),
            sampled_tokens=sampled,
            read_tokens=sum(map(len, trajectory.segments)) - sampled,
            stop_reason=str(trajectory.stop_reason),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Results of all episodes of one task."""

    task: Task
    plays: tuple[Play, ...]
    difficulty: str | None = None
    """From `info["difficulty"]` of the environment; None if it reports none."""

    @property
    def num_known(self) -> int:
        """Number of episodes that report success or failure."""
        return sum(play.is_success is not None for play in self.plays)

    @property
    def num_successes(self) -> int:
        return sum(bool(play.is_success) for play in self.plays)

    @property
    def share(self) -> float | None:
        """Success rate of the episodes that report it; None if none does."""
        return success_rate(play.is_success for play in self.plays)

    @property
    def mean_return(self) -> float:
        return sum(play.episode_return for play in self.plays) / len(self.plays)

    def to_dict(self) -> dict[str, object]:
        task = self.task
        return {
            "task": {"tag": task.tag, "seed": task.seed, "split": task.split},
            "difficulty": self.difficulty,
            "plays": [asdict(play) for play in self.plays],
        }


def results_of(trajectories: Sequence[Trajectory]) -> tuple[TaskResult, ...]:
    """By task, in the order in which tasks were first played."""
    by_task: dict[Task, list[tuple[Trajectory, bool | None]]] = {}
    for trajectory, is_success in zip(trajectories, success_flags(trajectories), strict=True):
        by_task.setdefault(trajectory.task, []).append((trajectory, is_success))
    return tuple(
        TaskResult(
            task=task,
            plays=tuple(Play.of(trajectory, is_success) for trajectory, is_success in plays),
            difficulty=_difficulty([trajectory for trajectory, _ in plays]),
        )
        for task, plays in by_task.items()
    )


def mean_success(tasks: Sequence[TaskResult]) -> float | None:
    """Over the tasks of which it is known, each counting the same however often it was played; None: of none it is."""
    shares = _known_shares(tasks)
    return sum(shares) / len(shares) if shares else None


def success_interval(tasks: Sequence[TaskResult]) -> tuple[float, float] | None:
    """Of `mean_success`, at 95 %: where each task was played once, Wilson's."""
    shares = _known_shares(tasks)
    if not shares:
        return None
    if all(len(task.plays) == 1 for task in tasks):
        return wilson_interval(sum(shares) / len(shares), len(shares))
    return mean_interval(shares, is_share=True)


def _known_shares(tasks: Sequence[TaskResult]) -> list[float]:
    return [task.share for task in tasks if task.share is not None]


def _difficulty(played: Sequence[Trajectory]) -> str | None:
    """Return the first reported difficulty: some episodes of the task may have failed before the first turn."""
    said = (turn.info.get("difficulty") for trajectory in played for turn in trajectory.turns)
    return next((str(word) for word in said if isinstance(word, str | int | float)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEval:
    """An evaluation as it was written down."""

    folder: Path
    target: str
    recipe: str
    seed: int | None
    """Of the run whose policy played; None where none did."""
    worlds: Mapping[str, Mapping[str, object]]
    """The settings of each environment by its tag: seeds mean the same tasks only where these are equal."""
    tasks: tuple[TaskResult, ...]

    @property
    def trajectories(self) -> Path | None:
        """Where the episodes themselves are; None where they were not kept."""
        file = self.folder / TRAJECTORIES
        return file if file.is_file() else None


def new_eval_folder(parent: Path, name: str) -> Path:
    """`<parent>/<name>-YYYYmmdd-HHMMSS`, with a number behind it if that is taken."""
    path = parent / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(candidate for candidate in chain([path], numbered) if not candidate.exists())


def write_eval(folder: Path, report: Mapping[str, object], tasks: Sequence[TaskResult]) -> Path:
    """Save a report, which has at least `target`, `recipe`, `seed` and `worlds`, with the results of the tasks."""
    path = folder / RESULT
    atomic_write(path, encode_object({**report, "tasks": [task.to_dict() for task in tasks]}))
    return path


def read_eval(path: Path) -> SavedEval:
    """From a file, or from the folder that holds it."""
    file = path / RESULT if path.is_dir() else path
    values: dict[str, Any] = dict(read_object(file))
    try:
        return SavedEval(
            folder=file.parent,
            target=str(values["target"]),
            recipe=str(values["recipe"]),
            seed=values["seed"],
            worlds=dict(values["worlds"]),
            tasks=tuple(_read_task(row) for row in values["tasks"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{file} is no evaluation: expected what `turnwise eval` writes ({type(error).__name__}: {error})."
        ) from error


def _read_task(row: Mapping[str, Any]) -> TaskResult:
    plays = tuple(Play(**_checked(play, _PLAY_KINDS)) for play in row["plays"])
    if not plays:
        raise TypeError("a task without plays")
    return TaskResult(task=Task(**_checked(row["task"], _TASK_KINDS)), plays=plays, difficulty=row["difficulty"])


def _checked(values: object, kinds: Mapping[str, type | tuple[type, ...]]) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise TypeError(f"a mapping was expected, got {values!r}")
    for name, value in values.items():
        if name in kinds and not isinstance(value, kinds[name]):
            raise TypeError(f"{name} must not be {value!r}")
    return values


def find_evals(folder: Path) -> list[Path]:
    """The evaluations in a folder, oldest first."""
    found = [file.parent for file in folder.glob(f"*/{RESULT}")]
    return sorted(found, key=lambda path: (path / RESULT).stat().st_mtime_ns)
