"""A run directory comes in; what it says goes out, read as little and as seldom as possible.

Everything that a person looks at comes from here: while the run goes on, after it, and after a crash. What is missing
or damaged is left out instead of hiding the rest. Settings are read as plain data, so that a run of plug-ins that are
not installed here can be looked at. It refuses to change anything in a run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from turnwise.errors import RunError
from turnwise.infra.parsing import parse_json, parse_yaml
from turnwise.report.run_dir import RunDirectory
from turnwise.report.token_log import LearningRecord
from turnwise.report.token_log_reader import StepTokens
from turnwise.view.growing_rows import GrowingRows
from turnwise.view.state import RunState, find_state

_KEPT_STEPS = 6
"""Updates whose tokens stay in memory, so that one episode after the other opens at once."""


class RunFiles:
    """One run, as its files tell of it now. For any number of threads."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory.open(path)
        self._metrics = GrowingRows(self.directory.metrics)
        self._explorer = GrowingRows(self.directory.explorer_metrics)
        self._findings = GrowingRows(self.directory.findings)
        self._resumes = GrowingRows(self.directory.resumes)
        self._steps: dict[int, StepTokens] = {}
        self._arrays: dict[int, dict[str, NDArray[Any]]] = {}
        self._record_size = 0
        self._lock = Lock()

    @property
    def path(self) -> Path:
        return self.directory.path

    @cached_property
    def settings(self) -> dict[str, Any]:
        """As they were written at the beginning."""
        try:
            found = parse_yaml(self.directory.config.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return read_json(self.directory.manifest) or {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per step."""
        return self._metrics.read()

    @property
    def explorer_metrics(self) -> list[dict[str, Any]]:
        return self._explorer.read()

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What the watch has told."""
        return self._findings.read()

    @property
    def resumes(self) -> list[dict[str, Any]]:
        """When the run went on after a stop, and from which step."""
        return self._resumes.read()

    @property
    def summary(self) -> dict[str, Any] | None:
        """None before the end."""
        return read_json(self.directory.summary)

    @property
    def state(self) -> RunState:
        return find_state(self.directory, self.metrics, self.summary)

    @property
    def waits(self) -> list[dict[str, Any]]:
        """Who waits for whom now: `who`, `for`, `since`, `deadline_s`, and how long already."""
        found = read_json(self.path / "waiting.json", kind=list) or []
        now_s = time.time()
        waits = [dict(wait) for wait in found if isinstance(wait, dict)]
        for wait in waits:
            if isinstance(since := wait.get("since"), int | float):
                wait["waited_s"] = max(0.0, now_s - since)
        return waits

    @property
    def recorded_steps(self) -> list[int]:
        """The steps whose tokens are on record."""
        try:
            return LearningRecord(self.directory.learning_record).steps()
        except RunError:
            return []

    def tokens(self, step: int) -> StepTokens:
        """What was learnt from each token of a step; a RunError where there is no such record."""
        with self._lock:
            self._forget_what_was_cut()
            if step not in self._steps:
                self._steps[step] = LearningRecord(self.directory.learning_record).read(step)
            while len(self._steps) > _KEPT_STEPS:
                oldest = next(iter(self._steps))
                self._steps.pop(oldest)
                self._arrays.pop(oldest, None)
            return self._steps[step]

    def arrays(self, step: int) -> dict[str, NDArray[Any]]:
        """The same as flat arrays by name."""
        tokens = self.tokens(step)
        with self._lock:
            if step not in self._arrays:
                self._arrays[step] = tokens.to_arrays()
            return self._arrays[step]

    def _forget_what_was_cut(self) -> None:
        """A resumed run cuts the record and makes its last steps again."""
        record = self.directory.learning_record
        size = record.stat().st_size if record.exists() else 0
        if size < self._record_size:
            self._steps.clear()
            self._arrays.clear()
        self._record_size = size

    def worlds(self) -> dict[str, dict[str, Any]]:
        """The settings of each environment, by the tag of its episodes."""
        own = self.settings.get("env")
        worlds = {str(own.get("type")): own} if isinstance(own, dict) else {}
        mixed = self.settings.get("mix")
        for tag, part in mixed.items() if isinstance(mixed, dict) else ():
            if isinstance(part, dict) and isinstance(part.get("env"), dict):
                worlds[str(tag)] = part["env"]
        return worlds


def read_json(path: Path, *, kind: type[Any] = dict) -> Any:
    """What a file holds, where it is there and is what it should be."""
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, kind) else None


def setting(settings: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """`learn.steps` in plain settings."""
    found: Any = settings
    for key in path.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return default
        found = found[key]
    return found
