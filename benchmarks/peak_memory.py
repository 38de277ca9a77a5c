"""Peak memory of two steps with a pretrained model, in each way of holding it, against what `turnwise plan` says.

Each mode is a process of its own, which reports the largest resident set the kernel saw. `python -m
benchmarks.peak_memory --model PATH` prints the table of docs/pretrained_models.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

_RUN = [
    "bandit",
    "context.instructions=full",
    "context.max_response_tokens=24",
    "context.max_tokens=192",
    "rollout.groups=4",
    "rollout.group_size=8",
    "learn.steps=2",
    "learn.minibatches=1",
    "learn.entropy_coef=0",
    "learn.optim.lr=1e-6",
    "eval.episodes=4",
    "eval.every=0",
    "report.tensorboard=false",
]
_FULL, _LORA = "model.lora.type=none", "model.lora.type=lora"
MODES = {
    "full, one copy (serial)": [_FULL],
    "full, two copies (pipelined)": [_FULL, "loop.type=pipelined"],
    "full, with a reference": [_FULL, "learn.kl.type=loss"],
    "full, with a reference in a file": [_FULL, "learn.kl={type: loss, offload: true}"],
    "LoRA, one copy (serial)": [_LORA],
    "LoRA, two copies (pipelined)": [_LORA, "loop.type=pipelined"],
    "LoRA beside bfloat16 (serial)": [_LORA, "model.dtype=bfloat16"],
}
_CHILD = """
import resource, sys
from turnwise.cli import main
code = main(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
sys.exit(code)
"""


def run(model: str = "smollm2") -> dict[str, object]:
    rows = {mode: _measure([*_RUN, f"model.path={model}", *words]) for mode, words in MODES.items()}
    return {"benchmark": "peak_memory", "model": model, "modes": rows}


def _measure(words: list[str]) -> dict[str, float]:
    planned = json.loads(_turnwise("plan", *words, "--json").rsplit("peak ", 1)[0])["peak"]["num_bytes"]
    with tempfile.TemporaryDirectory() as folder:
        measured = int(_turnwise("train", *words, "--run-dir", f"{folder}/run").rsplit("peak ", 1)[1])
    return {"planned_gb": planned / 1e9, "measured_gb": measured / 1e9, "ratio": planned / measured}


def _turnwise(*words: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", _CHILD, *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    ).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", metavar="PATH", help="a model folder or name")
    rows = run(parser.parse_args().model)["modes"]
    assert isinstance(rows, dict)
    print("| mode | plan, GB | measured, GB | plan / measured |\n|---|---|---|---|")
    for mode, row in rows.items():
        print(f"| {mode} | {row['planned_gb']:.2f} | {row['measured_gb']:.2f} | {row['ratio']:.2f} |")


if __name__ == "__main__":
    main()
