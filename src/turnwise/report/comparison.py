"""Evaluations compared task by task: differences with intervals and p-values, and the tasks where the sides differ.

Reads what `turnwise eval`, or the end of a run, saved. Compares only tasks that all sides have, and only in
environments with equal settings.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, urlencode

from turnwise.errors import ConfigError, RunError
from turnwise.infra.untrusted import UNKNOWN
from turnwise.report.document import Document, Table
from turnwise.report.evaluation import RESULT, SavedEval, TaskResult, find_evals, read_eval
from turnwise.report.run_dir import RunDirectory
from turnwise.report.statistics import paired_interval, relabel_p_value, sign_flip_p_value


@dataclass(frozen=True, slots=True)
class EvalLocation:
    """An evaluation as the page of its run knows it."""

    run: Path
    name: str
    """Of the run, on the page."""
    eval: str


def find_pages(first: SavedEval, second: SavedEval) -> tuple[EvalLocation, EvalLocation] | None:
    """None where one of them is of no run: the page shows runs. Of several seeds the first is shown."""
    # The page names a run after where it really lies: neither `.` nor a symbolic link is a name.
    folders = [saved.folder.resolve() for saved in (first, second)]
    one, other = (folder.parent.parent for folder in folders)
    for run, folder in zip((one, other), folders, strict=True):
        if folder.parent != RunDirectory(run).evals or not RunDirectory(run).config.is_file():
            return None
    # Of two runs with one name the page calls the second by its path.
    name = str(other) if one != other and one.name == other.name else other.name
    return EvalLocation(one, one.name, folders[0].name), EvalLocation(other, name, folders[1].name)


def link_to(pages: tuple[EvalLocation, EvalLocation] | None, task: str) -> str:
    """Nothing where there is no page of both."""
    if pages is None:
        return ""
    one, other = pages
    words = {"task": task, "first": one.name, "first_eval": one.eval, "second": other.name, "second_eval": other.eval}
    return f"#/task?{urlencode(words, quote_via=quote)}"


_SHOWN_TASKS = 10
_SIGNIFICANT = 0.05


def to_document(c: Comparison) -> Document:
    """Shorten for the terminal: the tasks that differ most."""
    table = Table(("task", "first", "second"), [(t.task, t.first, t.second) for t in c.differing[:_SHOWN_TASKS]])
    num_left = len(c.differing) - _SHOWN_TASKS
    left = [f"and {num_left} more tasks; --json and --markdown list all of them"] if num_left > 0 else []
    return Document(_title(c), _facts(c), [table] if c.differing else [], notes=[*left, *_places(c)])


def to_page(c: Comparison) -> Document:
    """All tasks that differ, with their place on the page of `turnwise view`."""
    rows = [(t.task, t.first, t.second, f"`{t.link}`" if t.link else "") for t in c.differing]
    table = Table(("task", "first", "second", "on the page"), rows)
    return Document(_title(c), _facts(c), [table] if c.differing else [], notes=_places(c))


def _title(c: Comparison) -> str:
    return f"{c.second} against {c.first}, {c.tasks} tasks" + (
        f", {c.unpaired} unpaired left out" if c.unpaired else ""
    )


def _facts(c: Comparison) -> dict[str, str | list[str]]:
    p_value = [f"{c.p_value:.3g} over tasks: {_verdict(c.p_value)}"]
    if c.p_value_over_seeds is not None:
        seeds = f"over seeds ({c.seeds[0]} and {c.seeds[1]})"
        p_value.append(f"{c.p_value_over_seeds:.3g} {seeds}: {_verdict(c.p_value_over_seeds)}")
    elif max(c.seeds) == 1:
        p_value[0] += " between these two policies; other seeds of the same recipes may differ"
    low, high = c.return_interval
    num_compared = c.tasks - c.unknown if c.measure == "success" else c.tasks
    return {
        **_success_facts(c),
        "p-value": p_value,
        "return": f"{c.return_difference:+.3f} ({low:+.3f} to {high:+.3f})",
        "tasks": f"{c.num_better} better, {c.num_worse} worse, {num_compared - len(c.differing)} equal",
    }


def _success_facts(c: Comparison) -> dict[str, str]:
    if c.success is None or c.difference is None or c.interval is None:
        return {"success": f"{UNKNOWN}: one side does not report it (is_success); the rest is about the return"}
    low, high = c.interval
    known = f", over the {c.tasks - c.unknown} tasks for which both sides report it" if c.unknown else ""
    return {
        "success": f"{c.success[0]:.3f} -> {c.success[1]:.3f}{known}",
        "difference": f"{c.difference:+.3f} ({low:+.3f} to {high:+.3f}), 95 % interval",
    }


def _verdict(p_value: float) -> str:
    return "significant" if p_value < _SIGNIFICANT else "not significant"


def _places(c: Comparison) -> list[str]:
    """Where the episodes can be looked at."""
    links = [task.link for task in c.differing if task.link][:1]
    look = [f"side by side  turnwise view {shlex.join(c.runs)} --at {shlex.quote(link)}" for link in links]
    return [*(f"episodes      {file}" for file in c.episodes), *look]


_Results: TypeAlias = Mapping[str, TaskResult]
"""One evaluation, by task."""


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
    """Success rate over all seeds, or the mean return if success is not reported."""
    second: float
    link: str = ""
    """Where `turnwise view` shows both episodes side by side; empty if a side is not of a run."""


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
    measure: str
    """What p-values and tasks are about: `success`, or `return` if success is not reported."""
    unknown: int
    """Tasks for which a side does not report success; they count for the return only."""
    success: tuple[float, float] | None
    difference: float | None
    """Of success: second - first; None where it is unknown."""
    interval: tuple[float, float] | None
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
    runs: tuple[str, ...] = ()
    """Those that the links are about, in the order in which `turnwise view` must be given them."""

    @property
    def num_better(self) -> int:
        return sum(task.second > task.first for task in self.differing)

    @property
    def num_worse(self) -> int:
        return len(self.differing) - self.num_better

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "better": self.num_better, "worse": self.num_worse}


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
    _check_same_envs(everything)
    played = [{result.task.id: result for result in saved.tasks} for saved in everything]
    names = [name for name in played[0] if all(name in results for results in played)]
    if not names:
        raise ConfigError(
            f"'{first.label}' and '{second.label}' have no task in common: the first played {next(iter(played[0]))}, "
            f"the second {next(iter(played[-1]))}. Evaluate both in one setting (--recipe, --split)."
        )
    sides = played[: len(first.evals)], played[len(first.evals) :]
    known = [name for name in names if all(results[name].num_known for results in played)]
    of_success = _paired(sides, known, _exact_share) if known else None
    of_return = _paired(sides, names, _exact_return)
    judged = of_success or of_return
    pages = find_pages(first.evals[0], second.evals[0])
    return Comparison(
        first=first.label,
        second=second.label,
        tasks=len(names),
        unpaired=len(set().union(*played)) - len(names),
        seeds=(len(first.evals), len(second.evals)),
        measure="success" if of_success else "return",
        unknown=len(names) - len(known),
        success=of_success.means if of_success else None,
        difference=of_success.difference if of_success else None,
        interval=of_success.interval if of_success else None,
        p_value=sign_flip_p_value([two - one for one, two in judged.exact.values()]),
        p_value_over_seeds=relabel_p_value(*([sum(row) / len(row) for row in side] for side in judged.rows)),
        return_difference=of_return.difference,
        return_interval=of_return.interval,
        differing=_differing(judged.exact, pages),
        runs=() if pages is None else tuple(dict.fromkeys(str(page.run) for page in pages)),
        episodes=tuple(str(saved.trajectories) for saved in everything if saved.trajectories),
    )


@dataclass(frozen=True, slots=True)
class _Paired:
    """One measure on the same tasks of both sides."""

    rows: tuple[list[list[float]], list[list[float]]]
    """Of each side one row per seed, over tasks."""
    exact: Mapping[str, tuple[Fraction, Fraction]]
    """By task, the mean over seeds of both sides: rounding must not make two equal differences different."""

    @property
    def means(self) -> tuple[float, float]:
        one, two = (sum(sum(row) / len(row) for row in side) / len(side) for side in self.rows)
        return one, two

    @property
    def difference(self) -> float:
        return self.means[1] - self.means[0]

    @property
    def interval(self) -> tuple[float, float]:
        return paired_interval(*self.rows)


def _paired(
    sides: tuple[Sequence[_Results], Sequence[_Results]], names: Sequence[str], read: Callable[[TaskResult], Fraction]
) -> _Paired:
    one, two = ([[read(results[name]) for name in names] for results in side] for side in sides)
    means = ([sum(column, Fraction(0)) / len(side) for column in zip(*side, strict=True)] for side in (one, two))
    return _Paired(
        rows=([[*map(float, row)] for row in one], [[*map(float, row)] for row in two]),
        exact=dict(zip(names, zip(*means, strict=True), strict=True)),
    )


def _exact_share(result: TaskResult) -> Fraction:
    return Fraction(result.num_successes, result.num_known)


def _exact_return(result: TaskResult) -> Fraction:
    """To nine digits: sums of floats that should be equal differ in the last ones."""
    return Fraction(f"{result.mean_return:.9g}")


def _differing(
    exact: Mapping[str, tuple[Fraction, Fraction]], pages: tuple[EvalLocation, EvalLocation] | None
) -> tuple[TaskDifference, ...]:
    found = [(name, one, two) for name, (one, two) in exact.items() if one != two]
    found.sort(key=lambda row: -abs(row[2] - row[1]))
    return tuple(
        TaskDifference(task=name, first=float(one), second=float(two), link=link_to(pages, name))
        for name, one, two in found
    )


def _check_same_envs(evals: Sequence[SavedEval]) -> None:
    """A seed means the same task only if the settings of the environment are equal."""
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
