"""Settings and a model that do not fit each other, told before anything is played.

In: settings, and how the model speaks. Out: notices, each with what to change. Nothing here stops a run: what cannot
run at all is refused in `refusals.py`, and what only shows by playing is told in `first_look.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from transformers import PreTrainedConfig

from turnwise.checks.stages import Finding as DoctorFinding
from turnwise.checks.stages import fine, problem, warning
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.schema_learn import FunctionJudgeSettings, ModelJudgeSettings
from turnwise.context.answer import render_answer
from turnwise.context.template import LearnedTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.envs.safe_calls import call_env, closing_env, reset_env
from turnwise.errors import ConfigError, EngineError, Finding, TurnwiseError
from turnwise.infra.threads import run_async
from turnwise.loop.build import Stage, first_train_seed, load_words, open_engine
from turnwise.loop.components import Words
from turnwise.loop.policies import resolve_model
from turnwise.models.memory import read_config
from turnwise.models.resolve import SMOLLM2, find_gguf, find_here, is_hub_name, read_shape
from turnwise.protocols import ChatTemplate, Engine, Weights
from turnwise.report.console import print_notice
from turnwise.report.run_dir import RunDirectory
from turnwise.rollout.env_specs import World, find_workflow, main_world
from turnwise.rollout.workflow import EnvironmentWorkflow
from turnwise.types import Completion, GenerateRequest, Metrics, StopReason, Task, Trajectory

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
        finding = Finding(kind=misfit.kind, level="warning", where="", message=misfit.message, step=step)
        directory.append_finding(finding)
        print_notice(console, f"{misfit.kind}: {misfit.message}")


def examine_names() -> list[DoctorFinding]:
    """Which models can be used by their name alone."""
    try:
        find_gguf(SMOLLM2)
    except TurnwiseError as error:
        return [fine("models", f"'tiny' is built in. {error}")]
    return [fine("models", f"'tiny' is built in, '{SMOLLM2}' is installed")]


def examine_model(settings: TurnwiseSettings) -> list[DoctorFinding]:
    """The model that is trained; what cannot be loaded at all was refused before."""
    model, limit = settings.model, settings.context.max_tokens
    config = read_shape(settings)
    if model.path == "tiny":
        words, positions = "'tiny', the built-in model, made on first use", model.tiny.max_positions
    elif config is None:
        return [warning("model", f"'{model.path}' is not on this machine; it is fetched from the hub when it is used.")]
    else:
        kind = ", ".join(getattr(config, "architectures", None) or ()) or "a causal language model"
        words = f"'{model.path}', {kind}"
        positions = getattr(config and config.get_text_config(), "max_position_embeddings", None) or limit
    if positions < limit:
        return [
            warning(
                "model",
                f"{words}, reads {positions} positions and context.max_tokens is {limit}: longer episodes would fail. "
                f"Set context.max_tokens={positions} or less.",
            )
        ]
    return [fine("model", words)]


def examine_judge(settings: TurnwiseSettings) -> list[DoctorFinding]:
    """Who gives rewards, where the environment gives none."""
    judge = settings.reward.judge
    if isinstance(judge, FunctionJudgeSettings):
        return [fine("judge", f"'{judge.target}' can be called with (prompt, response)")]
    if not isinstance(judge, ModelJudgeSettings):
        return []
    path = judge.path or ""
    if path != "tiny" and is_hub_name(path) and read_config(path) is None:
        return [
            warning("reward model", f"'{path}' is not on this machine; it is fetched from the hub when it is used.")
        ]
    return [
        fine("reward model", "'tiny', the built-in one" if path == "tiny" else f"'{path}', a classifier with one label")
    ]


def examine_template(settings: TurnwiseSettings, model_path: str) -> list[DoctorFinding]:
    """What is proven of the chat template by rendering probe conversations."""
    template = LearnedTemplate(load_tokenizer(model_path, settings.context))
    if template.why_cut:
        bridge = warning(
            "template",
            f"turns cannot be bridged: {template.why_cut}. Episodes are cut into one segment per turn, which is exact "
            "and slower.",
        )
    else:
        system = "has" if template.accepts_system else "has no"
        bridge = fine(
            "template", f"appending a turn gives the tokens of the whole conversation, proven; it {system} system role"
        )
    return [bridge, *_tools(settings, template)]


def _tools(settings: TurnwiseSettings, template: LearnedTemplate) -> list[DoctorFinding]:
    try:
        needs_tools = bool(getattr(find_workflow(settings), "needs_tool_syntax", False))
    except Exception:  # noqa: BLE001 - what is wrong with the workflow is told elsewhere
        needs_tools = False
    if template.supports_tools:
        return [fine("tools", "the chat template writes tools, calls and results, and its calls can be read")]
    if not needs_tools:
        return [fine("tools", f"none are used, and could not be: {template.why_no_tools}")]
    return [
        problem(
            "tools",
            f"rollout.workflow '{settings.rollout.workflow}' uses tools, and {template.why_no_tools}. Use a model "
            "whose chat template knows tools, or another workflow.",
        )
    ]


_MAX_SHOWN = 2400
"""Characters of a prompt that are shown; what is left out is counted."""
_TIMEOUT_S = 300.0
"""A program of a user's own may not hear that its calls have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The first call of the first training episode."""

    prompt: str | None
    """With all that the chat template writes; None where no model is at hand, or nothing was asked."""
    prompt_tokens: int
    reply: str | None
    """None where the prompt does not fit."""
    is_understood: bool | None
    why_missing: str = ""
    """Of what is None."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def make_preview(settings: TurnwiseSettings) -> Preview:
    """Renders and samples where the model lies on this machine."""
    path = settings.model.path
    if path != "tiny" and find_here(path) is None and find_gguf(path) is None:
        why = f"'{path}' is not on this machine; it is fetched when it is used."
        return Preview(prompt=None, prompt_tokens=0, reply=None, is_understood=None, why_missing=why)
    model = resolve_model(settings)
    words = load_words(settings, model)
    return run_async(_sample(settings, words, open_engine(words, model)))


async def _sample(settings: TurnwiseSettings, words: Words, engine: Engine) -> Preview:
    try:
        request, played = await play_first_call(settings, words, engine)
    finally:
        await engine.close()
    prompt = None if request is None else str(words.tokenizer.decode(request.prompt_ids.tolist()))
    turn = played.turns[0] if played.turns else None
    # The episode is always cut short; what is told is why its first call was not made.
    return Preview(
        prompt=prompt,
        prompt_tokens=0 if request is None else len(request.prompt_ids),
        reply=turn.response_text if turn is not None else None,
        is_understood=turn.is_valid and turn.penalty >= 0 if turn is not None else None,
        why_missing="" if turn is not None else played.failure,
    )


async def play_first_call(
    settings: TurnwiseSettings, words: Words, engine: Engine | None, *, task: int = 0
) -> tuple[GenerateRequest | None, Trajectory]:
    """What the first training episode asks first, and that episode; without an engine nothing is answered.

    `task` counts from the run's first.
    """
    once = _OneReply(engine)
    world = replace(main_world(settings), groups=1)
    # Played once: an episode that is cut short has failed, and would be played again.
    rollout = settings.rollout.model_copy(update={"max_retries": 0, "episode_timeout_s": _TIMEOUT_S})
    settings = settings.model_copy(update={"rollout": rollout})
    stage = Stage(settings=settings, template=words.template, engine=once)
    proxy = stage.proxy(
        [world],
        split="train",
        # A game for two is begun by both of its players.
        group_size=find_workflow(settings).seats,
        temperature=settings.rollout.temperature,
    )
    played = Task(tag=world.tag, seed=first_train_seed(settings) + task)
    with closing(proxy):
        (group,) = await proxy.collect([played], rollout=1)
    # Of two players, the one who was asked.
    return once.request, max(group.trajectories, key=lambda each: (len(each.turns), bool(each.failure)))


def check_first_prompt(settings: TurnwiseSettings, words: Words) -> None:
    """Raise a ConfigError where the first prompt leaves no room for a reply; other failures are a run's own to tell."""
    if not issubclass(find_workflow(settings), EnvironmentWorkflow):
        # What a program of a user's own asks first is known when it runs.
        return
    _, played = run_async(play_first_call(settings, words, None))
    if played.stop_reason is StopReason.CONTEXT_OVERFLOW:
        raise ConfigError(
            f"context.max_tokens: {settings.context.max_tokens} given; the first prompt: {played.failure}"
        )


