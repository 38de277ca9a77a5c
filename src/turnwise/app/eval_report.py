"""What an evaluation shows: shares with their intervals, by environment and difficulty, what it cost, and why.

In: how each task came out. Out: the numbers that `turnwise eval` shows, as one report. How episodes are played is
`evaluating.py`'s business, and how the report looks `eval_texts.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from turnwise.config.schema import TurnwiseSettings
from turnwise.report.evaluation import TaskResult, mean_success, success_interval
from turnwise.report.statistics import ks_up_to, list_ends, mean_interval, pass_at_k
from turnwise.rollout.env_specs import worlds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReply:
    """One reply as it was sampled, with what it answered."""

    observation: str
    reply: str
    tokens: int
    actions: tuple[str, ...]
    understood: bool
    """Whether it was well formed, and its actions mean something there."""
    cut: bool
    """Whether it ended at `context.max_response_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The outcome over some tasks: all of them, those of one environment, or those of one difficulty."""

    tasks: int
    episodes: int
    unknown: int
    """Episodes that do not say whether they succeeded; the shares are over the others."""
    success: float | None
    """The mean over tasks of the share of their plays that succeed: average@k for k plays each. None: nobody says."""
    success_interval: tuple[float, float] | None
    mean_return: float
    return_interval: tuple[float, float]
    pass_at: Mapping[int, float]
    """pass@k by k, unbiased; empty where nobody says what a success is."""
    pass_at_intervals: Mapping[int, tuple[float, float]]

    @classmethod
    def of(cls, tasks: Sequence[TaskResult]) -> Figures:
        """Intervals are over tasks; of tasks that were played once, success has Wilson's."""
        known = [task for task in tasks if task.num_known]
        returns = [task.mean_return for task in tasks]
        ks = ks_up_to(min(task.num_known for task in known)) if known else ()
        passes = {k: [pass_at_k(t.num_known, t.num_successes, k) for t in known] for k in ks}
        return cls(
            tasks=len(tasks),
            episodes=sum(len(task.plays) for task in tasks),
            unknown=sum(len(task.plays) - task.num_known for task in tasks),
            success=mean_success(tasks),
            success_interval=success_interval(tasks),
            mean_return=sum(returns) / len(tasks),
            return_interval=mean_interval(returns, is_share=False),
            pass_at={k: sum(values) / len(known) for k, values in passes.items()},
            pass_at_intervals={k: mean_interval(values, is_share=True) for k, values in passes.items()},
        )

    def to_dict(self) -> dict[str, object]:
        return {
            "tasks": self.tasks,
            "episodes": self.episodes,
            "unknown": self.unknown,
            "success": self.success,
            "success_interval": list_ends(self.success_interval),
            "return": self.mean_return,
            "return_interval": list(self.return_interval),
            "pass_at": {str(k): value for k, value in self.pass_at.items()},
            "pass_at_intervals": {str(k): list(ends) for k, ends in self.pass_at_intervals.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the plays took, in tokens."""

    sampled: int
    read: int
    """Put before the model; what an engine keeps of it between turns is counted once."""
    sampled_per_episode: float
    sampled_per_success: float | None
    """None where nothing succeeded."""

    @classmethod
    def of(cls, tasks: Sequence[TaskResult]) -> Cost:
        plays = [play for task in tasks for play in task.plays]
        sampled, successes = sum(p.sampled_tokens for p in plays), sum(task.num_successes for task in tasks)
        return cls(
            sampled=sampled,
            read=sum(play.read_tokens for play in plays),
            sampled_per_episode=sampled / len(plays),
            sampled_per_success=sampled / successes if successes else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """What `turnwise eval` shows of one target in one setting."""

    target: str
    recipe: str
    seed: int | None
    """Of the run whose policy played; None where none did."""
    env: str
    """The main one."""
    split: str
    samples: int
    """Plays of each task."""
    temperature: float | None
    """0 is greedy; None where a rule played."""
    figures: Figures
    by_tag: Mapping[str, Figures]
    by_difficulty: Mapping[str, Figures]
    """Empty where environments say nothing about it. Of several environments, `sokoban: 2 boxes`."""
    tasks: tuple[TaskResult, ...]
    worlds: Mapping[str, Mapping[str, object]]
    """The settings of each environment by its tag."""
    stop_reasons: Mapping[str, int]
    invalid: float | None = None
    """Share of turns that were not understood; None where a rule played, which says nothing."""
    cost: Cost | None = None
    """None where a rule played."""
    replies: tuple[SampleReply, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why nothing succeeded, where nothing did."""
    folder: Path | None = None
    """Where it was written; None before."""

    @property
    def success(self) -> float | None:
        return self.figures.success

    @property
    def episodes(self) -> int:
        return self.figures.episodes

    @property
    def mean_return(self) -> float:
        return self.figures.mean_return

    def to_dict(self) -> dict[str, object]:
        """All but the tasks, which have a file of their own."""
        whole = self.figures.to_dict()
        return {
            "target": self.target,
            "recipe": self.recipe,
            "seed": self.seed,
            "env": self.env,
            "split": self.split,
            "samples": self.samples,
            "temperature": self.temperature,
            **{name: value for name, value in whole.items() if name != "tasks"},
            "num_tasks": self.figures.tasks,
            "average_at": {str(self.samples): self.success},
            "worlds": dict(self.worlds),
            "by_tag": {tag: figures.to_dict() for tag, figures in self.by_tag.items()},
            "by_difficulty": {name: figures.to_dict() for name, figures in self.by_difficulty.items()},
            "invalid": self.invalid,
            "stop_reasons": dict(self.stop_reasons),
            "tokens": asdict(self.cost) if self.cost else None,
            "replies": [asdict(reply) for reply in self.replies],
            "reasons": list(self.reasons),
            "folder": str(self.folder) if self.folder else None,
        }


def worlds_told(settings: TurnwiseSettings) -> dict[str, dict[str, object]]:
    """What decides which task a seed is, for whoever compares."""
    return {world.tag: world.env.model_dump(mode="json") for world in worlds_of(settings)}


def figures_by_tag(tasks: Sequence[TaskResult]) -> dict[str, Figures]:
    by_tag: dict[str, list[TaskResult]] = {}
    for task in tasks:
        by_tag.setdefault(task.task.tag, []).append(task)
    return {tag: Figures.of(own) for tag, own in by_tag.items()}


def figures_by_difficulty(tasks: Sequence[TaskResult]) -> dict[str, Figures]:
    several = len({task.task.tag for task in tasks}) > 1
    by_name: dict[str, list[TaskResult]] = {}
    for task in tasks:
        if task.difficulty is not None:
            by_name.setdefault(f"{task.task.tag}: {task.difficulty}" if several else task.difficulty, []).append(task)
    return {name: Figures.of(by_name[name]) for name in sorted(by_name)}
