"""A trainer to extend: the stages of one step as methods, over the same loop as `turnwise train`.

In: a config, and whatever a subclass writes anew. Out: a Run. Nothing is trained here: the loops call the stages.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from turnwise.app.run import Run, check_start, new_directory
from turnwise.app.set_up import Workers, open_workers
from turnwise.app.training import Training
from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, RunError
from turnwise.infra.threads import run_async
from turnwise.loop.build import find_loop
from turnwise.loop.components import TrainParts
from turnwise.loop.step import Stages
from turnwise.report.run_dir import RunDirectory
from turnwise.sync.role_locks import ROLES, hold_roles


class PPOTrainer(Stages):
    """Trains a recipe; write a stage anew in a subclass, and every step of the run uses it.

    Example::

        class Curious(tw.PPOTrainer):
            def reward_model_step(self, groups):
                return [with_bonus(group) for group in super().reward_model_step(groups)]

        run = Curious("frozenlake", {"learn.steps": 40}).train()

    The stages, in order: `rollout`, `reward_model_step`, `shape_rewards`, `compute_advantages`, `pack`, `rl_step`, and
    `evaluate` where the policy is measured.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, object] | TurnwiseSettings = "frozenlake",
        overrides: Sequence[str] | Mapping[str, object] = (),
        *,
        run_dir: str | Path | None = None,
        console: Console | None = None,
    ) -> None:
        """`config` is a recipe's name, a file, a mapping (OmegaConf's too) or settings; `overrides` as in `train`."""
        self.config = config
        self.settings = self.read_config(config, overrides)
        _check_loop(self.settings)
        self.settings = check_start(self.settings)
        self._run_dir = run_dir
        self._console = console or Console(quiet=True)
        self._opened: _Opened | None = None

    def read_config(
        self,
        config: str | Path | Mapping[str, object] | TurnwiseSettings,
        overrides: Sequence[str] | Mapping[str, object],
    ) -> TurnwiseSettings:
        """Whatever was given as a config becomes settings."""
        return load_settings(plain_config(config), overrides)

    @property
    def parts(self) -> TrainParts:
        """Everything that the loop connects, once `init_workers` has built it."""
        if self._opened is None:
            raise RunError("the workers are not there yet; call init_workers() first.")
        return cast(TrainParts, self._opened.workers.parts)

    def init_workers(self) -> None:
        """Make the run directory and load the models; `train` does it where it was not done."""
        if self._opened is None:
            directory = new_directory(self.settings, self._run_dir)
            self._opened = _Opened(directory, open_workers(self.settings, directory, self._console, stages=self))

    def train(self) -> Run:
        """Train to the end; the run's directory holds everything that came out. Another call begins another run."""
        self.init_workers()
        opened, self._opened = self._opened, None
        assert opened is not None
        opened.forget_trials()
        training = Training(self.settings, opened.directory, self._console, workers=opened.workers, stages=self)
        with hold_roles(opened.directory.path, *ROLES):
            run_async(training.run())
        return Run(opened.directory.path)

    def fit(self) -> Run:
        """The same as `train`."""
        return self.train()


class _Opened:
    """The workers of a run that has not begun, and where chance and tasks stood when they were made."""

    def __init__(self, directory: RunDirectory, workers: Workers) -> None:
        self.directory = directory
        self.workers = workers
        self._chance = torch.get_rng_state()
        self._tasks = cast(TrainParts, workers.parts).tasks.state()

    def forget_trials(self) -> None:
        """What was tried before training leaves no trace in it."""
        torch.set_rng_state(self._chance)
        cast(TrainParts, self.workers.parts).tasks.restore(self._tasks)


def plain_config(
    config: str | Path | Mapping[str, object] | TurnwiseSettings,
) -> str | Path | Mapping[str, object]:
    """Settings and OmegaConf's objects as plain mappings."""
    if isinstance(config, TurnwiseSettings):
        return config.model_dump(mode="json")
    if isinstance(config, DictConfig):
        return cast("Mapping[str, object]", OmegaConf.to_container(config, resolve=False))
    if not isinstance(config, str | Path | Mapping):
        raise ConfigError(
            f"config: {type(config).__name__} given; expected a recipe's name, a file, a mapping or settings."
        )
    return config


def _check_loop(settings: TurnwiseSettings) -> None:
    if settings.run.mode != "both":
        raise ConfigError(
            f"run.mode: '{settings.run.mode}' given; a trainer from Python explores and learns in one process. "
            "Set run.mode=both, or use turnwise train."
        )
    if settings.cluster.type != "none":
        raise ConfigError(
            f"cluster.type: '{settings.cluster.type}' given; a trainer from Python holds its workers in one process. "
            "Set cluster.type=none, or use turnwise train."
        )
    if "stages" not in inspect.signature(find_loop(settings)).parameters:
        raise ConfigError(
            f"loop.type: '{settings.loop.type}' given; it takes no 'stages', so what a trainer does otherwise would be "
            "lost. Set loop.type to 'serial' or 'pipelined', or give your loop that parameter."
        )
