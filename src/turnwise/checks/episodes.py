"""What the first rollout and the first update tell of settings and a model that do not fit each other.

In: the groups that were played first, and the metrics of the first update. Out: notices, each with what to change, told
before anything is learnt from those groups. What only shows over many steps is found by `checks/health.py`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace

import numpy as np
from rich.console import Console

from turnwise.checks.model import Misfit, quoted, tell_misfits
from turnwise.checks.stages import Finding, Status, fine, problem, warning
from turnwise.config.schema import ContextSettings, OracleWarmStart, TurnwiseSettings
from turnwise.infra.untrusted import share_of, show_success, tell_successes
from turnwise.loop.build import Stage, build_judging, first_train_seed, load_words, open_engine
from turnwise.loop.step import Explored
from turnwise.protocols import ChatTemplate
from turnwise.report.metrics import group_metrics
from turnwise.report.run_dir import RunDirectory
from turnwise.rollout.env_specs import World, worlds_of
from turnwise.rollout.scripted_policies import DemonstrationWorkflow, NoEngine
from turnwise.rollout.workflow import Workflow
from turnwise.types import Group, Metrics, StopReason, Task, Trajectory, Turn

NUM_EPISODES = 16
_GROUP_SIZES = (16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What sixteen episodes in one environment were like."""

    episodes: int
    failed: int
    failure: str
    """The first one's."""
    success: float | None
    """None: nobody says what one is."""
    turns: int
    valid_turns: int
    mean_return: float
    return_std: float
    groups: int
    dead_groups: int
    """Groups whose siblings all earned the same."""
    replies: int
    cut_replies: int
    mean_reply_tokens: float
    longest_reply_tokens: int
    longest_episode_tokens: int
    """Of the longest segment: what the context must hold."""
    overflowed: int
    """Episodes that the context ended."""
    out_of_turns: int
    sampled_tokens: int
    seconds: float

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The probes of all environments by their tags; of the oracle where it teaches the policy."""

    policy: dict[str, Probe]
    oracle: Probe | None


async def probe(
    settings: TurnwiseSettings,
    model_path: str,
    worlds: Sequence[World],
    advance: Callable[[int, int], None],
    *,
    is_judged: bool,
) -> Probed:
    """Play in each environment; without the judge where `is_judged` is false, and its rewards then say nothing."""
    words = load_words(settings, model_path)
    judging = build_judging(settings) if is_judged else None
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
        reciting = Stage(settings=settings, template=words.template, engine=NoEngine())
        oracle = await _play(reciting, worlds[0], lambda _: None, DemonstrationWorkflow)
    return Probed(policy=policy, oracle=oracle)


async def _play(
    stage: Stage, world: World, on_done: Callable[[Trajectory], None], workflow: type[Workflow] | None = None
) -> Probe:
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


def count_episodes(groups: Sequence[Group], template: ChatTemplate, max_response_tokens: int, seconds: float) -> Probe:
    """What episodes of one environment were like, whoever played them."""
    played = [trajectory for group in groups for trajectory in group.trajectories]
    failures = [t.failure for t in played if t.stop_reason.is_error]
    turns = [turn for t in played for turn in t.turns]
    returns = [t.episode_return for t in played]
    replies = [reply for t in played for reply in replies_of(t)]
    metrics = group_metrics(groups)
    return Probe(
        episodes=len(played),
        failed=len(failures),
        failure=next(iter(failures), ""),
        success=share_of(tell_successes(played)),
        turns=len(turns),
        valid_turns=sum(turn.is_valid and turn.penalty >= 0 for turn in turns),
        mean_return=statistics.fmean(returns),
        return_std=statistics.pstdev(returns),
        groups=len(groups),
        dead_groups=round(metrics.get("rollout/dead_groups", 0.0) * len(groups)),
        replies=len(replies),
        cut_replies=sum(len(r) >= max_response_tokens and int(r[-1]) not in template.stop_ids for r in replies),
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


_MOST, _FEW = 0.5, 0.1
"""From which share on something is the rule, and up to which it is an exception."""


def judge_policy(
    path: str, world: World, probe: Probe, *, is_taught_first: bool, is_beginner: bool, has_rewards: bool
) -> list[Finding]:
    """What sixteen episodes of the model say; what a warm start will teach is told, and not held against it."""
    failed = _failures(path, probe)
    if probe.failed == probe.episodes:
        return [failed]
    told = [failed] if probe.failed else []
    if is_taught_first:
        return [*told, _before_lessons(path, probe)]
    findings = [
        _format(path, world, probe),
        _rewards(path, probe) if has_rewards else fine(f"rewards of {path}", "not tested: see the reward model"),
        _replies(path, world, probe),
        _context(path, world, probe),
        _turns(path, world, probe),
    ]
    return [*told, *(map(_of_beginner, findings) if is_beginner else findings)]


def _of_beginner(finding: Finding) -> Finding:
    """The built-in model has learnt nothing yet: it may find the format by chance, so nothing is certain."""
    if finding.status is not Status.PROBLEM:
        return finding
    return warning(finding.check, f"{finding.message} The built-in model starts from random weights.")


def judge_oracle(world: World, probe: Probe) -> list[Finding]:
    """Whether what the policy is taught from fits into the budgets."""
    check = "demonstrations"
    if probe.failed == probe.episodes:
        return [problem(check, f"no demonstration can be written: {probe.failure}")]
    limit = world.context.max_response_tokens
    if probe.longest_reply_tokens > limit:
        return [
            problem(
                check,
                f"the oracle's replies have up to {probe.longest_reply_tokens} tokens, and the policy that learns from "
                f"them is cut at context.max_response_tokens = {limit}. Raise it.",
            )
        ]
    findings = [_context("env", world, probe), _turns("env", world, probe)]
    if wrong := [finding for finding in findings if finding.status is not Status.OK]:
        return [replace(finding, check=check, message=f"by the oracle: {finding.message}") for finding in wrong]
    words = f"the oracle succeeds in {show_success(probe.success)}, in {probe.turns / probe.episodes:.1f} turns"
    return [fine(check, f"{words} and at most {probe.longest_episode_tokens} tokens")]


def _before_lessons(path: str, probe: Probe) -> Finding:
    return fine(
        f"policy in {path}",
        f"before the warm start, which teaches the format: {probe.valid_turns} of {probe.turns} turns are valid, "
        f"{probe.cut_replies} of {probe.replies} replies are cut, mean return {probe.mean_return:.2f}",
    )


def _failures(path: str, probe: Probe) -> Finding:
    check, words = f"episodes of {path}", f"{probe.failed} of {probe.episodes} failed: {probe.failure}"
    if probe.failed == probe.episodes:
        return problem(check, words)
    return warning(check, words)


def _format(path: str, world: World, probe: Probe) -> Finding:
    check, share = f"format of {path}", probe.valid_turns / max(probe.turns, 1)
    words = f"{probe.valid_turns} of {probe.turns} turns have a valid answer ({world.context.answer.type})"
    advice = (
        "Explain the format in context.system_prompt, choose another context.answer.type, start with "
        "warm_start.type=oracle, or use a model that follows instructions."
    )
    if probe.valid_turns == 0:
        return problem(check, f"{words}: nothing can be learnt from answers that are never understood. {advice}")
    return warning(check, f"{words}. {advice}") if share < _MOST else fine(check, words)


def _rewards(path: str, probe: Probe) -> Finding:
    check = f"rewards of {path}"
    words = (
        f"mean return {probe.mean_return:.2f}, spread {probe.return_std:.2f}, success {show_success(probe.success)}; "
        f"siblings earn the same in {probe.dead_groups} of {probe.groups} groups"
    )
    if probe.return_std == 0:
        what = "nothing" if probe.mean_return == 0 else "the same"
        return warning(
            check,
            f"all {probe.episodes} episodes earn {what}, and what never differs teaches nothing. "
            "Make the task easier, raise rollout.group_size, or start with warm_start.type=oracle.",
        )
    if probe.dead_groups > _MOST * probe.groups:
        return warning(check, f"{words}. Raise rollout.group_size, or choose tasks of middle difficulty.")
    return fine(check, words)


def _replies(path: str, world: World, probe: Probe) -> Finding:
    check, limit = f"replies of {path}", world.context.max_response_tokens
    where = "context" if path == "env" else f"{path.removesuffix('env')}context"
    words = f"{probe.mean_reply_tokens:.0f} tokens on average"
    cut = probe.cut_replies / max(probe.replies, 1)
    if cut <= _FEW:
        return fine(
            check, f"{words}; {probe.cut_replies} of {probe.replies} cut at {where}.max_response_tokens = {limit}"
        )
    told = problem if cut >= _MOST else warning
    return told(
        check,
        f"{probe.cut_replies} of {probe.replies} replies are cut at {where}.max_response_tokens = {limit}, before they "
        "end. Raise it, or ask for shorter replies.",
    )


def _context(path: str, world: World, probe: Probe) -> Finding:
    check, limit = f"length of {path}", world.context.max_tokens
    where = "context" if path == "env" else f"{path.removesuffix('env')}context"
    words = f"the longest conversation has {probe.longest_episode_tokens} tokens; {where}.max_tokens is {limit}"
    if not probe.overflowed:
        return fine(check, words)
    told = problem if probe.overflowed >= _MOST * probe.episodes else warning
    return told(
        check,
        f"{probe.overflowed} of {probe.episodes} episodes are ended by {where}.max_tokens = {limit}. Raise it, or "
        f"set {where}.window to 'sliding' or 'single_turn'.",
    )


def _turns(path: str, world: World, probe: Probe) -> Finding:
    check, limit = f"turns of {path}", world.limits.max_turns
    where = "rollout.max_turns" if path == "env" else f"{path.removesuffix('env')}max_turns"
    ended = f"{probe.out_of_turns} of {probe.episodes} episodes end at {where} = {limit}"
    words = f"{probe.turns / probe.episodes:.1f} on average; {ended}"
    if probe.out_of_turns == probe.episodes and probe.success == 0:
        return warning(check, f"{words}, and none succeeds. Raise it if the task needs more turns.")
    return fine(check, words)
