"""The most memory a run will hold at one time, from its settings alone: how much passes and lives at once."""

from __future__ import annotations

from transformers import PreTrainedConfig

from turnwise.config.schema import TurnwiseSettings
from turnwise.config.sections.model import Lora
from turnwise.learn.activations import LayerShape, pass_size_of
from turnwise.learn.memory import MemoryReport
from turnwise.learn.peak import Load, Peak, estimate_peak
from turnwise.pretrained import chosen_device, torch_dtype


def plan_peak(settings: TurnwiseSettings, config: PreTrainedConfig | None, memory: MemoryReport) -> Peak | None:
    """None where the model's shape is not known."""
    shape = LayerShape.of(config) if config is not None else None
    if config is None or shape is None:
        return None
    device = chosen_device(settings.learn.device, "learn.device")
    pass_size = pass_size_of(config, settings.model, settings.learn, device)
    longest = settings.context.max_tokens or int(getattr(config.get_text_config(), "max_position_embeddings", 0))
    rollout = settings.rollout
    episodes = rollout.groups * rollout.group_size
    at_once = min(episodes, rollout.max_concurrent or episodes, getattr(settings.engine, "max_rows", episodes))
    load = Load(
        pass_size=pass_size,
        longest_row=longest,
        sampled_tokens=max(pass_size.micro_batch_tokens, longest),
        live_tokens=at_once * longest,
        is_frozen=isinstance(settings.model.lora, Lora),
        is_tied=bool(getattr(config.get_text_config(), "tie_word_embeddings", False)),
        dtype=torch_dtype(settings.model.dtype),
        device=device,
    )
    return estimate_peak(memory, shape, load)
