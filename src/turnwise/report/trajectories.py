"""Trajectories come in and go out unchanged, token for token, as JSON lines in one file per step.

Texts are readable in the file; tokens are packed, because a conversation of many steps repeats its prompts many times
over. Numbers of an environment that are not finite become null. Refuses to know which trajectories are worth keeping:
the caller chooses.
"""

from __future__ import annotations

import json
import logging
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.errors import RunError
from turnwise.hooks import Hook, RolloutResult
from turnwise.infra.array_codec import decode_text, encode_text
from turnwise.infra.atomic_files import append_line, atomic_write, read_text
from turnwise.infra.parsing import parse_json
from turnwise.infra.untrusted import show
from turnwise.provenance import Origin
from turnwise.report.run_dir import RunDirectory, step_name
from turnwise.types import StopReason, Task, Trajectory, TrajectoryId, Turn

_MAX_DEPTH = 20
_MAX_WHOLE = 10**300
"""About what a float holds."""


class TrajectoryWriter:
    """Keeps the first `max_per_step` trajectories that it is given for each step."""

    def __init__(self, directory: Path, *, max_per_step: int = 16) -> None:
        self._directory = directory
        self._max_per_step = max_per_step

    def write(self, step: int, trajectories: Sequence[Trajectory]) -> Path:
        """Append to the file of this step; returns the file."""
        path = self._directory / f"{step_name(step)}.jsonl"
        lines = _lines(path) if path.exists() else []
        room = max(0, self._max_per_step - len(lines))
        lines += [_with_checksum(encode_trajectory(trajectory)) for trajectory in trajectories[:room]]
        atomic_write(path, "".join(f"{line}\n" for line in lines))
        return path


def read_verified_trajectories(path: Path) -> list[Trajectory]:
    """The same as `read_trajectories`, where every line is as it was written; otherwise an error names the first that
    is not. Lines from before there were checksums are believed.
    """
    trajectories = read_trajectories(path)
    for number, line in enumerate(_lines(path), start=1):
        record = parse_json(line)
        written = record.pop("checksum", None)
        if written is not None and written != _checksum(json.dumps(record)):
            raise RunError(f"{path}, line {number} is damaged: its checksum is another one.")
    return trajectories


