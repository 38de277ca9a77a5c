"""Settings in, connected objects out: the only place that knows every concrete class.

Collaborators meet here and nowhere else; each gets the others as protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from turnwise.config.checks import rewards_have_one_source
from turnwise.config.registry import CREDITS, ENGINES, LOSSES, PRIORITIES, WORKFLOWS, import_reward_function
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.sections.engine import LocalEngineParams
from turnwise.config.sections.reward import FunctionJudgeSettings, ModelJudgeSettings, NoJudge
from turnwise.context.manager import ContextManager
from turnwise.context.template import LearnedTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.engine.local import LocalEngine
from turnwise.engine.scoped import ScopedEngine
from turnwise.envs.prompts.letters import training_preferences
from turnwise.envs.selectors import ByDifficulty, FiniteTasks, Selector, Sequential, Shuffled
from turnwise.envs.tasks import SeedTasks
from turnwise.errors import ConfigError
from turnwise.experience.buffer import BufferRules, MemoryBuffer
from turnwise.experience.store import ExperienceStore
from turnwise.learn.models import cache_folder, load_model, torch_dtype
from turnwise.learn.reward_model import load_judge
from turnwise.learn.tiny_reward import tiny_reward_folder
from turnwise.learn.trainer import Trainer
from turnwise.loop.worlds import World, main_world, worlds_of
from turnwise.protocols import CreditRule, GroupPriority, Judge, PolicyLoss
from turnwise.report.run_dir import RunDirectory
from turnwise.rollout.agent_proxy import AgentProxy
from turnwise.rollout.env_manager import EnvConfigs, EnvStateManager
from turnwise.rollout.judges import FunctionJudge, Judging
from turnwise.rollout.runner import Front, RunnerLimits
from turnwise.rollout.step_wise import Workflow
from turnwise.rollout.workflow import EnvironmentFront, WorkflowFactory
from turnwise.rollout.workflow_front import Terms, WorkflowFront
from turnwise.sync.memory import MemoryChannel
from turnwise.types import Sampling, Task

_SEEDS_PER_RUN = 10_000_000
"""Runs of different seeds count their tasks from points this far apart, so that they never share one."""

_JUDGE_SEED = 0
"""The built-in judge is a yardstick: the same for runs of all seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayParts:
    """What is needed to play with a policy: for evaluation alone, this is all."""

    settings: TurnwiseSettings
    tokenizer: PreTrainedTokenizerBase
    template: LearnedTemplate
    engine: LocalEngine
    eval_proxy: AgentProxy
    eval_tasks: Sequence[Task]
    judging: Judging | None
    """None where the environment gives its own rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainParts(PlayParts):
    """Everything a training loop connects."""

    tasks: SeedTasks | FiniteTasks
    proxy: AgentProxy
    greedy_proxy: AgentProxy | None
    """Plays each task once more, greedily, for credit that measures against it."""
    new_proxies: Callable[[], tuple[AgentProxy, AgentProxy | None]]
    """Makes the two above once more, for a rollout beside a running one."""
    context: ContextManager
    buffer: MemoryBuffer | ExperienceStore
    credit: CreditRule
    learner: Trainer
    channel: MemoryChannel

    @property
    def groups_per_rollout(self) -> int:
        return sum(self.tasks.num_groups)


def build_play(settings: TurnwiseSettings, model_path: str | Path, *, split: str = "eval") -> PlayParts:
    """Tokenizer, engine and the tasks of a split, each to be played once."""
    tokenizer, template, engine = build_engine(settings, str(model_path))
    judging = build_judging(settings)
    return PlayParts(
        settings=settings,
        tokenizer=tokenizer,
        template=template,
        engine=engine,
        # Each task once, greedily by default.
        eval_proxy=_build_proxy(
            settings,
            [replace(main_world(settings), groups=settings.eval.episodes)],
            template,
            engine,
            judging,
            split="eval",
            group_size=1,
            temperature=settings.eval.temperature,
        ),
        eval_tasks=held_out_tasks(settings, split),
        judging=judging,
    )


def build_engine(settings: TurnwiseSettings, path: str) -> tuple[PreTrainedTokenizerBase, LearnedTemplate, LocalEngine]:
    """A model that answers, with its words."""
    tokenizer = load_tokenizer(path)
    template = LearnedTemplate(tokenizer)
    if settings.context.system_prompt and not template.accepts_system:
        raise ConfigError(f"context.system_prompt is set and the chat template of '{path}' has no system role.")
    engine_class = cast(Callable[..., LocalEngine], ENGINES.get_target(settings.engine.type))
    model = load_model(path, torch_dtype(settings.model.dtype))
    engine = engine_class(model, stop_ids=template.stop_ids, max_rows=cast(LocalEngineParams, settings.engine).max_rows)
    return cast(PreTrainedTokenizerBase, tokenizer), template, engine


def build_train(settings: TurnwiseSettings, model_path: str | Path, *, run_path: Path | None = None) -> TrainParts:
    """All parts of a training run; `run_path` is where a durable buffer lies."""
    play = build_play(settings, model_path)
    worlds = worlds_of(settings)
    loss_class = cast(Callable[[Any], PolicyLoss], LOSSES.get_target(cast(Any, settings.learn.loss).type))
    credit_class = cast(Callable[[Any], CreditRule], CREDITS.get_target(cast(Any, settings.credit).type))
    credit = credit_class(settings.credit)
    rollout = partial(_build_proxy, settings, worlds, play.template, play.engine, play.judging, split="train")
    learner = Trainer(
        load_model(model_path),
        settings.learn,
        loss_class(settings.learn.loss),
        temperature=settings.rollout.temperature,
        seed=settings.run.seed,
        model_settings=settings.model,
    )

    def new_proxies() -> tuple[AgentProxy, AgentProxy | None]:
        proxy = rollout(group_size=settings.rollout.group_size, temperature=settings.rollout.temperature)
        return proxy, rollout(group_size=1, temperature=0.0) if credit.needs_greedy else None

    proxy, greedy_proxy = new_proxies()
    return TrainParts(
        settings=settings,
        tokenizer=play.tokenizer,
        template=play.template,
        engine=play.engine,
        eval_proxy=play.eval_proxy,
        eval_tasks=play.eval_tasks,
        judging=play.judging,
        tasks=build_tasks(settings, worlds),
        proxy=proxy,
        greedy_proxy=greedy_proxy,
        new_proxies=new_proxies,
        context=build_context(worlds, play.template),
        buffer=build_buffer(settings, run_path),
        credit=credit,
        learner=learner,
        channel=MemoryChannel([play.engine]),
    )


def build_buffer(settings: TurnwiseSettings, run_path: Path | None) -> MemoryBuffer | ExperienceStore:
    """The buffer of a run; a durable one that is there already is opened."""
    chosen = settings.buffer
    priority = cast(Callable[[Any], GroupPriority], PRIORITIES.get_target(cast(Any, chosen.priority).type))
    rules = BufferRules(
        train_batch_size=chosen.train_batch_size,
        unit=chosen.unit,
        capacity=chosen.capacity,
        reuse_cooldown=chosen.reuse_cooldown,
        priority=priority(chosen.priority),
    )
    if chosen.type == "memory":
        return MemoryBuffer(rules)
    if run_path is None:
        raise ConfigError("buffer.type: 'sqlite' given without a run directory to keep it in; expected 'memory'.")
    return ExperienceStore(RunDirectory(run_path).experience, rules)


def build_tasks(settings: TurnwiseSettings, worlds: Sequence[World]) -> SeedTasks | FiniteTasks:
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
    """The tasks of an evaluation: always the same for the same settings, whatever the run's seed."""
    first = settings.eval.first_seed
    return [Task(tag=settings.env.type, seed=first + n, split=split) for n in range(settings.eval.episodes)]


