"""Build the components of a run from settings: the only module that names concrete classes.

What a config names is found in a registry and opened from its own section, so no engine, learner, buffer, weight
transport or loop is known by its class.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from turnwise.audit.batch_audit import BatchAudit
from turnwise.config.component import (
    BUFFERS,
    ENGINES,
    LEARNERS,
    LOOPS,
    TRANSPORTS,
    ClassRegistry,
    import_reward_function,
    import_shaping,
)
from turnwise.config.kinds import EndpointSettings
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.schema_learn import FunctionScorerSettings, ModelScorerSettings, NoScorer
from turnwise.context.template import HFChatTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.deps import BufferSite, EngineSite, LearnerSite, TransportSite
from turnwise.envs.base import SeedTasks
from turnwise.envs.prompts.sources import training_preferences
from turnwise.envs.selectors import ByDifficulty, FiniteTasks, Selector, Sequential, Shuffled
from turnwise.errors import ConfigError
from turnwise.hooks import Hook, Hooks
from turnwise.learn.checkpoint import digest_policy
from turnwise.learn.local_launcher import start_processes
from turnwise.learn.workers import ParallelLearner, StartRanks
from turnwise.loop.components import (
    Collectors,
    ExplorerComponents,
    RolloutComponents,
    TrainComponents,
    TrainerComponents,
)
from turnwise.loop.frozen_opponents import open_opponents
from turnwise.models.load import cache_folder
from turnwise.models.reward_model import load_reward_model, tiny_reward_folder
from turnwise.protocols import Buffer, ChatTemplate, Engine, Judge, Learner, Mailbox, TaskSource
from turnwise.rollout.agent_proxy import AgentProxy, RolloutOptions
from turnwise.rollout.env_manager import EnvConfigs, EnvStateManager
from turnwise.rollout.env_specs import World, all_envs, count_eval_tasks, find_workflow, rewards_have_a_source
from turnwise.rollout.episode import RolloutLimits
from turnwise.rollout.scoring import FunctionScorer, RewardScoring
from turnwise.rollout.workflow import OpponentSampler, Workflow
from turnwise.sync.sync_check import LogprobEngine, LogprobLearner, Probe, VerifiedPublisher
from turnwise.sync.sync_schedule import list_policies
from turnwise.sync.weight_store import EnginePublisher, InPlacePublisher
from turnwise.types import Message, Sampling, Task


def open_audit(settings: TurnwiseSettings, learner: Learner, run_path: Path | None) -> list[Hook]:
    """Return the hook that checks every batch, or nothing if `audit.is_on` is false."""
    if not settings.audit.is_on:
        return []
    return [
        BatchAudit(
            settings,
            learner,
            max_staleness=_bound_of_staleness(settings),
            digest_weights=partial(digest_policy, learner),
            run_path=run_path,
        )
    ]


def _bound_of_staleness(settings: TurnwiseSettings) -> int | None:
    """How many updates old a batch can be; None where what waits in the buffer may grow older."""
    buffer = settings.buffer
    if settings.run.mode != "both" or not buffer.train_batch_size is buffer.reuse_cooldown is None:
        return None
    if settings.loop.is_in_turns:
        return settings.sync.interval - 1
    return list_policies(settings.sync).max_staleness if settings.loop.type == "pipelined" else None


def open_buffer(settings: TurnwiseSettings, run_path: Path | None) -> Buffer:
    """The buffer of a run; a durable one that is there already is opened."""
    chosen = settings.buffer
    buffer: Any = BUFFERS.get_target(chosen.type)
    return cast(Buffer, buffer.open(chosen, BufferSite(priority=chosen.priority, run_path=run_path)))


log = logging.getLogger(__name__)

_SEEDS_PER_RUN = 10_000_000
"""Runs of different seeds count their tasks from points this far apart, so that they never share one."""

_PROBE_TEXT = "Which way is it from the old lake to the red door, and how many steps? Count them: 1, 2, 3, 4, 5."
"""What engine and learner are both asked about after a sync."""

_JUDGE_SEED = 0
"""The built-in judge is a yardstick: the same for runs of all seeds."""


# --- the components of a process --------------------------------------------------------------------------------------


def open_rollout(
    settings: TurnwiseSettings,
    model_path: str | Path,
    *,
    split: str = "eval",
    run_path: Path | None = None,
    model: PreTrainedModel | None = None,
) -> RolloutComponents:
    """Open an engine and the tasks of a split, each to be played; `model` if it shares a learner's own."""
    words = load_words(settings, str(model_path))
    engine = open_engine(words, str(model_path), run_path=run_path, model=model)
    scoring = build_scorer(settings)
    stage = Stage(settings=settings, template=words.template, engine=engine, judging=scoring)
    counts = count_eval_tasks(settings, split)
    return RolloutComponents(
        settings=settings,
        tokenizer=words.tokenizer,
        template=words.template,
        engine=engine,
        publisher=EnginePublisher([engine]) if model is None else InPlacePublisher(engine, model),
        scoring=scoring,
        eval_collector=stage.proxy(
            [replace(world, groups=max(counts[world.tag], 1)) for world in all_envs(settings)],
            split="eval",
            group_size=settings.eval.samples,
            temperature=settings.eval.temperature,
        ),
        eval_tasks=held_out_tasks(settings, split),
    )


