"""Checks of played episodes: the probe of `turnwise doctor`, and the first rollout and update of a run.

Both count episodes into `ProbeStats` and report the same facts with the same texts. What only shows over many steps is
found by `checks/health.py`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace

import numpy as np
from rich.console import Console

from turnwise.checks.model import quoted
from turnwise.checks.stages import envs_by_path, fail, ok, report_findings, warn
from turnwise.config.schema import OracleWarmStart, TurnwiseSettings
from turnwise.errors import Finding
from turnwise.hooks import Hook, LogValue, RolloutResult, TrainStep
from turnwise.infra.untrusted import format_success_rate, success_flags, success_rate
from turnwise.loop.build import Stage, build_scorer, first_train_seed, load_words, open_engine
from turnwise.protocols import ChatTemplate
from turnwise.report.metrics import group_metrics
from turnwise.report.run_dir import RunDirectory
from turnwise.rollout.env_specs import World
from turnwise.rollout.scripted_policies import DemonstrationWorkflow, NullEngine
from turnwise.rollout.workflow import Workflow
from turnwise.types import Group, Metrics, StopReason, Task, Trajectory, Turn

NUM_EPISODES = 16
_GROUP_SIZES = (16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStats:
    """Counts over the episodes of one environment."""

    episodes: int
    failed: int
    failure: str
    """Of the first failed episode."""
    success: float | None
    """Success rate; None if the workflow reports none."""
    turns: int
    valid_turns: int
    mean_return: float
    return_std: float
    groups: int
    dead_groups: int
    """Groups in which all returns are equal."""
    identical_groups: int
    """Groups in which all rollouts have the same replies."""
    replies: int
    cut_replies: int
    ended_replies: int
    mean_reply_tokens: float
    longest_reply_tokens: int
    longest_episode_tokens: int
    """Length of the longest segment."""
    overflowed: int
    """Episodes that ended at context.max_tokens."""
    out_of_turns: int
    sampled_tokens: int
    seconds: float

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResults:
    """The probes of all environments by tag, and of the expert if it gives the demonstrations."""

    policy: dict[str, ProbeStats]
    oracle: ProbeStats | None


async def probe(
    settings: TurnwiseSettings,
    model_path: str,
    worlds: Sequence[World],
    advance: Callable[[int, int], None],
    *,
    is_judged: bool,
) -> ProbeResults:
    """Play in each environment; without the reward scorer if `is_judged` is false, and rewards then mean nothing."""
    words = load_words(settings, model_path)
    judging = build_scorer(settings) if is_judged else None
    engine = open_engine(words, model_path)
    num_done, num_total = 0, NUM_EPISODES * len(worlds)

    def count(_trajectory: Trajectory) -> None:
        nonlocal num_done
        num_done += 1
        advance(num_done, num_total)

    stage = Stage(settings=settings, template=words.template, engine=engine, judging=judging)
    try:
        policy = {world.tag: await _play(stage, world, count) for world in worlds}
    finally:
        await engine.close()
    oracle = None
    if isinstance(settings.warm_start, OracleWarmStart):
        scripted = Stage(settings=settings, template=words.template, engine=NullEngine())
        oracle = await _play(scripted, worlds[0], lambda _: None, DemonstrationWorkflow)
    return ProbeResults(policy=policy, oracle=oracle)


async def _play(
    stage: Stage, world: World, on_done: Callable[[Trajectory], None], workflow: type[Workflow] | None = None
) -> ProbeStats:
    rollout = stage.settings.rollout
    group_size = next(size for size in _GROUP_SIZES if size <= rollout.group_size)
    groups = NUM_EPISODES // group_size
    proxy = stage.proxy(
        [replace(world, groups=groups)],
        split="train",
        group_size=group_size,
        temperature=rollout.temperature,
        workflow=workflow,
    )
    first = first_train_seed(stage.settings)
    tasks = [Task(tag=world.tag, seed=first + number) for number in range(groups)]
    started_s = time.perf_counter()
    with closing(proxy):
        played = await proxy.collect(tasks, rollout=0, on_done=on_done)
    return count_episodes(played, stage.template, world.context.max_response_tokens, time.perf_counter() - started_s)


def count_episodes(
    groups: Sequence[Group], template: ChatTemplate, max_response_tokens: int, seconds: float
) -> ProbeStats:
    """Count episodes of one environment."""
    played = [trajectory for group in groups for trajectory in group.trajectories]
    failures = [t.failure for t in played if t.stop_reason.is_error]
    turns = [turn for t in played for turn in t.turns]
    returns = [t.episode_return for t in played]
    replies = [reply for t in played for reply in replies_of(t)]
    metrics = group_metrics(groups)

    def is_ended(reply: np.ndarray) -> bool:
        return len(reply) > 0 and int(reply[-1]) in template.stop_ids

    return ProbeStats(
        episodes=len(played),
        failed=len(failures),
        failure=next(iter(failures), ""),
        success=success_rate(success_flags(played)),
        turns=len(turns),
        valid_turns=sum(turn.is_valid and turn.penalty >= 0 for turn in turns),
        mean_return=statistics.fmean(returns),
        return_std=statistics.pstdev(returns),
        groups=len(groups),
        dead_groups=round(metrics.get("rollout/dead_groups", 0.0) * len(groups)),
        identical_groups=sum(
            len({tuple(turn.response_text for turn in t.turns) for t in group.trajectories}) == 1 for group in groups
        ),
        replies=len(replies),
        cut_replies=sum(len(reply) >= max_response_tokens and not is_ended(reply) for reply in replies),
        ended_replies=sum(map(is_ended, replies)),
        mean_reply_tokens=statistics.fmean(map(len, replies)) if replies else 0.0,
        longest_reply_tokens=max(map(len, replies), default=0),
        longest_episode_tokens=max((len(segment) for t in played for segment in t.segments), default=0),
        overflowed=sum(t.stop_reason is StopReason.CONTEXT_OVERFLOW for t in played),
        out_of_turns=sum(t.stop_reason is StopReason.MAX_TURNS for t in played),
        sampled_tokens=sum(map(len, replies)),
        seconds=seconds,
    )


def replies_of(trajectory: Trajectory) -> list[np.ndarray]:
    """The sampled tokens of each reply."""
    return [
        segment.token_ids[segment.loss_mask & (segment.turn_ids == turn)]
        for segment in trajectory.segments
        for turn in segment.sampled_turns()
    ]


_ALMOST_ALL, _MOST, _FEW = 0.9, 0.5, 0.1
_MAX_GAP = 0.1
"""Nats per token between engine and learner, of the same weights; rounding is far below it, also in bfloat16."""
_FIRST = 1
"""The step that is checked; later ones are left to the health checks."""


# --- facts -----------------------------------------------------------------------------------------------------------


def _format_finding(path: str, world: World, stats: ProbeStats, settings: TurnwiseSettings) -> Finding:
    answer = world.context.answer
    advice = ["use warm_start.type=oracle"]
    if world.context.instructions == "none":
        advice.insert(0, "explain the format (context.instructions=full)")
    elif answer.type != "plain" and not answer.forced_prefix:
        advice.insert(0, "begin each reply with it (context.answer.forced_prefix='<answer>')")
    if settings.rollout.temperature >= 1 and settings.model.path != "tiny":
        advice.insert(0, "sample at a lower temperature (rollout.temperature=0.7)")
    if answer.is_strict:
        advice.insert(0, "allow text beside it (context.answer.is_strict=false)")
    none = ": no reply could be parsed, so there is no training signal" if stats.valid_turns == 0 else ""
    line = warn if stats.valid_turns else fail
    return line(
        f"format of {path}",
        f"{stats.valid_turns} of {stats.turns} turns have a valid answer ({answer.type}){none}.",
        f"To change that, {', '.join(advice)}, reward the format with reward.shaping, or use a model that follows "
        "instructions.",
        kind="format_ignored",
    )


def _cut_finding(path: str, world: World, stats: ProbeStats) -> Finding:
    limit = f"{_section(path)}context.max_response_tokens = {world.context.max_response_tokens}"
    if stats.ended_replies == 0:
        kind = "no_end"
        fix = (
            "Raise it if replies are on their way to an answer. If they never end, the model's end-of-turn token is "
            "not that of its chat template (eos_token in tokenizer_config.json), or the model was not trained to end "
            "a turn."
        )
    else:
        kind, fix = "cut_replies", "Raise it, or ask for shorter replies in context.system_prompt."
    line = fail if stats.cut_replies >= _MOST * stats.replies else warn
    message = f"{stats.cut_replies} of {stats.replies} replies are cut at {limit}, before they end."
    return line(f"replies of {path}", message, fix, kind=kind)


def _same_replies_finding(path: str, settings: TurnwiseSettings) -> Finding:
    temperature = f"rollout.temperature = {settings.rollout.temperature:g}"
    message = f"all rollouts of every group have the same replies at {temperature}."
    return warn(f"rewards of {path}", message, "Raise it, to 1 for example.", kind="same_siblings")


def _same_return_finding(path: str, stats: ProbeStats, settings: TurnwiseSettings) -> Finding:
    which = "rollouts of every group" if settings.rollout.group_size > 1 else f"{stats.episodes} episodes"
    tasks = "easier or harder" if stats.success is None else "harder" if stats.success > _MOST else "easier"
    return warn(
        f"rewards of {path}",
        f"all {which} have the same return, so every advantage is zero (success {format_success_rate(stats.success)}, "
        f"mean return {stats.mean_return:.3g}).",
        f"Try {tasks} tasks (env), a larger rollout.group_size ({settings.rollout.group_size} now), a higher "
        f"rollout.temperature ({settings.rollout.temperature:g} now), or warm_start.type=oracle.",
        kind="same_return",
    )


def _section(path: str) -> str:
    """The prefix of an environment's config section."""
    return path.removesuffix("env")


