"""`turnwise eval`: how well somebody plays, with what was sampled and, where nothing succeeds, the likely reason.

In: who plays, and in which setting. Out: a report for people and for programs. How episodes are played, and how shares
are counted, is `loop/evaluate.py`'s business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.text import Text

from turnwise.app.doctor.findings import Status
from turnwise.app.doctor.probe import count_episodes, replies_of
from turnwise.app.doctor.verdicts import judge_policy
from turnwise.app.models import describe_set_up
from turnwise.app.policies import find_policy, open_policy
from turnwise.app.refusals import worlds_by_path
from turnwise.config.schema import TurnwiseSettings
from turnwise.floor.async_calls import run_async
from turnwise.loop.build import held_out_tasks
from turnwise.loop.evaluate import Evaluation, evaluate_once, measure_rule_in
from turnwise.loop.parts import PlayParts
from turnwise.report.console import phase
from turnwise.report.intervals import share_interval, show_share
from turnwise.rollout.worlds import World
from turnwise.types import Group, IntArray, Trajectory

_NUM_REPLIES = 3
_SHOWN_CHARACTERS = 600
"""Of a prompt or a reply on the terminal; JSON has them whole."""


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
class EvalReport:
    """The row that `turnwise eval` shows."""

    target: str
    env: str
    split: str
    episodes: int
    success: float
    mean_return: float
    invalid: float | None = None
    """Share of turns that were not understood; None where a rule played, which says nothing."""
    stop_reasons: Mapping[str, int] | None = None
    replies: tuple[SampleReply, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why nothing succeeded, where nothing did."""

    def to_dict(self) -> dict[str, object]:
        values = asdict(self)
        values["return"] = values.pop("mean_return")
        return {**values, "success_interval": list(share_interval(self.success, self.episodes))}


def evaluate_rule(rule: str, settings: TurnwiseSettings, split: str) -> EvalReport:
    """How well `oracle` or `random` plays the main environment."""
    env, tasks = settings.env.type, held_out_tasks(settings, split)
    success, mean_return = measure_rule_in(settings, rule, tasks)
    episodes = sum(task.tag == env for task in tasks)
    return EvalReport(target=rule, env=env, split=split, episodes=episodes, success=success, mean_return=mean_return)


def evaluate_policy(
    target: str,
    overrides: Sequence[str],
    console: Console,
    *,
    recipe: str | Mapping[str, object] | None,
    split: str,
) -> EvalReport:
    """How well a run, a model or an endpoint plays, in its own setting or in that of a recipe."""
    found = find_policy(target, overrides, recipe=recipe)
    with phase(console, "setting up the model" if found.model else describe_set_up(found.settings.model.path)):
        parts = open_policy(found, split=split)
    with phase(console, f"evaluating on {len(parts.eval_tasks)} episodes") as advance:
        result = run_async(evaluate_once(parts, advance))
    return report_policy(target, split, result, parts)


def report_policy(target: str, split: str, result: Evaluation, parts: PlayParts) -> EvalReport:
    """What a policy did; `parts` have played it."""
    turns = [turn for trajectory in result.trajectories for turn in trajectory.turns]
    return EvalReport(
        target=target,
        env=result.env,
        split=split,
        episodes=result.episodes,
        success=result.success,
        mean_return=result.mean_return,
        invalid=sum(not turn.is_valid for turn in turns) / len(turns) if turns else None,
        stop_reasons=dict(Counter(str(t.stop_reason) for t in result.trajectories).most_common()),
        replies=tuple(_samples(result.trajectories, parts)),
        reasons=() if result.success else tuple(_reasons(result.trajectories, parts)),
    )


def show_report(console: Console, report: EvalReport) -> None:
    shown = show_share(report.success, report.episodes)
    lines = [
        f"{report.target} on {report.env}, split {report.split}, {report.episodes} episodes",
        f"success  {shown}, 95 % interval",
        f"return   {report.mean_return:.3f}",
    ]
    if report.invalid is not None:
        lines.append(f"invalid  {report.invalid:.0%} of all turns were not understood")
    if report.stop_reasons:
        lines.append("ended    " + ", ".join(f"{name} {count}" for name, count in report.stop_reasons.items()))
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    for number, sample in enumerate(report.replies, start=1):
        _show_sample(console, number, sample)
    for reason in report.reasons:
        console.print(Text("reason   ", style="bold yellow").append(reason, style="not bold default"), soft_wrap=True)


def _show_sample(console: Console, number: int, sample: SampleReply) -> None:
    ended = "cut at context.max_response_tokens" if sample.cut else "ended by itself"
    verdict = f"understood as {', '.join(sample.actions)}" if sample.understood else "not understood"
    title = f"reply {number}: {sample.tokens} tokens, {ended}, {verdict}"
    console.print(Text(title, style="bold" if sample.understood else "bold yellow"), soft_wrap=True)
    for text, style in ((sample.observation, "dim"), (sample.reply, "cyan")):
        short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
        console.print(Text("\n".join(f"  {line}" for line in short.splitlines()), style=style))


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
