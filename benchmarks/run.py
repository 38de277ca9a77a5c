"""`make bench`: runs every benchmark and writes one JSON file each to benchmarks/results/.

Some of them by their names: `python -m benchmarks.run buffer pipelined`.
"""

from __future__ import annotations

import argparse
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

BENCHMARKS = {
    module.__name__.removeprefix("benchmarks."): module
    for module in (
        buffer,
        credit,
        engine_multi_turn,
        memory,
        pipelined,
        prefix_merge,
        envs_alfworld,
        envs_countdown,
        envs_metamathqa,
        envs_small,
        envs_sokoban,
        envs_webshop,
    )
}
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME", help=", ".join(BENCHMARKS))
    names = parser.parse_args().names or list(BENCHMARKS)
    RESULTS.mkdir(exist_ok=True)
    facts = {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    for name in names:
        result = {**BENCHMARKS[name].run(), **facts}
        print(json.dumps(result, indent=2))
        (RESULTS / f"{result['benchmark']}.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
