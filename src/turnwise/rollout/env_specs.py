"""The environments of a run: the one of `env`, and those mixed in, each with its own conversation and budget."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from turnwise.config.component import ENVS, WORKFLOWS, import_reward_function, needs_scorer
from turnwise.config.kinds import EnvSettings
from turnwise.config.load import env_params
from turnwise.config.schema import ContextSettings, NoIsolation, ProcessIsolation, RayIsolation, TurnwiseSettings
from turnwise.config.schema_learn import FilePtx, FunctionScorerSettings, ModelScorerSettings, NoScorer
from turnwise.config.trust import UntrustedCodeError
from turnwise.context.answer import build_instructions, render_answer
from turnwise.envs.adapters.external import ExternalEnv
from turnwise.envs.base import BaseEnv, make_env
from turnwise.envs.isolation import IsolatedEnv, RayEnv, is_in_actor
from turnwise.envs.prompts.sources import PromptParser
from turnwise.envs.rows import RowFile, load_rows
from turnwise.envs.safe_calls import closing_env, count_tasks, describe_env, reset_env
from turnwise.errors import ConfigError
from turnwise.rollout.episode import Limits
from turnwise.rollout.scripted_policies import oracle_policy, run_policy
from turnwise.rollout.workflow import Workflow
from turnwise.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One environment: how it is made, talked to and limited, and its share of a rollout."""

    tag: str
    groups: int
    env: EnvSettings
    context: ContextSettings
    limits: Limits
    isolation: NoIsolation | ProcessIsolation | RayIsolation
    timeout_s: float | None = None
    """`rollout.episode_timeout_s`."""

    @property
    def runs_in_thread(self) -> bool:
        """Whether its calls are made in threads: one that hangs there can be left behind, one on the loop cannot.

        Our own worlds do not hang, and are quicker than the way into a thread.
        """
        return self.timeout_s is not None and self.env.type not in ENVS.shipped

    @property
    def is_judged(self) -> bool:
        """Whether its rewards come from a judge."""
        return needs_scorer(self.env.type)

    def count_tasks(self, split: str) -> int | None:
        """How many tasks it has in a split; None where there is no end of them."""
        with closing_env(self.make(split)) as env:
            return count_tasks(env, split)

    def make(self, split: str) -> BaseEnv:
        params = env_params(self.env, split)
        if isinstance(self.isolation, NoIsolation):
            env = make_env(self.env.type, **params)
            env.is_slow = env.is_slow or self.runs_in_thread
            if self.timeout_s is not None and isinstance(env, ExternalEnv):
                # By then its episode is given up.
                env.limit_calls(self.timeout_s)
            return env
        limits = self.isolation
        if isinstance(limits, RayIsolation):
            if not is_in_actor():
                return make_env(self.env.type, **params)
            return RayEnv(self.env.type, params, time_limit_s=limits.time_limit_s, cpus=limits.cpus)
        return IsolatedEnv(
            self.env.type,
            params,
            time_limit_s=limits.time_limit_s,
            max_memory_mb=limits.max_memory_mb,
            python=limits.python,
        )


def main_env(settings: TurnwiseSettings) -> World:
    """The environment that evaluation is about."""
    rollout, context = settings.rollout, settings.context
    return World(
        tag=settings.env.type,
        groups=rollout.groups,
        env=settings.env,
        context=context,
        limits=_limits(rollout.max_turns, rollout.max_actions, context),
        isolation=rollout.isolation,
        timeout_s=rollout.episode_timeout_s,
    )


def all_envs(settings: TurnwiseSettings) -> tuple[World, ...]:
    """Everything that training plays, the main environment first."""
    mixed = (
        World(
            tag=tag,
            groups=other.groups,
            env=other.env,
            context=other.context,
            limits=_limits(other.max_turns, other.max_actions, other.context),
            isolation=settings.rollout.isolation,
            timeout_s=settings.rollout.episode_timeout_s,
        )
        for tag, other in settings.mix.by_tag().items()
    )
    return main_env(settings), *mixed


