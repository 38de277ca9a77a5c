"""Normalised rewards: closed forms, who is compared with whom, and what must stay as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.config.schema_learn import NormaliseGrouping, NormaliseMethod
from turnwise.credit.group import DrGrpo, Remax, normalize_rewards
from turnwise.types import Experience

from .rows import Play, make_batch, make_rows

METHODS: tuple[NormaliseMethod, ...] = get_args(NormaliseMethod)
GROUPINGS: tuple[NormaliseGrouping, ...] = get_args(NormaliseGrouping)


def make_plays(*scores: float, group: str = "lake/train/1") -> list[Play]:
    """Plays of one turn and one token each."""
    return [Play([score], [[0.0]], group=group, sibling=n) for n, score in enumerate(scores)]


def rewards_of(rows: Sequence[Experience]) -> list[float]:
    """The rewards of all turns of all rows, trajectories and turns in their own order."""
    turns = [
        (row.id.trajectory, turn, reward)
        for row in rows
        for turn, reward in zip(row.turn_indices.tolist(), row.turn_rewards.tolist(), strict=True)
    ]
    return [reward for *_, reward in sorted(turns)]


def normalised(
    plays: Sequence[Play], grouping: NormaliseGrouping, method: NormaliseMethod, **layout: object
) -> list[float]:
    return rewards_of(normalize_rewards(make_batch(plays, **layout)[0], grouping=grouping, method=method))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("identity", [1.0, 0.0, 0.0, 0.0]),
        ("mean", [0.75, -0.25, -0.25, -0.25]),
        ("mean_std", [1.5, -0.5, -0.5, -0.5]),
        ("asym_clip", [1.5, -0.5, -0.5, -0.5]),
    ],
)
def test_one_success_among_four(method: NormaliseMethod, expected: list[float]) -> None:
    np.testing.assert_allclose(normalised(make_plays(1, 0, 0, 0), "state", method), expected, atol=1e-5)


def test_asym_clip_bounds_failures_at_minus_one_and_successes_at_three() -> None:
    one_failure = normalised(make_plays(*[1.0] * 15, 0.0), "state", "asym_clip")
    np.testing.assert_allclose(one_failure, [0.25] * 15 + [-1.0], atol=1e-4)
    one_success = normalised(make_plays(*[0.0] * 15, 1.0), "state", "asym_clip")
    np.testing.assert_allclose(one_success, [-0.25] * 15 + [3.0], atol=1e-4)
    assert max(normalised(make_plays(*[0.0] * 15, 1.0), "state", "mean_std")) == pytest.approx(3.75, abs=1e-4)


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        ("state", [0.5, -0.5, 1.0, -1.0, 2.0, -2.0]),
        ("inductive", [-0.75, -1.75, 2.25, 0.25, 2.0, -2.0]),
        ("batch", [-13 / 6, -19 / 6, 5 / 6, -7 / 6, 29 / 6, 5 / 6]),
    ],
)
def test_who_is_compared_with_whom(grouping: NormaliseGrouping, expected: list[float]) -> None:
    """Two tasks of one tag, one of another."""
    plays = make_plays(1, 0) + make_plays(4, 2, group="lake/train/2") + make_plays(8, 4, group="shop/train/1")
    np.testing.assert_allclose(normalised(plays, grouping, "mean"), expected, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_alone_a_trajectory_keeps_its_rewards_bit_for_bit(method: NormaliseMethod) -> None:
    rewards = [0.1, -0.7, 5.3]
    plays = [Play(rewards, [[0.0]] * 3, greedy_return=0.4), *make_plays(1, 0, group="lake/train/2")]
    alone, *_ = normalize_rewards(make_batch(plays)[0], grouping="state", method=method)
    assert alone.turn_rewards.tolist() == [float(np.float32(r)) for r in rewards]
    assert alone.greedy_return == 0.4


@pytest.mark.parametrize("method", ["mean", "mean_std", "asym_clip"])
def test_plays_that_earned_the_same_sum_to_zero_and_are_not_blown_up(method: NormaliseMethod) -> None:
    plays = [Play(rewards, [[0.0]] * 2, sibling=n) for n, rewards in enumerate(([0.75, 0.25], [0.25, 0.75]))]
    assert normalised(plays, "state", method) == [0.75, -0.75, 0.25, -0.25]


def test_turns_are_scaled_and_the_last_one_makes_up_the_sum() -> None:
    plays = [Play([1.0, 2.0, 3.0], [[0.0]] * 3, sibling=0), Play([2.0, 0.0], [[0.0]] * 2, sibling=1)]
    # Sums 6 and 2: mean 4, standard deviation sqrt(8).
    unit = 1 / (np.sqrt(8) + 1e-6)
    expected = [1 * unit, 2 * unit, (3 - 4) * unit, 2 * unit, (0 - 4) * unit]
    np.testing.assert_allclose(normalised(plays, "state", "mean_std"), expected, atol=1e-6)
    np.testing.assert_allclose(normalised(plays, "state", "mean"), [1, 2, -1, 2, -4], atol=1e-6)


def test_a_row_keeps_the_rewards_of_its_own_turns_where_turns_of_two_rows_alternate() -> None:
    rows, _ = make_rows(Play([1.0, 2.0, 3.0, 4.0], [[0.0]] * 4), parts=[(0, 2), (1, 3)])
    other, _ = make_rows(Play([14.0], [[0.0]], sibling=1))
    first, second, _ = normalize_rewards(rows + other, grouping="state", method="mean")
    # Sums 10 and 14: what is missing to -2 goes to the last turn that was played, wherever its row stands.
    assert first.turn_rewards.tolist() == [1.0, 3.0]
    assert second.turn_rewards.tolist() == [2.0, -8.0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_nothing_that_was_given_is_changed(grouping: NormaliseGrouping, method: NormaliseMethod) -> None:
    """Raw and shaped rewards of these rows are one array, as they are where nothing was shaped."""
    rows, _ = make_batch([Play([1.0, 2.0], [[0.0]] * 2, sibling=n) for n in range(2)] + make_plays(5, group="a/b/1"))
    assert all(row.raw_rewards is row.turn_rewards for row in rows)
    before = [row.turn_rewards.copy() for row in rows]
    result = normalize_rewards(rows, grouping=grouping, method=method)
    for row, new, rewards in zip(rows, result, before, strict=True):
        np.testing.assert_array_equal(row.turn_rewards, rewards)
        np.testing.assert_array_equal(new.raw_rewards, rewards)
        assert new.id == row.id
        assert new.segment is row.segment


@pytest.mark.parametrize("method", METHODS)
def test_nothing_in_nothing_out(method: NormaliseMethod) -> None:
    assert normalize_rewards([], grouping="batch", method=method) == []


def test_the_mean_alone_is_the_baseline_of_dr_grpo() -> None:
    rows, annotations = make_batch(make_plays(1, 0, 0, 4))
    rule = DrGrpo()
    normal = normalize_rewards(rows, grouping="state", method="mean")
    for plain, again, row in zip(rule(rows, annotations), rule(normal, annotations), normal, strict=True):
        np.testing.assert_allclose(again.advantages, plain.advantages, atol=1e-6)
        assert again.advantages.sum() == pytest.approx(float(row.turn_rewards.sum()), abs=1e-6)


@pytest.mark.parametrize("method", ["mean", "mean_std"])
def test_a_greedy_return_stays_comparable_with_the_rewards_beside_it(method: NormaliseMethod) -> None:
    plays = [Play([1.0, 2.0], [[0.0]] * 2, sibling=0), Play([0.5, 0.0], [[0.0]] * 2, sibling=1)]
    rows, _ = make_batch([replace(play, greedy_return=0.75) for play in plays])
    rows += make_batch(make_plays(1, 0, group="lake/train/2"))[0]
    unit = 1 / (stdev([3.0, 0.5]) + 1e-6) if method == "mean_std" else 1.0
    annotations = make_batch(plays + make_plays(1, 0, group="lake/train/2"))[1]
    normal = normalize_rewards(rows, grouping="state", method=method)
    rule = Remax()
    for plain, again in zip(rule(rows, annotations), rule(normal, annotations), strict=True):
        np.testing.assert_allclose(again.advantages, plain.advantages * unit, atol=1e-5)
    assert [row.greedy_return is None for row in normal] == [False, False, True, True]


@st.composite
def batches(draw: st.DrawFn) -> list[Play]:
    """Trajectories of four turns each, in two groups of one tag and one group of another."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups = ["lake/train/1", "lake/train/2", "shop/train/1"]
    return [
        Play(rng.choice([0.0, 1.0, -0.1], size=4).tolist(), [[0.0]] * 4, group=groups[n % 3], sibling=n)
        for n in range(draw(st.integers(1, 8)))
    ]


