"""What the first rollout and the first update tell of settings and a model that do not fit each other.

In: the groups that were played first, and the metrics of the first update. Out: notices, each with what to change, told
before anything is learnt from those groups. What only shows over many steps is found by `report/watch.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Console

from turnwise.app.doctor.probe import replies_of
from turnwise.app.misfits import Misfit, quoted, tell_misfits
from turnwise.config.schema import ContextSettings, TurnwiseSettings
from turnwise.infra.untrusted import show_success
from turnwise.loop.explore import Explored
from turnwise.protocols import ChatTemplate
from turnwise.report.metrics import group_metrics
from turnwise.report.run_dir import RunDirectory
from turnwise.rollout.env_specs import worlds_of
from turnwise.types import Group, Metrics, Turn

_MOSTLY, _OFTEN = 0.9, 0.5
_MAX_GAP = 0.1
"""Nats per token between engine and learner, of the same weights; rounding is far below it, also in bfloat16."""
_FIRST = 1
"""The step that is looked at; later ones are watched."""


class FirstLook:
    """Tells what step 1 shows, on the console and among the findings of the run."""

    def __init__(
        self, settings: TurnwiseSettings, template: ChatTemplate, directory: RunDirectory, console: Console
    ) -> None:
        self._settings = settings
        self._template = template
        self._directory = directory
        self._console = console

    def after_rollout(self, step: int, explored: Explored) -> None:
        if step == _FIRST:
            self._tell(look_at_rollout(self._settings, explored.played, self._template))

    def after_update(self, step: int, metrics: Metrics) -> None:
        if step == _FIRST:
            self._tell(look_at_update(metrics))

    def _tell(self, found: Sequence[Misfit]) -> None:
        tell_misfits(found, step=_FIRST, directory=self._directory, console=self._console)


# --- the first rollout -----------------------------------------------------------------------------------------------


def look_at_rollout(settings: TurnwiseSettings, groups: Sequence[Group], template: ChatTemplate) -> list[Misfit]:
    """What the first episodes tell: whether they are understood, end, differ, and earn different things.

    The built-in model starts from random weights: what it says is held against it only where nothing can be learnt.
    """
    metrics = group_metrics(groups)
    has_nothing = _earn_the_same(groups, metrics)
    if settings.model.path == "tiny" and not has_nothing:
        return []
    turns = [turn for group in groups for t in group.trajectories for turn in t.turns]
    if not turns:
        return []
    contexts = {world.tag: world.context for world in worlds_of(settings)}
    causes = [
        *_cut_replies(groups, contexts, template),
        *_ignored_format(turns, metrics.get("rollout/invalid_actions", 0.0), settings),
        *_same_siblings(groups, settings),
    ]
    if has_nothing and not causes:
        causes = [_same_return(metrics, settings)]
    if not causes:
        return []
    first, *others = causes
    head = "the first rollout has nothing to learn from: " if has_nothing else ""
    tail = f" A reply of it: {_sample(turns)}"
    return [Misfit(kind=first.kind, message=f"{head}{first.message}{tail}"), *others]


def _earn_the_same(groups: Sequence[Group], metrics: Metrics) -> bool:
    if "rollout/dead_groups" in metrics:
        return metrics["rollout/dead_groups"] == 1
    earned = [sum(turn.learnt_reward for turn in t.turns) for group in groups for t in group.trajectories]
    return len(earned) > 1 and math.isclose(max(earned), min(earned), abs_tol=1e-9)


def _cut_replies(
    groups: Sequence[Group], contexts: dict[str, ContextSettings], template: ChatTemplate
) -> Iterator[Misfit]:
    num_cut = num_ended = num_replies = 0
    limits: set[int] = set()
    for group in groups:
        limit = contexts[group.task.tag].max_response_tokens if group.task.tag in contexts else 0
        limits.add(limit)
        for reply in (reply for t in group.trajectories for reply in replies_of(t)):
            is_ended = len(reply) > 0 and int(reply[-1]) in template.stop_ids
            num_replies, num_ended = num_replies + 1, num_ended + is_ended
            num_cut += 0 < limit <= len(reply) and not is_ended
    if not num_replies or num_cut < _OFTEN * num_replies:
        return
    where = f"context.max_response_tokens = {max(limits)}"
    if num_ended == 0:
        yield Misfit(
            kind="no_end",
            message=f"none of {num_replies} replies ends by itself; all are cut at {where}. Raise it if they are on "
            "their way to an answer; if they never end, the model's end-of-turn token is not the one of its chat "
            "template (eos_token in tokenizer_config.json), or the model was never taught to end a turn.",
        )
    else:
        yield Misfit(
            kind="cut_replies",
            message=f"{num_cut} of {num_replies} replies are cut at {where}, before they end. Raise it, or ask for "
            "shorter replies in context.system_prompt.",
        )


def _ignored_format(turns: Sequence[Turn], invalid: float, settings: TurnwiseSettings) -> Iterator[Misfit]:
    if invalid < _MOSTLY:
        return
    advice = ["teach it first (warm_start.type=oracle)"]
    if settings.context.instructions == "none":
        advice.insert(0, "explain it (context.instructions=full)")
    elif settings.context.answer.type != "plain" and not settings.context.answer.forced_prefix:
        advice.insert(0, "begin each reply with it (context.answer.forced_prefix='<answer>')")
    if settings.rollout.temperature >= 1 and settings.model.path != "tiny":
        advice.insert(0, "sample closer to what it likes best (rollout.temperature=0.7)")
    if settings.context.answer.is_strict:
        advice.insert(0, "allow words beside it (context.answer.is_strict=false)")
    yield Misfit(
        kind="format_ignored",
        message=f"{invalid:.0%} of {len(turns)} turns were not understood: the model does not answer in the form of "
        f"context.answer ({settings.context.answer.type}). To change that, {', '.join(advice)}, pay for the form with "
        "reward.shaping, or use a model that follows instructions.",
    )


def _same_siblings(groups: Sequence[Group], settings: TurnwiseSettings) -> Iterator[Misfit]:
    said = [{tuple(turn.response_text for turn in t.turns) for t in group.trajectories} for group in groups]
    if settings.rollout.group_size > 1 and all(len(texts) == 1 for texts in said):
        yield Misfit(
            kind="same_siblings",
            message=f"all siblings of every group say the same at rollout.temperature = "
            f"{settings.rollout.temperature:g}. Raise it, to 1 for example.",
        )


def _same_return(metrics: Metrics, settings: TurnwiseSettings) -> Misfit:
    success, mean = metrics.get("rollout/success"), metrics.get("rollout/return", 0.0)
    who = "all siblings of every group" if settings.rollout.group_size > 1 else "all episodes"
    way = "easier or harder" if success is None else "harder" if success > _OFTEN else "easier"
    return Misfit(
        kind="same_return",
        message=f"{who} earn the same (success {show_success(success)}, mean return {mean:.3g}). Try {way} tasks "
        f"(env), a larger rollout.group_size ({settings.rollout.group_size} now), or a higher rollout.temperature "
        f"({settings.rollout.temperature:g} now).",
    )


def _sample(turns: Sequence[Turn]) -> str:
    """One that was not understood, where there is one."""
    turn = next((turn for turn in turns if not turn.is_valid or turn.penalty < 0), turns[0])
    return quoted(turn.response_text)


# --- the first update ------------------------------------------------------------------------------------------------


def look_at_update(metrics: Metrics) -> list[Misfit]:
    """Whether engine and learner agree about the same weights."""
    gap = metrics.get("learn/behavior_gap", 0.0)
    if gap <= _MAX_GAP or metrics.get("sync/staleness_max", 0.0) > 0:
        return []
    return [
        Misfit(
            kind="behavior_gap",
            message=f"engine and learner differ by {gap:.3g} nats per token about the same weights, where rounding "
            "gives far less: what is learnt is not what was sampled. Use model.dtype=float32 for both, an engine that "
            "samples without top_k and top_p, and learn.correction.type=truncated where it must stay so.",
        )
    ]
