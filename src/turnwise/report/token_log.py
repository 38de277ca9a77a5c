"""The learning record of a run: every update with its tokens, in one file that only grows.

`file.py` knows the file, `block.py` one update in it, `columns.py` its arrays; `learnt.py` is what comes in and
`tokens.py` what goes out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnwise.errors import RunError
from turnwise.infra.atomic_files import append_bytes, atomic_write, reason
from turnwise.report.token_log_codec import (
    HEADER_BYTES,
    MAGIC,
    BlockHeader,
    Share,
    UpdateRecord,
    choose_rows,
    decode_block,
    encode_block,
    read_header,
    take_rows,
)
from turnwise.report.token_log_reader import StepTokens

log = logging.getLogger(__name__)

_ENTRY = np.dtype([("step", "<i8"), ("start", "<u8"), ("end", "<u8"), ("sum", "<u8")])
_CHUNK = 1 << 20


class _Place(NamedTuple):
    step: int
    start: int
    end: int


class TokenLogWriter:
    """Appends what is to be kept of each update. A disk that fails ends the record, never the run."""

    def __init__(self, path: Path, share: Share) -> None:
        self._path = path
        self._share: Share = share
        self._is_mended = False

    def write(self, step: int, learnt: UpdateRecord) -> None:
        """One block."""
        rows = choose_rows(learnt.experiences, self._share)
        if not len(rows):
            return
        batch = learnt.batch
        block = encode_block(
            step,
            take_rows(learnt, rows),
            num_trained_rows=batch.num_rows,
            num_trained_tokens=len(batch.token_ids),
        )
        try:
            self._append(step, block)
        except RunError as error:
            log.warning("the learning record ends before step %d: %s", step, error)
            self._share = "none"

    def _append(self, step: int, block: bytes) -> None:
        if not self._is_mended:
            _mend(self._path)
            self._is_mended = True
        start = append_bytes(self._path, block)
        append_bytes(_index_path(self._path), _encode_index([_Place(step, start, start + len(block))]))


class TokenLog:
    """Reads the record of a run, also while the run writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def steps(self) -> list[int]:
        """The steps on record, ascending."""
        return sorted(self._places())

    def read(self, step: int) -> StepTokens:
        """The tokens of a step; an error names the steps there are."""
        place = self._places().get(step)
        if place is None:
            raise RunError(f"{self._path} has no step {step}; it has {_describe_steps(self.steps())}.")
        with _open(self._path) as file:
            file.seek(place.start)
            header, body = read_header(file.read(HEADER_BYTES)), file.read(place.end - place.start - HEADER_BYTES)
        try:
            if header is None or header.step != step:
                raise ValueError("its header is gone")
            return decode_block(header, body)
        except ValueError as error:
            raise RunError(
                f"{self._path}: step {step} (bytes {place.start} to {place.end}) is damaged: {error}. "
                "Other steps can be read."
            ) from error

    def find_gaps(self, *, with_end: bool) -> list[tuple[int, int]]:
        """The bytes, from and to, that belong to no block; those behind the last one only `with_end`, because a process
        that is killed leaves some there.
        """
        with _open(self._path) as file:
            size = file.seek(0, 2)
            gaps, end = [], 0
            for place in _scan(file, 0, size):
                gaps += [(end, place.start)] if place.start > end else []
                end = place.end
        return [*gaps, (end, size)] if with_end and end < size else gaps

    def _places(self) -> Mapping[int, _Place]:
        if not self._path.exists():
            raise RunError(
                f"there is no learning record {self._path}. It is written from the first update on, "
                "unless report.tokens is 'none'."
            )
        # A step that was written twice counts as it was written last.
        return {place.step: place for place in _find_blocks(self._path)}


