"""Settings that contradict each other are refused; settings that do nothing are named. Nothing is rewritten."""

from __future__ import annotations

from typing import Any, cast

from pydantic import ValidationError

from turnwise.config.choices import Choice, chosen_in
from turnwise.config.load import env_params
from turnwise.config.problems import describe_problems
from turnwise.config.registry import CREDITS, ENVS, import_reward_function
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.sections.buffer import BufferSettings
from turnwise.config.sections.context import ContextSettings
from turnwise.config.sections.env import EnvSettings
from turnwise.config.sections.learn import NoCritic, NoKl
from turnwise.config.sections.model import TinySettings
from turnwise.config.sections.reward import FunctionJudgeSettings, ModelJudgeSettings, NoFilter, NoJudge
from turnwise.config.sections.sync import SyncSettings
from turnwise.config.sections.tasks import TaskSettings
from turnwise.config.sections.watch import WatchSettings
from turnwise.config.settings import Settings
from turnwise.errors import ConfigError


def check_settings(settings: TurnwiseSettings) -> None:
    """Raise a ConfigError that lists every contradiction."""
    problems = [
        *_credit_problems(settings),
        *_size_problems(settings),
        *_choice_problems(settings),
        *_env_problems(settings),
        *judge_problems(settings),
        *_sync_problems(settings),
        *_mode_problems(settings),
    ]
    if problems:
        raise ConfigError(
            "\n  ".join(["the settings contradict each other:", *problems]) if problems[1:] else problems[0]
        )


def _credit_problems(settings: TurnwiseSettings) -> list[str]:
    name = settings.credit.type
    rule: Any = CREDITS.get_target(name)
    missing = [need for need in ("needs_values", "needs_groups", "needs_greedy") if not hasattr(rule, need)]
    if missing:
        return [
            f"credit.type '{name}' does not say what it needs; set {', '.join(missing)} = True or False on the class."
        ]
    problems = []
    if rule.needs_values and isinstance(settings.learn.critic, NoCritic):
        problems.append(
            f"credit.type '{name}' needs a critic and learn.critic.type is 'none'. Set learn.critic.type to "
            "'value_head' or 'model', or choose a rule without a critic, such as 'grpo'."
        )
    if rule.needs_groups and settings.rollout.group_size < 2:
        problems.append(
            f"rollout.group_size: {settings.rollout.group_size} given; credit.type '{name}' compares siblings and "
            "needs at least 2."
        )
    return problems


def _sync_problems(settings: TurnwiseSettings) -> list[str]:
    sync = settings.sync
    if settings.loop.type != "pipelined" or sync.style != "fixed" or sync.max_staleness is None:
        return []
    needed = sync.interval - 1 + (sync.offset or 0)
    if sync.max_staleness >= needed:
        return []
    causes = f"sync.interval = {sync.interval} and sync.offset = {sync.offset or 0}"
    given = f"sync.max_staleness: {sync.max_staleness} given; {causes} let weights be {needed} updates behind."
    return [f"{given} Raise it, or lower those."]


def _mode_problems(settings: TurnwiseSettings) -> list[str]:
    """Processes of their own meet in the run directory, so what they share must lie there."""
    mode = settings.run.mode
    if settings.buffer.offline is not None and mode != "train":
        return [f"buffer.offline: a file given; run.mode '{mode}' does not learn from one. Set run.mode=train."]
    if mode not in ("explore", "train"):
        return []
    choices = {"buffer.type": (settings.buffer.type, "sqlite"), "sync.method": (settings.sync.method, "checkpoint")}
    return [
        f"{path}: '{given}' given; run.mode '{mode}' shares it with another process. Set {path}={expected}."
        for path, (given, expected) in choices.items()
        if given == "memory"
    ]


def _size_problems(settings: TurnwiseSettings) -> list[str]:
    problems = []
    context, buffer, group_size = settings.context, settings.buffer, settings.rollout.group_size
    if context.max_response_tokens >= context.max_tokens:
        problems.append(
            f"context.max_response_tokens: {context.max_response_tokens} given; it must be below context.max_tokens = "
            f"{context.max_tokens}, which holds prompt and reply."
        )
    sizes = {"buffer.capacity": buffer.capacity}
    if buffer.unit == "experiences":
        sizes["buffer.train_batch_size"] = buffer.train_batch_size
    problems += [
        f"rollout.group_size: {group_size} given; a group does not fit into {path} = {size}, and groups stay whole."
        for path, size in sizes.items()
        if size is not None and size < group_size
    ]
    num_tasks = settings.tasks.num_tasks
    chosen = settings.reward.filter
    rounds = 1 if isinstance(chosen, NoFilter) else chosen.max_rounds
    for path, groups in _groups_of_worlds(settings):
        if num_tasks is not None and num_tasks < groups * rounds:
            problems.append(
                f"tasks.num_tasks: {num_tasks} given; one exploration plays up to {path} = {groups} different tasks in "
                f"each of {rounds} rounds, so it must be at least {groups * rounds}."
            )
    return problems