# --- the first step --------------------------------------------------------------------------------------------------


class FirstStepChecks(Hook):
    """Reports what step 1 shows, on the console and in the run's findings."""

    def __init__(
        self, settings: TurnwiseSettings, template: ChatTemplate, directory: RunDirectory, console: Console
    ) -> None:
        self._settings = settings
        self._template = template
        self._directory = directory
        self._console = console

    def on_rollout(self, step: int, rollout: RolloutResult) -> None:
        if step == _FIRST:
            self._report(check_rollout(self._settings, rollout.played, self._template))

    async def on_step(self, step: TrainStep, metrics: Mapping[str, LogValue]) -> None:
        if step.step == _FIRST:
            self._report(check_update(step.metrics))

    def _report(self, found: Sequence[Finding]) -> None:
        # A run goes on with any of them.
        found = [replace(finding, level="warning", step=_FIRST) for finding in found]
        report_findings(found, self._directory, self._console)


def check_rollout(settings: TurnwiseSettings, groups: Sequence[Group], template: ChatTemplate) -> list[Finding]:
    """Whether replies of the first episodes are parsed, end and differ, and whether returns differ.

    The built-in model starts from random weights: its replies are reported only if there is nothing to learn from.
    """
    metrics = group_metrics(groups)
    has_nothing = _have_equal_returns(groups, metrics)
    turns = [turn for group in groups for t in group.trajectories for turn in t.turns]
    if not turns or (settings.model.path == "tiny" and not has_nothing):
        return []
    causes: list[Finding] = []
    for path, world in envs_by_path(settings).items():
        own = [group for group in groups if group.task.tag == world.tag]
        if any(t.turns for group in own for t in group.trajectories):
            stats = count_episodes(own, template, world.context.max_response_tokens, seconds=0.0)
            causes += _check_first(path, world, stats, settings)
    if has_nothing and not causes:
        stats = count_episodes(groups, template, settings.context.max_response_tokens, seconds=0.0)
        causes = [_same_return_finding("env", stats, settings)]
    if not causes:
        return []
    first, *others = causes
    head = "the first rollout has nothing to learn from: " if has_nothing else ""
    fix = f"{first.fix} One reply: {_sample(turns)}"
    return [replace(first, message=f"{head}{first.message}", fix=fix), *others]


