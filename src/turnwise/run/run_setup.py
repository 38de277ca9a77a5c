"""Set-up of a run: seeds, the model, the components, and the policy that training starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from turnwise.checks.model import check_model
from turnwise.checks.plan import reward_model_path
from turnwise.checks.settings import find_unused_settings
from turnwise.checks.stages import report_findings
from turnwise.config.schema import ImitationSettings, TurnwiseSettings
from turnwise.hooks import Hooks
from turnwise.infra.atomic_files import atomic_write
from turnwise.learn.checkpoint import resumed_model
from turnwise.loop.build import (
    load_words,
    open_audit,
    open_buffer,
    open_components,
    open_rollout,
    open_trainer,
    samples_in_place,
)
from turnwise.loop.components import RolloutComponents, TrainComponents, TrainerComponents, close_trainer
from turnwise.loop.evaluate import Evaluation, is_evaluation_due
from turnwise.loop.policies import resolve_model
from turnwise.loop.step import STAGES, Stages
from turnwise.loop.warm_start import mix_in_demonstrations, warm_start
from turnwise.models.load import warn_of_slow_bfloat16
from turnwise.models.memory import describe_in_one_line, read_config, report_memory
from turnwise.models.resolve import describe_set_up
from turnwise.protocols import Buffer, ChatTemplate
from turnwise.report.console import phase, print_notice
from turnwise.report.run_dir import RunDirectory
from turnwise.run.checkpoints import Progress, load_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComponents:
    """The components of a run in this process, before training begins."""

    trainer: TrainerComponents
    buffer: Buffer
    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    evaluator: Evaluator
    hooks: Hooks
    """Those that the components bring: the audit."""
    training: TrainComponents | None = None
    """All that a loop connects; None if another process explores."""

    @classmethod
    def of(cls, training: TrainComponents, stages: Stages = STAGES) -> RunComponents:
        """For a process that explores and trains."""
        rollout = training.explorer.rollout
        return cls(
            trainer=training.trainer,
            buffer=training.buffer,
            tokenizer=rollout.tokenizer,
            template=rollout.template,
            evaluator=Evaluator(training.trainer, lambda: rollout, stages),
            hooks=training.hooks,
            training=training,
        )

    async def close(self) -> None:
        if self.training is not None:
            await self.training.close()
            return
        try:
            await self.evaluator.close()
        finally:
            close_trainer(self.trainer, self.buffer)


OpenComponents: TypeAlias = Callable[[TurnwiseSettings, RunDirectory, str, Stages], RunComponents]
"""From settings, a run directory, a model's folder and stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """A run that is ready to train."""

    components: RunComponents
    progress: Progress
    directory: RunDirectory


class Evaluator:
    """Evaluates the learner's policy; an engine is opened when it is first needed."""

    def __init__(
        self, trainer: TrainerComponents, open_rollout: Callable[[], RolloutComponents], stages: Stages = STAGES
    ) -> None:
        self._trainer = trainer
        self._open_rollout = open_rollout
        self._stages = stages
        self._rollout: RolloutComponents | None = None

    @property
    def is_wanted(self) -> bool:
        return self._trainer.settings.eval.is_wanted

    def is_due(self, step: int) -> bool:
        """Whether the policy is evaluated after this step, besides before and after the run."""
        return is_evaluation_due(self._trainer.settings, step)

    @property
    def rollout(self) -> RolloutComponents:
        self._rollout = self._rollout or self._open_rollout()
        return self._rollout

    async def evaluate(self, advance: Callable[[int, int], None]) -> Evaluation:
        """Evaluate the newest policy; that an explorer has it early does no harm."""
        learner = self._trainer.learner
        if self.rollout.engine.policy_version != learner.policy_version:
            await self.rollout.publisher.publish(self._trainer.take_weights(), learner.policy_version)
        return await self._stages.evaluate(self.rollout, advance)

    async def close(self) -> None:
        if self._rollout is not None:
            await self._rollout.close()


