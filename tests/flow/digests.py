"""Digests of eight short runs, which a change that is no change of behavior leaves as they are.

`tests/golden/digests.json` holds, for each run, the values of every metric, and hashes of the final weights, of the
trajectories and of the learning record. Files are compared as parsed objects: the order of keys does not matter, and
neither does what measures time. Write the file again after a change that is meant to change what runs compute:

    python -m tests.flow.digests --write

Runs are made in a process of their own, whose numerics are pinned to code that every x86-64 processor has (`PINNED`).
Beside the digests stands what `numerics()` finds: versions of the libraries and hashes of what they compute. Where
digests differ and these differ too, it is the machine that computes otherwise, and nothing can be said of the code. Run
`--check` on both commits there: a refactoring gives the same lines before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.nn import functional as F

from turnwise.run.api import open_run, train

from ..clock import HANG_S
from ..small_run import SMALL_MODEL, without_plots

FILE = Path(__file__).parents[1] / "golden" / "digests.json"
REPOSITORY = Path(__file__).parents[2]

PINNED = {
    "ATEN_CPU_CAPABILITY": "default",
    # MKL computes products of matrices and, in vectors, exp, log and the like.
    "MKL_CBWR": "COMPATIBLE",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "OPENBLAS_NUM_THREADS": "1",
    # libm has a second version of exp and pow for processors with fused multiply-add.
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",
    "PYTHONHASHSEED": "0",
}

# Of 3x3 lakes, the first replies solve some: there are rewards to learn from. One thread and float32 on any machine.
BASE = {
    "env": {"type": "frozen_lake", "size": 3, "view": "objects", "hole_rate": 0.2, "max_distance": 3},
    "context": {
        "window": "single_turn",
        "instructions": "none",
        "answer": {"type": "plain"},
        "max_response_tokens": 3,
        "max_tokens": 32,
    },
    "rollout": {"groups": 4, "group_size": 4, "max_turns": 4},
    "warm_start": {"type": "oracle", "episodes": 40, "steps": 24, "lr": 0.01},
    "learn": {"steps": 4, "epochs": 2, "minibatches": 2, "num_threads": 1, "optim": {"lr": 0.003}},
    "model": {"dtype": "float32"},
    "eval": {"episodes": 6, "every": 2},
    "report": {"tensorboard": False, "trajectories_per_step": 100},
    "run": {"seed": 3},
}
STEPWISE = ["credit.type=bi_level_gae", "learn.critic.type=value_head"]
# A rollout begins when the update before the last is made, so that two run at once, and each with known weights.
IN_PAIRS = ["sync.interval=2", "sync.max_staleness=1", "eval.every=0"]
BANDIT = (
    "mix={bandit: {groups: 3, env: {type: bandit}, "
    "context: {instructions: none, answer: {type: plain}, max_response_tokens: 2, max_tokens: 96}}}"
)
RUNS: dict[str, list[str]] = {
    "serial": [*STEPWISE, "learn.entropy_coef=0.005", "learn.optim.schedule=linear"],
    "pipelined": ["loop.type=pipelined", "credit.type=grpo", "learn.correction.type=truncated", *IN_PAIRS],
    "separate": [
        "buffer.type=sqlite",
        "buffer.train_batch_size=4",
        "buffer.unit=groups",
        "sync.method=checkpoint",
        f"sync.timeout_s={HANG_S}",
        "credit.type=reinforce_pp_baseline",
        *IN_PAIRS,
    ],
    "sqlite": [
        "buffer.type=sqlite",
        "buffer.train_batch_size=5",
        "buffer.unit=groups",
        "buffer.reuse_cooldown=1",
        "buffer.capacity=60",
        "buffer.priority.type=linear_decay",
        "credit.type=rloo",
        "learn.loss.type=gspo",
    ],
    "lora": ["model.lora.type=lora", "warm_start.lr=0.05", *STEPWISE],
    "kl": ["learn.kl.type=loss", "context.window=full", "context.max_tokens=160", "credit.type=multi_step_grpo"],
    "critic": ["learn.critic.type=model", "learn.kl.type=reward", "learn.kl.target=0.01", "credit.type=gae"],
    "mix": [BANDIT, "credit.type=gigpo", "tasks.num_tasks=8", "tasks.selector=random"],
}

Digests = dict[str, dict[str, Any]]
"""Of one run: its metrics, a list of values by step each; hashes of weights, trajectories and learning record."""


# --- what a run left behind ------------------------------------------------------------------------------------------


def digest_run(folder: Path) -> Digests:
    """Everything in a run's folder that two runs of the same code have in common."""
    run = open_run(folder)
    steps = [run.tokens(step).to_arrays() for step in run.recorded_steps()]
    trajectories = sorted((folder / "trajectories").rglob("*.jsonl"))
    return {
        "metrics": {**_metrics(folder / "metrics.jsonl"), **_metrics(folder / "explorer.jsonl", "explorer ")},
        "summary": dict(sorted(_numbers(json.loads((folder / "summary.json").read_text())))),
        "weights": _weights(max((folder / "checkpoints").iterdir())),
        "trajectories": {
            file.relative_to(folder / "trajectories").as_posix(): hash_of(
                json.dumps(_without_packing(line), sort_keys=True) for line in file.read_text().splitlines()
            )
            for file in trajectories
        },
        "learning_record": {
            name: [hash_of([str(arrays[name].dtype), arrays[name].tobytes()]) for arrays in steps]
            for name in sorted(set().union(*steps))
        },
    }


