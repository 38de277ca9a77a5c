"""`turnwise audit RUN`, which verifies the files of a run, and fault injection.

Every file that is loaded again is read to its last byte: checkpoints, published weights, groups, journals, the token
log, trajectories, evaluations. Nothing is written.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from turnwise.audit.faults import ENGINE_FAULTS, LEARNING_FAULTS, RECORD_FAULTS, Fault
from turnwise.audit.recompute import check_credit
from turnwise.audit.records import batch_finding, check_digests, check_finite, check_members, check_seals
from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import AuditError, Finding, LearnError, SyncError, TurnwiseError
from turnwise.experience.build import build_experiences
from turnwise.experience.store import inspect_store
from turnwise.hooks import TrainStep
from turnwise.infra.atomic_files import verify_checksums
from turnwise.infra.threads import run_async
from turnwise.loop.build import (
    connect,
    open_audit,
    open_buffer,
    open_explorer,
    open_mailbox,
    open_rollout,
    open_trainer,
)
from turnwise.loop.components import TrainComponents
from turnwise.loop.policies import resolve_model
from turnwise.loop.serial import train_serial
from turnwise.report.evaluation import find_evals, read_eval, results_of
from turnwise.report.metrics import Stopwatch
from turnwise.report.run_dir import RunDirectory
from turnwise.report.token_log import TokenLog
from turnwise.report.trajectories import find_damaged_episodes, read_verified_trajectories
from turnwise.run.checkpoints import Progress, load_checkpoint, read_progress, save_checkpoint
from turnwise.sync.weight_store import EnginePublisher, find_damaged_weights
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


def audit_run(path: Path) -> tuple[dict[str, int], list[Finding]]:
    """Return how many files or records of each kind were checked, and what is wrong with them."""
    directory = RunDirectory.open(path)
    settings = load_settings(str(directory.config))
    counts: dict[str, int] = dict.fromkeys(_KINDS, 0)
    breaches: list[Finding] = []
    for kind, found in _look(directory, settings):
        counts[kind] += 1
        breaches += found
    return counts, breaches


def _look(directory: RunDirectory, settings: TurnwiseSettings) -> Iterator[tuple[str, list[Finding]]]:
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


def _check_metrics(directory: RunDirectory) -> list[Finding]:
    try:
        steps = sorted(int(row["step"]) for row in directory.read_metrics())
    except TurnwiseError as error:
        return [_damaged(str(directory.metrics), str(error))]
    # Never one by one: a damaged number may be of any size.
    missing = [f"{one + 1} to {next_one - 1}" for one, next_one in pairwise(steps) if next_one > one + 1]
    return [_damaged(str(directory.metrics), f"no row of steps {', '.join(missing)}")] if missing else []


def _check_store(file: Path, settings: TurnwiseSettings) -> Iterator[tuple[str, list[Finding]]]:
    for stored in inspect_store(file):
        where = str(file) if stored.group_id is None else f"group {stored.group_id} of {file}"
        found = [_damaged(where, told) for told in stored.faults]
        yield "groups", found or _check_group(stored.experiences, settings)


def _check_group(group: Sequence[Experience], settings: TurnwiseSettings) -> list[Finding]:
    if not group:
        return []
    members = check_members(group, group_size=settings.rollout.group_size)
    return [*members, *check_finite(group), *check_digests(group), *check_seals(group)]


def _check_record(directory: RunDirectory, settings: TurnwiseSettings) -> Iterator[tuple[str, list[Finding]]]:
    record = TokenLog(directory.learning_record)
    # A killed process leaves a part of a block; one that has ended does not.
    gaps = record.find_gaps(with_end=directory.summary.exists())
    if gaps:
        told = ", ".join(f"{start} to {end}" for start, end in gaps)
        yield "recorded steps", [_damaged(str(directory.learning_record), f"bytes {told} are no block")]
    for step in record.steps():
        yield "recorded steps", _check_step(record, step, settings)


def _check_step(record: TokenLog, step: int, settings: TurnwiseSettings) -> list[Finding]:
    try:
        tokens = record.read(step)
    except TurnwiseError as error:
        return [_damaged(f"step {step} of the learning record", str(error))]
    if not tokens.is_complete:
        return []
    return check_credit(tokens.samples(), tokens.annotations(), settings.credit, seed=step)


def _check_trajectories(file: Path) -> Iterator[tuple[str, list[Finding]]]:
    try:
        played = read_verified_trajectories(file)
    except TurnwiseError as error:
        yield "trajectories", [_damaged(str(file), str(error))]
        return
    for trajectory in played:
        rows = build_experiences([Group(task=trajectory.task, trajectories=(trajectory,))])
        yield "trajectories", [*check_digests(rows), *check_seals(rows)] if rows else []


def _check_eval(folder: Path) -> list[Finding]:
    """Compare the results of the tasks with the episodes beside them: `eval.json` has no checksum, they have."""
    try:
        saved = read_eval(folder)
    except TurnwiseError as error:
        return [_damaged(str(folder), str(error))]
    if saved.trajectories is None:
        return []
    try:
        played = results_of(read_verified_trajectories(saved.trajectories))
    except TurnwiseError:
        # Reported for the file that they are in.
        return []
    num_differing = sum(told != found for told, found in zip_longest(saved.tasks, played))
    return [_damaged(str(folder), f"{num_differing} tasks differ from the episodes beside it")] if num_differing else []


def _check_checkpoint(folder: Path) -> list[Finding]:
    if (told := verify_checksums(folder)) is not None:
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


def _damaged(where: str, found: str) -> Finding:
    return batch_finding("file", where, expected="what was written", found=found)


log = logging.getLogger(__name__)

FAULTS = (*ENGINE_FAULTS, *RECORD_FAULTS, *LEARNING_FAULTS)
_STEPS = 3
"""Of each run."""
_SETTING = [
    "model.tiny={hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2}",
    f"learn.steps={_STEPS}",
    "learn.minibatches=1",
    "learn.epochs=1",
    "rollout={groups: 4, group_size: 2, max_turns: 4}",
    "warm_start={type: none}",
    "reward.shaping=turnwise.audit.faults:hash_based_reward",
    "audit.rescored_tokens=4096",
    "report.tensorboard=false",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """Whether one fault was found."""

    name: str
    room: str
    caught: bool
    after_steps: int | None
    """The step in which it was found; None if it was not."""
    by: str | None
    """The check of the audit that found it, or the class of another error."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def inject_faults(faults: Sequence[Fault] = FAULTS) -> list[FaultResult]:
    """Train a small run with each fault."""
    return [_try(fault) for fault in faults]


