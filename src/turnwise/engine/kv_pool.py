"""A paged pool of keys and values for a Hugging Face model: every sequence owns blocks of a fixed number of tokens.

In: the rows of a forward pass and how far each is computed. Out: where new keys and values go, and those of all earlier
tokens. Memory grows with the tokens that are kept. A full block can be found by what stands in it and before it, so
sequences that begin alike hold the same blocks. It knows nothing of requests or sampling.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from turnwise.engine.pass_plan import BLOCK_TOKENS, TRASH, PassPlan
from turnwise.engine.rows import Row

_GROWTH = 1.5
BlockKey: TypeAlias = tuple[int, tuple[int, ...]]
"""The block before, and the tokens in this one. As long as a block is held, the one before it is held too."""


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


def _grown(store: Tensor, num_blocks: int) -> Tensor:
    grown = store.new_zeros((num_blocks, *store.shape[1:]))
    grown[: len(store)] = store
    return grown


class BlockPool(Cache):
    """All layers' blocks and who holds them. Block 0 takes what nobody reads: the padding of a pass."""

    plan: PassPlan

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

    def prepare(self, rows: Sequence[Row], ends: Sequence[int], device: torch.device) -> PassPlan:
        """Say which tokens the next forward pass computes: of each row those from its start up to its end."""
        missing = [-(-end // BLOCK_TOKENS) - len(row.blocks) for row, end in zip(rows, ends, strict=True)]
        self.make_room(sum(missing))
        for row, num in zip(rows, missing, strict=True):
            row.blocks.extend(self._take() for _ in range(num))
        self.plan = PassPlan(rows, ends, device)
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