def is_left_out(metric: str) -> bool:
    """Whether it measures time, or how far another process has come at that moment."""
    return metric.endswith("_s") or metric.startswith("explorer buffer/")


def hash_of(parts: Iterator[str | bytes] | Sequence[str | bytes]) -> str:
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "little") + data)
    return sha.hexdigest()[:16]


def _metrics(file: Path, prefix: str = "") -> dict[str, list[Any]]:
    """Every metric as a list with a value for each line; `absent` where a line does not have it."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    names = sorted({name for row in rows for name in row if not is_left_out(prefix + name)})
    return {prefix + name: [row.get(name, "absent") for row in rows] for name in names}


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a summary by their path, without seconds."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path, value
    for key, inner in items or ():
        if not is_left_out(str(key)) and key != "time_split":
            yield from _numbers(inner, f"{path}.{key}" if path else str(key))


def _weights(checkpoint: Path) -> dict[str, str]:
    """Policy, adapters, critic, reference and the optimizer's state, a hash for each file."""
    found = {}
    for file in sorted(checkpoint.rglob("*.safetensors")):
        with safe_open(file, framework="np") as tensors:
            parts = [(name, tensors.get_tensor(name)) for name in sorted(tensors.keys())]
        found[file.relative_to(checkpoint).as_posix()] = _hash_arrays(parts)
    state = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    moments = [(f"{key}.{name}", np.asarray(state[key][name])) for key in sorted(state) for name in sorted(state[key])]
    return {**found, "optimizer.pt": _hash_arrays(moments)}


def _hash_arrays(arrays: Sequence[tuple[str, np.ndarray[Any, Any]]]) -> str:
    return hash_of([part for name, array in arrays for part in (name, f"{array.dtype}{array.shape}", array.tobytes())])


def _without_packing(line: str) -> dict[str, Any]:
    """A trajectory without what depends on the order of its keys, or on how the installed zlib packs its tokens."""
    record = json.loads(line)
    record.pop("checksum", None)
    return {**record, "segments": zlib.decompress(b64decode(record["segments"])).hex()}


# --- the numerics of this machine ------------------------------------------------------------------------------------


def numerics() -> dict[str, str]:
    """Versions, and what the installed libraries compute here, apart from all code of this project."""
    found = {name: version(name) for name in ("torch", "numpy", "transformers", "tokenizers", "peft")}
    return {
        **found,
        "processor": platform.machine(),
        "torch computes": _probe_torch(),
        "numpy computes": _probe_numpy(),
    }


