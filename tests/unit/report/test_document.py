"""One document, three forms: terminal, Markdown, JSON."""

from __future__ import annotations

import io
import json

from rich.console import Console
from rich.text import Text

from turnwise.report.document import Document, Table, show, to_markdown

TABLE = Table.from_rows([{"env": "a|b", "return": 0.12345, "note": None}, {"env": "c", "return": 1, "note": "x"}])
DOCUMENT = Document(
    "Result",
    {"success": Text("0.5", style="green"), "file": ["one", "two"]},
    [TABLE],
    parts=[Document("Reply", text="```\n# no heading\x1b[2J")],
    notes=["saved: here"],
)


def shown(document: Document, *, json: bool = False, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    assert show(document, json=json, console=console) == 0
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_terminal_shows_everything_and_obeys_nothing() -> None:
    lines = shown(DOCUMENT).splitlines()
    assert lines[:4] == ["Result", "success  0.5", "file     one", "         two"]
    assert lines[4].split() == ["env", "┃", "return", "┃", "note"]
    assert lines[6].split() == ["a|b", "│", "0.123", "│"]
    assert lines[-4:] == ["Reply", "  ```", "  # no heading\\x1b[2J", "saved: here"]


def test_a_path_is_never_folded() -> None:
    path = "/a/long/path" * 20
    assert path in shown(Document(facts={"run": path}, notes=[f"saved: {path}"]), width=40)


def test_markdown_escapes_cells_and_fences_texts() -> None:
    assert to_markdown(DOCUMENT) == (
        "# Result\n\n- success: 0.5\n- file: one\n- file: two\n\n"
        "| env | return | note |\n| --- | --- | --- |\n| a\\|b | 0.123 |  |\n| c | 1 | x |\n\n"
        "## Reply\n\n````text\n```\n# no heading\x1b[2J\n````\n\n- saved: here\n\n"
    )


def test_json_is_the_facts_and_rows_or_what_the_command_says() -> None:
    rows = [{"env": "a|b", "return": 0.12345, "note": None}, {"env": "c", "return": 1, "note": "x"}]
    assert json.loads(shown(Document(tables=[TABLE]), json=True)) == rows
    facts = {"success": "0.5", "file": ["one", "two"]}
    assert json.loads(shown(DOCUMENT, json=True)) == {**facts, "rows": rows}
    assert json.loads(shown(Document("title", data=[]), json=True)) == []