def read_trajectories(path: Path) -> list[Trajectory]:
    trajectories: list[Trajectory] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            trajectories.append(decode_trajectory(parse_json(line)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"{path}, line {number}: expected a trajectory ({type(error).__name__}: {error})."
            ) from error
    return trajectories


def _with_checksum(record: dict[str, object]) -> str:
    """As the last field, so that a line is JSON as before."""
    return json.dumps({**record, "checksum": _checksum(json.dumps(record, allow_nan=False))})


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _lines(path: Path) -> list[str]:
    return [line for line in read_text(path).split("\n") if line]


def encode_trajectory(trajectory: Trajectory) -> dict[str, object]:
    """What JSON can hold of it: all but its segments, and those as one packed block."""
    task = trajectory.task
    return {
        "id": str(trajectory.id),
        "task": {"tag": task.tag, "seed": task.seed, "split": task.split},
        "stop_reason": str(trajectory.stop_reason),
        "is_success": None if trajectory.is_success is None else bool(trajectory.is_success),
        "final_observation": trajectory.final_observation,
        "failure": trajectory.failure,
        "turns": [_encode_turn(turn) for turn in trajectory.turns],
        "segments": encode_text(trajectory.segments),
    }


def _encode_turn(turn: Turn) -> dict[str, object]:
    return {
        "index": turn.index,
        "segment_index": turn.segment_index,
        "observation": turn.observation,
        "response_text": turn.response_text,
        "actions": list(turn.actions),
        "reward": _plain(turn.reward),
        "penalty": _plain(turn.penalty),
        "judged": _plain(turn.judged),
        "shaping": _plain(turn.shaping),
        "policy_version": turn.policy_version,
        "step": turn.step,
        "is_valid": turn.is_valid,
        "is_effective": turn.is_effective,
        "metrics": _plain(turn.metrics),
        "info": _plain(turn.info),
        "seal": turn.seal,
        "origin": None if turn.origin is None else asdict(turn.origin),
    }


def _plain(value: object, depth: int = 0) -> object:
    """The same value in what JSON has. Environments may put anything into `info`; what is no data becomes its text.

    A list that holds itself has no end, and a number of thousands of digits cannot be read again: both are shown.
    """
    if depth > _MAX_DEPTH or (isinstance(value, int) and abs(value) > _MAX_WHOLE):
        return show(value)
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {_name(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | bool | int) else _name(value)


def _name(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - the boundary: an author's `__str__` may raise whatever it likes
        return show(value)


def _decode_turn(record: dict[str, Any]) -> Turn:
    origin = record.get("origin")
    return Turn(
        **{**record, "actions": tuple(record["actions"]), "origin": None if origin is None else Origin(**origin)}
    )


def decode_trajectory(record: dict[str, Any]) -> Trajectory:
    """From what `encode_trajectory` gave."""
    rollout, rest = record["id"].split("/", 1)
    task_id, sibling = rest.rsplit("/", 1)
    return Trajectory(
        id=TrajectoryId(int(rollout), task_id, int(sibling)),
        task=Task(**record["task"]),
        segments=tuple(decode_text(record["segments"])),
        turns=tuple(map(_decode_turn, record["turns"])),
        stop_reason=StopReason(record["stop_reason"]),
        is_success=record["is_success"],
        final_observation=record["final_observation"],
        failure=record["failure"],
    )


log = logging.getLogger(__name__)

_WHOLE = b"whole"
"""The last line of a rollout that was finished."""


class TrajectoryJournal:
    """One file per rollout. A process that dies while it writes leaves a part of a line behind, and nothing worse."""

    def __init__(self, directory: Path, rollout: int) -> None:
        self._path = directory / f"{step_name(rollout)}.jsonl"

    def read(self) -> list[Trajectory]:
        """All that was appended, by this process or one before it; a line that was cut off is removed."""
        return [trajectory for line in self._lines() if (trajectory := self._decode(line)) is not None]

    def read_whole(self) -> list[Trajectory]:
        """The same where the rollout was finished and nothing of it is damaged; otherwise nothing, and it goes."""
        lines = self._lines()
        found = [self._decode(line) for line in lines[:-1]]
        played = [trajectory for trajectory in found if trajectory is not None]
        if not lines or lines[-1] != _WHOLE or len(played) < len(found):
            self.remove()
            return []
        return played

    def finish(self) -> None:
        """Every episode of the rollout is there."""
        append_line(self._path, _WHOLE.decode())

    def _lines(self) -> list[bytes]:
        if not self._path.exists():
            return []
        written = self._path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        if whole != written:
            atomic_write(self._path, whole)
        return whole.splitlines()

    def append(self, trajectory: Trajectory) -> None:
        line = json.dumps(encode_trajectory(trajectory), allow_nan=False)
        append_line(self._path, f"{_checksum_journal(line.encode())} {line}")

    def _decode(self, line: bytes) -> Trajectory | None:
        content = _sound(line)
        if content is None:
            log.warning("%s: an episode is damaged and is left out", self._path)
            return None
        return decode_trajectory(parse_json(content))

    def remove(self) -> None:
        """Its rollout is stored elsewhere."""
        self._path.unlink(missing_ok=True)


def find_damaged_episodes(file: Path) -> list[str]:
    """What of a journal is not as it was written; a last line that was cut off is how a kill leaves it."""
    lines = file.read_bytes().split(b"\n")[:-1]
    return [
        f"line {number} is damaged: its checksum is another one"
        for number, line in enumerate(lines, start=1)
        if _sound(line) is None and (line != _WHOLE or number < len(lines))
    ]


def _sound(line: bytes) -> bytes | None:
    """What a line holds; None where it is not as it was written."""
    checksum, _, content = line.partition(b" ")
    return content if checksum.decode("ascii", "replace") == _checksum_journal(content) else None


def _checksum_journal(line: bytes) -> str:
    return f"{zlib.crc32(line):08x}"


class EpisodeJournal(Hook):
    """Writes episodes to disk as they end, one file per rollout, until a checkpoint covers them.

    A rollout that a process before this one finished is read and not played again. One that was cut short is played
    again with the same random numbers: the rest of it alone would be computed in other batches than the whole was, and
    differ in the last bit. With `resumes_rollouts` only the missing episodes of it are played.
    """

    def __init__(self, directory: RunDirectory, *, resumes_rollouts: bool = False) -> None:
        self._directory = directory
        self._resumes_rollouts = resumes_rollouts
        self._loaded: set[int] = set()
        """Rollouts that are on disk already."""
        self._oldest = 1
        """Rollouts before it have no file any more."""

    def load_episodes(self, step: int) -> Mapping[TrajectoryId, Trajectory]:
        self.remove_covered()
        journal = self._journal(step)
        known = journal.read() if self._resumes_rollouts else journal.read_whole()
        if known:
            self._loaded.add(step)
        return {trajectory.id: trajectory for trajectory in known}

    def on_episode(self, trajectory: Trajectory) -> None:
        self._journal(trajectory.id.rollout).append(trajectory)

    def on_rollout(self, step: int, rollout: RolloutResult) -> None:
        if not self._resumes_rollouts and step not in self._loaded:
            self._journal(step).finish()
        self._loaded.discard(step)

    def remove_covered(self) -> None:
        """Remove the files of rollouts up to the newest checkpoint: no run resumes before it."""
        steps = self._directory.checkpoint_steps()
        newest = steps[-1] if steps else 0
        for rollout in range(self._oldest, newest + 1):
            self._journal(rollout).remove()
        self._oldest = max(self._oldest, newest + 1)

    def _journal(self, rollout: int) -> TrajectoryJournal:
        return TrajectoryJournal(self._directory.unfinished, rollout)
