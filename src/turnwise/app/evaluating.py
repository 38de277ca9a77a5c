"""`turnwise eval`: how well somebody plays, with what was sampled and, where nothing succeeds, the likely reason.

In: who plays, and in which setting. Out: a report, and a folder with all episodes. How episodes are played, and how
shares are counted, is `loop/evaluate.py`'s business.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from turnwise.app.eval_report import (
    Cost,
    EvalReport,
    Figures,
    SampleReply,
    figures_by_difficulty,
    figures_by_tag,
    worlds_told,
)
from turnwise.app.eval_texts import to_markdown
from turnwise.checks.episodes import count_episodes, judge_policy, replies_of
from turnwise.checks.setup import worlds_by_path
from turnwise.checks.stages import Status
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError
from turnwise.infra.atomic_files import write_whole
from turnwise.infra.threads import run_async
from turnwise.loop.build import held_out_tasks
from turnwise.loop.components import PlayParts
from turnwise.loop.evaluate import Evaluation, evaluate_once, play_rule_in
from turnwise.loop.policies import find_policy, open_policy, run_of
from turnwise.models.resolve import describe_set_up
from turnwise.report.console import phase
from turnwise.report.evaluation import PAGE, new_eval_folder, results_of, write_eval
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import TrajectoryWriter
from turnwise.rollout.env_specs import World
from turnwise.types import Group, IntArray, Trajectory

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
        write_whole(where / PAGE, to_markdown([saved]))
        return saved


def _new_folder(report: EvalReport, root: Path) -> Path:
    """A run's evaluations lie in the run, whatever checkpoint of it played; the others in one folder."""
    run = run_of(report.target)
    if run is not None:
        return new_eval_folder(RunDirectory(run).evals, report.recipe)
    name = re.sub(r"[^\w.-]+", "_", report.target).strip("_")
    return new_eval_folder(root / "evals", f"{name[-40:]}-{report.recipe}")


def evaluate_rule(rule: str, settings: TurnwiseSettings, split: str) -> Evaluated:
    """How well `oracle`, `random` or another rule plays the main environment."""
    _refuse_no_episodes(settings)
    result = play_rule_in(settings, rule, held_out_tasks(settings, split))
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
    """How well a run, a model or an endpoint plays, in its own setting or in that of a recipe."""
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


def report_policy(target: str, split: str, result: Evaluation, parts: PlayParts) -> EvalReport:
    """What a policy did; `parts` have played it."""
    settings = parts.settings
    turns = [turn for trajectory in result.trajectories for turn in trajectory.turns]
    report = _report(target, settings, split, result)
    return replace(
        report,
        seed=settings.run.seed if run_of(target) else None,
        temperature=settings.eval.temperature,
        cost=Cost.of(report.tasks),
        invalid=sum(not turn.is_valid for turn in turns) / len(turns) if turns else None,
        replies=tuple(_samples(result.trajectories, parts)),
        reasons=tuple(_reasons(result.trajectories, parts)) if result.success == 0 else (),
    )


def _report(target: str, settings: TurnwiseSettings, split: str, result: Evaluation) -> EvalReport:
    """What is known of whoever played."""
    tasks = results_of(result.trajectories)
    return EvalReport(
        target=target,
        recipe=settings.recipe,
        seed=None,
        env=result.env,
        split=split,
        samples=settings.eval.samples,
        temperature=None,
        figures=Figures.of(tasks),
        by_tag=figures_by_tag(tasks),
        by_difficulty=figures_by_difficulty(tasks),
        tasks=tasks,
        worlds=worlds_told(settings),
        stop_reasons=dict(Counter(str(t.stop_reason) for t in result.trajectories).most_common()),
    )


def _samples(trajectories: Sequence[Trajectory], parts: PlayParts) -> list[SampleReply]:
    """The first reply of each of the first episodes."""
    contexts = {world.tag: world.context for _, world in worlds_by_path(parts.settings)}
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


def _is_long(ids: IntArray, limit: int, parts: PlayParts) -> bool:
    """Whether a reply may have been cut; an endpoint counts its own tokens, and only says so by leaving out the end."""
    return len(ids) >= limit or not parts.settings.engine.tells_tokens


def _reasons(trajectories: Sequence[Trajectory], parts: PlayParts) -> list[str]:
    found: list[str] = []
    for path, world in worlds_by_path(parts.settings):
        own = [trajectory for trajectory in trajectories if trajectory.task.tag == world.tag]
        groups = [Group(task=trajectory.task, trajectories=(trajectory,)) for trajectory in own]
        if not groups:
            continue
        probe = count_episodes(groups, parts.template, world.context.max_response_tokens, seconds=0.0)
        told = judge_policy(path, world, probe, is_taught_first=False, is_beginner=False, has_rewards=False)
        found += [finding.message for finding in told if finding.status is not Status.OK]
        if probe.turns and not probe.valid_turns:
            found += _on_instructions(path, world)
    return found or [
        "none that the format or the budgets show: replies are understood, and what they do does not lead to success."
    ]


def _on_instructions(path: str, world: World) -> list[str]:
    if world.context.instructions == "full":
        return []
    where = f"{path.removesuffix('env')}context"
    return [f"{where}.instructions is 'none': nobody tells the model the rules and the format. Set it to full."]
