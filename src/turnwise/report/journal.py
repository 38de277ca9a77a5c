"""The finished episodes of one unfinished rollout, so that a process that is killed loses none of them.

A line is written for each as it ends: its texts as JSON, its tokens packed, because a conversation of many steps
repeats its prompts many times over. It refuses to know what becomes of a rollout; whoever stores it removes the file.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.floor.files import append_line, write_whole
from turnwise.report.run_dir import step_name
from turnwise.report.trajectories import encode_trajectory, read_lines
from turnwise.types import Segment, Trajectory


class TrajectoryJournal:
    """One file per rollout. A process that dies while it writes leaves a part of a line behind, and nothing worse."""

    def __init__(self, directory: Path, rollout: int) -> None:
        self._path = directory / f"{step_name(rollout)}.jsonl"

    def read(self) -> list[Trajectory]:
        """All that was appended, by this process or one before it; a line that was cut off is removed."""
        if not self._path.exists():
            return []
        written = self._path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        if whole != written:
            write_whole(self._path, whole)
        return read_lines(self._path, _unpack)

    def append(self, trajectory: Trajectory) -> None:
        line = json.dumps(encode_trajectory(trajectory, _pack), allow_nan=False)
        append_line(self._path, line)

    def remove(self) -> None:
        """Its rollout is stored elsewhere."""
        self._path.unlink(missing_ok=True)


def _pack(segment: Segment) -> dict[str, object]:
    """The mask is left out: it is true where a token belongs to a turn, and log-probs stand there alone."""
    return {
        "token_ids": _as_text(segment.token_ids),
        "turn_ids": _as_text(segment.turn_ids),
        "behavior_logprobs": _as_text(segment.behavior_logprobs[segment.loss_mask]),
    }


def _unpack(record: dict[str, Any]) -> Segment:
    turn_ids = _as_array(record["turn_ids"], np.dtype("<i4"))
    loss_mask = turn_ids >= 0
    logprobs = np.zeros(len(turn_ids), dtype=np.float32)
    logprobs[loss_mask] = _as_array(record["behavior_logprobs"], np.dtype("<f4"))
    return Segment(
        token_ids=_as_array(record["token_ids"], np.dtype("<i4")),
        loss_mask=loss_mask,
        behavior_logprobs=logprobs,
        turn_ids=turn_ids,
    )


def _as_text(array: NDArray[Any]) -> str:
    # The quickest level: it takes a fraction of what the episode took, and turn ids shrink to almost nothing.
    return b64encode(zlib.compress(array.tobytes(), level=1)).decode()


def _as_array(text: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        return np.frombuffer(zlib.decompress(b64decode(text)), dtype=dtype)
    except zlib.error as error:
        raise ValueError(f"tokens that cannot be unpacked: {error}") from error