def _check_first(path: str, world: World, stats: ProbeStats, settings: TurnwiseSettings) -> list[Finding]:
    found: list[Finding] = []
    if stats.replies and stats.cut_replies >= _MOST * stats.replies:
        found.append(_cut_finding(path, world, stats))
    if stats.turns - stats.valid_turns >= _ALMOST_ALL * stats.turns:
        found.append(_format_finding(path, world, stats, settings))
    if settings.rollout.group_size > 1 and stats.identical_groups == stats.groups:
        found.append(_same_replies_finding(path, settings))
    return found


def _have_equal_returns(groups: Sequence[Group], metrics: Metrics) -> bool:
    if "rollout/dead_groups" in metrics:
        return metrics["rollout/dead_groups"] == 1
    earned = [sum(turn.learnt_reward for turn in t.turns) for group in groups for t in group.trajectories]
    return len(earned) > 1 and math.isclose(max(earned), min(earned), abs_tol=1e-9)


def _sample(turns: Sequence[Turn]) -> str:
    """One that could not be parsed, if there is one."""
    turn = next((turn for turn in turns if not turn.is_valid or turn.penalty < 0), turns[0])
    return quoted(turn.response_text)


def check_update(metrics: Metrics) -> list[Finding]:
    """Whether engine and learner agree about the same weights."""
    gap = metrics.get("learn/behavior_gap", 0.0)
    if gap <= _MAX_GAP or metrics.get("sync/staleness_max", 0.0) > 0:
        return []
    return [
        warn(
            "learn/behavior_gap",
            f"sampler/trainer mismatch: log-probs of the same weights differ by {gap:.3g} nats per token.",
            "Use model.dtype=float32 for both and an engine that samples without top_k and top_p, or "
            "learn.correction.type=truncated if the difference must stay.",
            kind="behavior_gap",
        )
    ]


