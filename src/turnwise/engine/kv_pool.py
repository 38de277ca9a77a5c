"""A paged pool of keys and values for a Hugging Face model: every sequence owns blocks of a fixed number of tokens.

In: the rows of a forward pass and how far each is computed. Out: where new keys and values go, and those of all earlier
tokens. Memory grows with the tokens that are kept. A full block can be found by what stands in it and before it, so
sequences that begin alike hold the same blocks. It knows nothing of requests or sampling.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(slots=True, eq=False)
class Row:
    """`ids[:num_cached]` have their keys and values in the pool, in `blocks`."""

    ids: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0
    num_published: int = 0
    """So many blocks from the start can be found by others."""
    is_busy: bool = False
    """Whether a request is running on it."""

    @property
    def start(self) -> int:
        """The first token to compute: at least the last one, whose logits choose the next."""
        return min(self.num_cached, len(self.ids) - 1)

    @property
    def num_new(self) -> int:
        return len(self.ids) - self.start


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    if a == b[: len(a)]:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def pad_right(sequences: Sequence[list[int]]) -> Tensor:
    width = max(len(ids) for ids in sequences)
    return torch.tensor([ids + [0] * (width - len(ids)) for ids in sequences])


BLOCK_TOKENS = 32
"""Smaller blocks are shared more often, larger ones read faster; 32 reads as fast as one piece of memory."""
TRASH = 0
_SPARSE = 2
"""Blocks are read in place while at most so many times as many lie between the first and the last."""
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockPart:
    """Blocks that are asked by up to `num_askers` rows each."""

    blocks: slice | Tensor
    num_blocks: int
    num_askers: int
    rows: Tensor
    """[blocks * askers] who asks; for a place that nobody fills, any row."""
    pairs: Tensor
    """[blocks * askers] the number of the block in its row: row * blocks per row + number; a last one for nobody's."""

    def of(self, store: Tensor) -> Tensor:
        """[blocks, heads, tokens, size], without a copy where the blocks lie close together."""
        return store[self.blocks] if isinstance(self.blocks, slice) else store.index_select(0, self.blocks)


