"""Blocks: who holds them, who shares them, and that rows read what they wrote."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from turnwise.engine.kv_pool import BLOCK_TOKENS, BlockLayer, BlockPool, Row, attend

CPU = torch.device("cpu")
HEADS, SIZE = 2, 4


def entries(ids: Sequence[int], start: int, end: int, width: int) -> Tensor:
    """[heads, width, size] made of the tokens alone, so that equal tokens have equal entries."""
    part = torch.tensor([*ids[start:end], *[0] * (width - (end - start))], dtype=torch.float32)
    scale = torch.arange(1, HEADS * SIZE + 1, dtype=torch.float32).view(HEADS, 1, SIZE)
    return torch.sin(part[None, :, None] * scale)


def compute(pool: BlockPool, rows: Sequence[Row], ends: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """One pass: write what is new and return what each row reads, keys and values."""
    ends = [len(row.ids) for row in rows] if ends is None else ends
    plan = pool.prepare(rows, ends, CPU)
    new = [entries(row.ids, row.start, end, plan.width) for row, end in zip(rows, ends, strict=True)]
    keys = torch.stack(new)
    read = pool.layers[0].update(keys, -keys)
    pool.advance(rows, ends)
    return read


def ids_of(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, 1000, length).tolist()


def assert_reads_its_own(rows: Sequence[Row], read: tuple[Tensor, Tensor]) -> None:
    for row, keys, values in zip(rows, *read, strict=True):
        expected = entries(row.ids, 0, len(row.ids), len(row.ids))
        assert torch.equal(keys[:, : len(row.ids)], expected)
        assert torch.equal(values[:, : len(row.ids)], -expected)


def test_rows_of_any_length_read_their_own_while_the_pool_grows() -> None:
    pool, rows = BlockPool(1), [Row(ids=ids_of(n, 3 + 20 * n)) for n in range(5)]
    assert_reads_its_own(rows, compute(pool, rows))
    for row in rows:
        row.ids = row.ids + ids_of(50, 1 + len(row.ids) % 40)
    late = Row(ids=ids_of(9, 70))
    assert_reads_its_own([*rows[::-1], late], compute(pool, [*rows[::-1], late]))
    assert pool.num_held == sum(-(-len(row.ids) // BLOCK_TOKENS) for row in (*rows, late))


def test_a_row_in_pieces_is_the_row_in_one() -> None:
    pool, row = BlockPool(1), Row(ids=ids_of(1, 100))
    for end in (40, 41, 90):
        compute(pool, [row], [end])
        assert row.num_cached == end
    assert_reads_its_own([row], compute(pool, [row]))


def test_blocks_that_begin_alike_are_held_once_and_go_with_the_last_who_holds_them() -> None:
    pool, prompt = BlockPool(1), ids_of(1, 2 * BLOCK_TOKENS + 5)
    first = Row(ids=prompt)
    compute(pool, [first])
    others = [Row(ids=[*prompt[:-1], n]) for n in range(3)]
    for row in others:
        pool.adopt(row)
        assert row.num_cached == 2 * BLOCK_TOKENS
    assert_reads_its_own(others, compute(pool, others))
    assert pool.num_held == 2 + 4
    pool.cut(first, 0)
    assert pool.num_held == 2 + 3
    assert_reads_its_own(others[1:], compute(pool, others[1:]))
    for row in others:
        pool.cut(row, 0)
    assert pool.num_held == 0
    again = Row(ids=prompt)
    pool.adopt(again)
    assert again.num_cached == 0


def test_the_same_tokens_behind_another_beginning_are_not_shared() -> None:
    pool, block = BlockPool(1), ids_of(1, BLOCK_TOKENS)
    compute(pool, [Row(ids=[*block, *block])])
    other = Row(ids=[*ids_of(2, BLOCK_TOKENS), *block])
    pool.adopt(other)
    assert other.num_cached == 0


def test_a_row_that_parts_inside_a_shared_block_leaves_it_to_the_others() -> None:
    pool, prompt = BlockPool(1), ids_of(1, 2 * BLOCK_TOKENS)
    first, second = Row(ids=prompt), Row(ids=[*prompt, 7])
    compute(pool, [first])
    pool.adopt(second)
    compute(pool, [second])
    pool.cut(second, BLOCK_TOKENS + 10)
    assert second.num_cached == BLOCK_TOKENS
    second.ids = [*prompt[: BLOCK_TOKENS + 10], *ids_of(5, 40)]
    assert_reads_its_own([second, first], compute(pool, [second, first]))


def test_a_row_that_parts_inside_a_block_of_its_own_keeps_it_and_is_not_found_there() -> None:
    pool, prompt = BlockPool(1), ids_of(1, BLOCK_TOKENS)
    row = Row(ids=[*prompt, 7])
    compute(pool, [row])
    pool.cut(row, 10)
    assert row.num_cached == 10
    row.ids = [*prompt[:10], *ids_of(5, 40)]
    assert_reads_its_own([row], compute(pool, [row]))
    other = Row(ids=[*prompt, 8])
    pool.adopt(other)
    assert other.num_cached == 0


def test_the_last_token_of_a_shared_block_is_computed_again_and_not_written() -> None:
    pool, prompt = BlockPool(1), ids_of(1, BLOCK_TOKENS)
    first, second = Row(ids=prompt), Row(ids=prompt)
    compute(pool, [first])
    pool.adopt(second)
    assert (second.num_cached, second.start) == (BLOCK_TOKENS, BLOCK_TOKENS - 1)
    plan = pool.prepare([second], [BLOCK_TOKENS], CPU)
    wrong = torch.full((1, HEADS, 1, SIZE), 5.0)
    keys, _ = pool.layers[0].update(wrong, wrong)
    assert plan.width == 1
    assert torch.equal(keys[0], entries(prompt, 0, BLOCK_TOKENS, BLOCK_TOKENS))


def test_a_token_looks_at_everything_up_to_its_own_position() -> None:
    pool, rows = BlockPool(1), [Row(ids=[1, 2]), Row(ids=[1, 2, 3, 4])]
    compute(pool, rows, [1, 2])
    plan = pool.prepare(rows, [2, 4], CPU)
    # The padding of the first row sees what its last token sees.
    assert plan.attention_mask()[:, 0].int().tolist() == [
        [[1, 1, 0, 0], [1, 1, 0, 0]],
        [[1, 1, 1, 0], [1, 1, 1, 1]],
    ]


@pytest.mark.parametrize("num_new", [1, 5])
@pytest.mark.parametrize("kind", ["apart", "shared", "scattered"])
def test_blocks_asked_where_they_lie_answer_like_keys_laid_side_by_side(kind: str, num_new: int) -> None:
    pool, prompt = BlockPool(1), ids_of(1, 2 * BLOCK_TOKENS)
    beginnings = [ids_of(n, 8 + 25 * n) for n in range(6)]
    if kind == "shared":
        beginnings = [[*prompt, *ids_of(n, 1 + n)] for n in range(5)] + [prompt[:BLOCK_TOKENS], ids_of(9, 3)]
    rows = []
    for beginning in beginnings:
        rows.append(Row(ids=beginning))
        pool.adopt(rows[-1])
        compute(pool, rows[-1:])
    if kind == "scattered":
        rows = rows[::5]
    for n, row in enumerate(rows):
        row.ids = row.ids + ids_of(70 + n, num_new)
    ends = [len(row.ids) for row in rows]
    plan = pool.prepare(rows, ends, CPU)
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(len(rows), 2 * HEADS, plan.width, SIZE, generator=generator)
    new = torch.stack([entries(row.ids, row.start, len(row.ids), plan.width) for row in rows])
    layer = pool.layers[0]
    assert isinstance(layer, BlockLayer)
    asked = attend(queries, *layer.write(new, -new), plan, plan.hidden())
    keys, values = layer.update(new, -new)
    expected = F.scaled_dot_product_attention(queries, keys, values, attn_mask=plan.attention_mask(), enable_gqa=True)
    assert {part.num_askers > 1 for part in plan.parts} == ({True, False} if kind == "shared" else {False})
    assert any(isinstance(part.blocks, Tensor) for part in plan.parts) == (kind == "scattered")
    torch.testing.assert_close(asked, expected, atol=1e-5, rtol=1e-5)


def test_one_request_of_32k_tokens_on_a_large_shape_reserves_its_own_tokens_alone() -> None:
    """Qwen2.5-7B: 28 layers, 4 key-value heads of 128; on no device at all, for shapes alone."""
    length, width, meta = 32_000, 2_000, torch.device("meta")
    pool, row = BlockPool(28), Row(ids=list(range(length)))
    pool.make_room(length // BLOCK_TOKENS)
    for end in range(width, length + 1, width):
        pool.prepare([row], [end], CPU)
        pool.plan._device = meta
        new = torch.empty(1, 4, width, 128, dtype=torch.bfloat16, device=meta)
        for layer in pool.layers:
            assert isinstance(layer, BlockLayer)
            layer.write(new, new)
        pool.advance([row], [end])
    stores = [store for layer in pool.layers for store in (layer.keys, layer.values)]
    num_bytes = sum(store.nbytes for store in stores if store is not None)
    per_token = 28 * 2 * 4 * 128 * 2
    assert length * per_token <= num_bytes <= 1.01 * length * per_token
