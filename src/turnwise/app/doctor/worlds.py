"""The environments of a run, held to their contract by playing them for a moment."""

from __future__ import annotations

from dataclasses import replace

from turnwise.app.doctor.findings import Finding, fine, problem
from turnwise.config.load import env_params
from turnwise.config.schema import NoIsolation, ProcessIsolation
from turnwise.envs.check import check_env
from turnwise.envs.isolation import check_elsewhere
from turnwise.envs.safe_calls import close_env
from turnwise.rollout.env_specs import World

_NUM_EPISODES = 3
"""Enough for every fault that is in all episodes; `turnwise check ENV` plays more."""


def examine_world(path: str, world: World) -> list[Finding]:
    """One line for an environment that keeps its contract, or one for each part that it breaks."""
    if isinstance(world.isolation, ProcessIsolation) and world.isolation.python is not None:
        data, params = "", env_params(world.env, "train")
        report = check_elsewhere(world.isolation.python, world.env.type, params, num_episodes=_NUM_EPISODES)
    else:
        # Processes of their own would take longer to start than to play.
        plain = replace(world, isolation=NoIsolation())
        env = plain.make("train")
        data, is_slow = getattr(env, "description", ""), env.is_slow
        close_env(env)
        report = check_env(lambda: plain.make("train"), num_episodes=1 if is_slow else _NUM_EPISODES)
    if report.ok:
        num_made = len(report.checks) - len(report.not_made)
        words = f"'{world.env.type}' keeps all {num_made} parts of its contract that it can be held to"
        return [fine(path, f"{words}; {data}" if data else words)]
    advice = f"See: turnwise check {world.env.type}"
    return [
        problem(path, f"'{world.env.type}' breaks its contract ({check.name}): {check.detail.rstrip('.')}. {advice}")
        for check in report.failures
    ]