def _groups_of_worlds(settings: TurnwiseSettings) -> list[tuple[str, int]]:
    mixed = [(f"mix.{tag}.groups", other.groups) for tag, other in settings.mix.by_tag().items()]
    return [("rollout.groups", settings.rollout.groups), *mixed]


def _choice_problems(settings: TurnwiseSettings) -> list[str]:
    """A class of the user's own must have what the code will call; the registered ones are known to."""
    problems = []
    for path, choice, name in chosen_in(settings):
        if name not in choice.registry:
            try:
                problems += _class_problems(path, choice, name, choice.registry.get_target(name))
            except ConfigError as error:
                problems.append(f"{path}: {error}")
    return problems


def _class_problems(path: str, choice: Choice, name: str, target: object) -> list[str]:
    if not callable(target):
        expected = "class" if choice.methods else "function"
        return [f"{path}: '{name}' is {target!r}; expected a {expected}."]
    if not isinstance(target, type):
        # What a function returns is known when it is called.
        return []
    unwritten = getattr(target, "__abstractmethods__", frozenset[str]())
    # Looked for in the class itself: every class can be called, its objects only where it says so.
    defined = {attribute for cls in target.__mro__ for attribute in vars(cls)} - unwritten
    if not (missing := [method for method in choice.methods if method not in defined]):
        return []
    return [f"{path}: '{name}' has no {', '.join(missing)}; expected a class with {', '.join(choice.methods)}."]


def _env_problems(settings: TurnwiseSettings) -> list[str]:
    problems = [problem for path, env, _ in _worlds(settings) for problem in _train_env_problems(path, env)]
    if settings.env.type in settings.mix.by_tag():
        problems.append(f"mix.{settings.env.type}: a tag must differ from env.type; give it another name.")
    return problems


def _train_env_problems(path: str, env: EnvSettings) -> list[str]:
    """`env.train` holds the environment's own settings, so it must fit them as `env` does."""
    params = cast("type[Settings]", ENVS.get_params(env.type) or Settings)
    try:
        params.model_validate(env_params(env, "train"))
    except ValidationError as error:
        return [f"{path}.train: {describe_problems(error, params)}"]
    return []


_JUDGE_CHOICES = (
    "Set reward.judge to your own function (prompt, response) -> number, for example reward.judge.type=function "
    "reward.judge.target=my_rewards:score, or to a reward model, for example reward.judge.type=model "
    "reward.judge.path=owner/reward-model (a Hugging Face folder or hub name, or 'tiny' for the built-in one)."
)


def judge_problems(settings: TurnwiseSettings) -> list[str]:
    """Rewards come from the environment or from a judge, never from both and never from nowhere."""
    judge = settings.reward.judge
    judged = {path: (env.type, context) for path, env, context in _worlds(settings) if _is_judged(env)}
    if isinstance(judge, NoJudge):
        if not judged:
            return []
        path, (name, _) = next(iter(judged.items()))
        return [f"{path}.type '{name}' gives no rewards of its own and reward.judge.type is 'none'. {_JUDGE_CHOICES}"]
    if not judged:
        wrong = f"reward.judge.type: '{judge.type}' given; env.type '{settings.env.type}' gives rewards of its own."
        return [f"{wrong} Set reward.judge.type to 'none', or env.type to one without rewards, such as 'prompts'."]
    problems = [
        f"{path.removesuffix('env')}context.answer.type: '{context.answer.type}' given; {path}.type '{name}' takes the "
        "whole reply, which the judge reads. Set it to 'plain'."
        for path, (name, context) in judged.items()
        if context.answer.type != "plain"
    ]
    if isinstance(judge, ModelJudgeSettings) and not judge.path:
        problems.append(f"reward.judge.path: nothing given; expected a reward model. {_JUDGE_CHOICES}")
    if isinstance(judge, FunctionJudgeSettings):
        try:
            import_reward_function(judge.target)
        except ConfigError as error:
            problems.append(str(error))
    return problems


