"""Memory of activations per token, and how many tokens one forward pass takes.

`bytes_per_token` follows from the sizes of a decoder layer; with it `micro_batch_limit` resolves
`learn.micro_batch_tokens: auto` and `model.gradient_checkpointing: auto`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedConfig

from turnwise.config.schema import Lora, ModelSettings
from turnwise.config.schema_learn import LearnSettings
from turnwise.models.load import torch_dtype

MOST_TOKENS = 8192
"""More tokens per forward pass are not faster."""
FEWEST_TOKENS = 400
"""With fewer tokens per pass, the prompt of a group would be computed once per rollout; checkpointing is cheaper."""
CPU_BYTES = 450_000_000
"""Memory for one micro-batch on a CPU, where a large one is hardly faster than a small one."""
_OVERHEAD = {(False, False): 1.5, (True, False): 3.3, (False, True): 4.5, (True, True): 8.0}
"""Memory that the C library reserves per byte of activations, by (adapters, gradient checkpointing): fragmentation.
Measured on Linux."""
_GPU_FRACTION = 0.25
"""Of the memory of a GPU, for one micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Sizes of a decoder layer."""

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
        """Return None for a model without such layers."""
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
        """Return the numbers kept for one token in one layer: gate, up, their products; norms, queries, keys, values,
        output of attention. A frozen norm keeps one intermediate result less.
        """
        norms = 4 if is_frozen else 6
        return 4 * self.inner + norms * self.hidden + 2 * self.queries + 2 * self.keys + self.heads

    def passing_numbers(self) -> int:
        """Return the temporary numbers for one token in the current layer: gradients, repeated keys of attention."""
        return 3 * self.inner + 3 * self.hidden + 2 * self.queries


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes per token of a micro-batch."""

    kept: int
    """Without gradient checkpointing."""
    checkpointed: int
    """With gradient checkpointing: the input of each layer, and one layer computed again."""
    terms: str
    """Arithmetic of `kept`."""
    checkpointed_terms: str


def bytes_per_token(shape: LayerShape, *, is_frozen: bool, dtype: torch.dtype) -> TokenBytes:
    """`is_frozen`: only adapters are trained."""
    width = dtype.itemsize
    layer, passing = shape.kept_numbers(is_frozen=is_frozen), shape.passing_numbers()
    return TokenBytes(
        kept=(shape.num_layers * layer + passing) * width,
        checkpointed=(shape.num_layers * shape.hidden + layer + passing) * width,
        terms=f"({shape.num_layers} layers x {layer:,} + {passing:,}) numbers x {width} bytes",
        checkpointed_terms=f"({shape.num_layers} layers x {shape.hidden:,} + {layer + passing:,}) numbers "
        f"x {width} bytes",
    )


def allocator_overhead(device: torch.device, *, is_frozen: bool, is_checkpointed: bool) -> float:
    """Return the memory that one byte of activations takes."""
    return 1.0 if device.type == "cuda" else _OVERHEAD[is_frozen, is_checkpointed]


def activation_budget(device: torch.device) -> int:
    """Return the bytes for one micro-batch if `learn.micro_batch_tokens` is auto."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory * _GPU_FRACTION)
    return CPU_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchLimit:
    """Tokens per forward pass, and the number of tokens above which gradient checkpointing is used."""

    micro_batch_tokens: int
    checkpoint_above: int | None
    """None: never; 0: always."""

    def is_checkpointed(self, num_tokens: int) -> bool:
        return self.checkpoint_above is not None and num_tokens > self.checkpoint_above


def choose_micro_batch(
    each: TokenBytes | None, budget: int, *, micro_batch_tokens: int | str, gradient_checkpointing: bool | str
) -> MicroBatchLimit:
    """Resolve `auto`: as many tokens as the budget holds; gradient checkpointing for a longer row.

    `each` is None if the layers of the model are unknown.
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
    return MicroBatchLimit(micro_batch_tokens=tokens, checkpoint_above=above)


def micro_batch_limit(
    config: PreTrainedConfig, model: ModelSettings, learn: LearnSettings, device: torch.device
) -> MicroBatchLimit:
    """Return the limit for a model on a device."""
    shape, is_frozen = LayerShape.of(config), isinstance(model.lora, Lora)
    each = shape and bytes_per_token(shape, is_frozen=is_frozen, dtype=torch_dtype(model.dtype))
    return choose_micro_batch(
        each and _held(each, device, is_frozen=is_frozen),
        activation_budget(device),
        micro_batch_tokens=learn.micro_batch_tokens,
        gradient_checkpointing=model.gradient_checkpointing,
    )


def _held(each: TokenBytes, device: torch.device, *, is_frozen: bool) -> TokenBytes:
    """Add the overhead of the allocator."""
    kept = allocator_overhead(device, is_frozen=is_frozen, is_checkpointed=False)
    checkpointed = allocator_overhead(device, is_frozen=is_frozen, is_checkpointed=True)
    return replace(each, kept=int(each.kept * kept), checkpointed=int(each.checkpointed * checkpointed))
