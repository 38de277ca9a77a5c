"""Rows of files: a JSON list, JSON lines, CSV, plain text or Parquet; all but the last may be gzipped.

In come a path and words for what is expected of it; out come rows, each with its place. The content decides the format;
the suffix only where the content could be either. Every mistake is one error with the file, the line, what was found,
what was expected and the setting to change. It refuses to know what a row means, and skips nothing but blank lines.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import reprlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.config.settings import require_package
from turnwise.errors import TaskError
from turnwise.infra.parsing import NestingError, decode_json_at, parse_json

_GZIP_MAGIC, _PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"
_LIST_START = re.compile(r'\[\s*(["{\[\]]|$)')
"""How a JSON list begins where a line may also be text: "[INST] Hello" is text."""
_OBJECT_START = re.compile(r'\{\s*(["}]|$)')
_BLANK = re.compile(r"[ \t\n]*")
_JSON_SUFFIXES = (".json", ".jsonl")


@dataclass(frozen=True, slots=True)
class RowFormat:
    """What a file should be, in words for messages."""

    setting: str
    """Which setting names the file, such as `env.path`."""
    file: str
    """Such as `a JSON, JSONL or Parquet file of puzzles`."""
    row: str
    """Such as `an object with 'nums' and 'target'`."""
    has_text_lines: bool = False
    """Whether a line that is no JSON may be a row of its own."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file as it is now; a changed one is another, so that what was read from it can be kept by it."""

    path: Path
    mtime_ns: int
    size: int
    format: RowFormat

    @classmethod
    def find(cls, path: str, expected: RowFormat) -> RowFile:
        file = Path(path).expanduser().absolute()
        try:
            state = file.stat()
        except OSError as error:
            raise _unreadable(path, expected, error.strerror or str(error)) from error
        return cls(file, state.st_mtime_ns, state.st_size, expected)


class Row(NamedTuple):
    place: str
    """Where it stands, for messages: `/data/rows.jsonl, line 3`."""
    content: object
    is_all_text: bool = False
    """Whether its values are texts because the format knows nothing else."""


def read_rows(file: RowFile) -> Iterator[Row]:
    """All rows in their order."""
    data = _read_bytes(file)
    if _is_parquet(data, file):
        return _parquet_rows(file)
    text = _decode_text(data, file)
    if _suffix(file) == ".csv":
        return _csv_rows(text, file)
    first_line = next((line.strip() for line in text.split("\n") if line.strip()), "")
    if _is_list(first_line, file):
        return _list_rows(text, file)
    if _is_text(first_line, file):
        return (Row(f"{file.path}, line {number}", line) for number, line in _lines(text))
    return _line_rows(text, file)


def read_object(file: RowFile) -> dict[str, object] | None:
    """The one JSON object that the file is; None where it is anything else."""
    data = _read_bytes(file)
    whole = None if _is_parquet(data, file) else _parse_or_none(_decode_text(data, file))
    return whole if isinstance(whole, dict) else None


# --- bytes and text -------------------------------------------------------------------------------------------------


def _read_bytes(file: RowFile) -> bytes:
    try:
        data = file.path.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _unreadable(file.path, file.format, f"the gzip data is damaged ({error})") from error
    except OSError as error:
        raise _unreadable(file.path, file.format, error.strerror or str(error)) from error


def _decode_text(data: bytes, file: RowFile) -> str:
    try:
        # "utf-8-sig" leaves a byte order mark away.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Its own bytes count, because a byte order mark is no longer in them.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise TaskError(
            f"{file.path}, line {line}: found the byte 0x{error.object[error.start]:02x}, which is not UTF-8; expected "
            f"UTF-8 text. Save the file as UTF-8, or set {file.format.setting} to {file.format.file}."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


# --- formats --------------------------------------------------------------------------------------------------------


def _is_parquet(data: bytes, file: RowFile) -> bool:
    return data.startswith(_PARQUET_MAGIC) or file.path.suffix.lower() == ".parquet"


def _suffix(file: RowFile) -> str:
    return Path(file.path.name.lower().removesuffix(".gz")).suffix


def _is_list(first_line: str, file: RowFile) -> bool:
    return bool(_LIST_START.match(first_line)) if file.format.has_text_lines else first_line.startswith("[")


