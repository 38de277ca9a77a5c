"""Evaluation of a policy for `turnwise eval`: report, saved episodes and, if no episode succeeds, the likely reason.

`loop/evaluate.py` runs the episodes; `report/evaluation.py` saves the result of each task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from turnwise.checks.episodes import check_policy_probe, count_episodes, replies_of
from turnwise.checks.stages import envs_by_path
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError
from turnwise.infra.atomic_files import atomic_write
from turnwise.infra.threads import run_async
from turnwise.infra.untrusted import UNKNOWN
from turnwise.loop.build import build_scorer, held_out_tasks
from turnwise.loop.components import RolloutComponents
from turnwise.loop.evaluate import Evaluation, evaluate_once, evaluate_scripted_policy
from turnwise.loop.policies import find_policy, find_run, open_policy
from turnwise.models.resolve import describe_set_up
from turnwise.report.console import phase
from turnwise.report.document import Document, Table, to_markdown
from turnwise.report.evaluation import (
    PAGE,
    TaskResult,
    mean_success,
    new_eval_folder,
    results_of,
    success_interval,
    write_eval,
)
from turnwise.report.run_dir import RunDirectory
from turnwise.report.statistics import ks_up_to, list_ends, mean_interval, pass_at_k
from turnwise.report.trajectories import TrajectoryWriter
from turnwise.rollout.env_specs import World, all_envs
from turnwise.types import Group, IntArray, Trajectory


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
class EvalStats:
    """The outcome over some tasks: all of them, those of one environment, or those of one difficulty."""

    tasks: int
    episodes: int
    unknown: int
    """Episodes that do not report success; the success rates are over the others."""
    success: float | None
    """Mean over tasks of their success rate: average@k for k episodes each. None: not reported."""
    success_interval: tuple[float, float] | None
    mean_return: float
    return_interval: tuple[float, float]
    pass_at: Mapping[int, float]
    """pass@k by k, unbiased; empty if success is not reported."""
    pass_at_intervals: Mapping[int, tuple[float, float]]

    @classmethod
    def of(cls, tasks: Sequence[TaskResult]) -> EvalStats:
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
    """Tokens of the episodes."""

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
    figures: EvalStats
    by_tag: Mapping[str, EvalStats]
    by_difficulty: Mapping[str, EvalStats]
    """Empty if the environments report none. With several environments, `sokoban: 2 boxes`."""
    tasks: tuple[TaskResult, ...]
    worlds: Mapping[str, Mapping[str, object]]
    """The settings of each environment by its tag."""
    stop_reasons: Mapping[str, int]
    invalid: float | None = None
    """Fraction of turns that could not be parsed; None for a scripted policy, which writes no text."""
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


def env_settings(settings: TurnwiseSettings) -> dict[str, dict[str, object]]:
    """Return the settings of each environment, which decide which task a seed means, for `turnwise compare`."""
    return {world.tag: world.env.model_dump(mode="json") for world in all_envs(settings)}


def figures_by_tag(tasks: Sequence[TaskResult]) -> dict[str, EvalStats]:
    by_tag: dict[str, list[TaskResult]] = {}
    for task in tasks:
        by_tag.setdefault(task.task.tag, []).append(task)
    return {tag: EvalStats.of(own) for tag, own in by_tag.items()}


def figures_by_difficulty(tasks: Sequence[TaskResult]) -> dict[str, EvalStats]:
    several = len({task.task.tag for task in tasks}) > 1
    by_name: dict[str, list[TaskResult]] = {}
    for task in tasks:
        if task.difficulty is not None:
            by_name.setdefault(f"{task.task.tag}: {task.difficulty}" if several else task.difficulty, []).append(task)
    return {name: EvalStats.of(by_name[name]) for name in sorted(by_name)}


_SHOWN_CHARACTERS = 600
"""Of an observation or a reply; JSON and the saved trajectories have all of it."""


def to_document(report: EvalReport) -> Document:
    """One target with one recipe, in full."""
    figures = report.figures
    facts = {"success": f"{_success(figures)}{_success_note(figures)}"}
    if report.samples > 1:
        # `success` is average@k, so pass@1.
        passes = {k: value for k, value in figures.pass_at.items() if k > 1}
        facts |= {f"pass@{k}": _interval(value, figures.pass_at_intervals[k]) for k, value in passes.items()}
    facts["return"] = _interval(figures.mean_return, figures.return_interval, digits=3)
    if report.invalid is not None:
        facts["invalid"] = f"{report.invalid:.0%} of all turns could not be parsed"
    facts["ended"] = ", ".join(f"{name} {count}" for name, count in report.stop_reasons.items())
    if report.cost is not None:
        facts["tokens"] = _describe_cost(report.cost)
    return Document(
        _title(report),
        facts,
        [_breakdown(name, parts) for name, parts in _breakdowns(report)],
        parts=[_reply(number, sample) for number, sample in enumerate(report.replies, start=1)],
        notes=[f"reason for no success: {reason}" for reason in report.reasons],
    )


def to_suite_document(reports: Sequence[EvalReport]) -> Document:
    """One row per recipe; each in full is in its folder."""
    reasons = [f"{report.env}: {reason}" for report in reports for reason in report.reasons]
    return Document(f"{reports[0].target}, split {reports[0].split}", tables=[_overview(reports)], notes=reasons)


def make_page(reports: Sequence[EvalReport]) -> Document:
    """A table over all reports, and each in full."""
    return Document("Evaluation", tables=[_overview(reports)], parts=[to_document(report) for report in reports])


def _overview(reports: Sequence[EvalReport]) -> Table:
    columns = ("env", "target", "episodes", "success (95 %)", "return", "invalid", "tokens")
    return Table(columns, [_overview_row(report) for report in reports])


def _overview_row(report: EvalReport) -> tuple[str | int | float, ...]:
    return (
        report.env,
        report.target,
        report.episodes,
        _success(report.figures),
        report.mean_return,
        "" if report.invalid is None else f"{report.invalid:.0%}",
        "" if report.cost is None else f"{report.cost.sampled_per_episode:.0f}",
    )


def _breakdowns(report: EvalReport) -> list[tuple[str, Mapping[str, EvalStats]]]:
    """By environment if there are several, and by difficulty if one is reported."""
    found = [("environment", report.by_tag)] if len(report.by_tag) > 1 else []
    return [*found, *([("difficulty", report.by_difficulty)] if report.by_difficulty else [])]


def _breakdown(name: str, parts: Mapping[str, EvalStats]) -> Table:
    rows = [(part, own.episodes, _success(own), own.mean_return) for part, own in parts.items()]
    return Table((name, "episodes", "success (95 %)", "return"), rows)


def _title(report: EvalReport) -> str:
    if report.samples == 1:
        episodes = f"{report.episodes} episodes"
    else:
        episodes = f"{report.figures.tasks} tasks, {report.samples} episodes each"
    how = {None: "", 0.0: ", greedy"}.get(report.temperature, f", sampled at temperature {report.temperature}")
    return f"{report.target} on {report.env}, split {report.split}, {episodes}{how}"


def _describe_cost(cost: Cost) -> str:
    text = f"{cost.sampled} sampled ({cost.sampled_per_episode:.1f} per episode), {cost.read} read"
    return text if cost.sampled_per_success is None else f"{text}, {cost.sampled_per_success:.1f} sampled per success"


def _success(figures: EvalStats) -> str:
    if figures.success is None or figures.success_interval is None:
        return UNKNOWN
    return _interval(figures.success, figures.success_interval)


def _success_note(figures: EvalStats) -> str:
    """How far the success rate can be relied on."""
    if figures.success is None:
        return ": the workflow does not report it (is_success); see the return"
    known = f", over the {figures.episodes - figures.unknown} episodes that report it" if figures.unknown else ""
    return f", 95 % interval{known}"


def _interval(value: float, ends: tuple[float, float], *, digits: int = 2) -> str:
    """`0.58 (0.48 to 0.67)`."""
    return f"{value:.{digits}f} ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"


def _reply(number: int, sample: SampleReply) -> Document:
    ended = "cut at context.max_response_tokens" if sample.cut else "complete"
    verdict = f"parsed as {', '.join(sample.actions)}" if sample.understood else "could not be parsed"
    texts = {"observation": sample.observation, "reply": sample.reply}
    parts = [Document(name, text=_shorten(text)) for name, text in texts.items()]
    return Document(f"Reply {number}: {sample.tokens} tokens, {ended}, {verdict}", parts=parts)


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"


_NUM_REPLIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A report, and the episodes that it is about."""

    report: EvalReport
    trajectories: tuple[Trajectory, ...]
    root: str
    """The `run.root` of the settings."""

    def save(self, folder: Path | None) -> EvalReport:
        """Write everything down: into `folder`, or into a new one beside the run that played, or in `root`."""
        report = self.report
        where = folder or _new_folder(report, Path(self.root))
        TrajectoryWriter(where, max_per_step=len(self.trajectories)).write(0, self.trajectories)
        saved = replace(report, folder=where)
        write_eval(where, saved.to_dict(), saved.tasks)
        atomic_write(where / PAGE, to_markdown(make_page([saved])))
        return saved


