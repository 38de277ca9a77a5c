"""The tables of one forward pass over paged keys and values, shared by all layers.

In: the rows, their blocks, and how far each is computed. Out: where new entries go, which tokens each one sees, and
which row asks which block. It knows nothing of how attention is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.engine.rows import Row

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


class PassPlan:
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
