"""The buffer on disk: one SQLite file in a run directory, for many processes at once.

In: groups. Out: groups, by the same contract as `MemoryBuffer`. What was added stays in the file, also after its last
use, so that it can be exported and given again: a use is a row of its own, and `restore` takes back the uses that no
checkpoint covers, as a plan: an update that is made again learns from what it learnt from before, whatever has been
added meanwhile. It refuses to know what a checkpoint holds.

Write-ahead logging lets readers and a writer work side by side; every change is one transaction, so that a process that
is killed leaves nothing half done. Blocks are immutable and in a table of their own: taking a group rewrites a short
row, never its tokens.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from turnwise.config.schema import BufferSettings
from turnwise.deps import BufferSite
from turnwise.errors import ConfigError, StoreError
from turnwise.experience.buffer import BufferRules, count_tokens, group_version, list_policies, split_groups
from turnwise.experience.codec import decode_group, encode_group
from turnwise.infra.wait_tracking import waiting
from turnwise.types import Experience

log = logging.getLogger(__name__)

FILE_NAME = "experience.db"
"""In the directory of a run."""
DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises: of a damaged file it may say so in words that are no text."""
_FORMAT = 2
_BUSY_TIMEOUT_S = 60.0
"""Longest wait for another process's transaction; they take milliseconds."""
_TOLD_AFTER_S = 3.0
"""After which a wait is logged: another process holds the file."""
_SCHEMA = f"""
PRAGMA user_version = {_FORMAT};
CREATE TABLE IF NOT EXISTS groups (
    number INTEGER PRIMARY KEY,      -- order of arrival
    group_id TEXT NOT NULL UNIQUE,
    rollout INTEGER NOT NULL,
    policy_version INTEGER NOT NULL,
    num_experiences INTEGER NOT NULL,
    num_tokens INTEGER NOT NULL,
    use_count INTEGER NOT NULL DEFAULT 0,
    taken_at_step INTEGER,           -- its last use
    ready_at_step INTEGER NOT NULL DEFAULT 0,
    priority REAL,                   -- null: never taken again
    dropped_by_rollout INTEGER,      -- the rollout for which a full buffer dropped it
    added_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS waiting ON groups (priority DESC, number, ready_at_step, num_experiences, num_tokens)
    WHERE priority IS NOT NULL;
CREATE INDEX IF NOT EXISTS rollouts ON groups (rollout);
CREATE TABLE IF NOT EXISTS blocks (number INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS uses (
    step INTEGER NOT NULL,           -- the update that a group was taken for
    number INTEGER NOT NULL,
    PRIMARY KEY (step, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS plans (
    step INTEGER NOT NULL,           -- an update that is made again, and what it learnt from the first time
    number INTEGER NOT NULL,
    PRIMARY KEY (step, number)
) WITHOUT ROWID;
"""
_PLAYED_AGAIN = "rollout > ? AND group_id NOT LIKE '%/served/%'"
"""Episodes of clients are nobody's to play again: they stay, whatever a run goes back to."""
_WAITING = "priority IS NOT NULL AND ready_at_step <= ?"
_SIZES = {"experiences": "num_experiences", "groups": "1", "tokens": "num_tokens"}
_INSERT = """
INSERT INTO groups (group_id, rollout, policy_version, num_experiences, num_tokens, priority, added_at)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (group_id) DO NOTHING RETURNING number
"""
_USE = "UPDATE groups SET use_count = ?, taken_at_step = ?, ready_at_step = ?, priority = ? WHERE number = ?"


