"""`make bench-peers`: one update of the same agent in turnwise and in TRL, the one peer that plays and learns on a CPU.

Both play the same lakes with the same model and prompts: four tasks, eight siblings each, six turns of at most eight
tokens, the conversation growing with every turn; then one update by GRPO without a reference. Worlds answer at once,
after 10 ms or after 100 ms. The model is untrained, so every episode has all its turns, and replies are paid by their
length, so that there is something to learn from. TRL is given a `rollout_func` (`benchmarks.trl_side`) with worlds
that answer one by one, as in its own loop over tools, and with worlds that answer side by side, which its user would
have to write. One thread each, sides in turns, the first update not counted, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.pipelined import SlowLake
from turnwise.report.run_dir import TIME_SECTIONS

WAITS_S = (0.0, 0.01, 0.1)
NUM_STEPS = 3
SIDES = ("turnwise", "TRL, worlds one by one", "TRL, worlds side by side")
SETTING = (
    "env.type=benchmarks.peers:PaidLake",
    "model.tiny.hidden_size=256",
    "model.tiny.intermediate_size=768",
    "model.tiny.num_layers=4",
    "model.tiny.num_heads=4",
    "context.window=full",
    "context.instructions=full",
    "context.answer.type=plain",
    "context.max_response_tokens=8",
    "context.max_tokens=512",
    "rollout.groups=4",
    "rollout.group_size=8",
    "rollout.max_turns=6",
    "warm_start.type=none",
    "learn.epochs=1",
    "learn.minibatches=1",
    "learn.entropy_coef=0.0",
    "learn.num_threads=1",
    "eval.episodes=0",
)


class PaidLake(SlowLake):
    """A lake that pays for words, so that siblings of an untrained model differ in what they earn."""

    name = "paid_lake"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        text, reward, done, info = super().step(action)
        return text, reward + 0.01 * len(action), done, info


def run(repeats: int = 3, waits_s: Sequence[float] = WAITS_S) -> dict[str, object]:
    """Seconds of an update on each side, and how many times those of turnwise they are."""
    taken: dict[float, dict[str, list[float]]] = {wait_s: {side: [] for side in SIDES} for wait_s in waits_s}
    for _ in range(repeats):
        for wait_s, sides in taken.items():
            for side, seconds in sides.items():
                seconds.append(_measure(side, wait_s))
    medians = {wait_s: {side: statistics.median(of) for side, of in sides.items()} for wait_s, sides in taken.items()}
    rows = [
        {"wait_s": wait_s, "side": side, "update_s": round(update_s, 2), "ratio": round(update_s / of[SIDES[0]], 2)}
        for wait_s, of in medians.items()
        for side, update_s in of.items()
    ]
    return {"benchmark": "peers", "trl": version("trl"), "repeats": repeats, "rows": rows}


def _measure(side: str, wait_s: float) -> float:
    words = [*SETTING, f"env.train.step_s={wait_s}"]
    seconds = _train_here(words) if side == SIDES[0] else _train_there(words, side_by_side=side == SIDES[2])
    return statistics.median(seconds[1:])


def _train_here(words: Sequence[str]) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        told = ["turnwise", "train", "grpo", "--run-dir", str(path), f"learn.steps={NUM_STEPS}"]
        _start([*told, *words])
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [sum(row[f"time/{section}_s"] for section in TIME_SECTIONS) for row in rows if row["step"]]


def _train_there(words: Sequence[str], *, side_by_side: bool) -> list[float]:
    way = ["--side-by-side"] if side_by_side else []
    said = _start(["benchmarks.trl_side", "--steps", str(NUM_STEPS), *way, *words])
    return json.loads(said.splitlines()[-1])


def _start(words: Sequence[str]) -> str:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run([sys.executable, "-m", *words], env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--waits", type=float, nargs="*", default=list(WAITS_S), help="seconds a world takes to answer")
    given = parser.parse_args()
    print(json.dumps(run(given.repeats, given.waits), indent=2))


if __name__ == "__main__":
    main()
