"""Whole or not there: after failures, kills and races, readers find the old file or the new one."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from turnwise.errors import RunError, StoreError
from turnwise.infra.atomic_files import (
    append_bytes,
    append_line,
    atomic_dir,
    atomic_file,
    atomic_write,
    encode_object,
    read_object,
    read_text,
    remove_folder,
)

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def fill(folder: Path, text: str, **options: bool) -> None:
    with atomic_dir(folder, **options) as unfinished:
        (unfinished / "inner").mkdir()
        (unfinished / "inner" / "file.txt").write_text(text)


def content(folder: Path) -> str:
    return (folder / "inner" / "file.txt").read_text()


@contextmanager
def files_at_most(num_bytes: int) -> Iterator[None]:
    """A write beyond this fails half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def failing(*_: object, **__: object) -> None:
    raise FULL


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "file.txt"
    atomic_write(path, "old")
    atomic_write(path, b"n\xc3\xa9w")
    assert names(path.parent) == ["file.txt"]
    assert read_text(path) == "néw"


def test_files_have_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "plain_folder").mkdir()
    atomic_write(tmp_path / "whole", "")
    fill(tmp_path / "atomic_dir", "")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "atomic_dir").stat().st_mode == (tmp_path / "plain_folder").stat().st_mode


@pytest.mark.parametrize("broken", ["pathlib.Path.write_bytes", "os.fsync", "pathlib.Path.replace"])
def test_a_write_that_fails_anywhere_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "file.txt"
    atomic_write(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(broken, failing)
        with pytest.raises(StoreError, match=r"Cannot write .*file\.txt: no space left on device\. Check"):
            atomic_write(path, "new", error=StoreError)
    assert names(tmp_path) == ["file.txt"]
    assert read_text(path) == "old"


def test_a_disk_that_fills_up_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    atomic_write(path, "old")
    with files_at_most(1000), pytest.raises(RunError, match="Cannot write"):
        atomic_write(path, b"n" * 10_000)
    assert (names(tmp_path), read_text(path)) == (["file.txt"], "old")


def test_an_exception_of_the_writer_leaves_the_old_file(tmp_path: Path) -> None:
    atomic_write(tmp_path / "file.txt", "old")

    def write(unfinished: Path) -> None:
        unfinished.write_text("ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "file.txt") as unfinished:
        write(unfinished)
    assert (names(tmp_path), read_text(tmp_path / "file.txt")) == (["file.txt"], "old")


def test_what_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"Cannot write .*folder: is a directory"):
        atomic_write(tmp_path / "folder", "text")
    with pytest.raises(RunError, match=r"Cannot write .*below: not a directory"):
        atomic_write(tmp_path / "file" / "below", "text")
    assert names(tmp_path) == ["file", "folder"]


def test_content_is_on_the_disk_before_its_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []
    fsync, replace, rename = os.fsync, Path.replace, Path.rename

    def note_sync(descriptor: int) -> None:
        events.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def note(move: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        return lambda source, target: (events.append("renamed"), move(source, target))[1]

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note(replace))
    monkeypatch.setattr(Path, "rename", note(rename))
    atomic_write(tmp_path / "file.txt", "text")
    inode, parent = (tmp_path / "file.txt").stat().st_ino, tmp_path.stat().st_ino
    assert events == [inode, "renamed", parent]

    events.clear()
    fill(tmp_path / "folder", "text")
    parts = [tmp_path / "folder", tmp_path / "folder/inner", tmp_path / "folder/inner/file.txt"]
    assert set(events[:-2]) == {part.stat().st_ino for part in parts}
    assert events[-2:] == ["renamed", parent]


def write_often(path: Path, letter: str) -> None:
    for _ in range(100):
        atomic_write(path, letter * 20_000)


@pytest.mark.slow
def test_two_processes_that_write_one_file_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    atomic_write(path, "a" * 20_000)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_often, args=(path, letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert read_text(path) in ("a" * 20_000, "b" * 20_000)
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert names(tmp_path) == ["file.txt"]


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_replaces_the_old_one(tmp_path: Path) -> None:
    fill(tmp_path / "folder", "old")
    (tmp_path / "folder" / "left_over").touch()
    fill(tmp_path / "folder", "new")
    assert (names(tmp_path), names(tmp_path / "folder")) == (["folder"], ["inner"])
    assert content(tmp_path / "folder") == "new"


@pytest.mark.parametrize("broken", ["pathlib.Path.write_text", "os.fsync"])
def test_a_folder_that_cannot_be_finished_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    fill(tmp_path / "folder", "old")
    with monkeypatch.context() as patch:
        patch.setattr(broken, failing)
        with pytest.raises(RunError, match=r"Cannot write .*folder: no space left on device"):
            fill(tmp_path / "folder", "new")
    assert (names(tmp_path), content(tmp_path / "folder")) == (["folder"], "old")


def test_the_old_folder_comes_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "folder", "old")
    rename = Path.rename

    def refuse_new(source: Path, target: Path) -> Path:
        return failing() if source.name == "new" else rename(source, target)  # type: ignore[func-returns-value]

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(RunError, match="no space left on device"):
        fill(tmp_path / "folder", "new")
    assert (names(tmp_path), content(tmp_path / "folder")) == (["folder"], "old")


def test_other_failures_of_the_writer_are_told_where_they_are_named(tmp_path: Path) -> None:
    for failures, expected in (((), ValueError), ((ValueError,), RunError)):
        with pytest.raises(expected), atomic_dir(tmp_path / "folder", failures=failures):
            raise ValueError("disk full")
    assert names(tmp_path) == []


def test_a_folder_that_another_process_made_meanwhile_stays_where_it_may_be_in_use(tmp_path: Path) -> None:
    with atomic_dir(tmp_path / "folder", keeps_first=True):
        fill(tmp_path / "folder", "theirs")
    assert (names(tmp_path), content(tmp_path / "folder")) == (["folder"], "theirs")


def test_a_removed_folder_is_gone(tmp_path: Path) -> None:
    fill(tmp_path / "folder", "old")
    remove_folder(tmp_path / "folder")
    assert names(tmp_path) == []
    with pytest.raises(RunError, match=r"Cannot remove .*folder: no such file"):
        remove_folder(tmp_path / "folder")


# --- what dead processes leave ---------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from turnwise.infra.atomic_files import {kind}
with {kind}(Path(sys.argv[1])) as unfinished:
    (unfinished / "part" if unfinished.is_dir() else unfinished).write_text("half of")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["atomic_file", "atomic_dir"])
