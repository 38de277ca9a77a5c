"""Read tasks from files: a JSON list, JSON lines, CSV, plain text (each also gzipped) or Parquet, and split them.

`load_rows` parses rows with a function of the environment; `split_rows` and `hold_out_rows` divide them into training
and evaluation. The content decides the format; the suffix decides only where the content fits several. Every
error names the file, the line, what was found, what was expected and the setting to change.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import reprlib
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from turnwise.config.settings import require_package
from turnwise.errors import TaskError
from turnwise.infra.parsing import NestingError, decode_json_at, parse_json

_GZIP_MAGIC, _PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"
_LIST_START = re.compile(r'\[\s*(["{\[\]]|$)')
"""How a JSON list begins where a line may also be text: "[INST] Hello" is text."""
_OBJECT_START = re.compile(r'\{\s*(["}]|$)')
_BLANK = re.compile(r"[ \t\n]*")
_JSON_SUFFIXES = (".json", ".jsonl")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Expected content of a file, for error messages."""

    setting: str
    """Setting that names the file, such as `env.path`."""
    items: str
    """Plural noun for its rows, such as `puzzles`."""
    file: str
    """Such as `a JSON, JSONL or Parquet file of puzzles`."""
    row: str
    """Such as `an object with 'nums' and 'target'`."""
    has_text_lines: bool = False
    """Whether a line that is not JSON is a row."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file in its current state; a cache key for its content."""

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
    """Position for messages: `/data/rows.jsonl, line 3`."""
    content: object
    is_all_text: bool = False
    """Whether all values are strings because the format has no other type."""

    def error(self, found: str, expected: str, fix: str = "") -> TaskError:
        return TaskError(f"{self.place}: found {found}; expected {expected}. {fix}".rstrip())


def load_rows(file: RowFile, parse: Callable[[Row], T]) -> tuple[T, ...]:
    """Parse all rows of a file. Cache the result by the file: many environments of a process read the same one.

    Raises:
        TaskError: if the file cannot be read, has no rows, or `parse` rejects one.
    """
    return parse_rows(read_rows(file), parse, str(file.path), file.format)


def parse_rows(rows: Iterable[Row], parse: Callable[[Row], T], source: str, expected: RowFormat) -> tuple[T, ...]:
    items = tuple(parse(row) for row in rows)
    if not items:
        raise TaskError(f"{source} holds no {expected.items}. Set {expected.setting} to {expected.file}.")
    return items


# --- splits ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Splits(Generic[T]):
    """Items for training and for evaluation, without overlap."""

    train: tuple[T, ...]
    eval: tuple[T, ...]

    def __getitem__(self, split: str) -> tuple[T, ...]:
        return self.train if split == "train" else self.eval

    def pick(self, split: str, seed: int) -> T:
        items = self[split]
        return items[seed % len(items)]


def split_rows(items: Sequence[T], is_held_out: Callable[[T], bool], *, eval_share: float, file: RowFile) -> Splits[T]:
    """Divide the items of one file.

    Raises:
        TaskError: if a split is empty.
    """
    train = tuple(item for item in items if not is_held_out(item))
    held_out = tuple(item for item in items if is_held_out(item))
    if not train or not held_out:
        counts, plural = (len(train), len(held_out)), file.format.items
        raise TaskError(
            f"{file.format.setting}: with eval_share {eval_share:g}, {file.path} gives {counts[0]} {plural} to "
            f"training and {counts[1]} to evaluation; expected at least 1 each. Change eval_share, or add {plural}."
        )
    return Splits(train, held_out)


def hold_out_rows(
    train: Sequence[T], held_out: Sequence[T], key: Callable[[T], object], *, source: str, items: str
) -> Splits[T]:
    """Take each split from a source of its own; training items whose key is in evaluation are dropped.

    Raises:
        TaskError: if no training item is left.
    """
    known = {key(item) for item in held_out}
    kept = tuple(item for item in train if key(item) not in known)
    if not kept:
        raise TaskError(
            f"env.path: all {items} of {source} are also in the evaluation source; nothing is left to train on. "
            f"Add {items}."
        )
    return Splits(kept, tuple(held_out))


def keys_held_out(places: Mapping[str, float], eval_share: float) -> Collection[str]:
    """Return the keys whose place (from 0 to 1) is below `eval_share`, such that neither split of two or more is empty.

    If all keys of a small source fall on one side, the key nearest to the border changes sides.
    """
    lowest, highest = min(places.values()), max(places.values())
    border = min(max(eval_share, lowest), highest)
    return {key for key, place in places.items() if place < border or (place == lowest and len(places) > 1)}


# --- files ----------------------------------------------------------------------------------------------------------


def read_rows(file: RowFile) -> Iterator[Row]:
    """Yield all rows in order."""
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


def read_objects(file: RowFile) -> Iterable[Row]:
    """Yield rows like `read_rows`; a file that is one object, over any number of lines, is one row."""
    content = read_object(file)
    return read_rows(file) if content is None else [Row(f"{file.path}, line 1", content)]


def read_object(file: RowFile) -> dict[str, object] | None:
    """Return the content of a file that is one JSON object; None for any other file."""
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
        # "utf-8-sig" drops a byte order mark.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The bytes of the error count, because they have no byte order mark.
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
    """Decode item by item, which gives the line of each."""
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
                    f"({', '.join(names)}). Correct the line, or set {file.format.setting} to another file."
                )
            yield Row(place, dict(zip(names, values, strict=True)), is_all_text=True)
    except csv.Error as error:
        raise TaskError(
            f"{file.path}, line {reader.line_num}: found no valid CSV ({error}); expected rows of values under a first "
            f"row of names. Correct the line, or set {file.format.setting} to another file."
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


# --- values and messages --------------------------------------------------------------------------------------------


def describe_json(value: object) -> str:
    """Name a value in the terms of JSON."""
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null", bool: "true or false"}
    return names.get(type(value), f"the number {reprlib.repr(value)}")


def describe_keys(row: Mapping[str, object]) -> str:
    return f"the keys {', '.join(map(repr, list(row)[:8]))}" if row else "an object with no keys"


def _unreadable(path: str | Path, expected: RowFormat, reason: str) -> TaskError:
    return TaskError(f"{expected.setting}: '{path}' cannot be read: {reason.rstrip('.')}. Give {expected.file}.")


def _not_json(file: RowFile, line: int, found: str, what: str) -> TaskError:
    return TaskError(
        f"{file.path}, line {line}: found {reprlib.repr(found)}, which is not {what}; expected {file.format.row}. "
        f"Correct the line, or set {file.format.setting} to another file."
    )
