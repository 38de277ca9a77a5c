"""The audit: what it costs of a step of the default recipe, and how often it raises an alarm where nothing is wrong.

One rollout is played and learnt from, again and again; the time inside the audit, of the digests of engines and of the
seals of turns is held against the time of the whole step. Times are CPU times, so that other work on the machine counts
little, and medians. `python -m benchmarks.audit --clean` counts breaches in 1,000 sound steps of five recipes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise.audit.batch_audit import BatchAudit
from turnwise.config.load import load_settings
from turnwise.experience.build import build_experiences
from turnwise.hooks import Hooks
from turnwise.infra.digests import seal_turns
from turnwise.loop.build import open_components
from turnwise.loop.policies import resolve_model
from turnwise.loop.serial import update_policy
from turnwise.loop.step import collect
from turnwise.provenance import Origin
from turnwise.run.api import train

RECIPES = ("frozenlake", "gigpo", "grpo", "rloo", "frozenlake_step_wise")
_STEPS = 200
_SMALL = (
    "model.tiny.hidden_size=16",
    "model.tiny.intermediate_size=32",
    "model.tiny.num_layers=1",
    "model.tiny.num_heads=2",
    "rollout.groups=4",
    "rollout.group_size=2",
    "warm_start.episodes=20",
    "warm_start.steps=5",
    "eval.episodes=5",
    "eval.every=0",
    "report.checkpoint_every=0",
    "report.tensorboard=false",
)


class TimedAudit(BatchAudit):
    """Counts the time it takes."""

    seconds = 0.0

    def filter_experiences(self, *given: Any) -> Any:
        return self._timed(super().filter_experiences, *given)

    def on_batch(self, *given: Any) -> Any:
        return self._timed(super().on_batch, *given)

    def on_update(self, *given: Any) -> Any:
        return self._timed(super().on_update, *given)

    def _timed(self, call: Callable[..., Any], *given: Any) -> Any:
        started = time.process_time()
        try:
            return call(*given)
        finally:
            TimedAudit.seconds += time.process_time() - started


def run(rounds: int = 5, overrides: Sequence[str] = ()) -> dict[str, object]:
    settings = load_settings("frozenlake", list(overrides))
    with tempfile.TemporaryDirectory() as folder:
        components = open_components(settings, resolve_model(settings), run_path=Path(folder))
        audit = TimedAudit(settings, components.trainer.learner, max_staleness=None)
        components = replace(components, hooks=Hooks([audit]))
        shares, seals, audits = [], [], []
        for step in range(1, rounds + 1):
            started, TimedAudit.seconds = time.process_time(), 0.0
            explored = asyncio.run(collect(components.explorer, step, components.hooks))
            update_policy(components.trainer, build_experiences(explored.kept), components.hooks)
            asyncio.run(components.publish(components.trainer.learner.policy_version))
            step_s = time.process_time() - started
            played = [t for group in explored.kept for t in group.trajectories]
            seal_s = _seconds(lambda played=played: [seal_turns(t) for t in played])
            seal_s += _seconds(lambda played=played: _digest_again(played))
            shares.append((TimedAudit.seconds + seal_s) / step_s)
            seals.append(seal_s / step_s)
            audits.append(TimedAudit.seconds / step_s)
    return {
        "benchmark": "audit",
        "share_of_step": statistics.median(shares),
        "share_of_digests_and_seals": statistics.median(seals),
        "share_of_checks": statistics.median(audits),
        "rounds": rounds,
    }


def _digest_again(played: Sequence[Any]) -> None:
    """What the engine did for every reply of the rollout."""
    for trajectory in played:
        for turn in trajectory.turns:
            segment = trajectory.segments[turn.segment_index]
            Origin.of(
                "local",
                request=turn.index,
                temperature=1.0,
                prompt_ids=segment.token_ids,
                token_ids=segment.token_ids[:4],
                logprobs=segment.behavior_logprobs[:4],
                policy_version=turn.policy_version,
            )


def _seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def count_alarms(steps: int = _STEPS) -> dict[str, object]:
    """Sound runs: a breach would end them with an AuditError, so that what is counted is what they say themselves."""
    steps_of: dict[str, float] = {}
    breaches = 0.0
    for recipe in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            rows = train(recipe, [*_SMALL, f"learn.steps={steps}"], run_dir=f"{folder}/run").metrics()
        steps_of[recipe] = max(row["step"] for row in rows)
        breaches += sum(row.get("audit/breaches", 0.0) for row in rows)
    return {"benchmark": "audit_clean", "steps": sum(steps_of.values()), "breaches": breaches, "recipes": steps_of}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clean", action="store_true", help="count breaches in sound runs")
    parser.add_argument("--steps", type=int, default=_STEPS, help="of each recipe, with --clean")
    options = parser.parse_args()
    print(json.dumps(count_alarms(options.steps) if options.clean else run(), indent=2))