class _OneReply:
    """An engine that answers one request, of another or not at all."""

    def __init__(self, engine: Engine | None) -> None:
        self._engine = engine
        self.policy_version = engine.policy_version if engine is not None else 0
        self.request: GenerateRequest | None = None

    async def generate(self, request: GenerateRequest) -> Completion:
        if self.request is not None or self._engine is None:
            self.request = self.request or request
            raise EngineError("only the first call is shown.")
        self.request = request
        return await self._engine.generate(request)

    def release(self, cache_key: str) -> None:
        if self._engine is not None:
            self._engine.release(cache_key)

    async def update_weights(self, weights: Weights, policy_version: int) -> None:
        return

    def state(self) -> Metrics:
        return {}

    async def close(self) -> None:
        return


def describe_preview(preview: Preview) -> str:
    """For people."""
    if preview.prompt is None:
        return f"The first prompt cannot be shown: {preview.why_missing}"
    lines = [f"The first prompt, {preview.prompt_tokens} tokens:", _indented(cut_middle(preview.prompt, _MAX_SHOWN))]
    if preview.reply is None:
        return "\n".join([*lines, f"No reply was sampled: {preview.why_missing}"])
    verdict = "understood" if preview.is_understood else "NOT understood"
    return "\n".join(
        [*lines, f"One sampled reply, which was {verdict}:", _indented(cut_middle(preview.reply, _MAX_SHOWN))]
    )


def cut_middle(text: str, max_characters: int) -> str:
    """The beginning and the end of a long text, with a count between them."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters …]\n{text[-half:]}"


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())