class SqliteBuffer:
    """`buffer.type: sqlite`: groups in a file. Open one in each process; threads of a process may share theirs."""

    is_shared: ClassVar[bool] = True

    @classmethod
    def open(cls, settings: BufferSettings, site: BufferSite) -> SqliteBuffer:
        if site.run_path is None:
            raise ConfigError("buffer.type: 'sqlite' given without a run directory to keep it in; expected 'memory'.")
        return cls(site.run_path / FILE_NAME, list_policies(settings, site))

    def __init__(self, path: Path, rules: BufferRules = BufferRules()) -> None:  # noqa: B008 - frozen
        self._path = path
        self._rules = rules
        self._lock = threading.RLock()
        try:
            self._db = sqlite3.connect(path, timeout=_TOLD_AFTER_S, isolation_level=None, check_same_thread=False)
            # Blocks are long; larger pages mean fewer of them.
            self._db.execute("PRAGMA page_size = 16384")
            self._patiently(lambda: self._db.execute("PRAGMA journal_mode = WAL"))
            # A killed process loses nothing; a power cut may lose the last groups, and never damages the file.
            self._db.execute("PRAGMA synchronous = NORMAL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _FORMAT):
                raise StoreError(f"{path} has format {version}; this version of turnwise reads format {_FORMAT}.")
            self._patiently(lambda: self._db.executescript(_SCHEMA))
        except DAMAGE as error:
            raise StoreError(f"{path} cannot be opened as a store of experience: {error}.") from error

    def _patiently(self, attempt: Callable[[], object]) -> None:
        """Wait for another process's transaction, and say so where it takes long."""
        with waiting("the buffer", f"another process that writes to {self._path.name}", _BUSY_TIMEOUT_S):
            self._try_until_free(attempt)

    def _try_until_free(self, attempt: Callable[[], object]) -> None:
        begun_s, is_told = time.monotonic(), False
        while True:
            try:
                attempt()
                return
            except sqlite3.OperationalError as error:
                waited_s = time.monotonic() - begun_s
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                if waited_s > _BUSY_TIMEOUT_S:
                    raise StoreError(
                        f"{self._path} has been locked by another process for {waited_s:.0f} s; expected to write to "
                        "it. End the program that has it open (perhaps a database browser), and start again."
                    ) from error
                if waited_s >= _TOLD_AFTER_S and not is_told:
                    log.warning("waiting for %s: another process has locked it for %.0f s", self._path, waited_s)
                    is_told = True
                # SQLite does not wait by itself where several processes begin a write-ahead log at once.
                time.sleep(0.01)

    # --- the contract of a buffer --------------------------------------------------------------------------------

    def add(self, experiences: Sequence[Experience]) -> None:
        groups = split_groups(experiences)
        # Encoded before the transaction: other processes wait for it.
        rows = [(self._row(group_id, group), encode_group(group)) for group_id, group in groups.items()]
        with self._transaction() as db:
            for row, block in rows:
                if (inserted := db.execute(_INSERT, row).fetchone()) is not None:
                    db.execute("INSERT INTO blocks VALUES (?, ?)", (inserted[0], block))
            if experiences:
                self._drop_beyond_capacity(max(e.id.trajectory.rollout for e in experiences))

    def take(self, step: int) -> list[Experience]:
        with self._transaction() as db:
            chosen = self._planned(step) or self._choose(step)
            ready_at = self._rules.next_step(step)
            used = [
                (count + 1, step, ready_at, self._rules.rank(group_id, version, count + 1), number)
                for number, group_id, version, count in chosen
            ]
            db.executemany(_USE, used)
            db.executemany("INSERT INTO uses VALUES (?, ?)", [(step, number) for number, *_ in chosen])
            db.execute("DELETE FROM plans WHERE step = ?", (step,))
        # Blocks never change, so reading them blocks no writer.
        return [experience for number, group_id, *_ in chosen for experience in self._read_sound(number, group_id)]

    def is_ready(self, step: int) -> bool:
        if self._ask("SELECT COUNT(*) FROM plans WHERE step = ?", step)[0]:
            return True
        size = _SIZES[self._rules.unit]
        (available,) = self._ask(f"SELECT TOTAL({size}) FROM groups WHERE {_WAITING}", step)
        return available >= (self._rules.train_batch_size or 1)

    def has_group(self, group_id: str) -> bool:
        return self._ask("SELECT COUNT(*) FROM groups WHERE group_id = ?", group_id)[0] > 0

    @property
    def num_dropped(self) -> int:
        return int(self._ask("SELECT TOTAL(num_experiences) FROM groups WHERE dropped_by_rollout IS NOT NULL")[0])

    def __len__(self) -> int:
        (last_step,) = self._ask("SELECT MAX(step) FROM uses")
        return int(self._ask(f"SELECT TOTAL(num_experiences) FROM groups WHERE {_WAITING}", (last_step or 0) + 1)[0])

    # --- going on after a crash ----------------------------------------------------------------------------------

    def rewind(self, step: int, *, plays_again: bool) -> None:
        self.restore(step)
        if plays_again:
            self.delete_rollouts(after=step)

    def restore(self, step: int) -> None:
        """Groups that were taken for updates after `step` are taken again, for the same updates."""
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO plans SELECT step, number FROM uses WHERE step > ?", (step,))
            undone = [number for (number,) in db.execute("SELECT DISTINCT number FROM uses WHERE step > ?", (step,))]
            db.execute("DELETE FROM uses WHERE step > ?", (step,))
            earlier = {
                n: rest for n, *rest in db.execute("SELECT number, COUNT(*), MAX(step) FROM uses GROUP BY number")
            }
            for number in undone:
                use_count, last = earlier.get(number, (0, None))
                ready_at = 0 if last is None else self._rules.next_step(last)
                db.execute(_USE, (use_count, last, ready_at, self._priority(number, use_count), number))

    def delete_rollouts(self, after: int) -> None:
        """As if no later rollout had been played: for a loop that plays them again, exactly as before."""
        with self._transaction() as db:
            # Played again, they come to the same updates by the same rules.
            db.execute("DELETE FROM plans")
            later = f"(SELECT number FROM groups WHERE {_PLAYED_AGAIN})"
            db.execute(f"DELETE FROM uses WHERE number IN {later}", (after,))
            db.execute(f"DELETE FROM blocks WHERE number IN {later}", (after,))
            db.execute(f"DELETE FROM groups WHERE {_PLAYED_AGAIN}", (after,))
            dropped = db.execute(
                "SELECT number, use_count FROM groups WHERE dropped_by_rollout > ?", (after,)
            ).fetchall()
            for number, use_count in dropped:
                db.execute("UPDATE groups SET dropped_by_rollout = NULL WHERE number = ?", (number,))
                priority = self._priority(number, use_count)
                db.execute("UPDATE groups SET priority = ? WHERE number = ?", (priority, number))

    # --- looking at it -------------------------------------------------------------------------------------------

    def read_groups(self) -> Iterator[list[Experience]]:
        """Everything that was ever added, in the order of arrival, one group at a time."""
        with self._lock:
            numbers = [number for (number,) in self._db.execute("SELECT number FROM groups ORDER BY number")]
        for number in numbers:
            yield self._read_block(number)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # --- parts ---------------------------------------------------------------------------------------------------

    def _row(self, group_id: str, group: Sequence[Experience]) -> tuple[str | int | float | None, ...]:
        version = group_version(group)
        priority = self._rules.rank(group_id, version, 0)
        rollout = group[0].id.trajectory.rollout
        return (group_id, rollout, version, len(group), count_tokens(group), priority, time.time())

    def _priority(self, number: int, use_count: int) -> float | None:
        """Of a group that is in the file; None where it was dropped."""
        group_id, version, dropped_by = self._ask(
            "SELECT group_id, policy_version, dropped_by_rollout FROM groups WHERE number = ?", number
        )
        return self._rules.rank(group_id, version, use_count) if dropped_by is None else None

    def _choose(self, step: int) -> list[tuple[int, str, int, int]]:
        """The most urgent groups up to the size of a batch; more are not even looked at."""
        chosen: list[tuple[int, str, int, int]] = []
        filled = 0
        found = self._db.execute(
            f"SELECT number, group_id, policy_version, use_count, {_SIZES[self._rules.unit]} FROM groups "
            f"WHERE {_WAITING} ORDER BY priority DESC, number",
            (step,),
        )
        for number, group_id, policy_version, use_count, size in found:
            filled += size
            if chosen and self._rules.train_batch_size is not None and filled > self._rules.train_batch_size:
                break
            chosen.append((number, group_id, policy_version, use_count))
        return chosen

    def _planned(self, step: int) -> list[tuple[int, str, int, int]]:
        """What the update trained on when it was made before, in the same order; nothing where it is new."""
        return self._db.execute(
            "SELECT number, group_id, policy_version, use_count FROM plans JOIN groups USING (number) "
            "WHERE step = ? ORDER BY priority DESC, number",
            (step,),
        ).fetchall()

    def _drop_beyond_capacity(self, rollout: int) -> None:
        if self._rules.capacity is None:
            return
        total, num_groups = self._ask("SELECT TOTAL(num_experiences), COUNT(*) FROM groups WHERE priority IS NOT NULL")
        excess = total - self._rules.capacity
        while excess > 0 and num_groups > 1:
            # Of equal ones the oldest goes: the new one stays.
            number, size = self._ask(
                "SELECT number, num_experiences FROM groups WHERE priority IS NOT NULL ORDER BY priority, number"
            )
            self._db.execute(
                "UPDATE groups SET priority = NULL, dropped_by_rollout = ? WHERE number = ?", (rollout, number)
            )
            excess -= size
            num_groups -= 1

    def _read_block(self, number: int) -> list[Experience]:
        return decode_group(self._ask("SELECT data FROM blocks WHERE number = ?", number)[0])

    def _read_sound(self, number: int, group_id: str) -> list[Experience]:
        """A group to learn from; one that was damaged on the disk is left out for ever, with a word."""
        try:
            return self._read_block(number)
        except StoreError as error:
            log.warning("group %s of %s is damaged and skipped: %s", group_id, self._path, error)
        with self._transaction() as db:
            db.execute("UPDATE groups SET priority = NULL WHERE number = ?", (number,))
            db.execute("DELETE FROM uses WHERE number = ?", (number,))
        return []

    def _ask(self, question: str, *given: object) -> tuple[Any, ...]:
        with self._lock, self._told("read"):
            return self._db.execute(question, given).fetchone()

    @contextmanager
    def _told(self, attempt: str) -> Iterator[None]:
        """What SQLite says of a full disk or a damaged file, as one message."""
        try:
            yield
        except DAMAGE as error:
            raise StoreError(
                f"{self._path} cannot be {attempt}: {error}. Existing data is intact. Check disk "
                "space and health, then restart."
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; the write lock is taken at once, so that what was read cannot have changed."""
        with self._lock, self._told("written"):
            self._patiently(lambda: self._db.execute("BEGIN IMMEDIATE"))
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


_INSPECTION_TIMEOUT_S = 60.0
_ROWS = """
SELECT group_id, rollout, policy_version, num_experiences, num_tokens, use_count,
    (SELECT COUNT(*) FROM uses WHERE uses.number = groups.number), data
FROM groups LEFT JOIN blocks USING (number) ORDER BY number
"""
_ORPHANS = "SELECT COUNT(*) FROM {table} WHERE number NOT IN (SELECT number FROM groups)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A group as it lies in the file."""

    group_id: str | None
    """None where the file as a whole is meant."""
    experiences: Sequence[Experience] = ()
    faults: Sequence[str] = ()


def inspect_store(path: Path) -> Iterator[StoredGroup]:
    """Every group, and whatever of the file is not as it was written."""
    try:
        with closing(_open(path)) as db:
            for fault in _find_faults(db):
                yield StoredGroup(group_id=None, faults=[fault])
            for row in db.execute(_ROWS):
                yield _inspect(row)
    except DAMAGE as error:
        yield StoredGroup(group_id=None, faults=[f"it cannot be read: {error}"])


def _open(path: Path) -> sqlite3.Connection:
    # Without a log beside it nobody has the file open. To take part in the log of one that is at work SQLite would make
    # files of its own and leave them there, and could not even read where the folder takes none.
    is_at_work = path.with_name(f"{path.name}-wal").exists()
    way = "mode=ro" if is_at_work else "immutable=1"
    return sqlite3.connect(f"file:{quote(str(path.resolve()))}?{way}", uri=True, timeout=_INSPECTION_TIMEOUT_S)


def _find_faults(db: sqlite3.Connection) -> Iterator[str]:
    """Of its pages and indexes, and of rows that belong to no group."""
    for (told,) in db.execute("PRAGMA integrity_check(10)"):
        if told != "ok":
            yield str(told)
    for table in ("blocks", "uses", "plans"):
        (count,) = db.execute(_ORPHANS.format(table=table)).fetchone()
        if count:
            yield f"{count} rows of {table} belong to no group"


def _inspect(row: tuple[Any, ...]) -> StoredGroup:
    group_id, *told, use_count, num_uses, data = row
    if data is None:
        return StoredGroup(group_id=group_id, faults=["its experiences are gone"])
    try:
        experiences = decode_group(data)
    except StoreError as error:
        return StoredGroup(group_id=group_id, faults=[str(error)])
    faults = []
    # The columns have no checksum; the block, which has one, says the same.
    first = experiences[0].id.trajectory
    known = [first.group, first.rollout, group_version(experiences), len(experiences), count_tokens(experiences)]
    if [group_id, *told] != known:
        names = ("group_id", "rollout", "policy_version", "num_experiences", "num_tokens")
        wrong = [n for n, here, there in zip(names, [group_id, *told], known, strict=True) if here != there]
        faults.append(f"the row of the group says another {' and '.join(wrong)} than its experiences")
    if use_count != num_uses:
        faults.append(f"it was used {use_count} times by its row, and {num_uses} times by the updates")
    return StoredGroup(group_id=group_id, experiences=experiences, faults=faults)