groupings, methods = st.sampled_from(GROUPINGS), st.sampled_from(METHODS)


@settings(max_examples=80, deadline=None)
@given(batches(), groupings, methods)
def test_the_sums_are_those_of_a_loop_over_plays(
    batch: list[Play], grouping: NormaliseGrouping, method: NormaliseMethod
) -> None:
    def key(play: Play) -> str:
        return {"state": play.group, "inductive": play.group.split("/")[0], "batch": ""}[grouping]

    rows = normalize_rewards(make_batch(batch)[0], grouping=grouping, method=method)
    found = {row.id.trajectory.sibling: float(row.turn_rewards.sum()) for row in rows}
    for play in batch:
        scores = [sum(other.rewards) for other in batch if key(other) == key(play)]
        expected = sum(play.rewards)
        if len(scores) > 1 and method != "identity":
            expected -= mean(scores)
            if method != "mean":
                expected = expected / (stdev(scores) + 1e-6) if stdev(scores) > 1e-6 else 0.0
            if method == "asym_clip":
                expected = min(max(expected, -1.0), 3.0)
        assert found[play.sibling] == pytest.approx(expected, abs=2e-5)


@settings(max_examples=80, deadline=None)
@given(batches(), groupings, methods, st.sets(st.integers(1, 3)), st.data())
def test_cuts_and_the_order_of_rows_change_no_reward(
    batch: list[Play], grouping: NormaliseGrouping, method: NormaliseMethod, cuts: set[int], data: st.DataObject
) -> None:
    rows, _ = make_batch(batch, cuts=sorted(cuts))
    order = data.draw(st.permutations(range(len(rows))))
    result = normalize_rewards([rows[i] for i in order], grouping=grouping, method=method)
    assert [row.id for row in result] == [rows[i].id for i in order]
    assert rewards_of(result) == normalised(batch, grouping, method)


@settings(max_examples=80, deadline=None)
@given(batches(), groupings, methods, st.lists(st.integers(0, 2), min_size=4, max_size=4), st.data())
def test_turns_that_alternate_between_rows_change_no_reward(
    batch: list[Play], grouping: NormaliseGrouping, method: NormaliseMethod, owners: list[int], data: st.DataObject
) -> None:
    parts = [[turn for turn in range(4) if owners[turn] == owner] for owner in dict.fromkeys(owners)]
    rows, _ = make_batch(batch, parts=parts)
    order = data.draw(st.permutations(range(len(rows))))
    result = normalize_rewards([rows[i] for i in order], grouping=grouping, method=method)
    assert [row.id for row in result] == [rows[i].id for i in order]
    assert rewards_of(result) == normalised(batch, grouping, method)