def _try(fault: Fault) -> FaultResult:
    done: list[int] = []

    async def on_step(step: TrainStep) -> None:
        done.append(step.step)

    by: str | None = None
    with tempfile.TemporaryDirectory() as folder, _patched(fault):
        try:
            components = _open(fault, Path(folder))
            if fault.at_resume:
                run_async(_resume(components, fault, Path(folder) / "step-1", on_step))
            else:
                run_async(_train(components, 0, on_step))
        except AuditError as error:
            by = error.check
        except (LearnError, SyncError) as error:
            by = type(error).__name__
        except Exception as error:  # noqa: BLE001 - a crash by accident does not count as found
            log.warning("%s: the run crashed: %s: %s", fault.name, type(error).__name__, error)
    steps = len(done) + 1 if by is not None else None
    return FaultResult(name=fault.name, room=fault.room, caught=by is not None, after_steps=steps, by=by)


async def _train(components: TrainComponents, start_step: int, on_step: Callable[[TrainStep], Any]) -> None:
    await components.publish(components.trainer.learner.policy_version)
    try:
        await train_serial(components, Stopwatch(), start_step=start_step, on_step=on_step)
    finally:
        await components.explorer.close()


async def _resume(components: TrainComponents, fault: Fault, folder: Path, on_step: Callable[[TrainStep], Any]) -> None:
    """Train without the fault until the checkpoint, then load it with the fault."""
    await _train(components, _STEPS - 1, on_step)
    assert fault.learner is not None
    learner = components.trainer.learner
    save_checkpoint(folder, learner, components.explorer.rollout.tokenizer, Progress(step=1))
    load_checkpoint(folder, fault.learner(learner))


def _open(fault: Fault, folder: Path) -> TrainComponents:
    """Open a run whose engine and learner hold weights of their own, with the fault around one component."""
    settings = load_settings("frozenlake", [*_SETTING, *fault.overrides])
    model = str(resolve_model(settings))
    rollout = open_rollout(settings, model, run_path=folder)
    engine = fault.engine(rollout.engine) if fault.engine else rollout.engine
    rollout = replace(rollout, engine=engine, publisher=EnginePublisher([engine]))
    explorer = open_explorer(rollout, run_path=folder)
    if fault.collector:
        collectors = replace(explorer.collectors, sampled=fault.collector(explorer.collectors.sampled))
        explorer = replace(explorer, collectors=collectors)
    buffer = open_buffer(settings, folder)
    trainer = open_trainer(settings, model)
    if fault.learner and not fault.at_resume:
        trainer = replace(trainer, learner=fault.learner(trainer.learner))
    audit = open_audit(settings, trainer.learner, None)
    return connect(
        explorer,
        replace(trainer, estimator=fault.credit(trainer.estimator)) if fault.credit else trainer,
        fault.buffer(buffer) if fault.buffer else buffer,
        open_weight_store=partial(open_mailbox, settings, folder),
        hooks=audit,
    )


@contextmanager
def _patched(fault: Fault) -> Iterator[None]:
    if fault.patch is None:
        yield
        return
    module_name, name, wrap = fault.patch
    module = importlib.import_module(module_name)
    sound = getattr(module, name)
    setattr(module, name, wrap(sound))
    try:
        yield
    finally:
        setattr(module, name, sound)
