"""Who is at work in a run directory: one explorer and one trainer, each in a process of its own or both in one.

A role is a lock that the system takes back when its process ends, however it ends, and a record of how far it is. The
locked file says who holds it, for the process that is rejected.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from turnwise.errors import RunError, SyncError
from turnwise.infra.atomic_files import atomic_write
from turnwise.infra.parsing import parse_json
from turnwise.sync.weight_store import read_record

log = logging.getLogger(__name__)

Role = Literal["explorer", "trainer"]
ROLES: tuple[Role, ...] = ("explorer", "trainer")
"""Of a process that explores and trains."""
_CLAIM_S = 2.0
"""How long a claim is tried: a look at the lock holds it for a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleProgress:
    """How far a role is: rollouts stored, or updates made."""

    step: int = 0
    has_ended: bool = False
    """Whether it has done all it was to do; false also where it was killed."""
    tasks: Mapping[str, Any] = field(default_factory=dict)
    """Where the explorer's task source stands before its next rollout."""


class RoleLock:
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
                    f"{self._lock.parent.parent} has a running {self._role} already: {self._tell_holder()}. Expected "
                    "none. Wait until it ends, end that process, or choose another --run-dir."
                )
            time.sleep(0.05)
        self._held = held
        held.truncate(0)
        held.write(json.dumps(_describe_process()).encode())
        held.flush()

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

    def read(self) -> RoleProgress:
        found = read_record(self._record)
        if found is None:
            return RoleProgress()
        step, has_ended, tasks = (found.get(name) for name in ("step", "has_ended", "tasks"))
        if not (isinstance(step, int) and isinstance(has_ended, bool) and isinstance(tasks, dict)):
            raise SyncError(
                f"{self._record} is damaged: expected step, has_ended and tasks, got {sorted(found)}. Remove it, and "
                f"the {self._role} starts from what is stored."
            )
        return RoleProgress(step=step, has_ended=has_ended, tasks=tasks)

    def write(self, record: RoleProgress) -> None:
        atomic_write(self._record, json.dumps(asdict(record)), error=SyncError)

    def _tell_holder(self) -> str:
        try:
            holder = parse_json(self._lock.read_text())
            return f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (OSError, ValueError, LookupError, TypeError):
            # It has the lock and has not yet said who it is.
            return "a process that has just started"

    def _try_lock(self, kind: int) -> IO[bytes] | None:
        file = self._lock.open("ab")
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            # Some network file systems have no locks; a run there is not worth less than an unguarded one.
            log.warning("%s cannot be locked (%s): a second %s is not prevented", self._lock, error, self._role)
        return file


@contextmanager
def acquire_roles(run_path: Path, *roles: Role) -> Iterator[None]:
    """Have these roles in a run until the block ends; refused while another process has one of them."""
    with ExitStack() as held:
        for role in roles:
            place = role_lock(run_path, role)
            place.claim()
            held.callback(place.leave)
        yield


def role_lock(run_path: Path, role: Role) -> RoleLock:
    return RoleLock(run_path / "roles", role)


def _describe_process() -> dict[str, str | int]:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
