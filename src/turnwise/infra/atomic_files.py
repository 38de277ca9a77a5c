"""Files and folders that are whole or not there: a reader sees the old one or the new one, never half of one.

In comes content, or whatever a caller builds under a temporary name beside the target. It is written through to the
disk, renamed, and the rename is written through too, so that neither a kill nor a power cut leaves half of it. A write
that fails raises an error that names the file and the cause, and what was there stays. Refuses to know what a run is.

A temporary name is locked as long as its process works on it. One without a lock was left behind by a process that
died, and goes with the next write into its folder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnwise.errors import RunError, TurnwiseError
from turnwise.infra.parsing import parse_json

_TROUBLES = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE}
    | {errno.EISDIR, errno.ENOTDIR, errno.ELOOP}
)
_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{8}\.unfinished")


def atomic_write(path: Path, content: str | bytes, *, error: type[TurnwiseError] = RunError) -> None:
    """Missing parent folders are made."""
    # Half a surrogate pair has no UTF-8; escaped, JSON reads it back.
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with atomic_file(path, error=error) as unfinished:
        unfinished.write_bytes(data)


def write_if_absent(path: Path, content: str, *, mode: int = 0o600, error: type[TurnwiseError] = RunError) -> bool:
    """As `atomic_write`, for its owner alone, unless the file is there already: of several processes one writes it."""
    with _told(f"write {path}", error), _unfinished(path, _touch) as unfinished:
        unfinished.chmod(mode)
        unfinished.write_text(content, encoding="utf-8")
        _sync(unfinished)
        try:
            path.hardlink_to(unfinished)
        except FileExistsError:
            return False
        except OSError:
            # A file system without links; then the moment between these two calls is open to others.
            if path.exists():
                return False
            unfinished.replace(path)
        _sync_folder(path.parent)
    return True


@contextmanager
def atomic_file(path: Path, *, error: type[TurnwiseError] = RunError) -> Iterator[Path]:
    """A name to write under; the file has its own name once the block ends without an exception."""
    with _told(f"write {path}", error), _unfinished(path, _touch) as unfinished:
        yield unfinished
        _sync(unfinished)
        unfinished.replace(path)
        _sync_folder(path.parent)


@contextmanager
def atomic_dir(
    path: Path,
    *,
    keeps_first: bool = False,
    failures: tuple[type[Exception], ...] = (),
    error: type[TurnwiseError] = RunError,
) -> Iterator[Path]:
    """An empty folder to fill; it has its own name once the block ends without an exception, in place of an older one.

    With `keeps_first` a folder that another process finished meanwhile stays, for it may be read already. Otherwise the
    old one makes room first: a kill between these two renames leaves neither. `failures` are what those who write into
    it raise on a full disk, beside `OSError`.
    """
    with _told(f"write {path}", error, *failures), _unfinished(path, Path.mkdir) as scratch:
        new, old = scratch / "new", scratch / "old"
        new.mkdir()
        yield new
        for folder, _, names in os.walk(new):
            for name in names:
                _sync(Path(folder, name))
            _sync_folder(Path(folder))
        if path.is_dir():
            if keeps_first:
                return
            path.rename(old)
        try:
            new.rename(path)
        except OSError:
            if old.is_dir():
                old.rename(path)
            elif keeps_first and path.is_dir():
                return
            raise
        _sync_folder(path.parent)


def append_line(path: Path, line: str, *, error: type[TurnwiseError] = RunError) -> None:
    """One more line of a file with one writer, as `append_bytes` does it."""
    append_bytes(path, f"{line}\n".encode("utf-8", "backslashreplace"), error=error)


def append_bytes(path: Path, data: bytes, *, error: type[TurnwiseError] = RunError) -> int:
    """At the end of a file with one writer; says where they begin. What does not fit leaves no part of itself.

    They outlive their process, and are not written through to the disk: a power cut may take the newest.
    """
    with _told(f"write {path}", error):
        _make_folder(path.parent)
        with path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                _write_all(file.fileno(), data)
            except OSError:
                file.truncate(size)
                raise
    return size


def remove_folder(path: Path, *, error: type[TurnwiseError] = RunError) -> None:
    """Renamed first: half a folder must not pass for one."""
    with _told(f"remove {path}", error), _unfinished(path, Path.mkdir) as scratch:
        path.rename(scratch / "old")


def remove_stale_temp_files(folder: Path) -> None:
    """What processes that were killed left under temporary names; whatever is being written stays."""
    for name in os.listdir(folder):
        if not _LEFTOVER.fullmatch(name):
            continue
        with suppress(OSError):
            lock = os.open(folder / name, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder / name)
            finally:
                os.close(lock)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"Cannot read {path}: {reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise RunError(f"Cannot read {path}: it is not UTF-8 text ({error.reason} at byte {error.start}).") from error


def read_object(path: Path) -> dict[str, object]:
    """The JSON object that a file holds."""
    try:
        value = parse_json(read_text(path))
    except ValueError as error:
        raise RunError(
            f"{path} is damaged: expected a JSON object ({error}). Restore it or start a new run."
        ) from error
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged: expected a JSON object, found {type(value).__name__}.")
    return value


def encode_object(value: object) -> str:
    """Indented JSON for people; refuses NaN and infinity, which are not JSON."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def reason(error: Exception) -> str:
    """The cause without the path, which the message around it already names."""
    told = _find_trouble(error) or error
    return (getattr(told, "strerror", None) or str(told)).lower()


