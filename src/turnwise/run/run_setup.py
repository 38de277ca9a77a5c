"""The beginning of a run: seeds, the model, the parts, and the policy that training starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from rich.console import Console
from transformers.utils import logging as transformers_logging

from turnwise.checks.model import check_model
from turnwise.checks.plan import reward_model_path
from turnwise.checks.settings import find_unused_settings
from turnwise.checks.stages import report_findings
from turnwise.config.schema import LessonSettings, TurnwiseSettings
from turnwise.infra.atomic_files import write_whole
from turnwise.learn.checkpoint import resumed_model
from turnwise.loop.build import build_learn, build_play, build_train, samples_in_place
from turnwise.loop.components import LearnParts, PlayParts, TrainParts
from turnwise.loop.evaluate import Evaluation
from turnwise.loop.policies import resolve_model
from turnwise.loop.step import STAGES, Stages
from turnwise.loop.warm_start import mix_in_demonstrations, warm_start
from turnwise.models.load import warn_of_slow_bfloat16
from turnwise.models.memory import describe_in_one_line, read_config, report_memory
from turnwise.models.resolve import describe_set_up
from turnwise.report.console import phase, print_notice
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import Journals
from turnwise.run.checkpoints import Progress, load_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The models of a run and all that works with them, before anything is learnt."""

    parts: LearnParts
    evaluator: Evaluator


BuildWorkers: TypeAlias = Callable[[TurnwiseSettings, RunDirectory, str, Stages], Workers]
"""From settings, a run directory, a model's folder and stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A run that is ready to train."""

    parts: LearnParts
    evaluator: Evaluator
    progress: Progress
    directory: RunDirectory

    async def close(self) -> None:
        """Nothing more is played or learnt."""
        try:
            await (self.parts.close_play() if isinstance(self.parts, TrainParts) else self.evaluator.close())
        finally:
            self.parts.close()


class Evaluator:
    """Measures the learner's policy; an engine is opened when it is first needed."""

    def __init__(self, parts: LearnParts, open_play: Callable[[], PlayParts], stages: Stages = STAGES) -> None:
        self._parts = parts
        self._open_play = open_play
        self._stages = stages
        self._play: PlayParts | None = None

    @property
    def is_wanted(self) -> bool:
        return self._parts.settings.eval.is_wanted

    @property
    def play(self) -> PlayParts:
        self._play = self._play or self._open_play()
        return self._play

    async def evaluate(self, advance: Callable[[int, int], None]) -> Evaluation:
        """An evaluation is about the newest policy; that an explorer has it early does no harm."""
        learner = self._parts.learner
        if self.play.engine.policy_version != learner.policy_version:
            await self.play.channel.publish(self._parts.take_weights(), learner.policy_version)
        return await self._stages.evaluate(self.play, advance)

    async def close(self) -> None:
        if self._play is not None:
            await self._play.close_play()


def open_workers(
    settings: TurnwiseSettings,
    directory: RunDirectory,
    console: Console,
    checkpoint: Path | None = None,
    stages: Stages = STAGES,
    *,
    build: BuildWorkers | None = None,
) -> Workers:
    """Fix what chance depends on and load every model, from the settings or from a checkpoint; `build` where they are
    not to be in this process.
    """
    announce(settings, console)
    resumed = resumed_model(checkpoint) if checkpoint else None
    with phase(console, "setting up the model" if resumed else describe_set_up(settings.model.path)):
        model = str(resumed or resolve_model(settings))
        _keep_tokenizer(Path(model), directory)
        workers = (build or _build)(settings, directory, model, stages)
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
        report_findings(check_model(settings, workers.parts.template), directory, console)
    return workers


async def set_up(workers: Workers, directory: RunDirectory, console: Console, checkpoint: Path | None) -> Start:
    """From the model as it is, or from a checkpoint, to a policy that is trained from here on."""
    parts, is_whole = workers.parts, isinstance(workers.parts, TrainParts)
    if checkpoint is None:
        progress = await start_anew(parts, parts.settings, console)
    else:
        progress = load_checkpoint(checkpoint, parts.learner, parts.buffer)
        directory = RunDirectory.reopen(directory.path, step=progress.step, has_played=is_whole)
    # Without a checkpoint too: a process before this one may have been killed before it saved its first.
    parts.buffer.rewind(progress.step, plays_again=is_whole)
    await mix_in_demonstrations(parts)
    if isinstance(parts, TrainParts):
        if checkpoint is not None:
            parts.tasks.restore(progress.tasks)
        progress = replace(progress, tasks=parts.tasks.state())
        await parts.channel.publish(parts.take_weights(), parts.learner.policy_version)
    return Start(parts=parts, evaluator=workers.evaluator, progress=progress, directory=directory)


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
        write_whole(directory.tokenizer, found.read_bytes())


def _build(settings: TurnwiseSettings, directory: RunDirectory, model: str, stages: Stages) -> Workers:
    if settings.run.mode == "train":
        learn = build_learn(settings, model, run_path=directory.path)
        evaluator = Evaluator(learn, lambda: build_play(settings, model, run_path=directory.path), stages)
        return Workers(parts=learn, evaluator=evaluator)
    whole = replace(build_train(settings, model, run_path=directory.path), journals=Journals(directory))
    return Workers(parts=whole, evaluator=Evaluator(whole, lambda: whole, stages))


async def start_anew(parts: LearnParts, settings: TurnwiseSettings, console: Console) -> Progress:
    """From demonstrations, or with the model as it is."""
    if not isinstance(settings.warm_start, LessonSettings):
        return Progress()
    with phase(console, f"warm start from the {settings.warm_start.type}") as advance:
        return Progress(warm_start=await warm_start(parts, settings.warm_start, advance))
