"""Comparisons come in; what a person reads goes out, on the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

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
        for line in _after(comparison):
            console.print(Text(line), soft_wrap=True)
        console.print()


def to_markdown(comparisons: Sequence[Comparison]) -> str:
    lines = ["# Comparison", ""]
    for comparison in comparisons:
        lines += [f"## {comparison.second} against {comparison.first}", ""]
        lines += [f"- {line}" for line in _lines(comparison)[1:]]
        lines += ["", "| task | first | second |", "|---|---|---|"]
        shown = comparison.differing[:_SHOWN_TASKS]
        lines += [f"| {task.task} | {task.first:.2f} | {task.second:.2f} |" for task in shown]
        lines += ["", *_after(comparison), ""]
    return "\n".join(lines)


def _lines(c: Comparison) -> list[str]:
    low, high = c.interval
    found = [
        f"{c.second} against {c.first}, {c.tasks} tasks" + (f", {c.unpaired} unpaired left out" if c.unpaired else ""),
        f"success     {c.success[0]:.3f} -> {c.success[1]:.3f}",
        f"difference  {c.difference:+.3f} ({low:+.3f} to {high:+.3f}), 95 % interval",
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
    found.append(f"tasks       {c.num_better} better, {c.num_worse} worse, {c.tasks - len(c.differing)} the same")
    return found


def _verdict(p_value: float) -> str:
    return "a difference" if p_value < _SURE else "no difference can be told"


def _after(c: Comparison) -> list[str]:
    rest = len(c.differing) - _SHOWN_TASKS
    more = [f"and {rest} tasks more; --json has them all"] if rest > 0 else []
    return [*more, *(f"episodes    {file}" for file in c.episodes)]
