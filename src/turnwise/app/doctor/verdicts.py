"""Counts of a probe come in; what they mean for a run goes out, in plain words with the setting to change."""

from __future__ import annotations

from dataclasses import replace

from turnwise.app.doctor.findings import Finding, Status, fine, problem, warning
from turnwise.app.doctor.probe import Probe
from turnwise.infra.untrusted import show_success
from turnwise.rollout.env_specs import World

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
