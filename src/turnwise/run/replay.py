"""`turnwise replay RUN --step N`: a recorded step once more, and whether everything in it comes out the same.

In: a run directory. Out: what is identical and what is not; with settings beside it, what the step would have been
under them. The run is played from its newest checkpoint before the step, in a folder of its own: nothing in the run is
touched. Where a step learns from what was played before it, there is no other way to have the same weights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, RunError
from turnwise.hooks import Hook, TrainStep, UpdateResult
from turnwise.infra.threads import run_async
from turnwise.learn.checkpoint import resumed_model
from turnwise.loop.build import open_components, open_trainer
from turnwise.loop.components import TrainComponents, TrainerComponents
from turnwise.loop.policies import resolve_model
from turnwise.loop.serial import train_serial, update_policy
from turnwise.loop.warm_start import mix_in_demonstrations
from turnwise.report.metrics import Stopwatch
from turnwise.report.run_dir import RunDirectory
from turnwise.report.token_log import TokenLog
from turnwise.report.token_log_codec import UpdateRecord, choose_rows, take_rows
from turnwise.report.token_log_reader import StepTokens
from turnwise.run.checkpoints import load_checkpoint
from turnwise.run.run_recorder import logged_batch
from turnwise.run.run_setup import announce, run_warm_start

_MAY_DIFFER = ("credit", "reward.normalisation", "learn.loss", "learn.aggregation", "learn.entropy_coef")
"""What can be asked about a step that is played already: its credit and its loss."""
_SHOWN = ("learn/policy_loss", "learn/grad_norm", "learn/approx_kl", "learn/clip_fraction", "learn/value_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What came out."""

    step: int
    from_step: int
    """The step whose checkpoint it was played from; 0: from the start."""
    parts: Mapping[str, bool | None]
    """Whether each is identical; None where the run has no record of it."""
    other: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Under other settings: numbers as they were, and as they would have been."""

    @property
    def identical(self) -> bool:
        return all(same is not False for same in self.parts.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "from_step": self.from_step,
            "identical": self.identical,
            "parts": dict(self.parts),
            "other": {name: dict(numbers) for name, numbers in self.other.items()},
        }


class _Reached(Exception):  # noqa: N818 - no error: the step that was asked for is done
    pass


def replay(run: str | Path, step: int, overrides: Sequence[str] = ()) -> ReplayResult:
    """Play and learn step `step` of a run once more."""
    directory = RunDirectory.open(Path(run))
    settings = load_settings(str(directory.config))
    _refuse(settings, directory, step, overrides)
    with tempfile.TemporaryDirectory() as folder:
        return run_async(_Replay(directory, settings, Path(folder)).run(step, overrides))


def _refuse(settings: TurnwiseSettings, directory: RunDirectory, step: int, overrides: Sequence[str]) -> None:
    done = [int(row["step"]) for row in directory.read_metrics()]
    if step < 1 or step not in done:
        raise RunError(f"--step: {step} given; the run has steps 1 to {max(done, default=0)}.")
    is_serial = settings.loop.is_in_turns and settings.run.mode == "both" and settings.cluster.type == "none"
    if not is_serial:
        raise RunError(
            "only runs of loop.type 'serial' in one process can be replayed: elsewhere it depends on the moment which "
            "weights sampled a turn."
        )
    buffer = settings.buffer
    if not buffer.train_batch_size is buffer.reuse_cooldown is None:
        raise RunError("a run with buffer.train_batch_size or buffer.reuse_cooldown learns from what is left over.")
    for word in overrides:
        key = word.partition("=")[0]
        if not any(key == known or key.startswith(f"{known}.") for known in _MAY_DIFFER):
            raise ConfigError(f"'{key}' cannot differ in a replay; expected one of {', '.join(_MAY_DIFFER)}.")


class _Replay:
    def __init__(self, directory: RunDirectory, settings: TurnwiseSettings, folder: Path) -> None:
        self._directory = directory
        self._settings = settings
        self._folder = folder
        self._before = folder / "before"
        """The learner as it was before the step."""
        self._done: TrainStep | None = None

    async def run(self, step: int, overrides: Sequence[str]) -> ReplayResult:
        saved = [n for n in self._directory.checkpoint_steps() if n < step]
        checkpoint = self._directory.step_checkpoint(max(saved)) if saved else None
        start = max(saved, default=0)
        announce(self._settings, Console(quiet=True))
        resumed = resumed_model(checkpoint) if checkpoint else None
        model = str(resumed or resolve_model(self._settings))
        # Where past selves are met in games, they are found beside what is played now.
        (self._folder / "checkpoints").symlink_to(self._directory.checkpoints.resolve())
        components = open_components(self._settings, model, run_path=self._folder)
        try:
            await self._begin(components, checkpoint)
            await self._play(components, start, step)
            assert self._done is not None
            same = _compare(self._done, self._directory, self._settings)
            other = await self._otherwise(components, model, overrides) if overrides else {}
        finally:
            await components.close()
        return ReplayResult(step=step, from_step=start, parts=same, other=other)

    async def _begin(self, components: TrainComponents, checkpoint: Path | None) -> None:
        trainer, explorer = components.trainer, components.explorer
        if checkpoint is None:
            await run_warm_start(trainer, explorer.rollout.template, Console(quiet=True))
        else:
            progress = load_checkpoint(checkpoint, trainer.learner)
            explorer.tasks.restore(progress.tasks)
        await mix_in_demonstrations(trainer, explorer.rollout.template)
        await components.publish(trainer.learner.policy_version)

    async def _play(self, components: TrainComponents, start: int, step: int) -> None:
        if start == step - 1:
            self._save(components.trainer)

        async def on_step(done: TrainStep) -> None:
            if done.step == step - 1:
                self._save(components.trainer)
            if done.step == step:
                self._done = done
                raise _Reached

        try:
            await train_serial(components, Stopwatch(), start_step=start, on_step=on_step)
        except _Reached:
            return

    def _save(self, trainer: TrainerComponents) -> None:
        self._before.mkdir()
        trainer.learner.save_state(self._before)

    async def _otherwise(
        self, components: TrainComponents, model: str, overrides: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        """The same experiences and the same learner, under other settings."""
        assert self._done is not None
        settings = load_settings(str(self._directory.config), overrides)
        trainer = open_trainer(settings, model)
        trainer.learner.load_state(self._before)
        await mix_in_demonstrations(trainer, components.explorer.rollout.template)
        result = update_policy(trainer, self._done.update.experiences, Hook())
        return {"recorded": _numbers(self._done.update), "replayed": _numbers(result)}


def _numbers(update: UpdateResult) -> dict[str, float]:
    numbers = {name: update.metrics[name] for name in _SHOWN if name in update.metrics}
    if update.inputs is not None:
        batch = update.inputs.batch
        advantages = batch.advantages[batch.loss_mask]
        numbers |= {"advantage/mean": float(advantages.mean()), "advantage/std": float(advantages.std())}
        numbers |= {"advantage/min": float(advantages.min()), "advantage/max": float(advantages.max())}
    return numbers


# --- is it the same -------------------------------------------------------------------------------------------------


def _compare(done: TrainStep, directory: RunDirectory, settings: TurnwiseSettings) -> dict[str, bool | None]:
    row = next(row for row in directory.read_metrics() if int(row["step"]) == done.step)
    metrics: dict[str, Any] = {**done.metrics}

    def same(*names: str) -> bool | None:
        known = [name for name in names if name in row]
        return all(_is_same(row[name], metrics.get(name)) for name in known) if known else None

    return {
        **_compare_tokens(done, directory, settings),
        "loss": same("learn/policy_loss", "learn/value_loss", "learn/entropy", "learn/reference_kl"),
        "grad_norm": same("learn/grad_norm"),
        "weights": same("audit/weights"),
    }


def _is_same(recorded: Any, found: Any) -> bool:
    is_number = found is not None and np.isfinite(found)
    return recorded == found if is_number else recorded is None


def _compare_tokens(done: TrainStep, directory: RunDirectory, settings: TurnwiseSettings) -> dict[str, bool | None]:
    record = TokenLog(directory.learning_record)
    learnt = logged_batch(done.update)
    if not directory.learning_record.exists() or done.step not in record.steps() or learnt is None:
        return dict.fromkeys(("tokens", "rewards", "advantages"))
    found = take_rows(learnt, choose_rows(learnt.experiences, settings.report.tokens))
    written = record.read(done.step)
    return {
        "tokens": _same_arrays(written, found, "token_ids", "turn_ids", "behavior_logprobs"),
        "rewards": _same_rewards(written, found),
        "advantages": _same_arrays(written, found, "advantages", "returns"),
    }


def _same_arrays(written: StepTokens, found: UpdateRecord, *names: str) -> bool:
    return all(np.array_equal(getattr(written.batch, name), getattr(found.batch, name)) for name in names)


def _same_rewards(written: StepTokens, found: UpdateRecord) -> bool:
    return all(
        np.array_equal(getattr(written.turns, name), np.concatenate([getattr(e, name) for e in found.experiences]))
        for name in ("raw_rewards", "turn_rewards")
    )
