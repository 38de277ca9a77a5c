"""Rows that begin with the same prompt share its computation: siblings, of which a group has many.

In: rows of a batch. Out: one long row in which every prompt stands once and the tails of its siblings behind it, and an
attention that reads it so: a tail sees its own prompt and itself, never a neighbour. Values and gradients are those of
the rows one by one. It knows nothing of losses, and works for models with plain causal attention alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from turnwise.types import Batch

ATTENTION = "turnwise_families"
_QUERIES_AT_ONCE = 512
"""Bounds the mask of a tail: it grows with the context, not with its square."""
_TOLERANCE = 1e-3
_HALF_TOLERANCE = 0.05
"""Of the largest state; the second where weights are in half precision. A tail that saw a neighbour is far off."""
_PAYS_BELOW = 0.7
"""Of the tokens of the rows one by one; above, what is saved is less than what the detour costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixBatch:
    """Families alike, laid side by side: their prompts one after another, then all their tails, padded to one width."""

    first: int
    """Where they begin in the long row."""
    rows: NDArray[np.int64]
    """[families, siblings] which rows of the batch they are."""
    prompt: int
    """Tokens of each prompt."""
    tail: int
    """Tokens of each tail."""

    @property
    def num_tokens(self) -> int:
        return len(self.rows) * self.prompt + self.rows.size * self.tail

    @property
    def first_tail(self) -> int:
        return self.first + len(self.rows) * self.prompt


def group_by_prefix(batch: Batch, rows: NDArray[np.int64], max_tokens: int) -> list[list[SharedPrefixBatch]] | None:
    """The rows as families, in parts of at most `max_tokens`; None where too little is shared to be worth it.

    They share a whole prompt, as the siblings of a group do, or else what all rows begin with, such as instructions.
    """
    prompts = {r: int(np.argmax(batch.loss_mask[batch.row_starts[r] : batch.row_starts[r + 1]])) for r in rows.tolist()}
    # A row that begins with a sampled token, or has none, has no prompt to share.
    if 0 in prompts.values():
        return None
    whole = _by_beginning(batch, prompts)
    common = _by_beginning(batch, dict.fromkeys(prompts, _common_length(batch, prompts)))
    split = [
        [(prompt, part) for (prompt, _), some in found.items() for part in _split(some, batch, prompt, max_tokens)]
        for found in (whole, common)
    ]
    families = min(split, key=lambda found: _count_inputs(batch, found))
    if _count_inputs(batch, families) > _PAYS_BELOW * int(batch.row_lengths[rows].sum()):
        return None
    alike: dict[tuple[int, int], list[list[int]]] = {}
    for prompt, part in families:
        alike.setdefault((prompt, len(part)), []).append(part)
    return _fill(batch, alike, max_tokens)


def _by_beginning(batch: Batch, lengths: dict[int, int]) -> dict[tuple[int, bytes], list[int]]:
    """Rows with the same first tokens, of which `lengths` says how many count."""
    found: dict[tuple[int, bytes], list[int]] = {}
    for row, length in lengths.items():
        start = batch.row_starts[row]
        found.setdefault((length, batch.token_ids[start : start + length].tobytes()), []).append(row)
    return found


def _common_length(batch: Batch, prompts: dict[int, int]) -> int:
    """How many tokens all prompts begin with."""
    width = min(prompts.values())
    starts = batch.row_starts[np.array(list(prompts))]
    beginnings = batch.token_ids[starts[:, None] + np.arange(width)]
    is_same = (beginnings == beginnings[0]).all(axis=0)
    return width if is_same.all() else int(np.argmin(is_same))


def _split(siblings: list[int], batch: Batch, prompt: int, max_tokens: int) -> list[list[int]]:
    """Long tails first; a new family with a prompt of its own where the old one is full, or padding would cost more."""
    ordered = sorted(siblings, key=lambda row: -int(batch.row_lengths[row]))
    parts: list[list[int]] = []
    width = 0
    for number, row in enumerate(ordered):
        tail = _tail(batch, [row], prompt)
        is_full = not parts or prompt + (len(parts[-1]) + 1) * width > max_tokens
        if is_full or (width - tail) * (len(ordered) - number) > prompt:
            parts.append([])
            width = tail
        parts[-1].append(row)
    return parts


def _count_inputs(batch: Batch, families: Sequence[tuple[int, list[int]]]) -> int:
    return sum(prompt + len(rows) * _tail(batch, rows, prompt) for prompt, rows in families)


def _tail(batch: Batch, rows: Sequence[int], prompt: int) -> int:
    """Inputs behind the prompt in the longest of these rows; a row's last token is only ever predicted."""
    return max(int(batch.row_lengths[row]) for row in rows) - 1 - prompt