def first_train_seed(settings: TurnwiseSettings) -> int:
    return settings.rollout.first_seed + settings.run.seed * _SEEDS_PER_RUN


def build_context(worlds: Sequence[World], template: LearnedTemplate) -> ContextManager:
    return ContextManager(template, {world.tag: world.context for world in worlds})


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


def _build_proxy(
    settings: TurnwiseSettings,
    worlds: Sequence[World],
    template: LearnedTemplate,
    engine: LocalEngine,
    judging: Judging | None,
    *,
    split: str,
    group_size: int,
    temperature: float,
) -> AgentProxy:
    rollout = settings.rollout
    sampling = replace(Sampling(), temperature=temperature)
    # Each proxy chooses its cache keys as if it had the engine to itself.
    scoped = ScopedEngine(engine)
    front: Front
    chosen = WORKFLOWS.get_target(rollout.workflow)
    if isinstance(chosen, type) and issubclass(chosen, Workflow):
        chosen.check_args(rollout.workflow_args)
        terms = {world.tag: _terms_of(world, settings) for world in worlds}
        seed = settings.run.seed
        front = WorkflowFront(chosen, terms, scoped, template, group_size=group_size, sampling=sampling, seed=seed)
    else:
        front = EnvironmentFront(
            build_states(settings, worlds, split, group_size=group_size),
            build_context(worlds, template),
            scoped,
            cast(WorkflowFactory, chosen),
            sampling=sampling,
            seed=settings.run.seed,
        )
    limits = RunnerLimits(
        max_concurrent=rollout.max_concurrent, timeout_s=rollout.episode_timeout_s, max_retries=rollout.max_retries
    )
    return AgentProxy(front, limits=limits, judging=judging)


def _terms_of(world: World, settings: TurnwiseSettings) -> Terms:
    return Terms(
        make_env=world.make,
        context=world.context,
        limits=world.limits,
        invalid_penalty=settings.rollout.invalid_penalty,
        workflow_args=settings.rollout.workflow_args,
    )


def build_judging(settings: TurnwiseSettings) -> Judging | None:
    """The judge of the run's environment; a reward model is loaded, and the built-in one trained, only here."""
    if problems := list(rewards_have_one_source(settings)):
        raise ConfigError(problems[0])
    chosen = settings.reward.judge
    if isinstance(chosen, NoJudge):
        return None
    tags = frozenset(world.tag for world in worlds_of(settings) if world.is_judged)
    return Judging(judge=_build_judge(chosen), tags=tags, success_above=chosen.success_above)


def _build_judge(chosen: FunctionJudgeSettings | ModelJudgeSettings) -> Judge:
    if isinstance(chosen, FunctionJudgeSettings):
        return FunctionJudge(import_reward_function(chosen.target))
    path = chosen.path or ""
    if path == "tiny":
        path = tiny_reward_folder(cache_folder() / "models", pairs=training_preferences(), seed=_JUDGE_SEED)
    return load_judge(path, batch_rows=chosen.batch_rows, max_tokens=chosen.max_tokens)
