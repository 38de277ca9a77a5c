"""A folder comes in; the places and records of one run go out, with every conflict refused before anything is written.

Knows which file is where, and what a resumed run must forget. Refuses to know what checkpoints hold and who reads the
records.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

from turnwise.errors import Finding, RunError
from turnwise.infra.atomic_files import (
    append_line,
    atomic_write,
    encode_object,
    read_object,
    read_text,
    reason,
    remove_folder,
    remove_stale_temp_files,
    write_if_absent,
)
from turnwise.infra.parsing import parse_json
from turnwise.report.manifest import Manifest
from turnwise.report.token_log import truncate_after

_NOT_NUMBERS = ("recipe", "env", "findings", "stopped")
TIME_SECTIONS: tuple[str, ...] = ("rollout", "env", "learn", "sync", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What `summary.json` holds. Success is a share of episodes, from 0 to 1."""

    recipe: str
    env: str
    seed: int
    steps: int
    wall_s: float
    setup_s: float
    success_before: float | None
    """On held-out episodes, before the first update; None where nothing was evaluated, or where nobody says what a
    success is: then there is a return."""
    success_after: float | None
    return_before: float | None
    return_after: float | None
    eval_episodes: int
    baselines: Mapping[str, float]
    """Success of simple policies on the same episodes, by name."""
    tokens_sampled: int
    tokens_trained: int
    time_split: Mapping[str, float]
    """Seconds, for exactly the names in `TIME_SECTIONS`."""
    policy_version: int
    warm_start: Mapping[str, float] | None = None
    """How the policy was prepared, for example `demonstrations` and `steps`; None where it was not."""
    findings: Sequence[Mapping[str, str | int]] = field(default_factory=list)
    """What the watch told, in order: `step`, `kind` and `message` of each."""
    stopped: Mapping[str, str | int] | None = None
    """The finding that ended the run early, and `returned_to_step`, which the result is of; None where none did."""

    failures: Mapping[str, int] = field(default_factory=dict)
    """Training episodes that failed, by cause."""
    envs: Mapping[str, Mapping[str, float | Sequence[float] | None]] = field(default_factory=dict)
    """The last evaluation in each environment: `episodes`, `success`, its interval, `return`, and its own numbers."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Who gave how much to an episode of the last evaluation: `env`, and `judge` where one was asked."""
    success_before_interval: Sequence[float] | None = None
    """Low and high end of the 95 % interval; None where there is no share."""
    success_after_interval: Sequence[float] | None = None
    baseline_intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The same for each of `baselines`."""

    def __post_init__(self) -> None:
        for name, number in self._numbers():
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError(f"Summary: {name} must be a number, got {number!r}")
            if not math.isfinite(number):
                raise ValueError(f"Summary: {name} must be finite, got {number}; use None for what is not known")
        if set(self.time_split) != set(TIME_SECTIONS):
            raise ValueError(f"Summary: time_split must have {list(TIME_SECTIONS)}, got {sorted(self.time_split)}")
        for told in self.findings:
            if not isinstance(told, Mapping) or set(told) != {"step", "kind", "message"}:
                raise ValueError(f"Summary: findings must have step, kind and message, got {told!r}")

    def _numbers(self) -> Iterator[tuple[str, object]]:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in _NOT_NUMBERS:
                continue
            yield from _flatten(f.name, value)

    def to_json(self) -> str:
        return encode_object(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Summary:
        """From a file. Keys this version does not know are left alone: a newer turnwise may have written them."""
        values = read_object(path)
        required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise RunError(
                f"{path} is damaged: it lacks {', '.join(missing)}. Restore it, or resume the run to write it anew."
            )
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        try:
            return cls(**known)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged: {error}.") from error


def _flatten(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _flatten(f"{name}.{place}", inner)
    elif value is not None:
        yield name, value


_RENAMED = {"learn/mean_return": "learn/credit_target"}
"""What older runs call a metric: it was taken for the return of episodes."""
_STEP_NAME = re.compile(r"step-(\d{6,})")


def new_run_path(root: Path, name: str) -> Path:
    """`<root>/<name>-YYYYmmdd-HHMMSS`, with a number behind it if that is taken."""
    path = root / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(candidate for candidate in chain([path], numbered) if not candidate.exists())


def step_name(step: int) -> str:
    """Sorts by step as text: `step-000040`."""
    return f"step-{step:06d}"


def settings_file_of(path: Path) -> Path | None:
    """The settings of the run that a path leads to, or into; None where it is of none."""
    if (path / "config.yaml").is_file():
        return path / "config.yaml"
    # RUN/checkpoints/step-000040/policy
    config = path.absolute().joinpath("..", "..", "..", "config.yaml").resolve()
    return config if path.is_dir() and path.absolute().name == "policy" and config.is_file() else None


class RunDirectory:
    """One run on disk. Make it with `create`, look at it with `open`, go on with `reopen`."""

    def __init__(self, path: Path) -> None:
        # Code of a user's environment may change the working directory.
        self.path = path.absolute()

    @classmethod
    def create(cls, path: Path, *, config_yaml: str, manifest: Manifest) -> RunDirectory:
        run = cls(path)
        run._make_folder()
        run._claim(config_yaml)
        run._make_rest(manifest)
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        run = cls(path)
        if not run.config.is_file():
            found = "a folder without config.yaml" if path.is_dir() else "a file" if path.exists() else "nothing there"
            raise RunError(f"{path} is not a run: expected a folder that `turnwise train` made, found {found}.")
        return run

    @classmethod
    def join(cls, path: Path, *, config_yaml: str, manifest: Manifest) -> RunDirectory:
        """Open a run that another process may have made, or make it."""
        run = cls(path)
        if not run.config.exists():
            try:
                return cls.create(path, config_yaml=config_yaml, manifest=manifest)
            except RunError:
                # Where two processes come at once, the other one makes it.
                if not run.config.exists():
                    raise
        run = cls.open(path)
        run._make_rest(manifest)
        return run

    @classmethod
    def reopen(cls, path: Path, *, step: int, has_played: bool = True) -> RunDirectory:
        """Open to go on after `step` (-1: from the start): what was recorded of later steps is forgotten, checkpoints
        stay. `has_played`: whether the trajectories are its own; those of another process stay.
        """
        run = cls.open(path)
        for records in (run.metrics, run.findings):
            if records.exists():
                kept = [line for line, row in _rows(records) if row["step"] <= step]
                atomic_write(records, "".join(f"{line}\n" for line in kept))
        for file in run.trajectories.glob("step-*.jsonl") if has_played else ():
            if (found := _STEP_NAME.fullmatch(file.stem)) and int(found[1]) > step:
                file.unlink()
        truncate_after(run.learning_record, after=step)
        if step < 0 and run.tensorboard.exists():
            remove_folder(run.tensorboard)
        run.checkpoints.mkdir(exist_ok=True)
        remove_stale_temp_files(run.checkpoints)
        append_line(run.resumes, json.dumps({"step": step, "at": f"{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S%z}"}))
        return run

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def findings(self) -> Path:
        return self.path / "findings.jsonl"

    @property
    def resumes(self) -> Path:
        """When it went on, and after which step; made with the first time."""
        return self.path / "resumes.jsonl"

    @property
    def waits(self) -> Path:
        """Who waits for whom; there while somebody has been waiting for a second or more."""
        return self.path / "waiting.json"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def trajectories(self) -> Path:
        return self.path / "trajectories"

    @property
    def learning_record(self) -> Path:
        """What was learnt from each token, step by step."""
        return self.path / "learning_record.bin"

    @property
    def tokenizer(self) -> Path:
        """What its token ids stand for, for whoever looks at the run before its first checkpoint."""
        return self.path / "tokenizer.json"

    @property
    def unfinished(self) -> Path:
        """Episodes of rollouts that an explorer has not stored yet, or that no checkpoint covers."""
        return self.path / "unfinished"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def explorer_metrics(self) -> Path:
        """One object per rollout, where the explorer is a process of its own."""
        return self.path / "explorer.jsonl"

    @property
    def experience(self) -> Path:
        """Where a durable buffer keeps what was explored."""
        return self.path / "experience.db"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def evals(self) -> Path:
        """One folder for each evaluation of this run, with how every task came out."""
        return self.path / "evals"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def step_checkpoint(self, step: int) -> Path:
        return self.checkpoints / step_name(step)

    def checkpoint_steps(self) -> list[int]:
        """The steps that were saved, ascending; folders under a temporary name do not count."""
        return sorted(
            int(found[1])
            for folder in self.checkpoints.glob("step-*")
            if (found := _STEP_NAME.fullmatch(folder.name)) and folder.is_dir()
        )

    def latest_checkpoint(self) -> Path | None:
        steps = self.checkpoint_steps()
        return self.step_checkpoint(steps[-1]) if steps else None

    def remove_checkpoint(self, step: int) -> None:
        remove_folder(self.step_checkpoint(step))

    def quarantine_checkpoint(self, step: int) -> Path:
        """Under a name that is no checkpoint's, for whoever wants to look at it."""
        numbered = (self.checkpoints / f"{step_name(step)}.damaged{number or ''}" for number in count())
        aside = next(path for path in numbered if not path.exists())
        return self.step_checkpoint(step).rename(aside)

    def write_summary(self, summary: Summary) -> None:
        atomic_write(self.summary, summary.to_json())

    def read_summary(self) -> Summary:
        if not self.summary.exists():
            raise RunError(
                f"{self.path} has no summary.json: it is written when a run ends. Resume the run to finish it."
            )
        return Summary.read(self.summary)

    def read_metrics(self) -> list[dict[str, float]]:
        """One mapping per step; values that were not finite when written are left out."""
        rows = _rows_of_numbers(self.metrics) if self.metrics.exists() else ()
        return [{_RENAMED.get(name, name): value for name, value in row.items() if value is not None} for row in rows]

    def read_explorer_metrics(self) -> list[dict[str, float]]:
        """One mapping per rollout, where the explorer is a process of its own; otherwise none."""
        rows = _rows_of_numbers(self.explorer_metrics) if self.explorer_metrics.is_file() else ()
        return [{name: value for name, value in row.items() if value is not None} for row in rows]

    def append_finding(self, finding: Finding) -> None:
        row = {
            "step": finding.step,
            "kind": finding.kind,
            "since": finding.since or finding.step,
            "is_collapse": finding.level == "error",
            "message": finding.text,
        }
        append_line(self.findings, json.dumps(row, allow_nan=False))

    def read_findings(self) -> list[Finding]:
        """Findings of the set-up and the health checks so far, in order; the file is made with the first one."""
        if not self.findings.exists():
            return []
        try:
            return [_read_finding(**row) for _, row in _rows(self.findings)]
        except TypeError as error:
            raise RunError(f"{self.findings} is damaged: {error}.") from error

    def write_manifest(self, manifest: Manifest) -> None:
        """Unless there is one: it tells how the run began."""
        if not self.manifest.exists():
            atomic_write(self.manifest, manifest.to_json())

    def _make_rest(self, manifest: Manifest) -> None:
        """What a process that was killed in its first moments has not made."""
        for folder in (self.trajectories, self.checkpoints, self.plots):
            folder.mkdir(exist_ok=True)
        self.metrics.touch()
        self.write_manifest(manifest)

    def _make_folder(self) -> None:
        if self.path.is_file():
            raise RunError(
                f"Run directory {self.path} is a file: expected a new or empty folder. Choose another --run-dir."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # What a run was told, and what was played in it, is for its owner.
            self.path.chmod(0o700)
        except OSError as error:
            raise self._unwritable(error) from error

    def _claim(self, config_yaml: str) -> None:
        """The settings are the claim: of two runs that start in the same folder at the same moment, one writes them."""
        try:
            has_records = self.metrics.exists() and self.metrics.stat().st_size > 0
            is_taken = self.config.exists() or has_records or not write_if_absent(self.config, config_yaml)
        except OSError as error:
            raise self._unwritable(error) from error
        if is_taken:
            raise RunError(
                f"Run directory {self.path} already holds a run: expected a new or empty folder. "
                f"Choose another --run-dir, or go on with that run: turnwise train --resume {self.path}"
            )

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(
            f"Run directory {self.path} cannot be made: {reason(error)}. "
            "Choose a --run-dir inside a folder that you can write to."
        )


def _rows_of_numbers(path: Path) -> Iterator[dict[str, float | None]]:
    for _, row in _rows(path):
        for name, value in row.items():
            if value is not None and not isinstance(value, int | float):
                raise RunError(f"{path} is damaged: '{name}' of step {row['step']} must be a number, got {value!r}.")
        yield row


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of a file of records, each as it is and as what it says."""
    lines = read_text(path).removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            yield line, _parse_row(line)
        except ValueError as error:
            # A run that was killed leaves its last line torn; anywhere else the file was damaged.
            if number < len(lines):
                raise RunError(f"{path}, line {number} is damaged: {error}.") from error


def _read_finding(*, step: int, kind: str, since: int, is_collapse: bool, message: str) -> Finding:
    level: Literal["error", "warning"] = "error" if is_collapse else "warning"
    return Finding(kind=kind, level=level, where="", message=message, stage="training", step=step, since=since)


def _parse_row(line: str) -> dict[str, Any]:
    row = parse_json(line)
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise ValueError("expected a JSON object with a step")
    return row