class AttentionPlan:
    """Right padding repeats its row's last token: it sees what that one sees, and nobody reads it."""

    def __init__(self, rows: Sequence[Row], ends: Sequence[int], device: torch.device) -> None:
        self._device = device
        starts = np.array([row.start for row in rows])
        self._cached = np.array([row.num_cached for row in rows])
        self._ends = np.array(ends)
        self.width = int((self._ends - starts).max())
        self.num_rows = len(rows)
        self.num_keys = int(self._ends.max())
        self.is_from_start = not starts.any()
        """No row has anything before what is computed: attention needs no keys but the new ones."""
        self.is_short = self.width <= BLOCK_TOKENS and not self.is_from_start
        """Few enough new tokens to ask each block where it lies."""
        self._places = starts[:, None] + np.arange(self.width)
        self.positions = torch.from_numpy(np.minimum(self._places, self._ends[:, None] - 1)).to(device)
        """[rows, new] of each new token in its sequence."""
        self.last = torch.from_numpy(self._ends - starts - 1).to(device)
        """[rows] the last real column of each."""
        self._flat = np.array(list(chain.from_iterable(row.blocks for row in rows)))
        counts = np.array([len(row.blocks) for row in rows])
        self.blocks_per_row = int(counts.max())
        self._owner = np.repeat(np.arange(self.num_rows), counts)
        self._number = np.arange(len(self._flat)) - np.repeat(counts.cumsum() - counts, counts)
        self._targets: dict[int, Tensor] = {}
        self._parts: list[BlockPart] | None = None
        self._table: Tensor | None = None

    def places(self, num_heads: int) -> Tensor:
        """[rows * heads * new] where the new entries go in a pool laid end to end; the same for layers alike."""
        if num_heads not in self._targets:
            number = np.minimum(self._places // BLOCK_TOKENS, self.blocks_per_row - 1)
            blocks = np.take_along_axis(self._block_table(), number, axis=1)
            # What is in the pool already, and may be read by others, is not written again.
            is_new = (self._places >= self._cached[:, None]) & (self._places < self._ends[:, None])
            blocks = np.where(is_new, blocks, TRASH)
            first = (blocks[:, None] * num_heads + np.arange(num_heads)[None, :, None]) * BLOCK_TOKENS
            places = first + (self._places % BLOCK_TOKENS)[:, None]
            self._targets[num_heads] = torch.from_numpy(places.ravel()).to(self._device)
        return self._targets[num_heads]

    def attention_mask(self) -> Tensor:
        """[rows, 1, new, keys] true where a new token may look: at everything up to its own position."""
        return self._sees(self.num_keys)

    def hidden(self) -> Tensor:
        """[rows, 1, new, keys of all blocks] true where a new token may not look."""
        return ~self._sees(self.blocks_per_row * BLOCK_TOKENS)

    def gather(self, store: Tensor) -> Tensor:
        """A copy of what each row has in a store, as attention over one piece wants it: [rows, heads, keys, size]."""
        if self._table is None:
            self._table = torch.from_numpy(self._block_table().ravel()).to(self._device)
        found = store.transpose(0, 1)[:, self._table]
        return found.reshape(len(found), self.num_rows, -1, store.shape[3])[:, :, : self.num_keys].transpose(0, 1)

    @property
    def parts(self) -> list[BlockPart]:
        """Every block of every row, those that are asked by about as many rows together."""
        if self._parts is None:
            is_shared = len(set(self._flat.tolist())) < len(self._flat)
            self._parts = self._shared_parts() if is_shared else [self._part(self._flat, 1, slice(None))]
        return self._parts

    def _sees(self, num_keys: int) -> Tensor:
        keys = torch.arange(num_keys, device=self._device)
        return (keys <= self.positions[:, :, None])[:, None]

    def _block_table(self) -> Ints:
        """[rows, blocks per row], with nobody's block behind the end of shorter rows."""
        table = np.full((self.num_rows, self.blocks_per_row), TRASH)
        table[self._owner, self._number] = self._flat
        return table

    def _shared_parts(self) -> list[BlockPart]:
        _, inverse, counts = np.unique(self._flat, return_inverse=True, return_counts=True)
        # Up to 1, 2, 4, 8 … askers: places for more than there are cost time.
        sizes = (1 << np.ceil(np.log2(counts)).astype(np.int64))[inverse]
        return [self._part(self._flat, int(size), sizes == size) for size in np.unique(sizes)]

    def _part(self, flat: Ints, num_askers: int, chosen: slice | NDArray[np.bool_]) -> BlockPart:
        """The chosen pairs of row and block, by block."""
        blocks, owner = flat[chosen], self._owner[chosen]
        pairs = owner * self.blocks_per_row + self._number[chosen]
        if num_askers == 1:
            rank = 0
            found, lane = blocks, np.arange(len(blocks))
        else:
            found, lane = np.unique(blocks, return_inverse=True)
            order = lane.argsort(kind="stable")
            first = np.searchsorted(lane[order], np.arange(len(found)))
            rank = np.empty(len(lane), dtype=np.int64)
            rank[order] = np.arange(len(lane)) - first[lane[order]]
        low, high = int(found.min()), int(found.max()) + 1
        is_close = high - low <= _SPARSE * len(found)
        if is_close:
            lane = blocks - low
        num_blocks = high - low if is_close else len(found)
        asked = np.zeros((num_blocks, num_askers), dtype=np.int64)
        told = np.full((num_blocks, num_askers), self.num_rows * self.blocks_per_row)
        asked[lane, rank], told[lane, rank] = owner, pairs
        return BlockPart(
            blocks=slice(low, high) if is_close else torch.from_numpy(found).to(self._device),
            num_blocks=num_blocks,
            num_askers=num_askers,
            rows=torch.from_numpy(asked.ravel()).to(self._device),
            pairs=torch.from_numpy(told.ravel()).to(self._device),
        )


_GROWTH = 1.5
BlockKey: TypeAlias = tuple[int, tuple[int, ...]]
"""The block before, and the tokens in this one. As long as a block is held, the one before it is held too."""


class BlockPool(Cache):
    """All layers' blocks and who holds them. Block 0 takes what nobody reads: the padding of a pass."""

    plan: AttentionPlan

    def __init__(self, num_layers: int) -> None:
        self.num_blocks = TRASH + 1
        self._free: list[int] = []
        """A heap: the lowest come first, so that blocks in use lie close together."""
        self._holders = [1]
        """How many rows hold each block."""
        self._by_key: dict[BlockKey, int] = {}
        self._keys: dict[int, BlockKey] = {}
        super().__init__(layers=[BlockLayer(self) for _ in range(num_layers)])

    @property
    def num_held(self) -> int:
        """Blocks that rows hold, shared ones once."""
        return self.num_blocks - len(self._free) - 1

    def let_go(self) -> None:
        """Free the memory at once: layers and pool know each other, so it would stay until somebody looks for rings."""
        for layer in self.layers:
            assert isinstance(layer, BlockLayer)
            layer.let_go()

    def prepare(self, rows: Sequence[Row], ends: Sequence[int], device: torch.device) -> AttentionPlan:
        """Say which tokens the next forward pass computes: of each row those from its start up to its end."""
        missing = [-(-end // BLOCK_TOKENS) - len(row.blocks) for row, end in zip(rows, ends, strict=True)]
        self.make_room(sum(missing))
        for row, num in zip(rows, missing, strict=True):
            row.blocks.extend(self._take() for _ in range(num))
        self.plan = AttentionPlan(rows, ends, device)
        return self.plan

    def advance(self, rows: Sequence[Row], ends: Sequence[int]) -> None:
        """The pass is done: its tokens are cached, and blocks that are full can be found."""
        for row, end in zip(rows, ends, strict=True):
            row.num_cached = max(row.num_cached, end)
            while row.num_published < row.num_cached // BLOCK_TOKENS:
                self._publish(row)

    def adopt(self, row: Row) -> None:
        """Let a row go on with blocks that others have computed, as far as they begin alike."""
        while row.num_cached == len(row.blocks) * BLOCK_TOKENS and (key := self.next_key(row)) is not None:
            block = self._by_key.get(key)
            if block is None:
                return
            self._holders[block] += 1
            row.blocks.append(block)
            row.num_cached += BLOCK_TOKENS
            row.num_published += 1

    @torch.inference_mode()
    def copy(self, rows: Sequence[Row], copies: Sequence[Row]) -> None:
        """Let empty rows go on where others with the same tokens are: full blocks are shared, begun ones copied."""
        begun = [(row, copy) for row, copy in zip(rows, copies, strict=True) if row.num_cached % BLOCK_TOKENS]
        self.make_room(len(begun))
        for row, copy in zip(rows, copies, strict=True):
            num_whole = row.num_cached // BLOCK_TOKENS
            copy.blocks = row.blocks[:num_whole]
            for block in copy.blocks:
                self._holders[block] += 1
            copy.num_cached, copy.num_published = row.num_cached, num_whole
        for _, copy in begun:
            copy.blocks.append(self._take())
        if begun:
            source, target = ([row.blocks[-1] for row in some] for some in zip(*begun, strict=True))
            for layer in self.layers:
                assert isinstance(layer, BlockLayer)
                layer.copy_blocks(source, target)

    def next_key(self, row: Row) -> BlockKey | None:
        """What the next full block of this row is found by; None where it has none to compute, or begins inside one."""
        first = len(row.blocks) * BLOCK_TOKENS
        if row.num_cached != first or first + BLOCK_TOKENS > len(row.ids):
            return None
        return (row.blocks[-1] if row.blocks else TRASH, tuple(row.ids[first : first + BLOCK_TOKENS]))

    def cut(self, row: Row, num_tokens: int) -> None:
        """Keep the first tokens of a row. A block in which it parts from others is left to them and computed anew."""
        num_whole, rest = divmod(min(num_tokens, row.num_cached), BLOCK_TOKENS)
        if rest and self._holders[row.blocks[num_whole]] > 1:
            rest = 0
        if rest:
            self._hide(row.blocks[num_whole])
        num_kept = num_whole + bool(rest)
        for block in row.blocks[num_kept:]:
            self._give_back(block)
        del row.blocks[num_kept:]
        row.num_cached = num_whole * BLOCK_TOKENS + rest
        row.num_published = min(row.num_published, num_whole)

    def _publish(self, row: Row) -> None:
        number = row.num_published
        first = number * BLOCK_TOKENS
        block = row.blocks[number]
        key = (row.blocks[number - 1] if number else TRASH, tuple(row.ids[first : first + BLOCK_TOKENS]))
        # Two rows may have computed the same in one pass; the first is found.
        if key not in self._by_key:
            self._by_key[key] = block
            self._keys[block] = key
        row.num_published += 1

    def _hide(self, block: int) -> None:
        key = self._keys.pop(block, None)
        if key is not None:
            del self._by_key[key]

    def _take(self) -> int:
        block = heapq.heappop(self._free)
        self._holders[block] = 1
        return block

    def _give_back(self, block: int) -> None:
        self._holders[block] -= 1
        if not self._holders[block]:
            self._hide(block)
            heapq.heappush(self._free, block)

    def make_room(self, num_blocks: int) -> None:
        """Have so many free blocks: no more memory for a first long row than it needs, a growing share for many."""
        missing = num_blocks - len(self._free)
        if missing <= 0:
            return
        grown = max(self.num_blocks + missing, int(self.num_blocks * _GROWTH))
        for layer in self.layers:
            assert isinstance(layer, BlockLayer)
            layer.resize(grown)
        for block in range(self.num_blocks, grown):
            heapq.heappush(self._free, block)
        self._holders += [0] * (grown - self.num_blocks)
        self.num_blocks = grown


def _grown(store: Tensor, num_blocks: int) -> Tensor:
    grown = store.new_zeros((num_blocks, *store.shape[1:]))
    grown[: len(store)] = store
    return grown


class BlockLayer(CacheLayerMixin):
    """Keys and values of one layer, [blocks, heads, tokens, head size]: one matrix for each block and head."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__()
        self._pool = pool

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        shape = (self._pool.num_blocks, key_states.shape[1], BLOCK_TOKENS)
        self.keys = key_states.new_zeros((*shape, key_states.shape[-1]))
        self.values = value_states.new_zeros((*shape, value_states.shape[-1]))
        self.is_initialized = True

    def write(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Put what is new into its blocks; returns the blocks of all sequences."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        places = self._pool.plan.places(key_states.shape[1])
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            store.view(-1, store.shape[3]).index_copy_(0, places, new.reshape(-1, store.shape[3]))
        return self.keys, self.values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The same; returns keys and values of the rows of this pass, [rows, heads, keys, head size]."""
        keys, values = self.write(key_states, value_states)
        plan = self._pool.plan
        return (key_states, value_states) if plan.is_from_start else (plan.gather(keys), plan.gather(values))

    def copy_blocks(self, source: Sequence[int], target: Sequence[int]) -> None:
        for store in (self.keys, self.values):
            assert store is not None
            places = torch.tensor([source, target], device=store.device)
            store.index_copy_(0, places[1], store.index_select(0, places[0]))

    def resize(self, num_blocks: int) -> None:
        if self.keys is None or self.values is None:
            return
        self.keys = _grown(self.keys, num_blocks)
        self.values = _grown(self.values, num_blocks)

    def let_go(self) -> None:
        self.keys = self.values = None
        self.is_initialized = False

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._pool.plan.num_keys, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def attend(queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, hidden: Tensor) -> Tensor:
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


def _laid_out(found: list[Tensor], plan: AttentionPlan, *, is_whole: bool) -> Tensor:
    """[rows * blocks per row, …] from pairs; what no pair fills is zero if the whole is read, else anything."""
    shape = (plan.num_rows * plan.blocks_per_row + 1, found[0].shape[1])
    laid = found[0].new_zeros(shape) if is_whole else found[0].new_empty(shape)
    for part, pairs in zip(plan.parts, found, strict=True):
        laid.index_copy_(0, part.pairs, pairs)
    return laid[:-1]
