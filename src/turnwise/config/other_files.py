"""Files that are no settings: what they look like, and where such a file belongs.

In: a file that was given as a recipe and holds none. Out: the words of its refusal. It reads the beginning of a file
alone, and knows nothing of what settings mean.
"""

from __future__ import annotations

from pathlib import Path

from turnwise.floor.parsing import parse_json

_HEAD_BYTES = 64_000
_MAGIC = {
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzipped file",
    b"SQLite format 3": "an SQLite database",
    b"PK\x03\x04": "a ZIP file",
}
_PROMPTS = "Prompts are read with env.type=prompts env.path={path}."
_ROWS = "Rows of data belong into the setting of an environment that reads them, such as env.path={path}."


def describe_other_file(path: Path) -> str:
    """Why it cannot be a recipe: what it looks like, what was expected, and where it may belong."""
    look, advice = _look(path)
    expected = "expected a YAML file of settings, such as 'env: {type: frozen_lake}'"
    words = f"'{path}' is no settings file: it looks like {look}; {expected}."
    return f"{words} {advice.format(path=path)}" if advice else words


def _look(path: Path) -> tuple[str, str]:
    """What a file seems to be, and what could be done with it."""
    head = path.read_bytes()[:_HEAD_BYTES]
    for magic, look in _MAGIC.items():
        if head.startswith(magic):
            return look, _ROWS
    if b"\0" in head:
        return "a binary file", ""
    lines = [line for line in head.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        return "an empty file", ""
    if path.suffix == ".py":
        return "a Python file", "A class or function of yours is named as module:Name in a YAML file."
    if path.suffix in (".csv", ".tsv"):
        return f"a table ({path.suffix[1:].upper()})", "Save its rows as JSON lines to use them as data."
    if lines[0].lstrip().startswith("["):
        return "a JSON list", _ROWS
    if _is_object(lines[0]):
        return "JSON lines", _ROWS
    return f"plain text ({len(lines)} lines)" if lines[1:] else "plain text (one line)", _PROMPTS


def _is_object(line: str) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False
