"""Settings and a model that do not fit each other, told before anything is played.

In: settings, and how the model speaks. Out: notices, each with what to change. Nothing here stops a run: what cannot
run at all is refused in `refusals.py`, and what only shows by playing is told in `first_look.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rich.console import Console
from transformers import PreTrainedConfig

from turnwise.config.schema import TurnwiseSettings
from turnwise.context.answer import render_answer
from turnwise.envs.safe_calls import call_env, closing_env, reset_env
from turnwise.errors import Finding, TurnwiseError
from turnwise.loop.build import first_train_seed
from turnwise.protocols import ChatTemplate
from turnwise.report.console import print_notice
from turnwise.report.run_dir import RunDirectory
from turnwise.rollout.env_specs import World, main_world

_MAX_LR, _MAX_LR_LORA = 5e-4, 2e-3
"""From here on the learning rate is one for a toy: of all weights, and of adapters."""
_MIN_TEMPERATURE = 0.2
_MIN_REPLY_TOKENS = 8
_MAX_QUOTED = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """One thing that does not fit."""

    kind: str
    message: str
    """What was seen, and what to change."""


def find_misfits(settings: TurnwiseSettings) -> list[Misfit]:
    """What the settings alone tell."""
    return [] if settings.model.path == "tiny" else list(_toy_settings(settings))


def _toy_settings(settings: TurnwiseSettings) -> Iterator[Misfit]:
    """Settings that were made for the built-in model, which starts from nothing."""
    lr, is_lora = settings.learn.optim.lr, settings.model.lora.type == "lora"
    limit = _MAX_LR_LORA if is_lora else _MAX_LR
    if lr > limit or (lr == limit and not is_lora):
        usual = "1e-4" if is_lora else "1e-6 to 1e-5, or model.lora.type=lora with 1e-4"
        yield Misfit(
            kind="toy_learning_rate",
            message=f"learn.optim.lr = {lr:g} is one for the built-in model; a pretrained one is undone by it within "
            f"a few updates. Try {usual}.",
        )
    if settings.rollout.temperature < _MIN_TEMPERATURE and settings.rollout.group_size > 1:
        yield Misfit(
            kind="low_temperature",
            message=f"rollout.temperature = {settings.rollout.temperature:g} makes siblings say the same, so that "
            "there is nothing to compare. Set it to 0.7 to 1.",
        )
    if settings.warm_start.type == "none":
        yield from _unexplained(main_world(settings))


def _unexplained(world: World) -> Iterator[Misfit]:
    """What a model that nobody taught cannot know or say."""
    context, answer = world.context, world.context.answer
    if context.instructions == "none" and not world.is_judged:
        yield Misfit(
            kind="no_instructions",
            message="context.instructions is 'none': a pretrained model is told neither the rules nor the actions nor "
            "how to answer. Set context.instructions=full, or teach it first with warm_start.type=oracle.",
        )
    if context.max_response_tokens < _MIN_REPLY_TOKENS and not world.is_judged:
        yield Misfit(
            kind="toy_reply",
            message=f"context.max_response_tokens = {context.max_response_tokens} is one for the built-in model; in "
            "the tokens of another an answer with its tags seldom fits. Set it to 32 or more.",
        )
    if answer.is_strict and answer.type != "plain":
        yield Misfit(
            kind="strict_answer",
            message="context.answer.is_strict refuses every reply with a word or a blank beside its tags, as models "
            "that nobody taught write them. Set context.answer.is_strict=false.",
        )


def find_model_misfits(
    settings: TurnwiseSettings, template: ChatTemplate, config: PreTrainedConfig | None
) -> list[Misfit]:
    """What the model and its words tell."""
    found = list(_short_positions(settings, config)) + list(_short_budget(settings, template))
    if template.end_of_turn_id is None:
        found.append(
            Misfit(
                kind="no_end_of_turn",
                message="the chat template closes a reply with no single token, so only the tokenizer's eos token ends "
                "one: replies may run on to context.max_response_tokens. Use an instruction-tuned model, or set "
                "eos_token in tokenizer_config.json to the token that ends its replies.",
            )
        )
    return found


def _short_positions(settings: TurnwiseSettings, config: PreTrainedConfig | None) -> Iterator[Misfit]:
    limit = settings.context.max_tokens
    positions = getattr(config and config.get_text_config(), "max_position_embeddings", None) or limit
    if positions < limit:
        yield Misfit(
            kind="short_positions",
            message=f"the model reads {positions} positions and context.max_tokens is {limit}: longer episodes would "
            f"fail. Set context.max_tokens={positions} or less.",
        )


def _short_budget(settings: TurnwiseSettings, template: ChatTemplate) -> Iterator[Misfit]:
    """The oracle's own answer, in the tokens of this model."""
    world = main_world(settings)
    answer, limit = world.context.answer, world.context.max_response_tokens
    actions = _right_actions(world, first_train_seed(settings))
    texts = [render_answer([action], answer).removeprefix(answer.forced_prefix) for action in actions]
    # And the token that ends it.
    needed = max((len(template.encode_text(text)) + 1 for text in texts), default=0)
    if needed > limit:
        text = max(texts, key=len)
        yield Misfit(
            kind="short_budget",
            message=f"context.max_response_tokens = {limit}, and a right answer, {quoted(text)}, has {needed} tokens "
            f"with its end: it can never be given. Set it to {2 * needed} or more.",
        )


def _right_actions(world: World, seed: int) -> list[str]:
    """What the oracle would do first; none where there is no oracle, or the world does not begin."""
    with closing_env(world.make("train")) as env, suppress(TurnwiseError):
        reset_env(env, seed=seed, split="train")
        return [str(call_env(env, "oracle"))] if env.has_oracle else []
    return []


def quoted(text: str) -> str:
    """A text of the model in a line of ours."""
    return repr(text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…")


def tell_misfits(found: Sequence[Misfit], *, step: int, directory: RunDirectory, console: Console) -> None:
    """On the console, and among the findings of the run."""
    for misfit in found:
        finding = Finding(step=step, kind=misfit.kind, since=step, is_collapse=False, message=misfit.message)
        directory.append_finding(finding)
        print_notice(console, f"{misfit.kind}: {misfit.message}")
