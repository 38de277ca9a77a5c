"""`make results`: trains every FrozenLake preset over several seeds and writes the table and curves to docs/results/.

A run that is already there and finished is not made again, so an interrupted comparison goes on where it stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from turnwise.errors import RunError
from turnwise.infra.atomic_files import atomic_write
from turnwise.report.plots import plot_comparison
from turnwise.run.api import Run

PRESETS = ("starpo", "starpo_s", "grpo", "rloo", "bi_level", "multi_step_grpo", "gigpo")
ROOT = Path(__file__).resolve().parents[1]
MARK = "<!-- the rest is written by `make results` -->"
YARDSTICKS = {"hole_blind": "blind to holes", "myopic": "myopic"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=PRESETS, choices=PRESETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time, each on one thread")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "presets")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    wanted = [(preset, seed) for seed in range(options.seeds) for preset in options.presets]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda job: train_once(*job, options.runs), wanted))
    runs = {
        preset: [Run(options.runs / f"{preset}-{seed}") for seed in range(options.seeds)] for preset in options.presets
    }
    write_page(runs, options.out)


def train_once(name: str, seed: int, folder: Path, recipe: Sequence[str] = ()) -> None:
    """In a process of its own, so that runs do not share torch's threads; `recipe` where it is not the name itself."""
    path = folder / f"{name}-{seed}"
    try:
        summary = Run(path).summary
    except RunError:
        given = recipe or [name]
        words = [*given, f"run.seed={seed}", "learn.num_threads=1", "report.tensorboard=false", "--run-dir", str(path)]
        done = subprocess.run([sys.executable, "-m", "turnwise", "train", *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} with seed {seed} failed:\n{done.stderr}") from None
        summary = Run(path).summary
    print(f"{name} seed {seed}: {summary.success_before:.3f} -> {summary.success_after:.3f} in {summary.wall_s:.0f} s")


def write_page(runs: dict[str, list[Run]], out: Path) -> None:
    """The table and the curves; what stands above the mark in the page is left as it is."""
    baselines = next(iter(runs.values()))[0].summary.baselines
    yardsticks = {label: baselines[name] for name, label in YARDSTICKS.items()}
    plot_comparison(
        {name: [run.metrics() for run in some] for name, some in runs.items()}, yardsticks, out / "presets.png"
    )
    page = out / "presets.md"
    above = page.read_text().split(MARK)[0] if page.exists() else "# Presets on FrozenLake\n\n"
    atomic_write(page, (above + MARK + "\n\n" + describe(runs, baselines)).encode())


def describe(runs: dict[str, list[Run]], baselines: dict[str, float]) -> str:
    lines = [
        "| recipe | before | after, by seed | median | gain (median) | environment steps | time per run |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, some in runs.items():
        summaries = [run.summary for run in some]
        before = [s.success_before or 0.0 for s in summaries]
        after = [s.success_after or 0.0 for s in summaries]
        env_steps = [sum(row.get("rollout/env_steps", 0) for row in run.metrics()) for run in some]
        lines.append(
            f"| `{name}` | {median(before):.3f} | {', '.join(f'{a:.3f}' for a in after)} | **{median(after):.3f}** "
            f"| {median(a - b for a, b in zip(after, before, strict=True)):+.3f} | {median(env_steps):,.0f} "
            f"| {median(s.wall_s for s in summaries):.0f} s |"
        )
    shown = ", ".join(f"{name} {success:.3f}" for name, success in baselines.items() if name != "warm_start")
    return "\n".join([*lines, "", f"On the same episodes: {shown}.", "", "![Learning curves](presets.png)", ""])


if __name__ == "__main__":
    main()
