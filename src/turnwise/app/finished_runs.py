"""What a run has written, held against its own checksums, digests and rules.

In: a run directory. Out: how much of each kind was looked at, and breaches. Everything that anybody loads again is
read here to its last byte: checkpoints, published weights, groups, journals, the learning record, trajectories,
evaluations. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path

from safetensors import SafetensorError, safe_open

from turnwise.app.checkpointer import read_progress
from turnwise.audit.recompute import check_credit
from turnwise.audit.records import Breach, check_digests, check_finite, check_members, check_seals
from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import TurnwiseError
from turnwise.experience.build import build_experiences
from turnwise.experience.store import inspect_store
from turnwise.infra.atomic_files import find_damage
from turnwise.report.evaluation import find_evals, read_eval, results_of
from turnwise.report.run_dir import RunDirectory
from turnwise.report.token_log import LearningRecord
from turnwise.report.trajectories import find_damaged_episodes, read_sound_trajectories
from turnwise.sync.weight_store import find_damaged_weights
from turnwise.types import Experience, Group

_KINDS = (
    "groups",
    "recorded steps",
    "trajectories",
    "evaluations",
    "checkpoints",
    "journals",
    "published weights",
    "metrics",
)


def audit_run(path: Path) -> tuple[dict[str, int], list[Breach]]:
    """How much of each kind was looked at, and what is wrong with it."""
    directory = RunDirectory.open(path)
    settings = load_settings(str(directory.config))
    counts: dict[str, int] = dict.fromkeys(_KINDS, 0)
    breaches: list[Breach] = []
    for kind, found in _look(directory, settings):
        counts[kind] += 1
        breaches += found
    return counts, breaches


def _look(directory: RunDirectory, settings: TurnwiseSettings) -> Iterator[tuple[str, list[Breach]]]:
    yield "metrics", _check_metrics(directory)
    if directory.experience.exists():
        yield from _check_store(directory.experience, settings)
    if directory.learning_record.exists():
        yield from _check_record(directory, settings)
    for file in sorted([*directory.trajectories.rglob("*.jsonl"), *directory.evals.rglob("*.jsonl")]):
        yield from _check_trajectories(file)
    for folder in find_evals(directory.evals):
        yield "evaluations", _check_eval(folder)
    for file in sorted(directory.unfinished.rglob("*.jsonl")):
        yield "journals", [_damaged(str(file), told) for told in find_damaged_episodes(file)]
    for step in directory.checkpoint_steps():
        yield "checkpoints", _check_checkpoint(directory.step_checkpoint(step))
    if (directory.path / "weights" / "newest.json").exists():
        told = find_damaged_weights(directory.path / "weights")
        yield "published weights", [] if told is None else [_damaged(str(directory.path / "weights"), told)]


def _check_metrics(directory: RunDirectory) -> list[Breach]:
    try:
        steps = sorted(int(row["step"]) for row in directory.read_metrics())
    except TurnwiseError as error:
        return [_damaged(str(directory.metrics), str(error))]
    # Never one by one: a damaged number may be of any size.
    missing = [f"{one + 1} to {next_one - 1}" for one, next_one in pairwise(steps) if next_one > one + 1]
    return [_damaged(str(directory.metrics), f"no row of steps {', '.join(missing)}")] if missing else []


def _check_store(file: Path, settings: TurnwiseSettings) -> Iterator[tuple[str, list[Breach]]]:
    for stored in inspect_store(file):
        where = str(file) if stored.group_id is None else f"group {stored.group_id} of {file}"
        found = [_damaged(where, told) for told in stored.faults]
        yield "groups", found or _check_group(stored.experiences, settings)


def _check_group(group: Sequence[Experience], settings: TurnwiseSettings) -> list[Breach]:
    if not group:
        return []
    members = check_members(group, group_size=settings.rollout.group_size)
    return [*members, *check_finite(group), *check_digests(group), *check_seals(group)]


def _check_record(directory: RunDirectory, settings: TurnwiseSettings) -> Iterator[tuple[str, list[Breach]]]:
    record = LearningRecord(directory.learning_record)
    # A process that was killed leaves a part of a block; one that has ended has not.
    gaps = record.find_gaps(with_end=directory.summary.exists())
    if gaps:
        told = ", ".join(f"{start} to {end}" for start, end in gaps)
        yield "recorded steps", [_damaged(str(directory.learning_record), f"bytes {told} are no block")]
    for step in record.steps():
        yield "recorded steps", _check_step(record, step, settings)


def _check_step(record: LearningRecord, step: int, settings: TurnwiseSettings) -> list[Breach]:
    try:
        tokens = record.read(step)
    except TurnwiseError as error:
        return [_damaged(f"step {step} of the learning record", str(error))]
    if not tokens.is_complete:
        return []
    return check_credit(tokens.samples(), tokens.annotations(), settings.credit, seed=step)


def _check_trajectories(file: Path) -> Iterator[tuple[str, list[Breach]]]:
    try:
        played = read_sound_trajectories(file)
    except TurnwiseError as error:
        yield "trajectories", [_damaged(str(file), str(error))]
        return
    for trajectory in played:
        rows = build_experiences([Group(task=trajectory.task, trajectories=(trajectory,))])
        yield "trajectories", [*check_digests(rows), *check_seals(rows)] if rows else []


def _check_eval(folder: Path) -> list[Breach]:
    """How the tasks came out, against the plays beside it: `eval.json` has no checksum, and its plays have."""
    try:
        saved = read_eval(folder)
    except TurnwiseError as error:
        return [_damaged(str(folder), str(error))]
    if saved.trajectories is None:
        return []
    try:
        played = results_of(read_sound_trajectories(saved.trajectories))
    except TurnwiseError:
        # Told of the file that they are in.
        return []
    num_differing = sum(told != found for told, found in zip_longest(saved.tasks, played))
    return (
        [_damaged(str(folder), f"of {num_differing} tasks the plays beside it say otherwise")] if num_differing else []
    )


def _check_checkpoint(folder: Path) -> list[Breach]:
    if (told := find_damage(folder)) is not None:
        return [_damaged(str(folder), told)]
    try:
        read_progress(folder)
        for file in folder.rglob("*.safetensors"):
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - the file is no mapping
                    tensors.get_slice(name).get_shape()
    except (OSError, SafetensorError, TurnwiseError) as error:
        return [_damaged(str(folder), str(error))]
    return []


def _damaged(where: str, found: str) -> Breach:
    return Breach(check="file", where=where, expected="what was written", found=found)
