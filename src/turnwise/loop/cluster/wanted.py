"""How many explorers a run should have: a number in its settings, until a file in its directory says another."""

from __future__ import annotations

import json
from pathlib import Path

from turnwise.errors import ClusterError
from turnwise.infra.atomic_files import write_whole
from turnwise.infra.parsing import parse_json

_FILE = "explorers.json"


def write_wanted(run_path: Path, explorers: int) -> None:
    """Explorers join and leave while the run goes on; a resumed run keeps the number."""
    write_whole(run_path / _FILE, json.dumps({"explorers": explorers}), error=ClusterError)


def read_wanted(run_path: Path, default: int) -> int:
    """What was written last; `default` where nothing was, or no number."""
    try:
        wanted = parse_json((run_path / _FILE).read_text())["explorers"]
    except (OSError, ValueError, KeyError, TypeError):
        return default
    return wanted if isinstance(wanted, int) and wanted > 0 else default
