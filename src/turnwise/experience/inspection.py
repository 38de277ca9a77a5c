"""A store of experience looked at from outside: every group of it, and what is wrong with it.

In: the file of a run, which may be at work. Out: groups, each with its faults. The file is opened for reading alone. It
refuses to know what is learnt from a group.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from turnwise.errors import StoreError
from turnwise.experience.buffer import count_tokens
from turnwise.experience.codec import decode_group
from turnwise.experience.priorities import group_version
from turnwise.experience.store import DAMAGE
from turnwise.types import Experience

_BUSY_TIMEOUT_S = 60.0
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
    return sqlite3.connect(f"file:{quote(str(path.resolve()))}?{way}", uri=True, timeout=_BUSY_TIMEOUT_S)


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