def open_explorer(rollout: RolloutComponents, *, run_path: Path | None = None) -> ExplorerComponents:
    """Open what an explorer needs besides; no learner is made."""
    settings = rollout.settings
    return connect_explorer(rollout, partial(open_collectors, rollout, open_opponents(settings, run_path)))


def connect_explorer(rollout: RolloutComponents, open_collectors: Callable[[], Collectors]) -> ExplorerComponents:
    """The same with collectors of any kind."""
    worlds = all_envs(rollout.settings)
    return ExplorerComponents(
        rollout=rollout,
        tasks=build_tasks(rollout.settings, worlds),
        num_groups=sum(world.groups for world in worlds),
        collectors=open_collectors(),
        open_collectors=open_collectors,
    )


def open_collectors(rollout: RolloutComponents, rivals: OpponentSampler | None = None) -> Collectors:
    """Open what plays training tasks: sampled, and greedily if the estimator compares with that."""
    settings, worlds = rollout.settings, all_envs(rollout.settings)
    stage = Stage(
        settings=settings, template=rollout.template, engine=rollout.engine, judging=rollout.scoring, rivals=rivals
    )
    size, temperature = settings.rollout.group_size, settings.rollout.temperature
    return Collectors(
        sampled=stage.proxy(worlds, split="train", group_size=size, temperature=temperature),
        greedy=stage.proxy(worlds, split="train") if needs_greedy(settings) else None,
    )


def needs_greedy(settings: TurnwiseSettings) -> bool:
    return settings.credit.needs_greedy


def open_trainer(
    settings: TurnwiseSettings, model_path: str | Path, *, run_path: Path | None = None
) -> TrainerComponents:
    """Open what a trainer needs besides a buffer; no engine is opened."""
    learner = open_learner(settings, str(model_path), run_path=run_path)
    return TrainerComponents(settings=settings, learner=learner, estimator=settings.credit)


def open_components(
    settings: TurnwiseSettings, model_path: str | Path, *, run_path: Path | None = None
) -> TrainComponents:
    """Open all components of a run; `run_path` is where they keep files. Of the hooks the audit is there."""
    trainer = open_trainer(settings, model_path, run_path=run_path)
    model = getattr(trainer.learner, "model", None) if samples_in_place(settings) else None
    explorer = open_explorer(open_rollout(settings, model_path, run_path=run_path, model=model), run_path=run_path)
    return connect(
        explorer,
        trainer,
        open_buffer(settings, run_path),
        open_weight_store=partial(open_mailbox, settings, run_path),
        hooks=open_audit(settings, trainer.learner, run_path),
    )


def connect(
    explorer: ExplorerComponents,
    trainer: TrainerComponents,
    buffer: Buffer,
    *,
    open_weight_store: Callable[[Callable[[], None]], Mailbox],
    hooks: Sequence[Hook] = (),
) -> TrainComponents:
    """Connect both sides of a run; after a sync, engine and learner are compared if both can score a text."""
    if (sync_check := _open_sync_check(explorer.rollout, trainer.learner)) is not None:
        publisher = VerifiedPublisher(explorer.rollout.publisher, sync_check)
        explorer = replace(explorer, rollout=replace(explorer.rollout, publisher=publisher))
        trainer = replace(trainer, sync_check=sync_check)
    return TrainComponents(
        settings=explorer.settings,
        explorer=explorer,
        trainer=trainer,
        buffer=buffer,
        open_weight_store=open_weight_store,
        hooks=Hooks(hooks),
    )


