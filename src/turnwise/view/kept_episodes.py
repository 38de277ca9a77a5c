"""The trajectories that a run has written down come in; one of them goes out, by its name.

Files are one per step, for training and for evaluations apart. A name without a step means the newest play of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from turnwise.errors import RunError
from turnwise.infra.parsing import parse_json

_STEP_FILE = re.compile(r"step-(\d{6,})\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class EpisodeFile:
    """The trajectories of one step."""

    step: int
    is_eval: bool
    path: Path

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Each line with where it begins; a file that is gone has none."""
        try:
            data = self.path.read_bytes()
        except OSError:
            return
        start = 0
        for line in data.split(b"\n"):
            if line:
                yield start, line
            start += len(line) + 1


def list_episode_files(trajectories: Path) -> list[EpisodeFile]:
    """Of training and of evaluations, by step."""
    return sorted(
        EpisodeFile(int(found[1]), folder != trajectories, file)
        for folder in (trajectories, trajectories / "eval")
        if folder.is_dir()
        for file in folder.iterdir()
        if (found := _STEP_FILE.fullmatch(file.name))
    )


def read_episode(line: bytes) -> dict[str, Any] | None:
    """What a line holds, as plain data; None where it is no trajectory."""
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("turns"), list) else None


def find_episode(trajectories: Path, name: str) -> tuple[EpisodeFile, dict[str, Any]]:
    """By `ID` or `STEP:ID`; the newest one where several have that name, and training before evaluation."""
    step, _, rest = name.partition(":") if re.match(r"\d+:", name) else ("", "", name)
    files = [file for file in list_episode_files(trajectories) if not step or file.step == int(step)]
    known: list[str] = []
    for file in sorted(files, key=lambda file: (file.is_eval, -file.step)):
        for _, line in file.lines():
            if (record := read_episode(line)) is None:
                continue
            if record.get("id") == rest:
                return file, record
            known.append(str(record.get("id")))
    if not known:
        raise RunError(
            f"{trajectories} has no episodes{f' of step {step}' if step else ''}: expected at least one. They are "
            "written after every step, unless report.trajectories_per_step is 0."
        )
    close = get_close_matches(rest, known, n=1)
    hint = f"Did you mean '{close[0]}'?" if close else f"One that there is: '{known[0]}'."
    raise RunError(f"there is no episode '{rest}' in {trajectories}. {hint}")
