"""`make bench`: runs every benchmark and writes one JSON file each to benchmarks/results/."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch

from benchmarks import (
    buffer,
    credit,
    engine_multi_turn,
    envs_alfworld,
    envs_countdown,
    envs_metamathqa,
    envs_small,
    envs_sokoban,
    envs_webshop,
    memory,
    pipelined,
    prefix_merge,
)

ENVIRONMENTS = (envs_alfworld, envs_countdown, envs_metamathqa, envs_small, envs_sokoban, envs_webshop)
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    facts = {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    for benchmark in (buffer, credit, engine_multi_turn, memory, pipelined, prefix_merge, *ENVIRONMENTS):
        result = {**benchmark.run(), **facts}
        print(json.dumps(result, indent=2))
        (RESULTS / f"{result['benchmark']}.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