def open_run_components(
    settings: TurnwiseSettings,
    directory: RunDirectory,
    console: Console,
    checkpoint: Path | None = None,
    stages: Stages = STAGES,
    *,
    open_elsewhere: OpenComponents | None = None,
) -> RunComponents:
    """Set seeds and load every model, from the settings or from a checkpoint.

    `open_elsewhere` opens them if they are not to be in this process.
    """
    announce(settings, console)
    resumed = resumed_model(checkpoint) if checkpoint else None
    with phase(console, "setting up the model" if resumed else describe_set_up(settings.model.path)):
        model = str(resumed or resolve_model(settings))
        _keep_tokenizer(Path(model), directory)
        components = (open_elsewhere or _open)(settings, directory, model, stages)
    config = read_config(model)
    memory = report_memory(
        config,
        settings.model,
        settings.learn,
        judge_path=reward_model_path(settings),
        is_shared=samples_in_place(settings),
    )
    print_notice(console, describe_in_one_line(memory))
    if checkpoint is None:
        report_findings(check_model(settings, components.template), directory, console)
    return components


async def set_up(
    components: RunComponents, directory: RunDirectory, console: Console, checkpoint: Path | None
) -> RunStart:
    """Prepare the policy that training starts from: the model and its warm start, or a checkpoint."""
    trainer, buffer, training = components.trainer, components.buffer, components.training
    if checkpoint is None:
        progress = await run_warm_start(trainer, components.template, console)
    else:
        progress = load_checkpoint(checkpoint, trainer.learner, buffer)
        directory = RunDirectory.reopen(directory.path, step=progress.step, has_played=training is not None)
    # Without a checkpoint too: a process before this one may have been killed before it saved its first.
    buffer.rewind(progress.step, plays_again=training is not None)
    await mix_in_demonstrations(trainer, components.template)
    if training is not None:
        if checkpoint is not None:
            training.explorer.tasks.restore(progress.tasks)
        progress = replace(progress, tasks=training.explorer.tasks.state())
        await training.publish(trainer.learner.policy_version)
    return RunStart(components=components, progress=progress, directory=directory)


def announce(settings: TurnwiseSettings, console: Console) -> None:
    """Say which settings do nothing or are slow here, and fix what chance, threads and the terminal depend on."""
    for warning in find_unused_settings(settings):
        print_notice(console, warning)
    if settings.learn.num_threads is not None:
        torch.set_num_threads(settings.learn.num_threads)
    if slow := warn_of_slow_bfloat16(settings.model):
        print_notice(console, slow)
    torch.manual_seed(settings.run.seed)
    # The terminal is ours: no bars of other packages, whoever loads a model.
    transformers_logging.disable_progress_bar()


def _keep_tokenizer(model: Path, directory: RunDirectory) -> None:
    """So that tokens can be read as text from the run directory alone, from the first step on."""
    found = model / directory.tokenizer.name
    if found.is_file() and not directory.tokenizer.exists():
        atomic_write(directory.tokenizer, found.read_bytes())


def _open(settings: TurnwiseSettings, directory: RunDirectory, model: str, stages: Stages) -> RunComponents:
    if settings.run.mode != "train":
        return RunComponents.of(open_components(settings, model, run_path=directory.path), stages)
    words, buffer = load_words(settings, model), open_buffer(settings, directory.path)
    trainer = open_trainer(settings, model, run_path=directory.path)
    return RunComponents(
        trainer=trainer,
        buffer=buffer,
        tokenizer=words.tokenizer,
        template=words.template,
        evaluator=Evaluator(trainer, lambda: open_rollout(settings, model, run_path=directory.path), stages),
        hooks=Hooks(open_audit(settings, trainer.learner, directory.path)),
    )


async def run_warm_start(trainer: TrainerComponents, template: ChatTemplate, console: Console) -> Progress:
    """Train on demonstrations if `warm_start` asks for it."""
    settings = trainer.settings
    if not isinstance(settings.warm_start, ImitationSettings):
        return Progress()
    with phase(console, f"warm start from the {settings.warm_start.type}") as advance:
        return Progress(warm_start=await warm_start(trainer, template, settings.warm_start, advance))
