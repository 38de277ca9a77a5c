"""Trainers to extend: the stages of one step as methods, over the same loop as `turnwise train`.

`PPOTrainer` trains any recipe; `AgentTrainer` trains agent classes and accepts the arguments of verl's trainer.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, RunError, WorkflowError, did_you_mean
from turnwise.experience.build import build_experiences
from turnwise.infra.threads import run_async
from turnwise.loop.build import find_loop
from turnwise.loop.components import ExplorerComponents, RolloutComponents, TrainComponents
from turnwise.loop.step import Stages
from turnwise.report.run_dir import RunDirectory
from turnwise.rollout.agents import (
    ActorRollout,
    AgentMaker,
    GenBatch,
    SyncMultiTurnRollout,
    find_agent_class,
    name_agent_class,
)
from turnwise.rollout.scoring import RewardFn, score_groups
from turnwise.run.api import Run, check_start, new_directory
from turnwise.run.run_setup import RunComponents, open_run_components
from turnwise.run.training_run import TrainingRun
from turnwise.sync.role_locks import ROLES, acquire_roles
from turnwise.types import Group, Task, Trajectory, TrajectoryId


class PPOTrainer(Stages):
    """Trains a recipe; every step of the run uses the stages that a subclass overrides.

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
    def components(self) -> TrainComponents:
        """Everything that the loop connects, after `init_workers`."""
        if self._opened is None:
            raise RunError("the workers are not there yet; call init_workers() first.")
        return self._opened.training

    def init_workers(self) -> None:
        """Make the run directory and load the models; `train` does it where it was not done."""
        if self._opened is None:
            directory = new_directory(self.settings, self._run_dir)
            components = open_run_components(self.settings, directory, self._console, stages=self)
            self._opened = _Opened(directory, components)

    def train(self) -> Run:
        """Train to the end; the run's directory holds everything that came out. Another call begins another run."""
        self.init_workers()
        opened, self._opened = self._opened, None
        assert opened is not None
        opened.forget_trials()
        training = TrainingRun(
            self.settings, opened.directory, self._console, components=opened.components, stages=self
        )
        with acquire_roles(opened.directory.path, *ROLES):
            run_async(training.run())
        return Run(opened.directory.path)

    def fit(self) -> Run:
        """The same as `train`."""
        return self.train()


class _Opened:
    """The components of a run that has not begun, and the state of random numbers and tasks when they were opened."""

    def __init__(self, directory: RunDirectory, components: RunComponents) -> None:
        assert components.training is not None, "run.mode is 'both'"
        self.directory = directory
        self.components = components
        self.training = components.training
        self._rng_state = torch.get_rng_state()
        self._task_state = self.training.explorer.tasks.state()

    def forget_trials(self) -> None:
        """Undo what trials before training changed."""
        torch.set_rng_state(self._rng_state)
        self.training.explorer.tasks.restore(self._task_state)


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


_log = logging.getLogger("turnwise.run")
_WITHOUT_MEANING = (
    "role_worker_mapping",
    "resource_pool_manager",
    "processor",
    "ray_worker_group_cls",
    "val_reward_fn",
    "train_dataset",
    "val_dataset",
    "collate_fn",
    "train_sampler",
    "device_name",
)
_playing: ContextVar[SyncMultiTurnRollout | None] = ContextVar("the rollout that is under way", default=None)


