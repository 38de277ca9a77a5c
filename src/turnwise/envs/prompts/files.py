"""Files of prompts: a JSON list, JSON lines, or plain text with one prompt per line.

In come a file and the names of its fields; out come rows. The content decides the format; the suffix only where the
content could be either. A row that is no prompt is one error that names the file, the line and the setting to change.
It refuses to guess: nothing is skipped but blank lines.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from turnwise.envs.prompts.rows import PromptRow, PromptSet, split_rows
from turnwise.errors import TaskError

_LIST_START = re.compile(r'\[\s*(["{\[\]]|$)')
"""How a JSON list begins; "[INST] Hello" is text."""
_OBJECT_START = re.compile(r'\{\s*(["}]|$)')
_JSON_SUFFIXES = (".json", ".jsonl")


@dataclass(frozen=True, slots=True)
class Fields:
    """Under which keys a row keeps its texts."""

    prompt: str
    response: str
    section: str = "env"
    """Where these keys and the path are set, for messages."""


def load_prompts(path: str, *, fields: Fields, eval_share: float) -> PromptSet:
    """The prompts of a file; the same file in the same state is read once per process."""
    file = Path(path).expanduser().absolute()
    try:
        state = file.stat()
    except OSError as error:
        raise TaskError(
            f"{fields.section}.path: '{path}' cannot be read: {error.strerror}. "
            "Give a JSON, JSONL or TXT file with prompts."
        ) from error
    return _load_once(file, state.st_mtime_ns, state.st_size, fields, eval_share)


@lru_cache(maxsize=8)
def _load_once(file: Path, _mtime_ns: int, _size: int, fields: Fields, eval_share: float) -> PromptSet:
    return split_rows(read_rows(file, fields), eval_share=eval_share, source=str(file))


def read_rows(file: Path, fields: Fields) -> list[PromptRow]:
    """All rows of a file, duplicates included."""
    text = _read_text(file, fields)
    first_line = next((line.strip() for line in text.split("\n") if line.strip()), "")
    if not first_line:
        raise TaskError(f"{file} holds no prompts; expected at least 2. Check {fields.section}.path.")
    if _LIST_START.match(first_line):
        return [_as_row(row, f"{file}, row {number}", fields) for number, row in _list_items(text, file, fields)]
    if _is_json_lines(first_line, file):
        return [_as_row(row, f"{file}, line {number}", fields) for number, row in _line_items(text, file, fields)]
    return [PromptRow(line.strip()) for line in text.split("\n") if line.strip()]


def _read_text(file: Path, fields: Fields) -> str:
    try:
        # Reading as text makes every kind of line end a "\n"; "utf-8-sig" leaves a byte order mark away.
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise TaskError(
            f"{file}, line {line}: found the byte 0x{error.object[error.start]:02x}, which is not UTF-8; expected "
            f"UTF-8 text. Save the file as UTF-8, or set {fields.section}.path to another file."
        ) from error
    except OSError as error:
        raise TaskError(
            f"{fields.section}.path: '{file}' cannot be read: {error.strerror}. "
            "Give a JSON, JSONL or TXT file with prompts."
        ) from error


def _is_json_lines(first_line: str, file: Path) -> bool:
    suffix = file.suffix.lower()
    if _OBJECT_START.match(first_line) or suffix in _JSON_SUFFIXES:
        return True
    # A line in quotes may be a JSON string or a quotation; in a .txt file it is a quotation.
    return suffix != ".txt" and isinstance(_parse_or_none(first_line), str)


def _parse_or_none(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _list_items(text: str, file: Path, fields: Fields) -> Iterator[tuple[int, object]]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(
            f"{file}, line {error.lineno}: found a JSON list that is not valid here ({error.msg}); expected a list of "
            f"texts or objects. Mend the line, or set {fields.section}.path to another file."
        ) from error
    except RecursionError as error:
        raise TaskError(
            f"{file}, line 1: found lists inside lists without end; expected a list of texts or objects. "
            f"Set {fields.section}.path to another file."
        ) from error
    yield from enumerate(rows, start=1)


def _line_items(text: str, file: Path, fields: Fields) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            if isinstance(_parse_or_none(text), dict):
                raise TaskError(
                    f"{file}, line 1: found one object over many lines; expected a list [...] of rows, or one object "
                    f"per line. Set {fields.section}.path to a file of rows."
                ) from error
            raise TaskError(
                f"{file}, line {number}: found {reprlib.repr(line.strip())}, which is not valid JSON; expected one "
                f"text or object per line. Mend the line, or set {fields.section}.path to another file."
            ) from error


def _as_row(row: object, place: str, fields: Fields) -> PromptRow:
    if isinstance(row, str):
        return PromptRow(_checked_prompt(row, place, fields))
    if not isinstance(row, dict):
        raise TaskError(
            f"{place}: found {_name_of(row)}; expected a text, or an object with a text under '{fields.prompt}' "
            f"({fields.section}.prompt_field)."
        )
    if fields.prompt not in row:
        raise TaskError(
            f"{place}: found an object with {_keys_of(row)}; expected a text under '{fields.prompt}'. Set "
            f"{fields.section}.prompt_field to the key that holds the prompt."
        )
    prompt, response = row[fields.prompt], row.get(fields.response)
    if not isinstance(prompt, str):
        raise TaskError(
            f"{place}: found {_name_of(prompt)} under '{fields.prompt}'; expected a text. "
            f"Set {fields.section}.prompt_field to the key that holds the prompt."
        )
    if response is not None and not isinstance(response, str):
        raise TaskError(
            f"{place}: found {_name_of(response)} under '{fields.response}'; expected a text, or nothing. Set "
            f"{fields.section}.response_field to the key that holds the response, or to one that is not there."
        )
    return PromptRow(_checked_prompt(prompt, place, fields), (response or "").strip() or None)


def _checked_prompt(text: str, place: str, fields: Fields) -> str:
    if not text.strip():
        raise TaskError(
            f"{place}: found a blank prompt; expected a text. "
            f"Take the row out, or set {fields.section}.prompt_field to another key."
        )
    return text.strip()


def _keys_of(row: dict[str, object]) -> str:
    return f"the keys {', '.join(map(repr, list(row)[:8]))}" if row else "no keys"


def _name_of(value: object) -> str:
    """In JSON's words, as it stands in the file."""
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null", bool: "true or false"}
    return names.get(type(value), f"the number {reprlib.repr(value)}")