def _probe_torch() -> str:
    """Sampling, a forward and a backward pass and an optimizer step, over sizes such as short runs have."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    found = []
    for rows in (1, 2, 3, 5, 8, 17, 64, 200):
        for width, out in ((16, 16), (16, 32), (32, 16), (16, 320)):
            weight = torch.nn.Parameter(random(out, width))
            optimizer = torch.optim.AdamW([weight], lr=0.01)
            states = F.silu(F.linear(random(rows, width), weight))
            states = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-6)
            loss = -states.log_softmax(-1)[:, 0].mean() + torch.exp(-states.abs()).sum() + torch.sin(states).sum()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_([weight], 0.5)
            optimizer.step()
            found += [states, loss, norm, weight]
        queries = random(2, 2, rows, 8)
        found += [F.scaled_dot_product_attention(queries, queries, queries, is_causal=True)]
    return hash_of([tensor.detach().numpy().tobytes() for tensor in found])


def _probe_numpy() -> str:
    random = np.random.default_rng(0)
    draws = [random.normal(size=999), random.gumbel(size=999), random.random(999)]
    doubles = np.abs(np.concatenate(draws)) + 0.1
    found = [*draws]
    for values in (doubles, doubles.astype(np.float32)):
        square = values[:961].reshape(31, 31)
        found += [np.exp(-values), np.log(values), np.tanh(values), values**0.7, square @ square.T]
        found += [values.sum(), values.mean(), values.std(), values.cumsum()]
    return hash_of([np.asarray(array).tobytes() for array in found])


# --- making and comparing --------------------------------------------------------------------------------------------


def make(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Make runs in this process; `separate` has its explorer in another one."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        for name in names:
            if name == "separate":
                _train_separately(folder / name)
            else:
                _train(folder / name, RUNS[name])
            found[name] = digest_run(folder / name)
    return {"numerics": numerics(), "runs": found}


def _train_separately(folder: Path) -> None:
    explorer = subprocess.Popen([*command(), "--explore", str(folder)], cwd=REPOSITORY)
    try:
        _train(folder, [*RUNS["separate"], "run.mode=train"])
        assert explorer.wait(HANG_S) == 0
    finally:
        explorer.kill()
        explorer.wait()


def _train(folder: Path, overrides: Sequence[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        train(BASE, [*SMALL_MODEL, *overrides], run_dir=folder)


def command() -> list[str]:
    return [sys.executable, "-m", "tests.flow.digests"]


def pinned_environment() -> dict[str, str]:
    """For processes whose numerics depend on the machine as little as possible."""
    # By names that differ from version to version: all that numpy has code of its own for.
    features = np._core._multiarray_umath.__cpu_dispatch__  # type: ignore[attr-defined]
    return {**os.environ, **PINNED, "NPY_DISABLE_CPU_FEATURES": " ".join(features)}


def make_pinned(folder: Path, names: Sequence[str] = tuple(RUNS)) -> dict[str, Any]:
    """Make runs in a process with pinned numerics."""
    env = pinned_environment() | {"TURNWISE_CACHE": str(folder / "models")}
    subprocess.run([*command(), "--make", str(folder), *names], env=env, cwd=REPOSITORY, check=True, timeout=HANG_S * 5)
    return json.loads((folder / "digests.json").read_text())


def differences(expected: Mapping[str, Digests], found: Mapping[str, Digests]) -> list[str]:
    """A line for each part of a run that differs, which names the earliest difference in it."""
    lines = []
    for run in sorted(expected.keys() | found.keys()):
        if run not in expected or run not in found:
            lines.append(f"{run}: only in {'the file' if run in expected else 'this code'}")
            continue
        for part in expected[run]:
            told = sorted(_differing(expected[run][part], found[run].get(part, {})))
            if told:
                more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
                lines.append(f"{run}, {part}: {told[0][2]}{more}")
    return lines


def _differing(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
    """Step, place and description of each entry that differs; names that come or go are told last."""
    last = 1 << 30
    for place, name in enumerate(sorted(expected.keys() | found.keys())):
        if name not in expected or name not in found:
            yield last, place, f"{name} is only in {'the file' if name in expected else 'this code'}"
        elif expected[name] != found[name]:
            pair = expected[name], found[name]
            if not all(isinstance(values, list) for values in pair):
                yield 0, place, f"{name} is {pair[1]}, in the file {pair[0]}"
            elif len(pair[0]) != len(pair[1]):
                yield 0, place, f"{name} has {len(pair[1])} values, in the file {len(pair[0])}"
            else:
                step = next(at for at, (one, other) in enumerate(zip(*pair, strict=True)) if one != other)
                yield step, place, f"{name} is {pair[1][step]} in entry {step}, in the file {pair[0][step]}"


def as_text(digests: Mapping[str, Any]) -> str:
    """One line for each name, so that a metric which gets another name is one line of a diff."""
    runs = []
    for run, parts in digests["runs"].items():
        texts = []
        for part, entries in parts.items():
            rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entries[name])}" for name in sorted(entries))
            texts.append(f"   {json.dumps(part)}: {{\n{rows}\n   }}")
        runs.append(f"  {json.dumps(run)}: {{\n" + ",\n".join(texts) + "\n  }")
    known = json.dumps(digests["numerics"], indent=2).replace("\n", "\n ")
    return f'{{\n "numerics": {known},\n "runs": {{\n' + ",\n".join(runs) + "\n }\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="make all runs, say what changed and write the file")
    what.add_argument("--check", action="store_true", help="make all runs, or those named, and say what differs")
    what.add_argument("--make", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    what.add_argument("--explore", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", choices=[*RUNS, []], metavar="RUN", help=", ".join(RUNS))
    args = parser.parse_args()
    names = args.names or list(RUNS)
    if args.explore:
        _train(args.explore, [*RUNS["separate"], "run.mode=explore"])
    elif args.make:
        (args.make / "digests.json").write_text(json.dumps(make(args.make, names)))
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = make_pinned(Path(folder), names)
        before = json.loads(FILE.read_text()) if FILE.exists() else {"numerics": {}, "runs": {}}
        expected = {name: digests for name, digests in before["runs"].items() if args.write or name in names}
        if args.write:
            found["runs"] = {**expected, **found["runs"]}
            FILE.write_text(as_text(found))
        lines = differences({"": {"numerics": before["numerics"]}}, {"": {"numerics": found["numerics"]}})
        lines += differences(expected, found["runs"])
        sys.stdout.write("\n".join(lines or ["nothing differs"]) + "\n")
        sys.exit(bool(lines) and not args.write)


if __name__ == "__main__":
    main()
