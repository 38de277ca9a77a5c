"""Output of a command: title, facts and tables. `show` prints it, as text or JSON; `to_markdown` writes a page.

Text of models and environments is printed as it is: never as markup, never as terminal commands.
"""

from __future__ import annotations

import json as json_lib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rich import table as rich_table
from rich.console import Console
from rich.text import Text

from turnwise.report.console import printable

Value: TypeAlias = str | int | float | Text | None

_SINGLE = (str, int, float, Text)
_NUMBER = re.compile(r"[-+]?[\d.,]*%?")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns; floats are shown with three digits."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    title: str = ""

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Value]]) -> Table:
        """The keys of the first row are the columns."""
        return cls(tuple(rows[0]), [tuple(row.values()) for row in rows])

    def to_rows(self) -> list[dict[str, object]]:
        return [dict(zip(self.columns, map(_to_plain, row), strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Document:
    """What a command answers. All fields are optional and shown in this order."""

    title: str = ""
    facts: Mapping[str, Value | Sequence[Value]] = field(default_factory=dict)
    """Lines `name  value`; a sequence takes one line per value."""
    tables: Sequence[Table] = ()
    text: str = ""
    """Verbatim, such as the reply of a model."""
    parts: Sequence[Document] = ()
    notes: Sequence[Value] = ()
    """Lines at the end."""
    data: object = None
    """What `--json` prints. By default facts and tables, or the rows of the only table."""


def show(document: Document, *, json: bool = False, console: Console | None = None) -> int:
    """Print to the terminal, or as JSON. Returns the exit code 0, so that a command can end with it."""
    console = console or Console()
    if json:
        console.print_json(json_lib.dumps(to_data(document)))
    else:
        _print(console, document, style="")
    return 0


def to_data(document: Document) -> object:
    """Return what `--json` prints."""
    if document.data is not None:
        return document.data
    if len(document.tables) == 1 and not document.facts:
        return document.tables[0].to_rows()
    facts = {
        name: _to_plain(value) if value is None or isinstance(value, _SINGLE) else [_to_plain(one) for one in value]
        for name, value in document.facts.items()
    }
    return {**facts, **{table.title or "rows": table.to_rows() for table in document.tables}}


def to_markdown(document: Document) -> str:
    """Return a Markdown page."""
    return "\n".join([*_markdown(document, level=1), ""])


def _print(console: Console, document: Document, *, style: str) -> None:
    if document.title:
        _print_line(console, _to_text(document.title, style=style))
    width = max(map(len, document.facts), default=0) + 2
    for name, value in document.facts.items():
        for number, one in enumerate(_as_list(value)):
            label = Text(("" if number else name).ljust(width), style="dim")
            _print_line(console, label.append_text(Text("", style="not dim").append_text(_to_text(one))))
    for table in document.tables:
        console.print(_to_rich(table))
    if document.text:
        console.print(Text("\n".join(f"  {line}" for line in printable(document.text).splitlines()), style="cyan"))
    for number, part in enumerate(document.parts):
        if number and part.facts:
            console.print()
        _print(console, part, style="bold")
    for note in document.notes:
        _print_line(console, _to_text(note))


def _print_line(console: Console, line: Text) -> None:
    # Not folded: paths and commands can be copied, and a line of a log stays one line.
    console.print(line, soft_wrap=True)


def _to_rich(table: Table) -> rich_table.Table:
    shown = rich_table.Table(title=table.title or None, title_justify="left", show_edge=False, pad_edge=False)
    cells = [[_to_text(value) for value in row] for row in table.rows]
    for number, name in enumerate(table.columns):
        is_number = all(_NUMBER.fullmatch(row[number].plain) for row in cells)
        # Names are typed again, so they stay whole in a narrow terminal.
        shown.add_column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=number == 0)
    for row in cells:
        shown.add_row(*row)
    return shown


def _markdown(document: Document, *, level: int) -> Iterator[str]:
    if document.title:
        yield from (f"{'#' * level} {_one_line(document.title)}", "")
    if document.facts:
        yield from (f"- {name}: {_one_line(v)}" for name, value in document.facts.items() for v in _as_list(value))
        yield ""
    for table in document.tables:
        yield from _markdown_table(table)
    if document.text:
        yield from _fenced(document.text)
    for part in document.parts:
        yield from _markdown(part, level=level + 1)
    if document.notes:
        yield from (f"- {_one_line(note)}" for note in document.notes)
        yield ""


def _markdown_table(table: Table) -> Iterator[str]:
    for row in (table.columns, ["---"] * len(table.columns), *table.rows):
        yield "| " + " | ".join(_one_line(value).replace("|", "\\|") for value in row) + " |"
    yield ""


def _fenced(text: str) -> list[str]:
    """Put text behind a fence that is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *text.splitlines(), fence, ""]


def _as_list(value: Value | Sequence[Value]) -> Sequence[Value]:
    return [value] if value is None or isinstance(value, _SINGLE) else value


def _to_plain(value: Value) -> object:
    return value.plain if isinstance(value, Text) else value


def _to_text(value: Value, *, style: str = "") -> Text:
    if isinstance(value, Text):
        return value
    if value is None:
        return Text()
    return Text(f"{value:.3f}" if isinstance(value, float) else printable(str(value)), style=style)


def _one_line(value: Value) -> str:
    return " ".join(_to_text(value).plain.split())
