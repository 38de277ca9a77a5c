"""A report of the doctor as lines for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnwise.app.doctor.findings import Examination, Status

_STYLES = {Status.OK: "green", Status.WARNING: "bold yellow", Status.PROBLEM: "bold red"}


def show_examination(console: Console, examination: Examination) -> None:
    """One line per finding, problems last where they are seen, and what to do next."""
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for status in Status:
        for finding in examination.having(status):
            lines.add_row(Text(status, style=_STYLES[status]), Text(finding.check), Text(finding.message))
    console.print(lines)
    console.print(_last_words(examination), markup=False, highlight=False, soft_wrap=True)


def _last_words(examination: Examination) -> str:
    problems, warnings = len(examination.having(Status.PROBLEM)), len(examination.having(Status.WARNING))
    counted = f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}."
    return counted if problems else f"{counted} Ready: turnwise train {examination.recipe}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
