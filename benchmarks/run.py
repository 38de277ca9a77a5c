"""`make bench`: runs every benchmark and writes one JSON file each to benchmarks/results/.

Some of them by their names: `python -m benchmarks.run buffer pipelined`.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib import import_module
from pathlib import Path

import torch

NAMES = (
    "audit",
    "buffer",
    "busy_neighbour",
    "conversations",
    "credit",
    "endpoint",
    "engine_multi_turn",
    "learning_record",
    "memory",
    "parallel_learners",
    "peers",
    "pipelined",
    "prefix_merge",
    "ray_cluster",
    "sampling",
    "view_load",
    "envs_alfworld",
    "envs_countdown",
    "envs_metamathqa",
    "envs_small",
    "envs_sokoban",
    "envs_webshop",
)
"""The modules beside this one that have a `run`."""
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    # The empty list stands for no name at all: argparse holds that against the choices as well.
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args().names or NAMES
    RESULTS.mkdir(exist_ok=True)
    facts = {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    for name in names:
        result = {**import_module(f"benchmarks.{name}").run(), **facts}
        print(json.dumps(result, indent=2))
        (RESULTS / f"{result['benchmark']}.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
