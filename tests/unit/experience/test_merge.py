"""Step-wise experiences that extend each other become one row, and nothing that is learnt changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.config.kinds import ADVANTAGE_ESTIMATORS
from turnwise.experience.build import merge_prefixes
from turnwise.learn.pack import pack
from turnwise.types import Annotations, Experience, FloatArray, Sample

from ..learn.parts import gradients, make_model, make_trainer
from .step_wise import Call, make_calls


@st.composite
def call_trees(draw: st.DrawFn) -> list[Call]:
    """Every call continues the one before it, an earlier one, or none."""
    calls: list[Call] = []
    step = 0
    for turn in range(draw(st.integers(1, 6))):
        continues = draw(st.sampled_from([None, *range(turn), *([turn - 1] * 3 if turn else [])]))
        step += draw(st.integers(0, 1)) if turn else 0
        calls.append(
            Call(
                continues=continues,
                num_new=draw(st.integers(1 if continues is None else 0, 3)),
                num_sampled=draw(st.integers(1, 3)),
                step=step,
                reward=draw(st.sampled_from([0.0, 1.0, -0.5])),
            )
        )
    return calls


CHAIN = [Call(turn - 1 if turn else None, 2, 2, step=turn, reward=float(turn == 3)) for turn in range(4)]
"""Four steps of one conversation."""


def batches() -> st.SearchStrategy[list[Experience]]:
    """The calls of several siblings in one list."""
    return st.lists(call_trees(), min_size=2, max_size=4).map(
        lambda trees: [row for n, calls in enumerate(trees) for row in make_calls(calls, sibling=n)]
    )


def by_turn(rows: list[Experience]) -> dict[tuple[Any, int], tuple[Any, ...]]:
    """All that is recorded of each turn: the tokens before it, its own, their log-probs, reward, state, step."""
    found = {}
    for row in rows:
        segment = row.segment
        for place, turn in enumerate(row.turn_indices.tolist()):
            own = np.flatnonzero(segment.turn_ids == turn)
            found[row.id.trajectory, turn] = (
                segment.token_ids[: own[-1] + 1].tolist(),
                own.tolist(),
                segment.behavior_logprobs[own].tolist(),
                *(float(a[place]) for a in (row.raw_rewards, row.turn_rewards, row.turn_states, row.turn_steps)),
            )
    return found


@given(rows=batches())
def test_no_token_no_turn_and_no_reward_is_lost_or_changed(rows: list[Experience]) -> None:
    merged = merge_prefixes(rows)
    assert by_turn(merged) == by_turn(rows)
    assert sum(len(row.turn_indices) for row in merged) == len(rows)
    assert all(not row.segment.behavior_logprobs[~row.segment.loss_mask].any() for row in merged)
    assert len({row.id for row in merged}) == len(merged)


@given(calls=call_trees())
def test_a_call_shares_the_row_of_the_call_that_it_goes_on_from(calls: list[Call]) -> None:
    rows = make_calls(calls)
    expected: list[list[int]] = []
    for turn, row in enumerate(rows):
        prompt = row.segment.token_ids[~row.segment.loss_mask].tolist()
        # By its tokens: one that branches off may happen to repeat what was sampled before it.
        ends = {tuple(rows[chain[-1]].segment.token_ids.tolist()): chain for chain in expected}
        extended = [end for end in ends if tuple(prompt[: len(end)]) == end]
        if extended:
            ends[max(extended, key=len)].append(turn)
        else:
            expected.append([turn])
    assert [row.turn_indices.tolist() for row in merge_prefixes(rows)] == expected


@given(calls=call_trees())
def test_version_and_end_of_a_row(calls: list[Call]) -> None:
    rows = make_calls(calls)
    for row in merge_prefixes(rows):
        parts = [rows[turn] for turn in row.turn_indices]
        assert row.policy_version == min(part.policy_version for part in parts)
        assert row.is_last == parts[-1].is_last
        assert row.id == parts[0].id


@given(rows=batches(), data=st.data())
def test_the_order_in_which_rows_come_does_not_matter(rows: list[Experience], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(rows))
    assert by_turn(merge_prefixes(shuffled)) == by_turn(merge_prefixes(rows))


def test_what_does_not_extend_stays_the_same_object_in_the_same_place() -> None:
    apart = [Call(None, 2, 2, step=n, reward=0.0) for n in range(3)]
    rows = make_calls(apart)[::-1]
    assert all(a is b for a, b in zip(merge_prefixes(rows), rows, strict=True))


def test_tokens_that_were_sampled_again_are_not_merged() -> None:
    """The second call holds the first one's tokens, but sampled them anew: they are not its unsampled beginning."""
    first = make_calls([Call(None, 2, 2, step=0, reward=0.0)])[0]
    rows = make_calls([Call(None, 2, 2, 0, 0.0), Call(0, 1, 2, 1, 0.0)])
    mask = rows[1].segment.loss_mask.copy()
    mask[2:4] = True
    segment = type(first.segment)(
        token_ids=rows[1].segment.token_ids,
        loss_mask=mask,
        behavior_logprobs=rows[1].segment.behavior_logprobs,
        turn_ids=np.where(mask, 1, -1).astype(np.int32),
    )
    again = Experience(**{name: getattr(rows[1], name) for name in Experience.__slots__} | {"segment": segment})
    assert len(merge_prefixes([rows[0], again])) == 2


