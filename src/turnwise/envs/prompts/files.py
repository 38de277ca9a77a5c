"""Files of prompts: a JSON list, JSON lines, plain text with one prompt per line, or Parquet.

In come a file and the names of its fields; out come rows. A row that is no prompt is one error that names the file, the
line and the setting to change. It refuses to guess: nothing is skipped but blank lines.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from turnwise.envs.prompts.rows import PromptRow, PromptSet, hold_out, split_rows
from turnwise.envs.row_files import Row, RowFile, RowFormat, read_rows
from turnwise.errors import TaskError


@dataclass(frozen=True, slots=True)
class Fields:
    """Under which keys a row keeps its texts."""

    prompt: str
    response: str
    section: str = "env"
    """Where these keys and the path are set, for messages."""

    @property
    def format(self) -> RowFormat:
        return RowFormat(
            setting=f"{self.section}.path",
            file="a JSON, JSONL, CSV or TXT file (.gz is fine) or a Parquet file with prompts",
            row=f"a text, or an object with a text under '{self.prompt}'",
            has_text_lines=True,
        )


def load_prompts(path: str, *, fields: Fields, eval_share: float) -> PromptSet:
    """The prompts of a file; the same file in the same state is read once per process."""
    return _load_once(RowFile.find(path, fields.format), fields, eval_share)


def load_two_files(path: str, eval_path: str, fields: Fields) -> PromptSet:
    """The prompts of one file for training and those of another for evaluation."""
    held_out = replace(fields.format, setting=f"{fields.section}.eval_path")
    return _load_two_once(RowFile.find(path, fields.format), RowFile.find(eval_path, held_out), fields)


def read_prompts(path: str, fields: Fields) -> list[PromptRow]:
    """All rows of a file, duplicates included."""
    return _read(RowFile.find(path, fields.format), fields)


@lru_cache(maxsize=8)
def _load_two_once(file: RowFile, eval_file: RowFile, fields: Fields) -> PromptSet:
    return hold_out(_read(file, fields), _read(eval_file, fields), source=str(file.path))


@lru_cache(maxsize=8)
def _load_once(file: RowFile, fields: Fields, eval_share: float) -> PromptSet:
    return split_rows(_read(file, fields), eval_share=eval_share, source=str(file.path))


def _read(file: RowFile, fields: Fields) -> list[PromptRow]:
    return as_prompts(read_rows(file), fields, str(file.path), file.format.setting)


def as_prompts(rows: Iterable[Row], fields: Fields, source: str, setting: str) -> list[PromptRow]:
    """Rows of any source; `setting` names it in messages."""
    prompts = [_as_row(row.content, row.place, fields) for row in rows]
    if not prompts:
        raise TaskError(f"{source} holds no prompts; expected at least 2. Check {setting}.")
    return prompts


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
    return PromptRow(_checked_prompt(prompt, place, fields), (response or "").strip() or None, row)


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
