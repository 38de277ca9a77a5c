"""Does a long run grow? Two thousand short steps, and how much memory the process has after each hundred.

    python -m benchmarks.soak --steps 2000

The run is a process of its own, looked at from outside. It fails (exit 1) where the memory at the end is more than 5 %
above that after step 200, by which every cache is full and every library loaded. Further words are settings:

    python -m benchmarks.soak --steps 2000 loop.type=pipelined eval.every=50
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_SHORT = (
    "rollout.groups=2",
    "rollout.group_size=4",
    "rollout.max_turns=3",
    "warm_start.episodes=20",
    "warm_start.steps=10",
    "eval.episodes=4",
    "eval.every=0",
)
FIRST_STEP = 200
MAX_GROWTH = 0.05
_POLL_S = 0.2
_MORE_STEPS = 100


def run(steps: int = 2000, overrides: Sequence[str] = ()) -> dict[str, object]:
    """The resident memory of the process by step, and how much it has grown."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        words = [sys.executable, "-m", "turnwise", "train", "frozenlake", "--run-dir", str(path)]
        # More than are watched: what a run draws at its end is not what it grows by.
        length = f"learn.steps={steps + _MORE_STEPS}"
        process = subprocess.Popen(
            [*words, *_SHORT, length, *overrides], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            sizes = _watch(process, path / "metrics.jsonl", steps)
        finally:
            process.kill()
            _, said = process.communicate()
        if not sizes:
            raise RuntimeError(f"the run made no step: {said.decode(errors='replace')[-2000:]}")
    first = sizes[min(sizes, key=lambda step: abs(step - min(FIRST_STEP, steps // 2)))]
    last = sizes[max(sizes)]
    growth = last / first - 1
    return {
        "benchmark": "soak",
        "steps": max(sizes),
        "mb_by_step": {step: round(size, 1) for step, size in sizes.items()},
        "growth": round(growth, 4),
        "kb_per_step": round(1024 * (last - first) / max(max(sizes) - min(FIRST_STEP, steps // 2), 1), 2),
        "is_flat": growth <= MAX_GROWTH,
    }


def _watch(process: subprocess.Popen[bytes], metrics: Path, steps: int) -> dict[int, float]:
    """Megabytes by step, one look for each fiftieth of the run."""
    sizes: dict[int, float] = {}
    every = max(steps // 50, 1)
    while process.poll() is None:
        step = _last_step(metrics)
        if step // every > max(sizes, default=0) // every:
            sizes[step] = _resident_mb(process.pid)
        if step >= steps:
            break
        time.sleep(_POLL_S)
    return {step: size for step, size in sizes.items() if size}


def _last_step(metrics: Path) -> int:
    try:
        with metrics.open("rb") as file:
            file.seek(max(metrics.stat().st_size - 20_000, 0))
            whole = [line for line in file.read().split(b"\n")[:-1] if line.startswith(b"{")]
        return int(json.loads(whole[-1])["step"]) if whole else 0
    except (OSError, ValueError, KeyError):
        return 0


def _resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    result = run(options.steps, options.overrides)
    print(json.dumps(result, indent=2))
    sys.exit(0 if result["is_flat"] else 1)


if __name__ == "__main__":
    main()
