"""Slots: who owns them, how they grow, and that rows read what they wrote."""

from __future__ import annotations

import torch
from torch import Tensor

from turnwise.engine.kv_pool import SlotPool


def write(pool: SlotPool, slots: list[int], starts: list[int], new: Tensor) -> tuple[Tensor, Tensor]:
    """Write `new` [rows, heads, tokens, size] as keys (and its negative as values) into layer 0."""
    positions = torch.tensor(starts)[:, None] + torch.arange(new.shape[2])[None]
    pool.prepare(torch.tensor(slots), positions)
    return pool.layers[0].update(new, -new)


def test_slots_are_handed_out_lowest_first() -> None:
    pool = SlotPool(1, num_slots=4)
    assert [pool.acquire() for _ in range(3)] == [0, 1, 2]
    pool.release(1)
    pool.release(0)
    assert [pool.acquire() for _ in range(3)] == [0, 1, 3]


def test_slots_and_capacity_grow_and_keep_what_was_written() -> None:
    pool = SlotPool(1, num_slots=2, capacity=4)
    slots = [pool.acquire(), pool.acquire()]
    first = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    write(pool, slots, [0, 0], first)
    slots.append(pool.acquire())
    assert (slots, pool.num_slots, pool.capacity) == ([0, 1, 2], 4, 4)
    more = torch.randn(3, 3, 3, 5, generator=torch.Generator().manual_seed(1))
    keys, values = write(pool, slots, [4, 2, 0], more)
    assert pool.capacity == 8
    assert torch.equal(keys[0, :, :7], torch.cat([first[0], more[0]], dim=1))
    assert torch.equal(keys[1, :, :5], torch.cat([first[1, :, :2], more[1]], dim=1))
    assert torch.equal(keys[2, :, :3], more[2])
    assert torch.equal(values, -keys)


def test_rows_in_any_order_of_slots_read_their_own() -> None:
    pool = SlotPool(1, num_slots=4, capacity=4)
    first = torch.arange(4.0)[:, None, None, None].expand(4, 1, 2, 1).contiguous()
    write(pool, [0, 1, 2, 3], [0, 0, 0, 0], first)
    keys, _ = write(pool, [3, 0], [2, 2], torch.tensor([30.0, 10.0])[:, None, None, None])
    assert keys[:, 0, :, 0].tolist() == [[3.0, 3.0, 30.0], [0.0, 0.0, 10.0]]


def test_a_token_looks_at_everything_up_to_its_own_position() -> None:
    pool = SlotPool(1, num_slots=4, capacity=4)
    plan = pool.prepare(torch.tensor([0, 1]), torch.tensor([[0, 1], [2, 3]]))
    assert plan.attention_mask()[:, 0].int().tolist() == [
        [[1, 0, 0, 0], [1, 1, 0, 0]],
        [[1, 1, 1, 0], [1, 1, 1, 1]],
    ]