def _open_sync_check(rollout: RolloutComponents, learner: Learner) -> Probe | None:
    """None unless the engine has weights of its own elsewhere, and both sides can score a text."""
    engine, settings = rollout.engine, rollout.settings
    if not isinstance(engine, LogprobEngine):
        return None
    if not (isinstance(learner, LogprobLearner) and hasattr(_chosen(LEARNERS, settings.learn), "score")):
        log.warning(
            "learn.type '%s' has no method 'score': what the engine serves is not compared", settings.learn.type
        )
        return None
    text = rollout.template.encode_prompt([Message("user", _PROBE_TEXT)])
    return Probe(text, learner, engine, max_gap=settings.sync.max_probe_gap, dtype=settings.model.dtype)


def chosen_engine(settings: TurnwiseSettings) -> Any:
    """The class that `engine.type` names."""
    return _chosen(ENGINES, settings.engine)


def samples_in_place(settings: TurnwiseSettings) -> bool:
    """Whether an engine may sample from the model that is trained, so that its weights are in memory once.

    Nothing may be sampled while they change, nor from weights older than the newest, and both must hold them alike, in
    this process.
    """
    is_here = settings.run.mode == "both" and settings.cluster.type == "none" and settings.learn.parallel.type == "none"
    is_in_turns = settings.loop.is_in_turns and is_here and settings.sync.interval == 1
    is_alike = settings.model.dtype == "float32" and settings.learn.device == getattr(settings.engine, "device", "auto")
    return is_in_turns and is_alike and getattr(chosen_engine(settings), "samples_in_place", False)


# --- what a config names ---------------------------------------------------------------------------------------------


def _chosen(registry: ClassRegistry, section: Any, key: str = "type") -> Any:
    return registry.get_target(getattr(section, key))


@dataclass(frozen=True, kw_only=True)
class Words:
    """The tokenizer and chat template of a model, and the settings of the run."""

    settings: TurnwiseSettings
    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate


def load_words(settings: TurnwiseSettings, model_path: str) -> Words:
    """The tokenizer of a model and its chat template."""
    tokenizer = load_tokenizer(model_path, settings.context)
    template = HFChatTemplate(tokenizer)
    if settings.context.system_prompt and not template.accepts_system:
        raise ConfigError(f"context.system_prompt is set and the chat template of '{model_path}' has no system role.")
    return Words(settings=settings, tokenizer=cast(PreTrainedTokenizerBase, tokenizer), template=template)


def open_engine(
    words: Words,
    model_path: str,
    *,
    policy_version: int = 0,
    run_path: Path | None = None,
    model: PreTrainedModel | None = None,
) -> Engine:
    settings = words.settings
    site = EngineSite(
        model_path=model_path,
        dtype=settings.model.dtype,
        template=words.template,
        policy_version=policy_version,
        run_path=run_path,
        model=model,
    )
    return cast(Engine, chosen_engine(settings).open(settings.engine, site))


def open_endpoint(settings: EndpointSettings, template: ChatTemplate, *, where: str) -> Engine:
    """The endpoint that the section `where` names, beside the engine of the run; it is asked whether it is there."""
    return cast(Engine, cast(Any, ENGINES.get_target("openai"))(settings, template, where=where))


def open_learner(
    settings: TurnwiseSettings,
    model_path: str,
    *,
    run_path: Path | None = None,
    start_ranks: StartRanks = start_processes,
) -> Learner:
    """The learner of this process, or the ranks that learn for it, wherever they are started."""
    site = LearnerSite(
        model_path=model_path,
        model=settings.model,
        loss=settings.learn.loss,
        temperature=settings.rollout.temperature,
        seed=settings.run.seed,
        run_path=run_path,
    )
    if settings.learn.parallel.type != "none":
        return ParallelLearner.open(settings.learn, site, start_ranks)
    return cast(Learner, _chosen(LEARNERS, settings.learn).open(settings.learn, site))


def open_mailbox(settings: TurnwiseSettings, run_path: Path | None, ring: Callable[[], None]) -> Mailbox:
    """The way of weights from trainer to explorer."""
    site = TransportSite(ring=ring, run_path=run_path)
    return cast(Mailbox, _chosen(TRANSPORTS, settings.sync, "method").open(settings.sync, site))


def find_loop(settings: TurnwiseSettings) -> Callable[..., Any]:
    """What runs exploring and learning in one process: `loop.type`."""
    return _chosen(LOOPS, settings.loop)