class AgentTrainer(PPOTrainer):
    """Multi-turn training where each agent owns its environment and history.

    `init_workers` builds the models and `multi_turn_rollout`, which can be tried before anything is trained; `fit`
    trains and returns the finished Run. In each rollout it calls `_generate_multi_turn_sequences`, which a subclass may
    write anew.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, object] | TurnwiseSettings = "agent_class",
        tokenizer: PreTrainedTokenizerBase | Mapping[str, object] | None = None,
        role_worker_mapping: object = None,
        resource_pool_manager: object = None,
        agent_cls: object = None,
        *,
        reward_fn: RewardFn | None = None,
        overrides: Mapping[str, object] | None = None,
        **others: Any,
    ) -> None:
        """`config` and `overrides` (which may also stand second), `run_dir` and `console` are as in `train`.

        `tokenizer`, where given, must be the model's own. `reward_fn(trajectories)` returns one score for each: a
        number for its end, or a list with one for each turn; it counts in place of what the agents report.
        """
        if isinstance(tokenizer, Mapping):
            tokenizer, overrides = None, {**tokenizer, **(overrides or {})}
        self.agent_cls = _read_agent_class(agent_cls)
        self.tokenizer = tokenizer
        self.processor = others.get("processor")
        self.reward_fn = _read_reward_fn(reward_fn)
        places = {key: others.pop(key) for key in ("run_dir", "console") if key in others}
        _tell_without_meaning(
            {"role_worker_mapping": role_worker_mapping, "resource_pool_manager": resource_pool_manager, **others}
        )
        self._setting_overrides = {
            **(overrides or {}),
            "rollout.workflow": "agent",
            "rollout.workflow_args.agent_cls": name_agent_class(self.agent_cls),
        }
        super().__init__(config, self._setting_overrides, **cast("dict[str, Any]", places))

    @property
    def multi_turn_rollout(self) -> SyncMultiTurnRollout:
        """Plays agents: the batch that `fit` is at, or the next tasks where it is tried by hand."""
        if (current := _playing.get()) is not None:
            return current
        if self._opened is None:
            raise WorkflowError("there is no multi_turn_rollout yet; call init_workers() first.")
        return self._by_hand

    @multi_turn_rollout.setter
    def multi_turn_rollout(self, rollout: SyncMultiTurnRollout) -> None:
        self._by_hand = rollout

    @property
    def actor_rollout_wg(self) -> ActorRollout:
        """Who plays the agents, for a `SyncMultiTurnRollout` of one's own."""
        explorer = self.components.explorer
        return ActorRollout(
            proxy=explorer.collectors.sampled,
            next_tasks=lambda: explorer.tasks.take(explorer.num_groups),
            build=build_experiences,
            run=run_async,
        )

    def init_workers(self) -> None:
        if self._opened is not None:
            return
        super().init_workers()
        rollout = self.components.explorer.rollout
        if self.tokenizer is not None:
            _check_tokenizer(self.tokenizer, rollout)
        self.tokenizer = rollout.tokenizer
        self.multi_turn_rollout = SyncMultiTurnRollout(self.actor_rollout_wg)

    def fit(self) -> Run:
        return self.train()

    # --- stages ---------------------------------------------------------------------------------------------------

    def _generate_multi_turn_sequences(self, gen_batch: GenBatch) -> list[Group]:
        """Play the agents of a batch to the end. Runs in a thread, once for every rollout of `fit`."""
        self.multi_turn_rollout.reset(gen_batch.tasks)
        return self.multi_turn_rollout.rollout()

    async def rollout(
        self,
        explorer: ExplorerComponents,
        tasks: Sequence[Task],
        step: int,
        *,
        on_done: Callable[[Trajectory], None] | None = None,
        known: Mapping[TrajectoryId, Trajectory] | None = None,
    ) -> list[Group]:
        loop, play = asyncio.get_running_loop(), super().rollout

        class Stage:
            """The rollout of this step as something that plays tasks."""

            env_seconds = 0.0

            async def collect(self, tasks: Sequence[Task], *, rollout: int, **_: object) -> list[Group]:
                return await play(explorer, tasks, step, on_done=on_done, known=known or {})

        def wait_for(work: Coroutine[object, object, list[Group]]) -> list[Group]:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        rollout = SyncMultiTurnRollout(
            ActorRollout(proxy=Stage(), next_tasks=lambda: list(tasks), build=build_experiences, run=wait_for)
        )
        token = _playing.set(rollout)
        try:
            batch = GenBatch(tasks=tuple(tasks), step=step)
            groups = await asyncio.to_thread(self._generate_multi_turn_sequences, batch)
        finally:
            _playing.reset(token)
        return _checked_groups(groups, tasks)

    def reward_model_step(self, groups: list[Group]) -> list[Group]:
        return groups if self.reward_fn is None else score_groups(groups, self.reward_fn)


def _read_agent_class(given: object) -> AgentMaker:
    if isinstance(given, type) or callable(given) or isinstance(given, str):
        return find_agent_class(given, "agent_cls")
    raise ConfigError(
        f"agent_cls: {given!r} given; expected a class with reset, get_llm_prompts and get_env_outputs, such as a "
        "subclass of turnwise.BaseAgent, or its name as 'package.module:Class'."
    )


def _read_reward_fn(given: object) -> RewardFn | None:
    if given is not None and not callable(given):
        raise ConfigError(
            f"reward_fn: {given!r} given; expected a function that takes a list of trajectories and returns a score "
            "for each."
        )
    return cast("RewardFn | None", given)


def _tell_without_meaning(given: Mapping[str, object]) -> None:
    """Name once what of a verl call does nothing here."""
    for name in given:
        if name not in _WITHOUT_MEANING:
            raise ConfigError(f"AgentTrainer takes no '{name}'. {did_you_mean(name, _KEYWORDS)}")
    if named := [name for name, value in given.items() if value is not None]:
        _log.warning(
            "AgentTrainer: %s %s no meaning here and %s not used: one process holds all workers, texts go through the "
            "model's own tokenizer, and tasks come from the settings.",
            ", ".join(named),
            "has" if len(named) == 1 else "have",
            "is" if len(named) == 1 else "are",
        )


_KEYWORDS = ("config", "tokenizer", "agent_cls", "reward_fn", "overrides", "run_dir", "console", *_WITHOUT_MEANING)


def _checked_groups(groups: object, tasks: Sequence[Task]) -> list[Group]:
    is_right = isinstance(groups, Sequence) and all(isinstance(group, Group) for group in groups)
    if not is_right or len(cast("Sequence[Group]", groups)) != len(tasks):
        raise WorkflowError(
            f"_generate_multi_turn_sequences returned {type(groups).__name__}; expected a list with a Group for each "
            f"of the {len(tasks)} tasks, as multi_turn_rollout.rollout() returns."
        )
    return list(cast("Sequence[Group]", groups))


def _check_tokenizer(given: Any, rollout: RolloutComponents) -> None:
    """Tokens are exact only in the model's own vocabulary."""
    if not hasattr(given, "get_vocab"):
        raise ConfigError(f"tokenizer: {type(given).__name__} given; expected the model's own tokenizer, or nothing.")
    if given.get_vocab() != rollout.tokenizer.get_vocab():
        raise ConfigError(
            f"tokenizer: a vocabulary of {len(given.get_vocab())} tokens was given, and it is not that of the model "
            f"'{rollout.settings.model.path}'. Leave tokenizer out, or load it from the model's folder."
        )