def _find_trouble(error: BaseException | None) -> OSError | None:
    """What the system said about the disk, behind what a library says about its own work."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _TROUBLES:
            return error
        error = error.__cause__ or error.__context__
    return None


def describe_os_error(error: BaseException) -> str | None:
    """What to say of a disk that is full, broken or not to be written to, wherever it was met; None of other errors."""
    if isinstance(error, RuntimeError):
        # torch says how far it came.
        error = _find_trouble(error) or error
    if not isinstance(error, OSError) or not (error.errno in _TROUBLES or _is_without_temporary_files(error)):
        return None
    where = "a file" if error.filename is None else error.filename
    return (
        f"Cannot read or write {where}: {reason(error)}. Check that its folder is writable and its disk has space; "
        "what was saved before is as it was."
    )


def _is_without_temporary_files(error: OSError) -> bool:
    """Libraries look for a folder for them as they are loaded, and Python finds none where nothing can be written."""
    return str(error.strerror).startswith("No usable temporary directory")


@contextmanager
def _told(attempt: str, kind: type[TurnwiseError], *failures: type[Exception]) -> Iterator[None]:
    try:
        yield
    except (OSError, *failures) as error:
        raise kind(f"Cannot {attempt}: {reason(error)}. Check that its folder is writable and has space.") from error


@contextmanager
def _unfinished(path: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """A new file or folder beside `path`, locked while it is in use and gone afterwards."""
    _make_folder(path.parent)
    remove_stale_temp_files(path.parent)
    unfinished, lock = _claim(path, create)
    try:
        yield unfinished
    finally:
        _remove(unfinished)
        os.close(lock)


def _claim(path: Path, create: Callable[[Path], None]) -> tuple[Path, int]:
    while True:
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
        create(unfinished)
        try:
            lock = os.open(unfinished, os.O_RDONLY)
        except FileNotFoundError:
            # Before the lock was there, another process took it for a leftover.
            continue
        with suppress(OSError):
            # Network file systems may not support locks; then the file may be in use and is never removed.
            fcntl.flock(lock, fcntl.LOCK_EX)
        if unfinished.exists():
            return unfinished, lock
        os.close(lock)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _touch(path: Path) -> None:
    path.touch(exist_ok=False)


def _make_folder(folder: Path) -> None:
    if not folder.exists():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync(path: Path) -> None:
    """Without it, a power cut after the rename can leave an empty file under the final name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """The names in it; some platforms have no such thing."""
    with suppress(OSError):
        _sync(folder)


_NAME = "checksums.json"


def write_checksums(folder: Path) -> None:
    """Of everything that is in the folder, the last thing to be written there."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != _NAME)
    found = {file.relative_to(folder).as_posix(): _checksum(file) for file in files}
    (folder / _NAME).write_text(encode_object(found), encoding="utf-8")


def verify_checksums(folder: Path, *, under: str = "") -> str | None:
    """What is missing or not as it was written, below `under` alone where it is given; None: nothing.

    A folder without checksums was written before there were any, and passes.
    """
    if not (folder / _NAME).exists():
        return None
    try:
        written = read_object(folder / _NAME)
    except RunError as error:
        return str(error)
    for name, checksum in written.items():
        if not name.startswith(under):
            continue
        try:
            if _checksum(folder / name) != checksum:
                return f"{name} is not as it was written: its checksum is another one"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
