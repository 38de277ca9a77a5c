"""Checks of the model against the recipe: shape, chat template, length of an answer; and the first prompt and reply."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace

from turnwise.checks.stages import Subject, check, fail, ok, run_checks, warn
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.schema_learn import FunctionScorerSettings, ModelScorerSettings
from turnwise.context.answer import render_answer
from turnwise.context.template import HFChatTemplate
from turnwise.envs.safe_calls import call_env, reset_env
from turnwise.errors import ConfigError, EngineError, Finding, TurnwiseError
from turnwise.infra.threads import run_async
from turnwise.loop.build import Stage, Words, first_train_seed, load_words, open_engine
from turnwise.loop.policies import resolve_model
from turnwise.models.load import warn_of_slow_bfloat16
from turnwise.models.memory import read_config
from turnwise.models.resolve import SMOLLM2, find_gguf, find_local, is_hub_name
from turnwise.models.resolve import note_on as model_note
from turnwise.protocols import ChatTemplate, Engine, Weights
from turnwise.rollout.env_specs import find_workflow, main_env
from turnwise.rollout.workflow import EnvironmentWorkflow
from turnwise.types import Completion, GenerateRequest, Metrics, StopReason, Task, Trajectory

_MAX_QUOTED = 240


# --- the model against the recipe: warnings of doctor and of the start of a run --------------------------------------


@check("model", where="model")
def short_positions(subject: Subject) -> Iterator[Finding]:
    limit = subject.settings.context.max_tokens
    positions = _max_positions(subject) or limit
    if positions < limit:
        yield warn(
            "context.max_tokens",
            f"the model has {positions} positions and context.max_tokens is {limit}: longer episodes fail.",
            f"Set context.max_tokens={positions} or less.",
            kind="short_positions",
        )


def _max_positions(subject: Subject) -> int | None:
    if subject.settings.model.path == "tiny":
        return subject.settings.model.tiny.max_positions
    config = subject.model_config
    return None if config is None else getattr(config.get_text_config(), "max_position_embeddings", None)


@check("model", where="template")
def short_budget(subject: Subject) -> Iterator[Finding]:
    """The expert's own answer, in the tokens of this model."""
    context = main_env(subject.settings).context
    texts = [
        render_answer([action], context.answer).removeprefix(context.answer.forced_prefix)
        for action in _expert_actions(subject)
    ]
    # And the token that ends it.
    encode, limit = subject.template.encode_text, context.max_response_tokens
    needed = max((len(encode(text)) + 1 for text in texts), default=0)
    if needed > limit:
        yield warn(
            "context.max_response_tokens",
            f"context.max_response_tokens = {limit}, and a correct answer, {quoted(max(texts, key=len))}, has {needed} "
            "tokens with its end.",
            f"Set it to {2 * needed} or more.",
            kind="short_budget",
        )


def _expert_actions(subject: Subject) -> list[str]:
    """What the expert policy would do first; empty if there is none, or if the environment does not start."""
    with suppress(TurnwiseError):
        env = subject.make_env("env", "train")
        reset_env(env, seed=first_train_seed(subject.settings), split="train")
        return [str(call_env(env, "oracle"))] if env.has_oracle else []
    return []


@check("model", where="template")
def no_end_of_turn(subject: Subject) -> Iterator[Finding]:
    if subject.template.end_of_turn_id is None:
        yield warn(
            "template",
            "the chat template ends a reply with no single token, so only the tokenizer's eos token ends one: replies "
            "may run on to context.max_response_tokens.",
            "Use an instruction-tuned model, or set eos_token in tokenizer_config.json to the token that ends its "
            "replies.",
            kind="no_end_of_turn",
        )


@check("model", where="precision")
def slow_bfloat16(subject: Subject) -> Iterator[Finding]:
    if slow := warn_of_slow_bfloat16(subject.settings.model):
        yield warn("precision", slow)


def check_model(settings: TurnwiseSettings, template: ChatTemplate) -> list[Finding]:
    """Warnings at the start of a run; unused settings and slow number types are printed before the model is loaded."""
    with Subject(settings, template=template) as subject:
        found = [*run_checks(subject, "settings"), *run_checks(subject, "model")]
    return [each for each in found if each.level == "warning" and each.kind not in ("unused_setting", "precision")]