# --- plays -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What every play of a run has in common: a model, its words, and who judges."""

    settings: TurnwiseSettings
    template: ChatTemplate
    engine: Engine
    judging: RewardScoring | None = None
    """None where the environment alone gives rewards."""
    rivals: OpponentSampler | None = None
    """Who is met in games of training beside the model itself."""

    def proxy(
        self,
        worlds: Sequence[World],
        *,
        split: str,
        group_size: int = 1,
        temperature: float = 0.0,
        workflow: type[Workflow] | None = None,
    ) -> AgentProxy:
        """A scheduler of plays, by default each task once and greedily; `workflow` stands in for the settings'."""
        rollout = self.settings.rollout
        chosen = workflow or find_workflow(self.settings)
        rules = RolloutOptions(
            sampling=Sampling(temperature=temperature),
            seed=self.settings.run.seed,
            workflow_args=rollout.workflow_args,
            # Evaluation measures one policy, against whoever the environment brings.
            seats=chosen.seats if split == "train" else 1,
            rivals=self.rivals if split == "train" else None,
            limits=RolloutLimits(
                max_concurrent=rollout.max_concurrent,
                timeout_s=rollout.episode_timeout_s,
                max_retries=rollout.max_retries,
            ),
        )
        states = build_states(self.settings, worlds, split, group_size=group_size)
        contexts = {world.tag: world.context for world in worlds}
        judging = self.judging and replace(self.judging, is_beside_workflow=chosen.pays_itself)
        target = self.settings.reward.shaping if split == "train" else None
        shaping = None if target is None else import_shaping(target)
        return AgentProxy(
            chosen, states, contexts, self.engine, self.template, rules=rules, judging=judging, shaping=shaping
        )


def build_states(
    settings: TurnwiseSettings, worlds: Sequence[World], split: str, *, group_size: int
) -> EnvStateManager:
    by_tag = {world.tag: world for world in worlds}
    return EnvStateManager(
        lambda tag, of_split: by_tag[tag].make(of_split),
        env_groups=sum(world.groups for world in worlds),
        group_size=group_size,
        env_configs=EnvConfigs(tags=tuple(by_tag), n_groups=tuple(world.groups for world in worlds)),
        limits={world.tag: world.limits for world in worlds},
        split=split,
        invalid_penalty=settings.rollout.invalid_penalty,
        first_seed=first_train_seed(settings),
    )


def build_tasks(settings: TurnwiseSettings, worlds: Sequence[World]) -> TaskSource:
    """The tasks of training: new ones for ever, or a finite set in the order of a selector."""
    chosen, first_seed = settings.tasks, first_train_seed(settings)
    tags, num_groups = [world.tag for world in worlds], [world.groups for world in worlds]
    if chosen.num_tasks is None:
        return SeedTasks(tags, num_groups, first_seed, "train")
    selectors: dict[str, Callable[[int, int], Selector]] = {
        "sequential": Sequential,
        "random": Shuffled,
        "difficulty": partial(ByDifficulty, target=chosen.target_success),
    }
    make_selector = selectors[chosen.selector]
    return FiniteTasks(tags, num_groups, first_seed, "train", num_tasks=chosen.num_tasks, make_selector=make_selector)


def held_out_tasks(settings: TurnwiseSettings, split: str = "eval") -> list[Task]:
    """The tasks of an evaluation, of every environment: always the same for the same settings, whatever the seed."""
    first, counts = settings.eval.first_seed, count_eval_tasks(settings, split)
    return [Task(tag=tag, seed=first + n, split=split) for tag, count in counts.items() for n in range(count)]


def first_train_seed(settings: TurnwiseSettings) -> int:
    return settings.rollout.first_seed + settings.run.seed * _SEEDS_PER_RUN


def build_scorer(settings: TurnwiseSettings) -> RewardScoring | None:
    """The judge of the run's environment; a reward model is loaded, and the built-in one trained, only here."""
    if problems := list(rewards_have_a_source(settings)):
        raise ConfigError(problems[0])
    chosen = settings.reward.judge
    if isinstance(chosen, NoScorer):
        return None
    tags = frozenset(world.tag for world in all_envs(settings) if world.is_judged)
    return RewardScoring(
        judge=_build_judge(chosen),
        tags=tags,
        success_above=chosen.success_above,
        weight=chosen.weight,
        beside_env=chosen.beside_env,
    )


def _build_judge(chosen: FunctionScorerSettings | ModelScorerSettings) -> Judge:
    if isinstance(chosen, FunctionScorerSettings):
        return FunctionScorer(import_reward_function(chosen.target))
    if (path := chosen.path or "") == "tiny":
        path = tiny_reward_folder(cache_folder() / "models", pairs=training_preferences(), seed=_JUDGE_SEED)
    return load_reward_model(path, batch_rows=chosen.batch_rows, max_tokens=chosen.max_tokens)
