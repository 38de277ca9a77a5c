"""One recipe in five places: in turns, overlapped, on Ray, on Ray with two sharded ranks, and with vLLM as the engine.

The first updates are compared: whether they learn from the same tokens, and how far gradient norms are from the serial
loop's. Then every place trains the recipe over several seeds. Needs Ray and vLLM (docs/ray.md, docs/vllm.md):
`python -m benchmarks.five_places`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from turnwise.run.api import Run, train

RECIPE = ["bandit", "report.tensorboard=false", "model.tiny.num_heads=2", "learn.correction.type=none"]
"""Heads of 32, which vLLM has a kernel for; the same correction everywhere, so that gradients can be compared."""
_RAY = ["cluster.type=ray", "cluster.explorers=2"]
PLACES: dict[str, list[str]] = {
    "serial": [],
    "pipelined": ["loop.type=pipelined", "sync.max_staleness=0"],
    "ray": _RAY,
    "ray, two ranks of FSDP": [*_RAY, "learn.parallel.type=fsdp", "learn.parallel.ranks=2"],
    "vllm": ["engine.type=vllm", "engine.start=true"],
}


def run(num_seeds: int = 3, places: Sequence[str] = tuple(PLACES)) -> dict[str, object]:
    rows: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for place in places:
            runs = [_train(place, seed, Path(folder)) for seed in range(num_seeds)]
            rows[place] = {
                "tokens": _digest(runs[0]),
                "grad_norm": runs[0].metrics()[1]["learn/grad_norm"],
                "success_before": [run.summary.success_before for run in runs],
                "success_after": [run.summary.success_after for run in runs],
                "wall_s": [round(run.summary.wall_s) for run in runs],
            }
            print(json.dumps({place: rows[place]}), flush=True)
    return {"benchmark": "five_places", "recipe": RECIPE, "places": rows}


def _train(place: str, seed: int, folder: Path) -> Run:
    name, *words = RECIPE
    return train(name, [*words, *PLACES[place], f"run.seed={seed}"], run_dir=folder / f"{place}-{seed}")


def _digest(run: Run) -> str:
    """Of the ids that the first update learnt from, rows in the order of their names."""
    experiences = sorted(run.tokens(1).experiences(), key=lambda experience: str(experience.id))
    ids = b"".join(experience.segment.token_ids.tobytes() for experience in experiences)
    return hashlib.sha256(ids).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    options = parser.parse_args()
    places = run(options.seeds, options.places)["places"]
    assert isinstance(places, dict)
    print("| place | first tokens | first gradient norm | success before | success after | seconds |")
    print("|---|---|---|---|---|---|")
    for place, row in places.items():
        cells = [row["tokens"], f"{row['grad_norm']:.7g}"]
        cells += [
            ", ".join(str(value) for value in row[name]) for name in ("success_before", "success_after", "wall_s")
        ]
        print(f"| {place} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