def _worlds(settings: TurnwiseSettings) -> list[tuple[str, EnvSettings, ContextSettings]]:
    """Every environment of a run with its config path."""
    mixed = [(f"mix.{tag}.env", other.env, other.context) for tag, other in settings.mix.by_tag().items()]
    return [("env", settings.env, settings.context), *mixed]


def _is_judged(env: EnvSettings) -> bool:
    return bool(getattr(ENVS.get_target(env.type), "is_judged", False))


def find_no_effect(settings: TurnwiseSettings) -> list[str]:
    """Settings that were chosen and change nothing in this combination."""
    notes = []
    rule: Any = CREDITS.get_target(settings.credit.type)
    if not rule.needs_values and not isinstance(settings.learn.critic, NoCritic):
        notes.append(
            f"learn.critic.type is '{settings.learn.critic.type}' and credit.type '{settings.credit.type}' uses "
            "no critic: it is trained and never asked."
        )
    if settings.context.window != "sliding" and settings.context.window_turns != ContextSettings().window_turns:
        notes.append(f"context.window_turns has no effect with context.window '{settings.context.window}'.")
    if settings.learn.optim.schedule == "constant" and settings.learn.optim.final_lr_share > 0:
        notes.append("learn.optim.final_lr_share has no effect with learn.optim.schedule 'constant'.")
    if settings.model.path != "tiny" and settings.model.tiny != TinySettings():
        notes.append("model.tiny has no effect when model.path is not 'tiny'.")
    if settings.rollout.group_size == 1 and settings.watch.min_spread_share != WatchSettings().min_spread_share:
        notes.append("watch.min_spread_share has no effect with rollout.group_size 1: nobody has siblings.")
    if isinstance(settings.learn.kl, NoKl) and settings.watch.max_reference_kl != WatchSettings().max_reference_kl:
        notes.append("watch.max_reference_kl has no effect with learn.kl.type 'none': there is no reference.")
    if settings.rollout.workflow == "environment" and settings.rollout.workflow_args:
        notes.append("rollout.workflow_args has no effect with rollout.workflow 'environment'.")
    for path, env, _ in _worlds(settings):
        notes += [f"{path}.{name} has no effect while {path}.{why}." for name, why in env.idle_settings().items()]
    notes += [*_sync_notes(settings), *_idle_tasks(settings.tasks), *_idle_buffer(settings.buffer)]
    judge = settings.reward.judge
    if isinstance(judge, ModelJudgeSettings) and judge.path == "tiny" and getattr(settings.env, "path", None):
        notes.append(
            "reward.judge.path 'tiny' has learnt from the built-in prompts alone: its scores for the prompts of "
            "env.path mean nothing."
        )
    return notes


def _sync_notes(settings: TurnwiseSettings) -> list[str]:
    sync, plain = settings.sync, SyncSettings()
    if settings.run.mode != "both":
        return []
    if settings.loop.type == "serial":
        changed = [
            name
            for name in ("style", "max_staleness", "offset", "timeout_s", "method")
            if getattr(sync, name) != getattr(plain, name)
        ]
        return [f"sync.{name} has no effect with loop.type 'serial'." for name in changed]
    if sync.style != "fixed" and sync.offset is not None:
        return [f"sync.offset has no effect with sync.style '{sync.style}'."]
    return []


def _idle_tasks(tasks: TaskSettings) -> list[str]:
    notes = []
    if tasks.num_tasks is None and tasks.selector != "sequential":
        notes.append(f"tasks.selector '{tasks.selector}' has no effect without tasks.num_tasks: no task comes twice.")
    if tasks.selector != "difficulty" and tasks.target_success != TaskSettings().target_success:
        notes.append(f"tasks.target_success has no effect with tasks.selector '{tasks.selector}'.")
    return notes


def _idle_buffer(buffer: BufferSettings) -> list[str]:
    notes = []
    if buffer.train_batch_size is None and buffer.unit != "experiences":
        notes.append(f"buffer.unit '{buffer.unit}' has no effect without buffer.train_batch_size.")
    for key in sorted({"decay", "use_count_limit"} & buffer.priority.model_fields_set):
        if buffer.reuse_cooldown is None and getattr(buffer.priority, key) != _default_of(buffer.priority, key):
            notes.append(f"buffer.priority.{key} has no effect without buffer.reuse_cooldown: no group is used twice.")
    return notes


def _default_of(section: Settings, key: str) -> Any:
    return type(section).model_fields[key].default
