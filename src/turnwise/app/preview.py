"""One prompt as the model will see it, and one reply to it, before anything runs.

In: settings and a model that is at hand on this machine. Out: texts. The run's own workflow is begun and stopped after
its first call, so that what is shown is what a run would send. Nothing is fetched, nothing is learnt, nothing is kept.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, replace

from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, EngineError
from turnwise.infra.threads import run_async
from turnwise.loop.build import Stage, first_train_seed, load_words, open_engine
from turnwise.loop.parts import Words
from turnwise.models.resolve import find_gguf, find_here, resolve_model
from turnwise.protocols import Engine, Weights
from turnwise.rollout.env_specs import find_workflow, main_world
from turnwise.rollout.workflow import EnvironmentWorkflow
from turnwise.types import Completion, GenerateRequest, Metrics, StopReason, Task, Trajectory

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
