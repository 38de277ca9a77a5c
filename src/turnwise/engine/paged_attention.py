"""Attention of a few new tokens over keys and values that lie in blocks, without laying them side by side first.

Each block is asked where it lies: the queries of its rows, which are few, are brought to it instead of its keys to
them. Only the scores are laid out row by row, for the softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnwise.engine.pass_plan import BLOCK_TOKENS, BlockPart, PassPlan


def attend(queries: Tensor, keys: Tensor, values: Tensor, plan: PassPlan, hidden: Tensor) -> Tensor:
    """[rows, heads, new, size] for `queries` of that shape; keys and values [blocks, heads, tokens, size]."""
    rows, num_heads, new, size = queries.shape
    asked = (queries * size**-0.5).reshape(rows, keys.shape[1], -1, size)
    scores = _laid_out([_scores(part, asked, keys) for part in plan.parts], plan, is_whole=False)
    scores = scores.view(rows, plan.blocks_per_row, num_heads, new, BLOCK_TOKENS).permute(0, 2, 3, 1, 4)
    scores = scores.reshape(rows, num_heads, new, -1).masked_fill_(hidden, -torch.inf)
    shares = scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype)
    shares = shares.view(rows, num_heads, new, plan.blocks_per_row, BLOCK_TOKENS).permute(0, 3, 1, 2, 4)
    shares = shares.reshape(rows * plan.blocks_per_row, -1)
    found = _laid_out([_read(part, shares, values) for part in plan.parts], plan, is_whole=True)
    return found.view(rows, plan.blocks_per_row, -1).sum(dim=1).view(rows, num_heads, new, size)


def _scores(part: BlockPart, asked: Tensor, keys: Tensor) -> Tensor:
    """[pairs, kv heads * queries * tokens] for `asked` [rows, kv heads, queries, size]."""
    _, num_heads, num_queries, size = asked.shape
    brought = _by_block(part, asked.index_select(0, part.rows), num_heads).view(-1, part.num_askers * num_queries, size)
    scores = torch.bmm(brought, part.of(keys).view(-1, BLOCK_TOKENS, size).transpose(1, 2))
    return _by_asker(part, scores, num_heads)


def _read(part: BlockPart, shares: Tensor, values: Tensor) -> Tensor:
    """[pairs, kv heads * queries * size] for `shares` [rows * blocks per row, kv heads * queries * tokens]."""
    num_heads = values.shape[1]
    # Nobody's pair is one behind the last; what is read for it goes nowhere.
    brought = shares.index_select(0, part.pairs.clamp(max=len(shares) - 1))
    brought = _by_block(part, brought, num_heads)
    found = torch.bmm(brought.view(part.num_blocks * num_heads, -1, BLOCK_TOKENS), part.of(values).flatten(0, 1))
    return _by_asker(part, found, num_heads)


def _by_block(part: BlockPart, brought: Tensor, num_heads: int) -> Tensor:
    """[blocks, askers, heads, …] to [blocks, heads, askers, …], so that all askers of a block are one matrix."""
    if part.num_askers == 1:
        return brought
    return brought.reshape(part.num_blocks, part.num_askers, num_heads, -1).transpose(1, 2).contiguous()


def _by_asker(part: BlockPart, found: Tensor, num_heads: int) -> Tensor:
    """The way back: [pairs, …]."""
    if part.num_askers > 1:
        found = found.view(part.num_blocks, num_heads, part.num_askers, -1).transpose(1, 2)
    return found.reshape(part.num_blocks * part.num_askers, -1)


def _laid_out(found: list[Tensor], plan: PassPlan, *, is_whole: bool) -> Tensor:
    """[rows * blocks per row, …] from pairs; what no pair fills is zero if the whole is read, else anything."""
    shape = (plan.num_rows * plan.blocks_per_row + 1, found[0].shape[1])
    laid = found[0].new_zeros(shape) if is_whole else found[0].new_empty(shape)
    for part, pairs in zip(plan.parts, found, strict=True):
        laid.index_copy_(0, part.pairs, pairs)
    return laid[:-1]