def _fill(
    batch: Batch, alike: dict[tuple[int, int], list[list[int]]], max_tokens: int
) -> list[list[SharedPrefixBatch]]:
    parts: list[list[SharedPrefixBatch]] = []
    for (prompt, num_siblings), families in sorted(alike.items(), reverse=True):
        families.sort(key=lambda family: -_tail(batch, family, prompt))
        while families:
            tail = _tail(batch, families[0], prompt)
            left = max_tokens - sum(part.num_tokens for part in parts[-1]) if parts else 0
            each = prompt + num_siblings * tail
            if left < each:
                parts.append([])
                left = max_tokens
            taken = families[: max(1, left // each)]
            del families[: len(taken)]
            first = sum(part.num_tokens for part in parts[-1])
            parts[-1].append(SharedPrefixBatch(first=first, rows=np.array(taken), prompt=prompt, tail=tail))
    return parts


# --- the attention of a long row -------------------------------------------------------------------------------------


def enable_prefix_sharing(model: PreTrainedModel) -> bool:
    """Let the model read families, and prove on a probe that it does; models with other kinds of attention do not."""
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ("full_attention",))
    if config._attn_implementation != "sdpa" or layers != {"full_attention"}:
        return config._attn_implementation == ATTENTION
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return False
    model.set_attn_implementation(ATTENTION)
    if _is_exact(model):
        return True
    model.set_attn_implementation("sdpa")
    return False


@torch.no_grad()
def _is_exact(model: PreTrainedModel) -> bool:
    """Two prompts of three tokens with two tails of two tokens each, against the four rows one by one."""
    trunk = cast(nn.Module, model.base_model)
    ids = torch.arange(14, device=model.device) % min(14, model.config.get_text_config().vocab_size)
    tails = ids[6:].view(4, 2)
    rows = torch.cat([ids[:6].view(2, 3).repeat_interleave(2, 0), tails], dim=1)
    family = SharedPrefixBatch(first=0, rows=np.arange(4).reshape(2, 2), prompt=3, tail=2)
    positions = torch.tensor([0, 1, 2] * 2 + [3, 4] * 4, device=model.device)
    try:
        shared = forward_shared(trunk, ids[None], positions[None], (family,))[0]
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
        return False
    plain = trunk(input_ids=rows, use_cache=False).last_hidden_state
    gap = (shared[6:].view_as(plain[:, 3:]) - plain[:, 3:]).abs().max()
    tolerance = _TOLERANCE if plain.dtype.itemsize >= 4 else _HALF_TOLERANCE
    return bool(gap < tolerance * plain.abs().max())


def forward_shared(
    trunk: nn.Module, input_ids: Tensor, positions: Tensor, families: Sequence[SharedPrefixBatch]
) -> Tensor:
    """[1, tokens, hidden] the last states of a long row."""
    # A mask of one element keeps transformers from making one of tokens x tokens.
    no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=input_ids.device)
    return trunk(
        input_ids=input_ids, position_ids=positions, attention_mask=no_mask, use_cache=False, families=tuple(families)
    ).last_hidden_state


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    families: tuple[SharedPrefixBatch, ...] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What a layer calls: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    if families is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    repeats = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, repeats), repeat_kv(value, repeats)
    parts = [part for family in families for part in _attend_alike(query, key, value, family, kwargs.get("scaling"))]
    return torch.cat(parts, dim=1).transpose(0, 1)[None], None


def _attend_alike(
    query: Tensor, key: Tensor, value: Tensor, family: SharedPrefixBatch, scale: float | None
) -> tuple[Tensor, ...]:
    """[heads, tokens, size] of the prompts, and of the tails where there are any."""
    num_families, num_siblings = family.rows.shape

    def prompts(states: Tensor) -> Tensor:
        return _rows(states, family.first, num_families, family.prompt)

    def tails(states: Tensor) -> Tensor:
        return _rows(states, family.first_tail, num_families * num_siblings, family.tail)

    def keys(states: Tensor) -> Tensor:
        return torch.cat([prompts(states).repeat_interleave(num_siblings, 0), tails(states)], dim=2)

    q, k, v = prompts(query), prompts(key), prompts(value)
    of_prompts = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    if family.tail == 0:
        return (_end_to_end(of_prompts),)
    return _end_to_end(of_prompts), _end_to_end(_attend_tails(tails(query), keys(key), keys(value), scale))


def _attend_tails(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """Each token sees all keys up to its own, which is the last of those it may see."""
    before = key.shape[2] - query.shape[2]
    parts = []
    for begin in range(0, query.shape[2], _QUERIES_AT_ONCE):
        q = query[:, :, begin : begin + _QUERIES_AT_ONCE]
        end = before + begin + q.shape[2]
        columns = torch.arange(end, device=query.device)
        mask = columns[None] <= columns[end - q.shape[2] :, None]
        parts.append(F.scaled_dot_product_attention(q, key[:, :, :end], value[:, :, :end], attn_mask=mask, scale=scale))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _rows(states: Tensor, first: int, num_rows: int, width: int) -> Tensor:
    """[rows, heads, width, size] out of [1, heads, tokens, size]."""
    part = states[0, :, first : first + num_rows * width]
    return part.unflatten(1, (num_rows, width)).transpose(0, 1)


def _end_to_end(states: Tensor) -> Tensor:
    """[heads, rows * width, size] out of [rows, heads, width, size]."""
    return states.transpose(0, 1).flatten(1, 2)


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