def count_eval_tasks(settings: TurnwiseSettings, split: str = "eval") -> dict[str, int]:
    """How many tasks of each environment an evaluation plays."""
    episodes, counts = settings.eval.episodes, dict[str, int]()
    for world in all_envs(settings):
        count = world.count_tasks(split) if episodes == "all" else episodes
        if count is None:
            raise ConfigError(
                f"eval.episodes: 'all' given; environment '{world.env.type}' has no end of tasks for evaluation here. "
                "Set eval.episodes to a number."
            )
        counts[world.tag] = count
    return counts


def _limits(max_turns: int, max_actions: int | None, context: ContextSettings) -> Limits:
    return Limits(
        max_turns=max_turns, max_actions=max_actions, max_actions_per_turn=context.answer.max_actions_per_turn
    )


def find_workflow(settings: TurnwiseSettings) -> type[Workflow]:
    """The class behind `rollout.workflow`, with arguments that it takes."""
    name = settings.rollout.workflow
    chosen = WORKFLOWS.get_target(name)
    if not (isinstance(chosen, type) and issubclass(chosen, Workflow)):
        raise ConfigError(
            f"rollout.workflow: '{name}' is {chosen!r}; expected a class that extends turnwise.Workflow, or one of its "
            "kinds: StepWiseRewardWorkflow, RewardPropagationWorkflow."
        )
    if inspect.isabstract(chosen):
        missing = " and ".join(sorted(chosen.__abstractmethods__))
        raise ConfigError(f"rollout.workflow: '{name}' has no {missing}; write what its base class leaves open.")
    chosen.check_args(settings.rollout.workflow_args)
    chosen.check_settings(settings)
    return chosen


def require_oracle(settings: TurnwiseSettings, *, asked_by: str) -> None:
    """The main environment must have one where demonstrations are asked for."""
    if not has_oracle(main_env(settings)):
        raise ConfigError(f"{asked_by} is 'oracle' and '{settings.env.type}' has no oracle. Set {asked_by} to 'none'.")


def has_oracle(world: World) -> bool:
    with closing_env(world.make("train")) as env:
        return env.has_oracle


def read_pairs(ptx: FilePtx) -> list[tuple[str, str]]:
    """The prompts and responses of the file that `learn.ptx` names."""
    parser = PromptParser(prompt=ptx.prompt_field, response=ptx.response_field, section="learn.ptx")
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(load_rows(RowFile.find(ptx.path, parser.format()), parser), start=1):
        if row.response is None:
            raise ConfigError(
                f"learn.ptx.path: row {number} of '{ptx.path}' has no text under '{ptx.response_field}'; every row "
                "must have a response. Set learn.ptx.response_field to the key that holds it."
            )
        pairs.append((row.prompt, row.response))
    return pairs


_NUM_EPISODES = 400
_NUM_SLOW_EPISODES = 16
"""Where a reset may take a second; the words that were not met stay in single bytes."""
_PREAMBLE_WEIGHT = 50
"""The instructions stand in every first prompt; counted once, their words would stay in single bytes."""

_MAX_CHARACTERS = 20_000
"""Of one observation: beyond it there is nothing new to learn about its words."""


def sample_tokenizer_corpus(world: World) -> list[str]:
    """Observations and rendered answers of training tasks; the same for the same world."""
    with closing_env(world.make("train")) as env:
        return _draw(world, env)


def _draw(world: World, env: BaseEnv) -> list[str]:
    # By what the class says: the same world in a process of its own has the same tokenizer.
    is_slow = cast("type[BaseEnv]", ENVS.get_target(world.env.type)).is_slow
    texts: list[str] = []
    for seed in range(_NUM_SLOW_EPISODES if is_slow else _NUM_EPISODES):
        task = Task(tag=world.tag, seed=seed)
        observation = reset_env(env, seed=seed, split=task.split)
        if env.action_names is None and env.has_oracle:
            # Where any text is an answer, the words of a game are only met by playing it.
            for move in run_policy(env, oracle_policy, task, max_actions=world.limits.max_turns):
                texts += _texts_of_turn(move.observation, (move.action,), world)
        else:
            texts += _texts_of_turn(observation, env.action_names or (), world)
    texts += [build_instructions(describe_env(env), world.context)] * _PREAMBLE_WEIGHT
    return texts


