"""The hook that saves checkpoints: when one is due, which are kept, and the rollback after a collapse.

A checkpoint is a folder that is complete or absent: the learner's own state with the policy as a Hugging Face folder in
`policy/`, and the progress of the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from turnwise.checks.health import HealthMonitor
from turnwise.errors import AuditError, Finding, RunError
from turnwise.hooks import Hook, LogValue, TrainStep
from turnwise.infra.atomic_files import atomic_dir, encode_object, read_object, verify_checksums, write_checksums
from turnwise.learn.checkpoint import digest_state
from turnwise.loop.components import TrainerComponents
from turnwise.protocols import Buffer, Learner
from turnwise.report.metrics import count_failures
from turnwise.report.run_dir import RunDirectory
from turnwise.rollout.env_specs import find_workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """After `step` steps of a run."""

    step: int = 0
    policy_version: int = 0
    tokens_sampled: int = 0
    tokens_trained: int = 0
    wall_s: float = 0.0
    tasks: Mapping[str, Any] = field(default_factory=dict)
    """The state of the task source."""
    warm_start: Mapping[str, float] | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    """Episodes that failed so far, by cause."""

    def after(self, step: TrainStep) -> Progress:
        return replace(
            self,
            step=step.step,
            policy_version=step.update.policy_version,
            tokens_sampled=self.tokens_sampled + step.rollout.tokens_sampled,
            tokens_trained=self.tokens_trained + step.tokens_trained,
            tasks=step.task_state,
            failures=count_failures(step.rollout.played, self.failures),
        )


_SAVES_APART = 20
"""A checkpoint that only time asks for is this many times as far from the one before as that one took to write."""
_PROGRESS, _BUFFER, _DIGESTS = "progress.json", "buffer.bin", "digests.json"


class Checkpoints(Hook):
    """Saves the learner of one run; more often than `report.checkpoint_every` if a collapse is to be rolled back."""

    def __init__(
        self,
        directory: RunDirectory,
        trainer: TrainerComponents,
        tokenizer: PreTrainedTokenizerBase,
        buffer: Buffer,
        *,
        progress: Callable[[], Progress],
        health: HealthMonitor,
        on_saved: Callable[[int, Path], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns seconds, for `report.checkpoint_minutes`; `on_saved` receives each step and folder."""
        settings = trainer.settings
        self._progress = progress
        self._health = health
        self._on_saved = on_saved
        self._clock = clock
        self._max_age_s = settings.report.checkpoint_minutes * 60
        self._saved_at_s = clock()
        self._save_s = 0.0
        """How long the last checkpoint took to write."""
        self._by_time: int | None = None
        """The step whose checkpoint time alone asked for; the next one takes its place."""
        self._directory = directory
        self._learner = trainer.learner
        self._tokenizer = tokenizer
        self._buffer = buffer
        self._can_be_lost = settings.cluster.type != "none"
        self._needs_way_back = settings.watch.stop == "collapse"
        self._is_met = find_workflow(settings).meets_rivals and settings.report.checkpoint_every > 0
        """Whether its policies are met in games, the first one included."""
        self._is_own_pace = self._needs_way_back and settings.report.checkpoint_every == 0
        self._every = settings.watch.window if self._is_own_pace else settings.report.checkpoint_every

    async def on_step(self, step: TrainStep, metrics: Mapping[str, LogValue]) -> None:
        if self.is_due(step.step):
            self.save()
            self._prune()

    def is_due(self, step: int) -> bool:
        """Whether this step must be on disk; the very start too, where there must always be a way back."""
        if step == 0:
            return self._needs_way_back or self._can_be_lost or self._is_met
        return self._is_due_by_steps(step) or self._is_due_by_time()

    def _is_due_by_time(self) -> bool:
        age_s = self._clock() - self._saved_at_s
        return self._max_age_s > 0 and age_s >= max(self._max_age_s, _SAVES_APART * self._save_s)

    def _is_due_by_steps(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def save(self) -> None:
        """Save what the run has reached."""
        progress = self._progress()
        folder = self._directory.step_checkpoint(progress.step)
        folder.parent.mkdir(parents=True, exist_ok=True)
        started_s = self._clock()
        save_checkpoint(folder, self._learner, self._tokenizer, progress, self._buffer)
        self._saved_at_s = self._clock()
        self._save_s = self._saved_at_s - started_s
        if self._by_time is not None and self._by_time != progress.step:
            self._directory.remove_checkpoint(self._by_time)
        self._by_time = None if self._is_due_by_steps(progress.step) else progress.step
        self._on_saved(progress.step, folder)

    def has_saved(self, step: int) -> bool:
        return self._directory.latest_checkpoint() == self._directory.step_checkpoint(step)

    def _prune(self) -> None:
        """Remove what no rollback can need any more; checkpoints that the user asked for stay."""
        if not self._is_own_pace:
            return
        saved, planned = self._directory.checkpoint_steps(), self._planned_steps()
        needed = {_newest(planned, point) for point in self._health.return_points()}
        for step in saved[:-1]:
            if step not in needed:
                self._directory.remove_checkpoint(step)

    def rollback(self, collapse: Finding) -> Progress:
        """Restore the learner as it was before a collapse; later checkpoints are removed."""
        saved = self._directory.checkpoint_steps()
        sound = _newest(self._planned_steps(), collapse.since - 1)
        # The newest first: a run that is killed here still has the sound one, and finds the collapse again.
        for step in reversed(saved):
            if step > sound:
                self._directory.remove_checkpoint(step)
        return load_checkpoint(self._directory.step_checkpoint(sound), self._learner)

    def _planned_steps(self) -> list[int]:
        """Checkpoints that every run with these settings has, so that a collapse ends it with the same policy however
        fast it was. All of them where there is none.
        """
        saved = self._directory.checkpoint_steps()
        return [step for step in saved if step == 0 or self._is_due_by_steps(step)] or saved


@runtime_checkable
class CheckpointableBuffer(Protocol):
    """A buffer that a checkpoint carries, because what waits in it is nowhere else."""

    def save_state(self, file: Path) -> None: ...
    def load_state(self, file: Path) -> None: ...


def save_checkpoint(
    folder: Path,
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    progress: Progress,
    buffer: Buffer | None = None,
) -> None:
    with atomic_dir(folder, failures=(SafetensorError, RuntimeError)) as unfinished:
        learner.save_state(unfinished)
        _save_tokenizer(tokenizer, unfinished / "policy")
        (unfinished / _PROGRESS).write_text(encode_object(asdict(progress)), encoding="utf-8")
        if isinstance(buffer, CheckpointableBuffer):
            buffer.save_state(unfinished / _BUFFER)
        (unfinished / _DIGESTS).write_text(encode_object(digest_state(learner)), encoding="utf-8")
        write_checksums(unfinished)


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        # On a full disk the library raises a bare Exception.
        raise OSError(str(error)) from error


def find_valid_checkpoint(directory: RunDirectory, notify: Callable[[str], None]) -> Path | None:
    """The newest checkpoint whose files are as they were written; None where none was saved yet.

    Damaged ones after it are renamed and reported, so that it is the newest of the run.
    """
    damaged: dict[int, str] = {}
    for step in reversed(directory.checkpoint_steps()):
        folder = directory.step_checkpoint(step)
        damage = verify_checksums(folder)
        if damage is None:
            for later, found in damaged.items():
                aside = directory.quarantine_checkpoint(later)
                notify(
                    f"checkpoint of step {later} is damaged ({found}); it is {aside} now, and step {step} takes over"
                )
            return folder
        damaged[step] = damage
    if damaged:
        raise RunError(
            f"run {directory.path} cannot go on: every checkpoint of it is damaged ("
            + "; ".join(f"{directory.step_checkpoint(step).name}: {found}" for step, found in damaged.items())
            + "). Put one back from a copy, or remove the folder of checkpoints to begin once more."
        )
    return None


def load_checkpoint(folder: Path, learner: Learner, buffer: Buffer | None = None) -> Progress:
    """Put the learner, and what waited to be learnt from, back to where it was; returns how far the run was."""
    learner.load_state(folder)
    if isinstance(buffer, CheckpointableBuffer) and (folder / _BUFFER).exists():
        buffer.load_state(folder / _BUFFER)
    _check_restored(folder, learner)
    return read_progress(folder)


def _check_restored(folder: Path, learner: Learner) -> None:
    """What was saved is what is there now; checkpoints from before there were digests say nothing."""
    saved = read_object(folder / _DIGESTS) if (folder / _DIGESTS).exists() else {}
    found = digest_state(learner)
    if lost := [name for name, digest in saved.items() if name in found and found[name] != digest]:
        raise AuditError(
            f"checkpoint {folder}: after it was loaded, {' and '.join(lost)} are not what was saved (digests differ). "
            "The learner's load_state leaves something out, or a file was changed; an older checkpoint may be sound.",
            check="restore",
        )


def read_progress(folder: Path) -> Progress:
    try:
        kept: dict[str, Any] = dict(read_object(folder / _PROGRESS))
        return Progress(**{f.name: kept[f.name] for f in fields(Progress)})
    except (KeyError, RunError) as error:
        raise RunError(f"checkpoint {folder} cannot be resumed: {type(error).__name__}: {error}") from error


def _newest(saved: list[int], step: int) -> int:
    """The newest that is not after a step; the oldest of all where there is none."""
    return max((s for s in saved if s <= step), default=saved[0])