def _is_text(first_line: str, file: RowFile) -> bool:
    suffix = _suffix(file)
    if not file.format.has_text_lines or _OBJECT_START.match(first_line) or suffix in _JSON_SUFFIXES:
        return False
    # A line in quotes may be a JSON string or a quotation; in a .txt file it is a quotation.
    return suffix == ".txt" or not isinstance(_parse_or_none(first_line), str)


def _parse_or_none(text: str) -> object:
    try:
        return parse_json(text)
    except ValueError:
        return None


def _line_rows(text: str, file: RowFile) -> Iterator[Row]:
    for number, line in _lines(text):
        try:
            content = parse_json(line)
        except ValueError as error:
            if isinstance(_parse_or_none(text), dict):
                raise TaskError(
                    f"{file.path}, line 1: found one object over many lines; expected a list [...] of rows, or one row "
                    f"per line. Set {file.format.setting} to {file.format.file}."
                ) from error
            raise _not_json(file, number, line, "valid JSON") from error
        yield Row(f"{file.path}, line {number}", content)


def _list_rows(text: str, file: RowFile) -> Iterator[Row]:
    """Item by item, because only so the line of each is known."""
    position, line, number = _skip_blank(text, text.index("[") + 1), 1, 0
    counted = 0
    is_over = text[position : position + 1] == "]"
    while not is_over:
        number += 1
        line, counted = line + text.count("\n", counted, position), position
        try:
            content, position = decode_json_at(text, position)
            position = _skip_blank(text, position)
            is_over = text[position : position + 1] == "]"
            if not is_over and text[position : position + 1] != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
        except json.JSONDecodeError as error:
            found = text[error.pos : error.pos + 80].partition("\n")[0]
            raise _not_json(file, error.lineno, found, f"valid JSON in a list ({error.msg})") from error
        except NestingError as error:
            raise TaskError(
                f"{file.path}, line {line}: found lists inside lists without end; expected {file.format.row}. "
                f"Set {file.format.setting} to {file.format.file}."
            ) from error
        yield Row(f"{file.path}, line {line}, row {number}", content)
        if not is_over:
            position = _skip_blank(text, position + 1)
    rest = _skip_blank(text, position + 1)
    if rest < len(text):
        line += text.count("\n", counted, rest)
        raise _not_json(file, line, text[rest : rest + 80].partition("\n")[0], "part of the JSON list, which ended")


def _skip_blank(text: str, position: int) -> int:
    found = _BLANK.match(text, position)
    return found.end() if found else position


def _csv_rows(text: str, file: RowFile) -> Iterator[Row]:
    """Objects of texts: the first row names the fields."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        names = next(reader, [])
        for values in reader:
            if not values:
                continue
            place = f"{file.path}, line {reader.line_num}"
            if len(values) != len(names):
                raise TaskError(
                    f"{place}: found {len(values)} values; expected {len(names)}, one for each name of the first row "
                    f"({', '.join(names)}). Mend the line, or set {file.format.setting} to another file."
                )
            yield Row(place, dict(zip(names, values, strict=True)), is_all_text=True)
    except csv.Error as error:
        raise TaskError(
            f"{file.path}, line {reader.line_num}: found no valid CSV ({error}); expected rows of values under a first "
            f"row of names. Mend the line, or set {file.format.setting} to another file."
        ) from error


def _parquet_rows(file: RowFile) -> Iterator[Row]:
    asked_by = f"{file.format.setting}: the Parquet file {file.path}"
    parquet: Any = require_package("pyarrow.parquet", extra="data", asked_by=asked_by)
    try:
        rows = parquet.read_table(file.path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors extend these two
        raise TaskError(
            f"{file.path} is not a readable Parquet file: {error}. Set {file.format.setting} to {file.format.file}."
        ) from error
    return (Row(f"{file.path}, row {number}", content) for number, content in enumerate(rows, start=1))


# --- messages -------------------------------------------------------------------------------------------------------


def _unreadable(path: str | Path, expected: RowFormat, reason: str) -> TaskError:
    return TaskError(f"{expected.setting}: '{path}' cannot be read: {reason.rstrip('.')}. Give {expected.file}.")


def _not_json(file: RowFile, line: int, found: str, what: str) -> TaskError:
    return TaskError(
        f"{file.path}, line {line}: found {reprlib.repr(found)}, which is not {what}; expected {file.format.row}. "
        f"Mend the line, or set {file.format.setting} to another file."
    )
