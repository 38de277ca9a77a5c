"""Explorers on a local Ray cluster: what a second one brings, and what the cluster costs where the cores are busy.

Two questions, each a ratio of seconds per step of the pipelined loop, once it is under way:

- environments of 100 ms, a few at a time per explorer: two explorers against one;
- environments that take no time, so that playing and learning fill both cores: one explorer on Ray against the same
  loop in one process.

Both sides take turns, so that what else the machine does hurts them alike.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.pipelined import RECIPE
from turnwise.run.api import train

NUM_ROUNDS = 2
NUM_WARM = 2
"""Steps that are not counted: models are loaded, and the first rollout has nothing beside it."""
USUAL: dict[str, object] = {
    "loop.type": "pipelined",
    "sync.max_staleness": 1,
    "learn.epochs": 1,
    "eval.episodes": 0,
    "warm_start.steps": 2,
    "report.tensorboard": False,
}
SLOW: dict[str, object] = {**USUAL, "learn.steps": 8, "rollout.groups": 32, "rollout.max_concurrent": 4}
BUSY: dict[str, object] = {
    **USUAL,
    "learn.steps": 12,
    "rollout.groups": 256,
    "learn.epochs": 2,
    "env.train.step_s": 0.0,
}
ON_RAY: dict[str, object] = {"cluster.type": "ray"}


def run() -> dict[str, object]:
    """Seconds per step of each side, and their ratios."""
    sides: dict[str, Mapping[str, object]] = {
        "slow_envs_one_explorer": {**SLOW, **ON_RAY},
        "slow_envs_two_explorers": {**SLOW, **ON_RAY, "cluster.explorers": 2},
        "busy_pipelined": BUSY,
        "busy_ray": {**BUSY, **ON_RAY},
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(NUM_ROUNDS):
        for name, overrides in sides.items():
            seconds[name].append(_step_seconds(overrides))
            print(f"{name}: {seconds[name][-1]:.2f} s a step", flush=True)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    return {
        "benchmark": "ray_cluster",
        "env_step_s": 0.1,
        "step_s": medians,
        "two_explorers_speedup": medians["slow_envs_one_explorer"] / medians["slow_envs_two_explorers"],
        "busy_ray_over_pipelined": medians["busy_ray"] / medians["busy_pipelined"],
    }


def _step_seconds(overrides: Mapping[str, object]) -> float:
    """The mean: with one step of staleness two updates follow upon each other, and then both wait."""
    with tempfile.TemporaryDirectory() as folder:
        rows = train(RECIPE, overrides, run_dir=Path(folder) / "run").metrics()
    times = [row["time_s"] for row in rows if row["step"] >= NUM_WARM]
    return (times[-1] - times[0]) / (len(times) - 1)