# --- lines of the doctor ---------------------------------------------------------------------------------------------


def check_policy_probe(
    path: str,
    world: World,
    stats: ProbeStats,
    settings: TurnwiseSettings,
    *,
    is_taught_first: bool,
    is_beginner: bool,
    has_rewards: bool,
) -> list[Finding]:
    """Lines about the model's episodes in one environment; before a warm start they are described, not judged."""
    failed = _failures(path, stats)
    if stats.failed == stats.episodes:
        return [failed]
    lines = [failed] if stats.failed else []
    if is_taught_first:
        return [*lines, _before_warm_start(path, stats)]
    found = [
        _format(path, world, stats, settings),
        _rewards(path, stats, settings)
        if has_rewards
        else ok(f"rewards of {path}", "not tested: see the reward model"),
        _replies(path, world, stats),
        _context(path, world, stats),
        _turns(path, world, stats),
    ]
    return [*lines, *(map(_of_beginner, found) if is_beginner else found)]


def _of_beginner(finding: Finding) -> Finding:
    """The built-in model may find the format by chance, so its errors are warnings."""
    if finding.level != "error":
        return finding
    return replace(
        finding, level="warning", fix=f"{finding.fix} The built-in model starts from random weights.".strip()
    )


def check_expert_probe(world: World, stats: ProbeStats) -> list[Finding]:
    """Whether the demonstrations fit the budgets of the policy."""
    where = "demonstrations"
    if stats.failed == stats.episodes:
        return [fail(where, f"no demonstration can be written: {stats.failure}")]
    limit = world.context.max_response_tokens
    if stats.longest_reply_tokens > limit:
        return [
            fail(
                where,
                f"the oracle's replies have up to {stats.longest_reply_tokens} tokens, and replies of the policy are "
                f"cut at context.max_response_tokens = {limit}.",
                "Raise it.",
            )
        ]
    found = [_context("env", world, stats), _turns("env", world, stats)]
    if wrong := [finding for finding in found if finding.level != "note"]:
        return [replace(finding, where=where, message=f"by the oracle: {finding.message}") for finding in wrong]
    success = (
        f"the oracle succeeds in {format_success_rate(stats.success)}, in {stats.turns / stats.episodes:.1f} turns"
    )
    return [ok(where, f"{success} and at most {stats.longest_episode_tokens} tokens")]


