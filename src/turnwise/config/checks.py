"""Settings that contradict each other are refused; settings that do nothing are named. Nothing is rewritten."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from turnwise.config.load import env_params, params_class
from turnwise.config.problems import describe_problems
from turnwise.config.registry import CREDITS, ENGINES, ENVS, WORKFLOWS, Registry, import_reward_function
from turnwise.config.schema import (
    ContextSettings,
    FunctionJudgeSettings,
    ModelJudgeSettings,
    NoCritic,
    NoJudge,
    TinySettings,
    TurnwiseSettings,
)
from turnwise.errors import ConfigError


def check_settings(settings: TurnwiseSettings) -> None:
    """Raise a ConfigError that lists every contradiction."""
    problems = [
        *_credit_problems(settings),
        *_size_problems(settings),
        *_name_problems("engine.type", ENGINES, settings.engine.type),
        *_name_problems("rollout.workflow", WORKFLOWS, settings.rollout.workflow),
        *_train_env_problems(settings),
        *judge_problems(settings),
    ]
    if problems:
        raise ConfigError(
            "\n  ".join(["the settings contradict each other:", *problems]) if problems[1:] else problems[0]
        )


def _credit_problems(settings: TurnwiseSettings) -> list[str]:
    name = _type_of(settings.credit)
    rule: Any = CREDITS.get_target(name)
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


def _size_problems(settings: TurnwiseSettings) -> list[str]:
    problems = []
    context, size = settings.context, settings.buffer.train_batch_size
    if context.max_response_tokens >= context.max_tokens:
        problems.append(
            f"context.max_response_tokens: {context.max_response_tokens} given; it must be below context.max_tokens = "
            f"{context.max_tokens}, which holds prompt and reply."
        )
    if size is not None and size < settings.rollout.group_size:
        problems.append(
            f"rollout.group_size: {settings.rollout.group_size} given; a group does not fit into "
            f"buffer.train_batch_size = {size}, and groups stay whole."
        )
    return problems


def _name_problems(path: str, registry: Registry, name: str) -> list[str]:
    try:
        registry.get_target(name)
    except ConfigError as error:
        return [f"{path}: {error}"]
    return []


def _train_env_problems(settings: TurnwiseSettings) -> list[str]:
    """`env.train` holds the environment's own settings, so it must fit them as `env` does."""
    params = params_class(ENVS, settings.env.type, "env")
    try:
        params.model_validate(env_params(settings, "train"))
    except ValidationError as error:
        return [f"env.train: {describe_problems(error, params)}"]
    return []


_JUDGE_CHOICES = (
    "Set reward.judge to your own function (prompt, response) -> number, for example reward.judge.type=function "
    "reward.judge.target=my_rewards:score, or to a reward model, for example reward.judge.type=model "
    "reward.judge.path=owner/reward-model (a Hugging Face folder or hub name, or 'tiny' for the built-in one)."
)


def judge_problems(settings: TurnwiseSettings) -> list[str]:
    """Rewards come from the environment or from a judge, never from both and never from nowhere."""
    name, judge = settings.env.type, settings.reward.judge
    is_judged = bool(getattr(ENVS.get_target(name), "is_judged", False))
    if isinstance(judge, NoJudge):
        wrong = f"env.type '{name}' gives no rewards of its own and reward.judge.type is 'none'. {_JUDGE_CHOICES}"
        return [wrong] if is_judged else []
    if not is_judged:
        wrong = f"reward.judge.type: '{judge.type}' given; env.type '{name}' gives rewards of its own."
        return [f"{wrong} Set reward.judge.type to 'none', or env.type to one without rewards, such as 'prompts'."]
    problems = []
    if isinstance(judge, ModelJudgeSettings) and not judge.path:
        problems.append(f"reward.judge.path: nothing given; expected a reward model. {_JUDGE_CHOICES}")
    if isinstance(judge, FunctionJudgeSettings):
        try:
            import_reward_function(judge.target)
        except ConfigError as error:
            problems.append(str(error))
    if settings.context.answer.type != "plain":
        problems.append(
            f"context.answer.type: '{settings.context.answer.type}' given; env.type '{name}' takes the whole reply, "
            "which the judge reads. Set it to 'plain'."
        )
    return problems


def find_no_effect(settings: TurnwiseSettings) -> list[str]:
    """Settings that were chosen and change nothing in this combination."""
    notes = []
    rule: Any = CREDITS.get_target(_type_of(settings.credit))
    if not rule.needs_values and not isinstance(settings.learn.critic, NoCritic):
        notes.append(
            f"learn.critic.type is '{settings.learn.critic.type}' and credit.type '{_type_of(settings.credit)}' uses "
            "no critic: it is trained and never asked."
        )
    if settings.context.window != "sliding" and settings.context.window_turns != ContextSettings().window_turns:
        notes.append(f"context.window_turns has no effect with context.window '{settings.context.window}'.")
    if settings.learn.optim.schedule == "constant" and settings.learn.optim.final_lr_share > 0:
        notes.append("learn.optim.final_lr_share has no effect with learn.optim.schedule 'constant'.")
    if settings.model.path != "tiny" and settings.model.tiny != TinySettings():
        notes.append("model.tiny has no effect when model.path is not 'tiny'.")
    judge = settings.reward.judge
    if isinstance(judge, ModelJudgeSettings) and judge.path == "tiny" and getattr(settings.env, "path", None):
        notes.append(
            "reward.judge.path 'tiny' has learnt from the built-in prompts alone: its scores for the prompts of "
            "env.path mean nothing."
        )
    return notes


def _type_of(choice: Any) -> str:
    return choice.type
