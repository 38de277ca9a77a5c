"""What a forward pass keeps for the backward pass, and how many tokens may therefore pass at once.

In: the shape of a model and how it is held. Out: bytes, with the sum that gave them. They are those of a decoder with
gated feed-forward layers (Llama, Qwen2) and attention that keeps no table of scores; for other families they are close.
It knows nothing of weights, optimizers or batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedConfig

from turnwise.config.schema import Lora, ModelSettings
from turnwise.config.schema_learn import LearnSettings
from turnwise.pretrained import torch_dtype

MOST_TOKENS = 8192
"""More in one pass make nothing faster."""
FEWEST_TOKENS = 400
"""With fewer in one pass, a prompt no longer passes together with the replies of all its siblings and is computed once
for each of them; layers are rather computed again."""
CPU_BYTES = 450_000_000
"""What a process holds for one micro-batch on a CPU, where a large one is hardly faster than a small one."""
_HELD, _HELD_WITH_ADAPTERS = 1.5, 3.3
"""What the C library holds for each byte of activations: tensors come and go in other orders than their memory lies in,
and the small ones of adapters keep it from joining what is free between them. Measured on Linux."""
_HELD_CHECKPOINTED, _HELD_CHECKPOINTED_WITH_ADAPTERS = 4.5, 8.0
"""The same where layers are computed again: what is kept of a layer lies in the midst of what it has freed."""
_GPU_SHARE = 0.25
"""Of a GPU's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The widths of one decoder layer."""

    num_layers: int
    hidden: int
    inner: int
    """Width inside the feed-forward layer."""
    queries: int
    """Heads times their width."""
    keys: int
    """Key-value heads times their width."""
    heads: int
    vocab: int

    @classmethod
    def of(cls, config: PreTrainedConfig) -> LayerShape | None:
        """None where the model has no such layers."""
        text = config.get_text_config()
        if getattr(text, "num_attention_heads", None) is None:
            return None
        hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
        head_dim = int(getattr(text, "head_dim", None) or hidden // heads)
        kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
        return cls(
            num_layers=int(text.num_hidden_layers),
            hidden=hidden,
            inner=int(getattr(text, "intermediate_size", None) or 4 * hidden),
            queries=heads * head_dim,
            keys=kv_heads * head_dim,
            heads=heads,
            vocab=int(text.vocab_size),
        )

    def kept_numbers(self, *, is_frozen: bool) -> int:
        """Of one token in one layer: gate, up, their products; norms, queries, keys, values, what attention gave.

        A frozen norm needs one of its intermediate results less.
        """
        norms = 4 if is_frozen else 6
        return 4 * self.inner + norms * self.hidden + 2 * self.queries + 2 * self.keys + self.heads

    def passing_numbers(self) -> int:
        """Of one token in the layer that is being computed: gradients on their way, and attention's repeated keys."""
        return 3 * self.inner + 3 * self.hidden + 2 * self.queries


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes per token of a micro-batch."""

    kept: int
    """Where every layer's intermediate results are kept."""
    checkpointed: int
    """Where each layer's input is kept, and one layer at a time is computed again."""
    terms: str
    """How `kept` came about."""
    checkpointed_terms: str


def bytes_per_token(shape: LayerShape, *, is_frozen: bool, dtype: torch.dtype) -> TokenBytes:
    """`is_frozen`: adapters alone are trained."""
    width = dtype.itemsize
    layer, passing = shape.kept_numbers(is_frozen=is_frozen), shape.passing_numbers()
    return TokenBytes(
        kept=(shape.num_layers * layer + passing) * width,
        checkpointed=(shape.num_layers * shape.hidden + layer + passing) * width,
        terms=f"({shape.num_layers} layers x {layer:,} + {passing:,}) numbers x {width} bytes",
        checkpointed_terms=f"({shape.num_layers} layers x {shape.hidden:,} + {layer + passing:,}) numbers "
        f"x {width} bytes",
    )


def held_per_byte(device: torch.device, *, is_frozen: bool, is_checkpointed: bool) -> float:
    """How much memory a byte of activations takes there."""
    if device.type == "cuda":
        return 1.0
    if is_checkpointed:
        return _HELD_CHECKPOINTED_WITH_ADAPTERS if is_frozen else _HELD_CHECKPOINTED
    return _HELD_WITH_ADAPTERS if is_frozen else _HELD


def activation_budget(device: torch.device) -> int:
    """Bytes that one micro-batch may hold where the settings leave it open."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory * _GPU_SHARE)
    return CPU_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSize:
    """How many tokens pass at once, and above how many of them layers are computed again."""

    micro_batch_tokens: int
    checkpoint_above: int | None
    """None: never; 0: always."""

    def is_checkpointed(self, num_tokens: int) -> bool:
        return self.checkpoint_above is not None and num_tokens > self.checkpoint_above


def choose_pass_size(
    each: TokenBytes | None, budget: int, *, micro_batch_tokens: int | str, gradient_checkpointing: bool | str
) -> PassSize:
    """What `auto` means: as many tokens as the budget holds. A row that is longer alone is computed again.

    `each` is what a token holds; None where nothing is known about the model's layers.
    """
    above: int | None
    if each is None:
        above, fitting = 0 if gradient_checkpointing is True else None, MOST_TOKENS
    elif gradient_checkpointing is True:
        above, fitting = 0, budget // each.checkpointed
    elif gradient_checkpointing is False:
        above, fitting = None, budget // each.kept
    elif budget // each.kept >= FEWEST_TOKENS:
        above = fitting = budget // each.kept
    else:
        above, fitting = 0, budget // each.checkpointed
    tokens = max(1, min(MOST_TOKENS, fitting)) if isinstance(micro_batch_tokens, str) else micro_batch_tokens
    return PassSize(micro_batch_tokens=tokens, checkpoint_above=above)


def pass_size_of(
    config: PreTrainedConfig, model: ModelSettings, learn: LearnSettings, device: torch.device
) -> PassSize:
    """What the settings choose for a model of this shape, there."""
    shape, is_frozen = LayerShape.of(config), isinstance(model.lora, Lora)
    each = shape and bytes_per_token(shape, is_frozen=is_frozen, dtype=torch_dtype(model.dtype))
    return choose_pass_size(
        each and _held(each, device, is_frozen=is_frozen),
        activation_budget(device),
        micro_batch_tokens=learn.micro_batch_tokens,
        gradient_checkpointing=model.gradient_checkpointing,
    )


def _held(each: TokenBytes, device: torch.device, *, is_frozen: bool) -> TokenBytes:
    """The bytes with what the C library holds beside them."""
    kept = held_per_byte(device, is_frozen=is_frozen, is_checkpointed=False)
    checkpointed = held_per_byte(device, is_frozen=is_frozen, is_checkpointed=True)
    return replace(each, kept=int(each.kept * kept), checkpointed=int(each.checkpointed * checkpointed))