def _before_warm_start(path: str, stats: ProbeStats) -> Finding:
    return ok(
        f"policy in {path}",
        f"before the warm start: {stats.valid_turns} of {stats.turns} turns are valid, {stats.cut_replies} of "
        f"{stats.replies} replies are cut, mean return {stats.mean_return:.2f}",
    )


def _failures(path: str, stats: ProbeStats) -> Finding:
    line = fail if stats.failed == stats.episodes else warn
    return line(f"episodes of {path}", f"{stats.failed} of {stats.episodes} failed: {stats.failure}")


def _format(path: str, world: World, stats: ProbeStats, settings: TurnwiseSettings) -> Finding:
    found = _format_finding(path, world, stats, settings)
    is_kept = stats.valid_turns >= _MOST * max(stats.turns, 1)
    return ok(found.where, found.message.removesuffix(".")) if is_kept else found


def _rewards(path: str, stats: ProbeStats, settings: TurnwiseSettings) -> Finding:
    where = f"rewards of {path}"
    if stats.return_std == 0:
        return _same_return_finding(path, stats, settings)
    line = (
        f"mean return {stats.mean_return:.2f}, standard deviation {stats.return_std:.2f}, success "
        f"{format_success_rate(stats.success)}; all returns are equal in {stats.dead_groups} of {stats.groups} groups"
    )
    if stats.dead_groups > _MOST * stats.groups:
        return warn(where, f"{line}.", "Raise rollout.group_size, or choose tasks of medium difficulty.")
    return ok(where, line)


def _replies(path: str, world: World, stats: ProbeStats) -> Finding:
    if stats.cut_replies > _FEW * max(stats.replies, 1):
        return _cut_finding(path, world, stats)
    return ok(
        f"replies of {path}",
        f"{stats.mean_reply_tokens:.0f} tokens on average; {stats.cut_replies} of {stats.replies} cut at "
        f"{_section(path)}context.max_response_tokens = {world.context.max_response_tokens}",
    )


def _context(path: str, world: World, stats: ProbeStats) -> Finding:
    where, limit, section = f"length of {path}", world.context.max_tokens, f"{_section(path)}context"
    if not stats.overflowed:
        longest = stats.longest_episode_tokens
        return ok(where, f"the longest conversation has {longest} tokens; {section}.max_tokens is {limit}")
    line = fail if stats.overflowed >= _MOST * stats.episodes else warn
    return line(
        where,
        f"{stats.overflowed} of {stats.episodes} episodes are ended by {section}.max_tokens = {limit}.",
        f"Raise it, or set {section}.window to 'sliding' or 'single_turn'.",
    )


def _turns(path: str, world: World, stats: ProbeStats) -> Finding:
    where, limit = f"turns of {path}", world.limits.max_turns
    setting = "rollout.max_turns" if path == "env" else f"{_section(path)}max_turns"
    ended = f"{stats.out_of_turns} of {stats.episodes} episodes end at {setting} = {limit}"
    line = f"{stats.turns / stats.episodes:.1f} on average; {ended}"
    if stats.out_of_turns == stats.episodes and stats.success == 0:
        return warn(where, f"{line}, and none succeeds.", "Raise it if the task needs more turns.")
    return ok(where, line)