def test_siblings_with_equal_tokens_are_not_merged() -> None:
    a, b = make_calls(CHAIN[:1], sibling=0), make_calls([*CHAIN[:1], CHAIN[1]], sibling=1)
    b[1].segment.token_ids[:4] = a[0].segment.token_ids
    assert len(merge_prefixes([a[0], b[1]])) == 2


# --- what is learnt stays the same -----------------------------------------------------------------------------------


def per_turn(rows: list[Experience], arrays: list[FloatArray]) -> dict[tuple[Any, int], list[float]]:
    return {
        (row.id.trajectory, turn): array[row.segment.turn_ids == turn].tolist()
        for row, array in zip(rows, arrays, strict=True)
        for turn in row.turn_indices.tolist()
    }


def annotated(rows: list[Experience]) -> Annotations:
    """Numbers that depend on a token and its place alone, as those of a causal model do."""

    def numbers(row: Experience, scale: float) -> FloatArray:
        places = np.arange(len(row.segment))
        drawn = np.sin(row.segment.token_ids * 1.7 + places + 10 * row.id.trajectory.sibling) * scale
        return np.where(row.segment.loss_mask, drawn, 0).astype(np.float32)

    return Annotations(
        values=tuple(numbers(row, 1.0) for row in rows), token_penalties=tuple(numbers(row, -0.1) for row in rows)
    )


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
@settings(max_examples=12, deadline=None)
@given(rows=batches())
def test_every_credit_rule_gives_the_same_advantages(name: str, rows: list[Experience]) -> None:
    target: Any = ADVANTAGE_ESTIMATORS.find(name)
    rule = target()
    merged = merge_prefixes(rows)
    apart, together = rule(rows, annotated(rows)), rule(merged, annotated(merged))
    for column in ("advantages", "returns"):
        before = per_turn(rows, [getattr(sample, column) for sample in apart])
        after = per_turn(merged, [getattr(sample, column) for sample in together])
        assert before.keys() == after.keys()
        for key, numbers in before.items():
            np.testing.assert_allclose(after[key], numbers, atol=1e-6)


BRANCHING = [
    Call(None, 3, 2, 0, 0.0),
    Call(0, 2, 3, 1, 1.0),
    Call(1, 1, 2, 1, 0.0),
    Call(0, 2, 2, 2, -0.5),
    Call(3, 1, 1, 3, 1.0),
    Call(None, 2, 2, 4, 0.5),
]


@pytest.mark.parametrize("critic", ["none", "value_head", "model"])
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"])
def test_the_gradient_of_an_update_is_the_same(aggregation: str, critic: str) -> None:
    rows = [row for n, calls in enumerate((CHAIN, BRANCHING, CHAIN[:2])) for row in make_calls(calls, sibling=n)]
    merged = merge_prefixes(rows)
    assert (len(rows), len(merged)) == (12, 5)
    rule: Any = ADVANTAGE_ESTIMATORS.find("grpo" if critic == "none" else "bi_level_gae")
    learn: dict[str, Any] = {"aggregation": aggregation, "critic": {"type": critic}, "entropy_coef": 0.01}
    if critic != "none":
        learn |= {"kl": {"type": "loss"}}

    def gradient(experiences: list[Experience]) -> dict[str, torch.Tensor]:
        trainer = make_trainer(make_model().double(), **learn)
        if trainer.critic is not None:
            trainer.critic.double()
        samples: list[Sample] = rule()(experiences, trainer.annotate(experiences))
        return gradients(trainer, pack(samples))

    apart, together = gradient(rows), gradient(merged)
    assert sum(float(g.abs().sum()) for g in apart.values()) > 1e-3
    for name, before in apart.items():
        assert before.dtype == torch.float64
        torch.testing.assert_close(together[name], before, rtol=1e-6, atol=1e-6)