def test_a_kill_leaves_the_old_and_the_next_write_clears_up(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "target"
    if kind == "atomic_file":
        atomic_write(path, "old")
    else:
        fill(path, "old")
    killed = subprocess.run([sys.executable, "-c", KILLED.format(kind=kind), str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2
    assert (read_text(path) if kind == "atomic_file" else content(path)) == "old"
    atomic_write(tmp_path / "other", "")
    assert names(tmp_path) == ["other", "target"]


def test_what_is_still_being_written_is_no_leftover(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "slow.txt") as file, atomic_dir(tmp_path / "slow") as folder:
        file.write_text("text")
        atomic_write(tmp_path / "slow.txt", "quick")
        atomic_write(tmp_path / "other.txt", "quick")
        assert file.is_file()
        assert folder.is_dir()
    assert names(tmp_path) == ["other.txt", "slow", "slow.txt"]
    assert read_text(tmp_path / "slow.txt") == "text"


def test_files_of_others_are_no_leftovers(tmp_path: Path) -> None:
    others = [".file.txt.12345.tmp", ".notes.unfinished", "report.0123abcd.unfinished"]
    for name in others:
        (tmp_path / name).touch()
    atomic_write(tmp_path / "file.txt", "")
    assert names(tmp_path) == sorted([*others, "file.txt"])


# --- lines and JSON --------------------------------------------------------------------------------------------------


def test_a_line_that_does_not_fit_leaves_no_part_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.jsonl"
    append_line(path, "one")
    with files_at_most(1000), pytest.raises(RunError, match=r"Cannot write .*lines\.jsonl"):
        append_line(path, "x" * 5000)
    append_line(path, "two")
    assert read_text(path) == "one\ntwo\n"


def test_bytes_are_appended_where_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "new" / "blocks.bin"
    blocks = [b"\x00one\n", b"", b"\xfftwo"]
    starts = [append_bytes(path, block) for block in blocks]
    data = path.read_bytes()
    assert data == b"".join(blocks)
    assert [data[at:].startswith(block) for at, block in zip(starts, blocks, strict=True)] == [True] * 3


def test_objects_come_back_half_a_surrogate_pair_included(tmp_path: Path) -> None:
    value = {"é": [1, None, "\ud83d"], "√": {"x": 0.1}}
    atomic_write(tmp_path / "object.json", encode_object(value))
    assert read_object(tmp_path / "object.json") == value
    append_line(tmp_path / "object.jsonl", json.dumps("\ud83d", ensure_ascii=False))
    assert json.loads(read_text(tmp_path / "object.jsonl")) == "\ud83d"
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_object({"loss": float("nan")})


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"{", "expected a JSON object"), (b"[1]", "found list"), (b"\xff", "not UTF-8 text"), (None, "no such file")],
)
def test_what_cannot_be_read_is_named_with_its_cause(tmp_path: Path, data: bytes | None, words: str) -> None:
    if data is not None:
        (tmp_path / "object.json").write_bytes(data)
    with pytest.raises(RunError, match=rf"object\.json.*{words}"):
        read_object(tmp_path / "object.json")
