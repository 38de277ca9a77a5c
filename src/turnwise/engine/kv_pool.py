"""A pool of key-value rows for a Hugging Face model: each running sequence owns a slot and keeps it across turns.

In: which slots a forward pass reads and where it writes. Out: keys and values as attention wants them. A slot holds
its sequence from position 0 without holes, whatever the other rows of a batch do, so ragged batches need no padding
in the middle. It knows nothing of requests or sampling.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class SlotPlan:
    """The rows of the forward pass that is running: shared by all layers, replaced before each pass."""

    def __init__(self, slots: Tensor, positions: Tensor, capacity: int) -> None:
        self.slots = slots
        """[rows] the slot of each row."""
        self.positions = positions
        """[rows, new] where each new token is written; right padding writes behind the end and is overwritten later."""
        self.capacity = capacity
        self.num_keys = int(positions.max()) + 1
        first = int(slots[0])
        is_run = torch.equal(slots, torch.arange(first, first + len(slots), device=slots.device))
        self.run = slice(first, first + len(slots)) if is_run else None
        """The same slots as a slice, where they lie side by side: a view instead of a copy."""
        self._places: dict[int, Tensor] = {}
        self.is_from_start = bool((positions[:, 0] == 0).all())

    def places(self, num_heads: int) -> Tensor:
        """[rows * heads * new] where the new entries go in a pool laid end to end; the same for layers alike."""
        if num_heads not in self._places:
            heads = torch.arange(num_heads, device=self.slots.device)
            rows = (self.slots[:, None] * num_heads + heads[None, :]) * self.capacity
            self._places[num_heads] = (rows[:, :, None] + self.positions[:, None, :]).flatten()
        return self._places[num_heads]

    def attention_mask(self) -> Tensor:
        """[rows, 1, new, keys] true where a new token may look: at everything up to its own position."""
        keys = torch.arange(self.num_keys, device=self.positions.device)
        return (keys[None, None, :] <= self.positions[:, :, None])[:, None]


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [slots, heads, capacity, head size]: the order attention reads fastest."""

    def __init__(self, pool: SlotPool) -> None:
        super().__init__()
        self._pool = pool

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        shape = (self._pool.num_slots, key_states.shape[1], self._pool.capacity)
        self.keys = key_states.new_zeros((*shape, key_states.shape[-1]))
        self.values = value_states.new_zeros((*shape, value_states.shape[-1]))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        plan = self._pool.plan
        return self._write(self.keys, key_states, plan), self._write(self.values, value_states, plan)

    @staticmethod
    def _write(store: Tensor, new: Tensor, plan: SlotPlan) -> Tensor:
        store.view(-1, store.shape[3]).index_copy_(0, plan.places(store.shape[1]), new.reshape(-1, store.shape[3]))
        if plan.is_from_start and new.shape[2] == plan.num_keys:
            return new
        if plan.run is not None:
            return store[plan.run, :, : plan.num_keys]
        return store[:, :, : plan.num_keys].index_select(0, plan.slots)

    def resize(self, num_slots: int, capacity: int) -> None:
        if self.keys is None or self.values is None:
            return
        self.keys = _grown(self.keys, num_slots, capacity)
        self.values = _grown(self.values, num_slots, capacity)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._pool.plan.num_keys, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def _grown(store: Tensor, num_slots: int, capacity: int) -> Tensor:
    grown = store.new_zeros((num_slots, store.shape[1], capacity, store.shape[3]))
    grown[: store.shape[0], :, : store.shape[2]] = store
    return grown


class SlotPool(Cache):
    """All layers' slots; grows by doubling, never shrinks."""

    plan: SlotPlan

    def __init__(self, num_layers: int, *, num_slots: int = 64, capacity: int = 64) -> None:
        self.num_slots = num_slots
        self.capacity = capacity
        self._free = list(range(num_slots))[::-1]
        super().__init__(layers=[SlotLayer(self) for _ in range(num_layers)])

    def acquire(self) -> int:
        """The lowest free slot, so that rows that start together lie side by side."""
        if not self._free:
            self._resize(self.num_slots * 2, self.capacity)
        return self._free.pop()

    def release(self, slot: int) -> None:
        self._free.append(slot)
        self._free.sort(reverse=True)

    def prepare(self, slots: Tensor, positions: Tensor) -> SlotPlan:
        """Say which rows the next forward pass reads and writes."""
        num_keys = int(positions.max()) + 1
        if num_keys > self.capacity:
            self._resize(self.num_slots, max(num_keys, self.capacity * 2))
        self.plan = SlotPlan(slots, positions, self.capacity)
        return self.plan

    def _resize(self, num_slots: int, capacity: int) -> None:
        for layer in self.layers:
            assert isinstance(layer, SlotLayer)
            layer.resize(num_slots, capacity)
        self._free = sorted([*self._free, *range(self.num_slots, num_slots)], reverse=True)
        self.num_slots, self.capacity = num_slots, capacity
