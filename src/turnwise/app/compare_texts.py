"""Comparisons come in; what a person reads goes out, on the terminal and as Markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnwise.infra.untrusted import UNKNOWN

if TYPE_CHECKING:
    from turnwise.app.comparing import Comparison

_SHOWN_TASKS = 10
_SURE = 0.05


def show_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    for comparison in comparisons:
        for line in _lines(comparison):
            console.print(Text(line), soft_wrap=True)
        if comparison.differing:
            table = Table(show_edge=False, pad_edge=False)
            for name in ("task", "first", "second"):
                table.add_column(name)
            for task in comparison.differing[:_SHOWN_TASKS]:
                table.add_row(Text(task.task), f"{task.first:.2f}", f"{task.second:.2f}")
            console.print(table)
        if (rest := len(comparison.differing) - _SHOWN_TASKS) > 0:
            console.print(f"and {rest} tasks more; --json and --markdown have them all", highlight=False)
        for line in _places(comparison):
            console.print(Text(line), soft_wrap=True)
        console.print()


def to_markdown(comparisons: Sequence[Comparison]) -> str:
    lines = ["# Comparison", ""]
    for comparison in comparisons:
        lines += [f"## {comparison.second} against {comparison.first}", ""]
        lines += [f"- {line}" for line in "\n".join(_lines(comparison)[1:]).replace("\n   ", ";").splitlines()]
        if comparison.differing:
            lines += ["", "| task | first | second | on the page |", "|---|---|---|---|"]
        lines += [
            f"| {task.task} | {task.first:.2f} | {task.second:.2f} | {_cell(task.link)} |"
            for task in comparison.differing
        ]
        lines += ["", *(f"- {line}" for line in _places(comparison)), ""]
    return "\n".join(re.sub(r"(?<=\S) {2,}", " ", line) for line in lines)


def _lines(c: Comparison) -> list[str]:
    found = [
        f"{c.second} against {c.first}, {c.tasks} tasks" + (f", {c.unpaired} unpaired left out" if c.unpaired else ""),
        *_success_lines(c),
        f"p-value     {c.p_value:.3g} over tasks: {_verdict(c.p_value)}",
    ]
    if c.p_value_over_seeds is not None:
        found.append(
            f"            {c.p_value_over_seeds:.3g} over seeds ({c.seeds[0]} and {c.seeds[1]}): "
            f"{_verdict(c.p_value_over_seeds)}"
        )
    elif max(c.seeds) == 1:
        found.append("            about these two policies; other seeds of the same recipes may differ otherwise")
    low, high = c.return_interval
    found.append(f"return      {c.return_difference:+.3f} ({low:+.3f} to {high:+.3f})")
    num_compared = c.tasks - c.unknown if c.measure == "success" else c.tasks
    found.append(f"tasks       {c.num_better} better, {c.num_worse} worse, {num_compared - len(c.differing)} the same")
    return found


def _success_lines(c: Comparison) -> list[str]:
    if c.success is None or c.difference is None or c.interval is None:
        return [f"success     {UNKNOWN}: a side does not say it (is_success); what follows is about the return"]
    low, high = c.interval
    told = f", over the {c.tasks - c.unknown} tasks of which both sides say it" if c.unknown else ""
    return [
        f"success     {c.success[0]:.3f} -> {c.success[1]:.3f}{told}",
        f"difference  {c.difference:+.3f} ({low:+.3f} to {high:+.3f}), 95 % interval",
    ]


def _verdict(p_value: float) -> str:
    return "a difference" if p_value < _SURE else "no difference can be told"


def _places(c: Comparison) -> list[str]:
    """Where the episodes can be looked at."""
    links = [task.link for task in c.differing if task.link][:1]
    look = [f"side by side  turnwise view {shlex.join(c.runs)} --at {shlex.quote(link)}" for link in links]
    return [*(f"episodes    {file}" for file in c.episodes), *look]


def _cell(link: str) -> str:
    return f"`{link}`" if link else ""
