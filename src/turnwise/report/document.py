"""Rows of a command come in; a table for people, or JSON for programs, goes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def show_rows(console: Console, rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        console.print_json(json.dumps(list(rows)))
        return
    table = Table(show_edge=False, pad_edge=False)
    for name in rows[0]:
        # The name of an environment is typed again, so it stays whole in a narrow terminal; a path may be long.
        table.add_column(name, overflow="fold", no_wrap=name == "env")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