def _new_folder(report: EvalReport, root: Path) -> Path:
    """A run's evaluations lie in the run, whatever checkpoint of it played; the others in one folder."""
    run = find_run(report.target)
    if run is not None:
        return new_eval_folder(RunDirectory(run).evals, report.recipe)
    name = re.sub(r"[^\w.-]+", "_", report.target).strip("_")
    return new_eval_folder(root / "evals", f"{name[-40:]}-{report.recipe}")


def evaluate_rule(rule: str, settings: TurnwiseSettings, split: str) -> Evaluated:
    """Evaluate `oracle`, `random` or another scripted policy in the main environment."""
    _refuse_no_episodes(settings)
    result = evaluate_scripted_policy(settings, rule, held_out_tasks(settings, split), build_scorer(settings))
    report = _report(rule, settings, split, result)
    return Evaluated(report=report, trajectories=result.trajectories, root=settings.run.root)


def evaluate_policy(
    target: str,
    overrides: Sequence[str],
    console: Console,
    *,
    recipe: str | Mapping[str, object] | None,
    split: str,
) -> Evaluated:
    """Evaluate a run, a model or an endpoint, with its own settings or those of a recipe."""
    found = find_policy(target, overrides, recipe=recipe)
    _refuse_no_episodes(found.settings)
    with phase(console, "setting up the model" if found.model else describe_set_up(found.settings.model.path)):
        parts = open_policy(found, split=split)
    num_episodes = len(parts.eval_tasks) * found.settings.eval.samples
    with phase(console, f"evaluating on {num_episodes} episodes") as advance:
        result = run_async(evaluate_once(parts, advance))
    report = report_policy(target, split, result, parts)
    return Evaluated(report=report, trajectories=result.trajectories, root=found.settings.run.root)


