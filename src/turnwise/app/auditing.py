"""`turnwise audit`: faults put into small runs, or a finished run directory held against its own digests.

In: a run directory, or nothing. Out: what was found, as a table or as JSON, and an exit code: 0 where nothing is wrong,
1 otherwise. Nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError, safe_open

from turnwise.app.checkpointer import read_progress
from turnwise.app.seeding import Outcome, seed_faults
from turnwise.audit.breach import Breach
from turnwise.audit.credit_oracle import check_credit
from turnwise.audit.digests import check_digests, check_seals
from turnwise.audit.groups import check_finite, check_members
from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.experience.build import build_experiences
from turnwise.experience.store import ExperienceStore
from turnwise.report.learning_record.file import LearningRecord
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import read_trajectories
from turnwise.types import Experience, Group


def run_audit(run: str | None, console: Console, *, seeds_faults: bool, as_json: bool) -> int:
    if (run is None) is not seeds_faults:
        raise ConfigError("expected a run directory or --seed-faults, one of them.")
    if run is None:
        return _seed(console, as_json=as_json)
    counts, breaches = audit_run(Path(run))
    if as_json:
        found = [asdict(breach) for breach in breaches]
        console.print_json(json.dumps({"run": run, "checked": counts, "breaches": found}))
    else:
        console.print(", ".join(f"{count} {name}" for name, count in counts.items()) + " checked", highlight=False)
        for breach in breaches:
            console.print(breach.describe(), markup=False, highlight=False, soft_wrap=True)
        console.print(f"{len(breaches)} breaches", highlight=False)
    return 1 if breaches else 0


def _seed(console: Console, *, as_json: bool) -> int:
    table = Table("fault", "room", "caught", "in step", "by", show_edge=False, pad_edge=False)

    def add(outcome: Outcome) -> None:
        steps = "" if outcome.after_steps is None else str(outcome.after_steps)
        table.add_row(outcome.name, outcome.room, "yes" if outcome.caught else "NO", steps, outcome.by or "")

    outcomes = seed_faults(on_outcome=add)
    if as_json:
        console.print_json(json.dumps({"faults": [outcome.to_dict() for outcome in outcomes]}))
    else:
        console.print(table)
        console.print(f"{sum(o.caught for o in outcomes)} of {len(outcomes)} caught", highlight=False)
    return 0 if all(outcome.caught for outcome in outcomes) else 1


# --- a run directory -------------------------------------------------------------------------------------------------


def audit_run(path: Path) -> tuple[dict[str, int], list[Breach]]:
    """How much of each kind was looked at, and what is wrong with it."""
    directory = RunDirectory.open(path)
    settings = load_settings(str(directory.config))
    counts: dict[str, int] = dict.fromkeys(("groups", "recorded steps", "trajectories", "checkpoints"), 0)
    breaches: list[Breach] = []
    for kind, found in _look(directory, settings):
        counts[kind] += 1
        breaches += found
    return counts, breaches


def _look(directory: RunDirectory, settings: TurnwiseSettings) -> Iterator[tuple[str, list[Breach]]]:
    if directory.experience.exists():
        for group in ExperienceStore(directory.experience).read_groups():
            yield "groups", _check_group(group, settings)
    record = LearningRecord(directory.learning_record)
    for step in record.steps() if directory.learning_record.exists() else ():
        yield "recorded steps", _check_step(record, step, settings)
    for file in sorted((directory.path / "trajectories").glob("*.jsonl")):
        yield from _check_trajectories(file)
    for step in directory.checkpoint_steps():
        yield "checkpoints", _check_checkpoint(directory.step_checkpoint(step))


def _check_group(group: Sequence[Experience], settings: TurnwiseSettings) -> list[Breach]:
    members = check_members(group, group_size=settings.rollout.group_size)
    return [*members, *check_finite(group), *check_digests(group), *check_seals(group)]


def _check_step(record: LearningRecord, step: int, settings: TurnwiseSettings) -> list[Breach]:
    try:
        tokens = record.read(step)
    except TurnwiseError as error:
        return [_unreadable(f"step {step} of the learning record", error)]
    if not tokens.is_complete:
        return []
    return check_credit(tokens.samples(), tokens.annotations(), settings.credit, seed=step)


def _check_trajectories(file: Path) -> Iterator[tuple[str, list[Breach]]]:
    try:
        played = read_trajectories(file)
    except TurnwiseError as error:
        yield "trajectories", [_unreadable(str(file), error)]
        return
    for trajectory in played:
        rows = build_experiences([Group(task=trajectory.task, trajectories=(trajectory,))])
        yield "trajectories", [*check_digests(rows), *check_seals(rows)] if rows else []


def _check_checkpoint(folder: Path) -> list[Breach]:
    try:
        read_progress(folder)
        for file in folder.rglob("*.safetensors"):
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - the file is no mapping
                    tensors.get_slice(name).get_shape()
    except (OSError, SafetensorError, TurnwiseError) as error:
        return [_unreadable(str(folder), error)]
    return []


def _unreadable(where: str, error: Any) -> Breach:
    return Breach(check="file", where=where, expected="a file that can be read", found=str(error))
