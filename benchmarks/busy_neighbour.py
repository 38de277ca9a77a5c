"""What a busy machine costs: the same steps of the default recipe alone, and beside one busy process per core.

The neighbours are started here, and do nothing but count. Each way in which threads can wait is tried in turn, in a
process of its own, because the matrix library reads it when it is loaded:

    python -m benchmarks.busy_neighbour --steps 6 --repeats 3

`slowdown` is the time beside neighbours over the time alone; two programs on every core cannot do better than 2.
`idle_cost` is the time alone over that of the library's own choice. Medians over repeats, all ways interleaved. It
says something on a machine on which nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from turnwise.report.run_dir import TIME_SECTIONS

WAYS: Mapping[str, Mapping[str, str]] = {
    "chosen by turnwise": {},
    "the library's own": {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"},
    "asleep": {"OMP_WAIT_POLICY": "passive"},
    "10,000 rounds": {"GOMP_SPINCOUNT": "10000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
_SET_HERE = ("OMP_", "GOMP_", "KMP_", "MKL_")
_OVERRIDES = ("warm_start.type=none", "eval.episodes=1", "eval.every=0", "report.tensorboard=false")


def run(steps: int = 6, repeats: int = 3, ways: Sequence[str] = tuple(WAYS)) -> dict[str, object]:
    """Seconds of every way, alone and beside neighbours, and their ratios."""
    seconds: dict[str, dict[str, list[float]]] = {way: {"alone": [], "busy": []} for way in ways}
    for _ in range(repeats):
        for way in ways:
            seconds[way]["alone"].append(_train(steps, WAYS[way]))
            with _neighbours(os.cpu_count() or 1):
                seconds[way]["busy"].append(_train(steps, WAYS[way]))
    medians = {way: {place: statistics.median(taken) for place, taken in of.items()} for way, of in seconds.items()}
    own = medians.get("the library's own", {}).get("alone")
    rows = [
        {
            "way": way,
            "alone_s": round(of["alone"], 2),
            "busy_s": round(of["busy"], 2),
            "slowdown": round(of["busy"] / of["alone"], 2),
            "idle_cost": None if own is None else round(of["alone"] / own, 2),
        }
        for way, of in medians.items()
    ]
    return {"benchmark": "busy_neighbour", "steps": steps, "repeats": repeats, "cores": os.cpu_count(), "rows": rows}


def _train(steps: int, environ: Mapping[str, str]) -> float:
    """Seconds of the steps alone, without what comes before and after them."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(_SET_HERE)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        words = [sys.executable, "-m", "turnwise", "train", "frozenlake", "--run-dir", str(path), *_OVERRIDES]
        subprocess.run([*words, f"learn.steps={steps}"], env={**bare, **environ}, check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return sum(row[f"time/{section}_s"] for row in rows if row["step"] > 1 for section in TIME_SECTIONS)


@contextmanager
def _neighbours(number: int) -> Iterator[None]:
    """So many processes that never rest."""
    counting = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in counting:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    options = parser.parse_args()
    print(json.dumps(run(options.steps, options.repeats, options.ways), indent=2))


if __name__ == "__main__":
    main()