def _refuse_no_episodes(settings: TurnwiseSettings) -> None:
    if not settings.eval.is_wanted:
        raise ConfigError("eval.episodes must be at least 1 to evaluate, got 0. Give --episodes N.")


def report_policy(target: str, split: str, result: Evaluation, parts: RolloutComponents) -> EvalReport:
    """What a policy did; `parts` have played it."""
    settings = parts.settings
    turns = [turn for trajectory in result.trajectories for turn in trajectory.turns]
    report = _report(target, settings, split, result)
    return replace(
        report,
        seed=settings.run.seed if find_run(target) else None,
        temperature=settings.eval.temperature,
        cost=Cost.of(report.tasks),
        invalid=sum(not turn.is_valid for turn in turns) / len(turns) if turns else None,
        replies=tuple(_samples(result.trajectories, parts)),
        reasons=tuple(_reasons(result.trajectories, parts)) if result.success == 0 else (),
    )


def _report(target: str, settings: TurnwiseSettings, split: str, result: Evaluation) -> EvalReport:
    """Build the part of the report that every kind of policy has."""
    tasks = results_of(result.trajectories)
    return EvalReport(
        target=target,
        recipe=settings.recipe,
        seed=None,
        env=result.env,
        split=split,
        samples=settings.eval.samples,
        temperature=None,
        figures=EvalStats.of(tasks),
        by_tag=figures_by_tag(tasks),
        by_difficulty=figures_by_difficulty(tasks),
        tasks=tasks,
        worlds=env_settings(settings),
        stop_reasons=dict(Counter(str(t.stop_reason) for t in result.trajectories).most_common()),
    )


def _samples(trajectories: Sequence[Trajectory], parts: RolloutComponents) -> list[SampleReply]:
    """The first reply of each of the first episodes."""
    contexts = {world.tag: world.context for world in envs_by_path(parts.settings).values()}
    samples: list[SampleReply] = []
    for trajectory in [t for t in trajectories if t.turns and replies_of(t)][:_NUM_REPLIES]:
        turn, ids = trajectory.turns[0], replies_of(trajectory)[0]
        limit = contexts[trajectory.task.tag].max_response_tokens
        samples.append(
            SampleReply(
                observation=turn.observation,
                reply=turn.response_text,
                tokens=len(ids),
                actions=turn.actions,
                understood=turn.is_valid,
                cut=_is_long(ids, limit, parts) and int(ids[-1]) not in parts.template.stop_ids,
            )
        )
    return samples


def _is_long(ids: IntArray, limit: int, parts: RolloutComponents) -> bool:
    """Whether a reply may have been cut. Without token ids, only a missing end token shows it."""
    return len(ids) >= limit or not parts.settings.engine.tells_tokens


def _reasons(trajectories: Sequence[Trajectory], parts: RolloutComponents) -> list[str]:
    found: list[str] = []
    for path, world in envs_by_path(parts.settings).items():
        own = [trajectory for trajectory in trajectories if trajectory.task.tag == world.tag]
        groups = [Group(task=trajectory.task, trajectories=(trajectory,)) for trajectory in own]
        if not groups:
            continue
        probe = count_episodes(groups, parts.template, world.context.max_response_tokens, seconds=0.0)
        probed = check_policy_probe(
            path, world, probe, parts.settings, is_taught_first=False, is_beginner=False, has_rewards=False
        )
        found += [finding.text for finding in probed if finding.level != "note"]
        if probe.turns and not probe.valid_turns:
            found += _on_instructions(path, world)
    return found or [
        "none that the format or the budgets show: replies are understood, and what they do does not lead to success."
    ]


def _on_instructions(path: str, world: World) -> list[str]:
    if world.context.instructions == "full":
        return []
    where = f"{path.removesuffix('env')}context"
    return [f"{where}.instructions is 'none': the prompt does not explain the rules and the format. Set it to full."]