def _texts_of_turn(observation: str, answers: Sequence[str], world: World) -> list[str]:
    # Observations stand behind a role token or behind a line break; words look different there.
    observation = observation[:_MAX_CHARACTERS]
    seen = [observation, f"\n{observation}", f" {observation}"]
    return [*seen, *(render_answer([answer], world.context.answer) for answer in answers), *answers]


def resolve_total_steps(settings: TurnwiseSettings) -> TurnwiseSettings:
    """The settings as they run. `tasks.epochs` wins over `learn.steps`: a recipe always has some."""
    tasks, learn, groups = settings.tasks, settings.learn, settings.rollout.groups
    if tasks.epochs is None:
        return settings
    num_tasks = tasks.num_tasks or main_env(settings).count_tasks("train")
    if num_tasks is None:
        raise ConfigError(
            f"tasks.epochs: {tasks.epochs} given; env.type '{settings.env.type}' has no end of training tasks here, so "
            "there are no epochs. Set tasks.num_tasks to how many of them to go through, or leave tasks.epochs away "
            "and set learn.steps."
        )
    steps = -(-num_tasks * tasks.epochs // groups)
    changes = {
        "tasks": tasks.model_copy(update={"num_tasks": num_tasks}),
        "learn": learn.model_copy(update={"steps": steps}),
    }
    return settings.model_copy(update=changes)


def _rewards_itself(workflow: str) -> bool:
    """Whether a workflow of the user's own says what a run is worth."""
    if workflow in WORKFLOWS.shipped:
        return False
    try:
        return callable(getattr(WORKFLOWS.get_target(workflow), "reward", None))
    except (ConfigError, UntrustedCodeError):
        return False


_JUDGE_CHOICES = (
    "Set reward.judge to your own function (prompt, response) -> number, for example reward.judge.type=function "
    "reward.judge.target=my_rewards:score, or to a reward model, for example reward.judge.type=model "
    "reward.judge.path=owner/reward-model (a Hugging Face folder or hub name, or 'tiny' for the built-in one)."
)


def rewards_have_a_source(settings: TurnwiseSettings) -> Iterator[str]:
    """Rewards come from the environment, from a judge or from both, never from nowhere."""
    judge = settings.reward.judge
    worlds = _worlds(settings)
    judged = {path: (env.type, context) for path, env, context in worlds if needs_scorer(env.type)}
    if isinstance(judge, NoScorer):
        if _rewards_itself(settings.rollout.workflow):
            return
        for path, (name, _) in list(judged.items())[:1]:
            yield f"{path}.type '{name}' gives no rewards of its own and reward.judge.type is 'none'. {_JUDGE_CHOICES}"
        return
    if not judged and judge.beside_env == "leave":
        yield (
            f"reward.judge.beside_env: 'leave' given; env.type '{settings.env.type}' gives rewards of its own, so the "
            "judge is never asked. Set it to 'add' or 'fill', or reward.judge.type to 'none'."
        )
    for path, (name, context) in judged.items():
        if context.answer.type != "plain":
            yield (
                f"{path.removesuffix('env')}context.answer.type: '{context.answer.type}' given; {path}.type '{name}' "
                "takes the whole reply, which the judge reads. Set it to 'plain'."
            )
    yield from _judge_problems(judge)


def _judge_problems(judge: FunctionScorerSettings | ModelScorerSettings) -> Iterator[str]:
    if isinstance(judge, FunctionScorerSettings):
        try:
            import_reward_function(judge.target)
        except ConfigError as error:
            yield str(error)
    elif not judge.path:
        yield f"reward.judge.path: nothing given; expected a reward model. {_JUDGE_CHOICES}"


def _worlds(settings: TurnwiseSettings) -> list[tuple[str, EnvSettings, ContextSettings]]:
    """Every environment of a run with its config path."""
    mixed = [(f"mix.{tag}.env", other.env, other.context) for tag, other in settings.mix.by_tag().items()]
    return [("env", settings.env, settings.context), *mixed]
