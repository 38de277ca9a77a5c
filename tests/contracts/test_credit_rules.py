"""The contract of a credit rule: pure, per trajectory, zero off the mask; cuts, order and padding change nothing."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.credit.rows import Play, make_batch, sampled
from turnwise.config.kinds import AdvantageEstimator
from turnwise.types import Annotations

from .entries import names_of
from .setting import settings_with

pytestmark = pytest.mark.slow

VARIANTS = (
    "gae gamma=0.9 lam=0.8",
    "bi_level_gae gamma=0.9 lam=0.8 high_level_lam=0.7 turn_value_at=first",
    "bi_level_gae gamma=0.9 lam=0.8 high_level_lam=0.7",
    "turn_gae lam=0.8",
    "opmd baseline=logavgexp tau=0.5",
    "reinforce gamma=0.9",
    "reinforce_pp gamma=0.9",
    "multi_step_grpo step_norm=true std_level=batch std_threshold=0.1",
    "step_return gamma=0.9",
    "gigpo scale_by_std=true",
)
"""With these settings more of a rule shows than with its defaults."""
every_rule = pytest.mark.parametrize("words", [*names_of("credit"), *VARIANTS])


@cache
def open_rule(words: str) -> AdvantageEstimator:
    name, *own = words.split()
    return settings_with(f"credit.type={name}", *(f"credit.{setting}" for setting in own)).credit


@st.composite
def batches(draw: st.DrawFn) -> list[Play]:
    """Trajectories of four turns each, two groups, one of them played greedily; every token has a penalty."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    batch = []
    for number in range(draw(st.integers(2, 5))):
        values = [list(rng.normal(size=rng.integers(1, 4))) for _ in range(4)]
        rewards = list(rng.choice([0.0, 1.0, -0.1], size=4))
        batch.append(
            Play(
                rewards,
                values,
                is_truncated=bool(rng.random() < 0.5),
                group=f"lake/train/{number % 2}",
                sibling=number,
                penalties=[list(rng.normal(scale=0.3, size=len(turn))) for turn in values],
                states=list(rng.integers(0, 3, size=4)),
                greedy_return=None if number % 2 else 0.5,
            )
        )
    return batch


def assert_same(rule: object, batch: list[Play], **layout: object) -> None:
    plain = sampled(rule, batch)
    for before, after in zip(plain, sampled(rule, batch, **layout), strict=True):
        np.testing.assert_allclose(after, before, atol=1e-6)


@every_rule
def test_it_says_what_it_needs(words: str) -> None:
    rule = open_rule(words)
    assert {type(need) for need in (rule.needs_values, rule.needs_groups, rule.needs_greedy)} == {bool}


@every_rule
@settings(max_examples=10, deadline=None)
@given(batch=batches())
def test_every_experience_has_finite_credit_in_its_own_place(words: str, batch: list[Play]) -> None:
    rows, annotations = make_batch(batch, cuts=(1, 3))
    samples = open_rule(words)(rows, annotations)
    assert [sample.experience for sample in samples] == rows
    for sample in samples:
        off = ~sample.experience.segment.loss_mask
        for credit in (sample.advantages, sample.returns):
            assert credit.dtype == np.float32
            assert np.isfinite(credit).all()
            assert not credit[off].any()
    again = open_rule(words)(rows, annotations)
    assert [s.advantages.tolist() for s in again] == [s.advantages.tolist() for s in samples]


@every_rule
@settings(max_examples=25, deadline=None)
@given(batch=batches(), cuts=st.sets(st.integers(1, 3)))
def test_cutting_a_trajectory_into_experiences_changes_no_advantage(
    words: str, batch: list[Play], cuts: set[int]
) -> None:
    assert_same(open_rule(words), batch, cuts=sorted(cuts))


@every_rule
@settings(max_examples=10, deadline=None)
@given(batch=batches(), padding=st.integers(2, 6))
def test_tokens_that_nobody_sampled_change_no_advantage(words: str, batch: list[Play], padding: int) -> None:
    assert_same(open_rule(words), batch, padding=padding)


@every_rule
@settings(max_examples=25, deadline=None)
@given(batch=batches(), data=st.data())
def test_the_order_of_rows_changes_no_advantage(words: str, batch: list[Play], data: st.DataObject) -> None:
    rows, annotations = make_batch(batch, cuts=(2,))
    values, penalties = annotations.values or (), annotations.token_penalties or ()
    straight = open_rule(words)(rows, annotations)
    order = data.draw(st.permutations(range(len(rows))))
    reordered = Annotations(values=tuple(values[i] for i in order), token_penalties=tuple(penalties[i] for i in order))
    shuffled = open_rule(words)([rows[i] for i in order], reordered)
    for place, i in enumerate(order):
        assert shuffled[place].experience is rows[i]
        np.testing.assert_allclose(shuffled[place].advantages, straight[i].advantages, atol=1e-6)
        np.testing.assert_allclose(shuffled[place].returns, straight[i].returns, atol=1e-6)