def quoted(text: str) -> str:
    """A text of the model, for one line."""
    return repr(text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…")


# --- lines of the doctor ---------------------------------------------------------------------------------------------


def describe_models() -> list[Finding]:
    """Which models can be used by their name alone."""
    try:
        find_gguf(SMOLLM2)
    except TurnwiseError as error:
        return [ok("models", f"'tiny' is built in. {error}")]
    return [ok("models", f"'tiny' is built in, '{SMOLLM2}' is installed")]


def describe_model(subject: Subject) -> list[Finding]:
    """The model that is trained; one that cannot be loaded at all is an error of the set-up."""
    path, config = subject.settings.model.path, subject.model_config
    if path == "tiny":
        return [ok("model", "'tiny', the built-in model, made on first use")]
    if config is None:
        return [warn("model", model_note(path))]
    kind = ", ".join(getattr(config, "architectures", None) or ()) or "a causal language model"
    return [ok("model", f"'{path}', {kind}")]


def check_scorer(settings: TurnwiseSettings) -> list[Finding]:
    """The reward scorer, if the environment gives no rewards."""
    judge = settings.reward.judge
    if isinstance(judge, FunctionScorerSettings):
        return [ok("judge", f"'{judge.target}' can be called with (prompt, response)")]
    if not isinstance(judge, ModelScorerSettings):
        return []
    path = judge.path or ""
    if path != "tiny" and is_hub_name(path) and read_config(path) is None:
        return [warn("reward model", f"'{path}' is not on this machine; it is fetched from the hub when it is used.")]
    return [
        ok("reward model", "'tiny', the built-in one" if path == "tiny" else f"'{path}', a classifier with one label")
    ]


def check_template(subject: Subject) -> list[Finding]:
    """What rendering probe conversations shows of the chat template."""
    template = subject.template
    assert isinstance(template, HFChatTemplate)
    if template.why_cut:
        line = warn(
            "template",
            f"turns cannot be appended: {template.why_cut}. Episodes are cut into one segment per turn, which is exact "
            "and slower.",
        )
    else:
        system = "supported" if template.accepts_system else "not supported"
        line = ok("template", f"chat template is append-only (verified); system role {system}")
    return [line, _check_tools(subject.settings, template)]


def _check_tools(settings: TurnwiseSettings, template: HFChatTemplate) -> Finding:
    try:
        needs_tools = bool(getattr(find_workflow(settings), "needs_tool_syntax", False))
    except Exception:  # noqa: BLE001 - an error of the workflow is reported elsewhere
        needs_tools = False
    if template.supports_tools:
        return ok("tools", "the chat template renders tools, calls and results, and its calls can be parsed")
    if not needs_tools:
        return ok("tools", f"not used, and not supported: {template.why_no_tools}")
    return fail(
        "tools",
        f"rollout.workflow '{settings.rollout.workflow}' uses tools, and {template.why_no_tools}.",
        "Use a model whose chat template knows tools, or another workflow.",
    )


# --- the first prompt and reply --------------------------------------------------------------------------------------

_MAX_SHOWN = 2400
"""Characters of a prompt that are shown; those left out are counted."""
_TIMEOUT_S = 300.0
"""A program of a user may not notice that its calls have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The first call of the first training episode."""

    prompt: str | None
    """With everything that the chat template adds; None if the model is not here, or nothing was asked."""
    prompt_tokens: int
    reply: str | None
    """None if the prompt does not fit."""
    is_understood: bool | None
    why_missing: str = ""
    """Why a field is None."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def make_preview(settings: TurnwiseSettings) -> Preview:
    """Render the first prompt and sample a reply, if the model is on this machine."""
    path = settings.model.path
    if path != "tiny" and find_local(path) is None and find_gguf(path) is None:
        why = f"'{path}' is not on this machine; it is fetched when it is used."
        return Preview(prompt=None, prompt_tokens=0, reply=None, is_understood=None, why_missing=why)
    model = resolve_model(settings)
    words = load_words(settings, model)
    return run_async(_sample(settings, words, open_engine(words, model)))


async def _sample(settings: TurnwiseSettings, words: Words, engine: Engine) -> Preview:
    try:
        request, played = await sample_first_reply(settings, words, engine)
    finally:
        await engine.close()
    prompt = None if request is None else str(words.tokenizer.decode(request.prompt_ids.tolist()))
    turn = played.turns[0] if played.turns else None
    # The episode is always cut short; reported is why its first call was not made.
    return Preview(
        prompt=prompt,
        prompt_tokens=0 if request is None else len(request.prompt_ids),
        reply=turn.response_text if turn is not None else None,
        is_understood=turn.is_valid and turn.penalty >= 0 if turn is not None else None,
        why_missing="" if turn is not None else played.failure,
    )


async def sample_first_reply(
    settings: TurnwiseSettings, words: Words, engine: Engine | None, *, task: int = 0
) -> tuple[GenerateRequest | None, Trajectory]:
    """Return the first request of a training episode, and that episode; without an engine nothing is sampled.

    `task` counts from the run's first.
    """
    once = _OneReply(engine)
    world = replace(main_env(settings), groups=1)
    # Once: an episode that is cut short has failed, and would be repeated.
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
    # Of two players, the one that was asked.
    return once.request, max(group.trajectories, key=lambda each: (len(each.turns), bool(each.failure)))


def check_first_prompt(settings: TurnwiseSettings, words: Words) -> None:
    """Raise a ConfigError if the first prompt leaves no tokens for a reply; the run reports other failures itself."""
    if not issubclass(find_workflow(settings), EnvironmentWorkflow):
        # What a user's program asks first is known when it runs.
        return
    _, played = run_async(sample_first_reply(settings, words, None))
    if played.stop_reason is StopReason.CONTEXT_OVERFLOW:
        raise ConfigError(
            f"context.max_tokens: {settings.context.max_tokens} given; the first prompt: {played.failure}"
        )


class _OneReply:
    """An engine that answers one request, by another engine or not at all."""

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
    """The preview as text."""
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