def truncate_after(path: Path, *, after: int) -> None:
    """Cut off the blocks of later steps, for a run that makes them again."""
    if not path.exists():
        return
    places = _find_blocks(path)
    kept = [place for place in places if place.step <= after]
    later = [place.start for place in places if place.step > after]
    if later:
        _cut(path, min(later), [place for place in kept if place.end <= min(later)])


def _mend(path: Path) -> None:
    """Cut off what was being written when a process ended, and bring the index up to date."""
    if path.exists():
        places = _find_blocks(path)
        _cut(path, max((place.end for place in places), default=0), places)


def _cut(path: Path, size: int, places: list[_Place]) -> None:
    """The index first: one that is behind costs a look, one that is ahead is of no use."""
    atomic_write(_index_path(path), _encode_index(places))
    try:
        with path.open("r+b") as file:
            file.truncate(size)
    except OSError as error:
        raise RunError(f"Cannot write {path}: {reason(error)}.") from error


def _find_blocks(path: Path) -> list[_Place]:
    """Every whole block, in the order in which they were written."""
    with _open(path) as file:
        size = file.seek(0, 2)
        known = _read_index(path, file, size)
        return [*known, *_scan(file, known[-1].end if known else 0, size)]


def _read_index(path: Path, file: BinaryIO, size: int) -> list[_Place]:
    """What the index says, where it fits the file: its last block is there, and no entry leaves another out."""
    try:
        data = _index_path(path).read_bytes()
    except OSError:
        return []
    entries = np.frombuffer(data[: len(data) - len(data) % _ENTRY.itemsize], _ENTRY)
    places = [_Place(*entry) for entry in entries[["step", "start", "end"]].tolist()]
    if not places or places[-1].end > size or not np.array_equal(entries["sum"], _sum(entries)):
        return []
    last = _header_at(file, places[-1].start, size)
    is_whole = places[0].start == 0 and np.array_equal(entries["end"][:-1], entries["start"][1:])
    return places if is_whole and last is not None and last.step == places[-1].step else []


def _encode_index(places: list[_Place]) -> bytes:
    entries = np.array([(*place, 0) for place in places], dtype=_ENTRY)
    entries["sum"] = _sum(entries)
    return entries.tobytes()


def _sum(entries: NDArray[Any]) -> NDArray[np.uint64]:
    """By which an entry that was damaged is known; of thousands at once."""
    step, start, end = (entries[name].astype(np.uint64) for name in ("step", "start", "end"))
    mixed = step * np.uint64(0x9E3779B97F4A7C15) ^ start * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ end * np.uint64(0x94D049BB133111EB)


def _scan(file: BinaryIO, position: int, size: int) -> Iterator[_Place]:
    """From block to block; where there is none, to the next one."""
    while position < size:
        header = _header_at(file, position, size)
        if header is not None:
            yield _Place(header.step, position, position + header.num_bytes)
            position += header.num_bytes
        else:
            position = _find_magic(file, position + 1, size)


def _header_at(file: BinaryIO, position: int, size: int) -> BlockHeader | None:
    """None where no whole block begins; a damaged index may point anywhere."""
    if not 0 <= position < size:
        return None
    file.seek(position)
    header = read_header(file.read(HEADER_BYTES))
    return header if header is not None and position + header.num_bytes <= size else None


def _find_magic(file: BinaryIO, position: int, size: int) -> int:
    while position < size:
        file.seek(position)
        chunk = file.read(_CHUNK)
        if (found := chunk.find(MAGIC)) >= 0:
            return position + found
        # It may begin in the last bytes of this chunk.
        position += max(1, len(chunk) - len(MAGIC) + 1)
    return size


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise RunError(f"Cannot read {path}: {reason(error)}.") from error


def _index_path(path: Path) -> Path:
    return path.with_suffix(".index")


def _describe_steps(steps: list[int]) -> str:
    """`steps 1 to 8, 10`"""
    if not steps:
        return "none yet"
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], step]
        else:
            runs.append([step])
    return "steps " + ", ".join(" to ".join(map(str, run)) for run in runs)
