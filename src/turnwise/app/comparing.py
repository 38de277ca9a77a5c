"""`turnwise compare`: two or more evaluations task by task, and how sure the difference is.

In: what `turnwise eval`, or the end of a run, wrote down. Out: differences with intervals and p-values, and the tasks
where the sides differ. Nothing is played. Only tasks that all sides played are compared, and only in equal worlds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

from rich.console import Console
from rich.text import Text

from turnwise.app.compare_texts import show_comparisons, to_markdown
from turnwise.errors import ConfigError, RunError
from turnwise.floor.files import write_whole
from turnwise.report.estimates import paired_interval, relabel_p_value, sign_flip_p_value
from turnwise.report.eval_results import RESULT, SavedEval, TaskResult, find_evals, read_eval
from turnwise.report.run_dir import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side: the evaluations of one policy, or of several that differ in their seed."""

    label: str
    evals: tuple[SavedEval, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDifference:
    """A task that came out differently."""

    task: str
    first: float
    """The share of plays that succeeded, over all seeds."""
    second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The second side measured against the first, on the tasks that both have played."""

    first: str
    second: str
    tasks: int
    unpaired: int
    """Tasks that one side alone has played; they count nowhere."""
    seeds: tuple[int, int]
    """Evaluations of each side."""
    success: tuple[float, float]
    difference: float
    """Of success: second - first."""
    interval: tuple[float, float]
    p_value: float
    """Over tasks: exact, two-sided; about these very policies."""
    p_value_over_seeds: float | None
    """Over runs: exact, two-sided; None where a side has one alone."""
    return_difference: float
    return_interval: tuple[float, float]
    differing: tuple[TaskDifference, ...]
    """Largest differences first."""
    episodes: tuple[str, ...]
    """Files with the episodes, of both sides, where they were kept."""

    @property
    def num_better(self) -> int:
        return sum(task.second > task.first for task in self.differing)

    @property
    def num_worse(self) -> int:
        return len(self.differing) - self.num_better

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "better": self.num_better, "worse": self.num_worse}


def run_compare(options: argparse.Namespace, console: Console) -> int:
    if len(options.sides) < 2:
        raise ConfigError(f"'{options.sides[0]}' given alone; expected at least two sides to compare.")
    first, *others = (read_side(word) for word in options.sides)
    comparisons = [compare(first, other) for other in others]
    if options.markdown:
        write_whole(Path(options.markdown), to_markdown(comparisons))
    if options.json:
        console.print_json(json.dumps([comparison.to_dict() for comparison in comparisons]))
    else:
        show_comparisons(console, comparisons)
        if options.markdown:
            console.print(Text(f"written: {options.markdown}"), soft_wrap=True)
    return 0


def read_side(word: str) -> Side:
    """A run, an evaluation, several of them joined by commas, or a folder that holds several."""
    words = [word] if Path(word).expanduser().exists() else [part for part in word.split(",") if part]
    evals = [found for part in words for found in _read(Path(part).expanduser())]
    return Side(label=word, evals=tuple(evals))


def _read(path: Path) -> list[SavedEval]:
    if path.is_file() or (path / RESULT).is_file():
        return [read_eval(path)]
    if not path.exists():
        raise RunError(f"'{path}' does not exist; expected a run, or a folder or file that 'turnwise eval' wrote.")
    if (path / "config.yaml").is_file():
        return [_newest(path)]
    runs = sorted(file.parent for file in path.glob("*/config.yaml"))
    if runs:
        return [_newest(run) for run in runs]
    if evals := find_evals(path):
        return [read_eval(folder) for folder in evals]
    raise RunError(f"'{path}' holds neither a run nor an evaluation. Evaluate first: turnwise eval TARGET --out {path}")


def _newest(run: Path) -> SavedEval:
    evals = find_evals(RunDirectory(run).evals)
    if not evals:
        raise RunError(f"run {run} has no evaluation with its tasks yet. Make one: turnwise eval {run}")
    return read_eval(evals[-1])


def compare(first: Side, second: Side) -> Comparison:
    everything = [*first.evals, *second.evals]
    _refuse_other_worlds(everything)
    played = [{result.task.id: result for result in saved.tasks} for saved in everything]
    names = [name for name in played[0] if all(name in results for results in played)]
    if not names:
        raise ConfigError(
            f"'{first.label}' and '{second.label}' have no task in common: the first played {next(iter(played[0]))}, "
            f"the second {next(iter(played[-1]))}. Evaluate both in one setting (--recipe, --split)."
        )
    ours, theirs = played[: len(first.evals)], played[len(first.evals) :]
    shares = [[[results[name].share for name in names] for results in side] for side in (ours, theirs)]
    returns = [[[results[name].mean_return for name in names] for results in side] for side in (ours, theirs)]
    exact = {name: (_mean_share(ours, name), _mean_share(theirs, name)) for name in names}
    success = _mean(shares[0]), _mean(shares[1])
    return Comparison(
        first=first.label,
        second=second.label,
        tasks=len(names),
        unpaired=len(set().union(*played)) - len(names),
        seeds=(len(ours), len(theirs)),
        success=success,
        difference=success[1] - success[0],
        interval=paired_interval(*shares),
        p_value=sign_flip_p_value([two - one for one, two in exact.values()]),
        p_value_over_seeds=relabel_p_value(*([sum(row) / len(row) for row in side] for side in shares)),
        return_difference=_mean(returns[1]) - _mean(returns[0]),
        return_interval=paired_interval(*returns),
        differing=_differing(exact),
        episodes=tuple(str(saved.trajectories) for saved in everything if saved.trajectories),
    )


def _differing(exact: Mapping[str, tuple[Fraction, Fraction]]) -> tuple[TaskDifference, ...]:
    found = [(name, one, two) for name, (one, two) in exact.items() if one != two]
    found.sort(key=lambda row: -abs(row[2] - row[1]))
    return tuple(TaskDifference(task=name, first=float(one), second=float(two)) for name, one, two in found)


def _mean_share(side: Sequence[Mapping[str, TaskResult]], name: str) -> Fraction:
    """Exact: rounding must not make two equal differences different."""
    shares = [Fraction(results[name].num_successes, len(results[name].plays)) for results in side]
    return sum(shares, Fraction(0)) / len(shares)


def _mean(rows: Sequence[Sequence[float]]) -> float:
    return sum(sum(row) / len(row) for row in rows) / len(rows)


def _refuse_other_worlds(evals: Sequence[SavedEval]) -> None:
    """A seed means a task only in a world of equal settings."""
    one = evals[0]
    for other in evals[1:]:
        for tag in one.worlds.keys() & other.worlds.keys():
            ours, theirs = one.worlds[tag], other.worlds[tag]
            for key in sorted(ours.keys() | theirs.keys()):
                if ours.get(key) != theirs.get(key):
                    raise ConfigError(
                        f"{tag}.{key} is {ours.get(key)!r} in '{one.target}' and {theirs.get(key)!r} in "
                        f"'{other.target}': their tasks are not the same. Evaluate both in one setting (--recipe)."
                    )
