"""The most memory a run will hold at one time, from its settings alone: how much passes and lives at once."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedConfig

from turnwise.app.preview import play_first_call
from turnwise.config.schema import Lora, TurnwiseSettings
from turnwise.infra.threads import run_async
from turnwise.loop.build import load_words
from turnwise.models.load import chosen_device, torch_dtype
from turnwise.models.memory import LayerShape, Load, MemoryReport, Peak, estimate_peak, pass_size_of
from turnwise.models.resolve import find_here
from turnwise.rollout.env_specs import count_held_out, find_workflow
from turnwise.rollout.workflow import EnvironmentWorkflow


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTokens:
    """How long an episode gets, and how much of it others have computed already."""

    row: int
    """At its end, at most."""
    prompt: int = 0
    """Its first prompt, which siblings share; 0 where it is not known."""
    beginning: int = 0
    """What all prompts begin with, such as instructions."""

    def live(self, num_tasks: int, num_episodes: int) -> int:
        """Tokens whose keys and values are held at once: what is shared, once."""
        prompts = self.beginning + num_tasks * (self.prompt - self.beginning)
        return prompts + num_episodes * (self.row - self.prompt)


def plan_peak(settings: TurnwiseSettings, config: PreTrainedConfig | None, memory: MemoryReport) -> Peak | None:
    """None where the model's shape is not known."""
    shape = LayerShape.of(config) if config is not None else None
    if config is None or shape is None:
        return None
    device = chosen_device(settings.learn.device, "learn.device")
    pass_size = pass_size_of(config, settings.model, settings.learn, device)
    longest = settings.context.max_tokens or int(getattr(config.get_text_config(), "max_position_embeddings", 0))
    episode = _measure_episode(settings, longest)
    rows = _rows_at_once(settings)
    load = Load(
        pass_size=pass_size,
        longest_row=episode.row,
        sampled_tokens=max(pass_size.micro_batch_tokens, episode.row),
        live_tokens=max(episode.live(num_tasks, num_episodes) for num_tasks, num_episodes in rows),
        live_rows=max(num_episodes for _, num_episodes in rows),
        is_overlapped=not settings.loop.is_in_turns,
        is_frozen=isinstance(settings.model.lora, Lora),
        is_tied=bool(getattr(config.get_text_config(), "tie_word_embeddings", False)),
        dtype=torch_dtype(settings.model.dtype),
        device=device,
    )
    return estimate_peak(memory, shape, load)


def _rows_at_once(settings: TurnwiseSettings) -> list[tuple[int, int]]:
    """Tasks and episodes that are played at the same time: in a rollout, and in an evaluation."""
    rollout, most = settings.rollout, getattr(settings.engine, "max_rows", None)
    held_out = sum(count_held_out(settings).values())
    found = []
    for num_tasks, group_size in ((rollout.groups, rollout.group_size), (held_out, 1)):
        bounds = [num_tasks * group_size, rollout.max_concurrent, most]
        at_once = min(bound for bound in bounds if bound is not None)
        found.append((-(-at_once // group_size), at_once))
    return found


def _measure_episode(settings: TurnwiseSettings, longest: int) -> EpisodeTokens:
    """From the first prompts of two tasks, where a pretrained model lies on this machine; else as long as it may be."""
    path = settings.model.path
    folder = None if path == "tiny" else find_here(path)
    if folder is None or not issubclass(find_workflow(settings), EnvironmentWorkflow):
        return EpisodeTokens(row=longest)
    prompts = _first_prompts(settings, str(folder))
    if not prompts:
        return EpisodeTokens(row=longest)
    same = next((n for n, (a, b) in enumerate(zip(*prompts, strict=False)) if a != b), min(map(len, prompts)))
    prompt, is_short = max(map(len, prompts)), settings.rollout.max_turns == 1
    # What later observations say is not known; a window of one turn begins each with a prompt like the first.
    is_short = is_short or settings.context.window == "single_turn"
    row = min(longest, prompt + settings.context.max_response_tokens) if is_short else longest
    return EpisodeTokens(row=max(row, prompt), prompt=prompt, beginning=same)


def _first_prompts(settings: TurnwiseSettings, folder: str) -> list[list[int]]:
    words = load_words(settings, folder)
    requests = [run_async(play_first_call(settings, words, None, task=task))[0] for task in range(2)]
    return [request.prompt_ids.tolist() for request in requests if request is not None]
