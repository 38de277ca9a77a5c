"""Who is at work in a run directory: one explorer and one trainer, each in a process of its own.

A role is a lock that the system takes back when its process ends, however it ends, and a record of how far it is.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from turnwise.errors import RunError, SyncError
from turnwise.floor.files import write_whole
from turnwise.sync.checkpoint import read_record

Role = Literal["explorer", "trainer"]
_CLAIM_S = 2.0
"""How long a claim is tried: a look at the lock holds it for a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRecord:
    """How far a role is: rollouts stored, or updates made."""

    step: int = 0
    has_ended: bool = False
    """Whether it has done all it was to do; false also where it was killed."""
    tasks: Mapping[str, Any] = field(default_factory=dict)
    """Where the explorer's task source stands before its next rollout."""


class RolePlace:
    """The place of one role in a run directory."""

    def __init__(self, folder: Path, role: Role) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._role = role
        self._lock = folder / f"{role}.lock"
        self._record = folder / f"{role}.json"
        self._held: IO[bytes] | None = None

    def claim(self) -> None:
        """Take the role until this process ends; refused while another process has it."""
        deadline_s = time.monotonic() + _CLAIM_S
        while (held := self._try_lock(fcntl.LOCK_EX)) is None:
            if time.monotonic() > deadline_s:
                raise RunError(
                    f"{self._lock.parent.parent} has a running {self._role} already; expected none. End that process, "
                    "or choose another --run-dir."
                )
            time.sleep(0.05)
        self._held = held

    def leave(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def is_taken(self) -> bool:
        """Whether a process has this role now."""
        probe = self._try_lock(fcntl.LOCK_SH)
        if probe is not None:
            probe.close()
        return probe is None

    def read(self) -> RoleRecord:
        found = read_record(self._record)
        return RoleRecord() if found is None else RoleRecord(**found)

    def write(self, record: RoleRecord) -> None:
        write_whole(self._record, json.dumps(asdict(record)), error=SyncError)

    def _try_lock(self, kind: int) -> IO[bytes] | None:
        file = self._lock.open("ab")
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file
