"""Numbers worked out by hand, whitening, and every setting of every rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnwise.config.kinds import ADVANTAGE_ESTIMATORS
from turnwise.credit.gae import BiLevelGae, Gae, TurnGae
from turnwise.credit.group import Grpo, Opmd, Reinforce, ReinforcePp, estimate_grpo, estimate_opmd, estimate_rloo
from turnwise.credit.layout import TurnLayout, layout_from_keys, scan_back, shift_back, whiten
from turnwise.credit.step_level import (
    Gigpo,
    MultiStepGrpo,
    StepReturn,
    estimate_multi_step_grpo,
)
from turnwise.errors import ConfigError
from turnwise.types import Annotations

from .rows import Play, credited, make_rows, sampled

BATCH = [
    Play([0.0, 1.0], [[0.1, 0.2], [0.3, -0.4]], is_truncated=True, sibling=0),
    Play([0.5, 0.0, -0.1], [[0.0, 0.7], [0.2], [0.1, 0.4, 0.3]], sibling=1),
    Play([0.2], [[-0.3]], sibling=2),
]


@pytest.mark.parametrize(
    ("rule", "key", "other"),
    [
        (Gae, "gamma", 0.5),
        (Gae, "lam", 0.5),
        (Gae, "truncation", "end"),
        (Gae, "whiten", False),
        (BiLevelGae, "gamma", 0.5),
        (BiLevelGae, "lam", 0.5),
        (BiLevelGae, "high_level_gamma", 0.5),
        (BiLevelGae, "high_level_lam", 0.5),
        (BiLevelGae, "turn_value_at", "first"),
        (BiLevelGae, "truncation", "end"),
        (BiLevelGae, "whiten", False),
        (TurnGae, "gamma", 0.5),
        (TurnGae, "lam", 0.5),
        (TurnGae, "truncation", "end"),
        (TurnGae, "whiten", False),
        (Opmd, "baseline", "logavgexp"),
        (Opmd, "tau", 0.2),
        (Reinforce, "gamma", 0.5),
        (ReinforcePp, "gamma", 0.5),
        (MultiStepGrpo, "step_norm", True),
        (MultiStepGrpo, "std_level", "batch"),
        (MultiStepGrpo, "std_threshold", 10.0),
        (StepReturn, "gamma", 0.5),
        (StepReturn, "scale_by_std", False),
        (Gigpo, "gamma", 0.5),
        (Gigpo, "step_weight", 0.5),
        (Gigpo, "scale_by_std", True),
    ],
)
def test_every_setting_changes_advantages(rule: type, key: str, other: object) -> None:
    assert rule.model_fields[key].default != other
    # Lambda 1 would hide where a turn's value is read: the sum telescopes.
    base: dict[str, object] = {"high_level_lam": 0.8} if rule is BiLevelGae and key == "turn_value_at" else {}
    base |= {"baseline": "logavgexp"} if (rule, key) == (Opmd, "tau") else {}
    # A second group, so that a statistic over the batch differs from one over siblings.
    batch = [*BATCH, *(Play([reward], [[0.1]], False, "lake/train/9", n) for n, reward in enumerate((3.0, -2.0)))]
    default = np.concatenate(sampled(rule(**base), batch))
    changed = np.concatenate(sampled(rule(**base, **{key: other}), batch))
    assert np.abs(default - changed).max() > 1e-3


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
def test_the_table_above_knows_every_setting(name: str) -> None:
    rule: Any = ADVANTAGE_ESTIMATORS.find(name)
    (marks,) = (m for m in test_every_setting_changes_advantages.pytestmark if m.name == "parametrize")  # type: ignore[attr-defined]
    covered = {key for tested, key, _ in marks.args[1] if tested is rule}
    assert rule.model_fields.keys() - {"type"} == covered


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
def test_a_rule_reads_what_it_says_it_needs_and_nothing_more(name: str) -> None:
    rule: Any = ADVANTAGE_ESTIMATORS.find(name)
    shifted = [replace(play, values=[[v + i for i, v in enumerate(t, 1)] for t in play.values]) for play in BATCH]
    with_greedy = [replace(play, greedy_return=0.3) for play in BATCH]
    parted = [replace(play, group=f"lake/train/{play.sibling // 2}") for play in BATCH]
    credit = rule()
    plain = np.concatenate(sampled(credit, BATCH))
    found = [not np.allclose(np.concatenate(sampled(credit, other)), plain) for other in (shifted, parted, with_greedy)]
    assert found == [rule.needs_values, rule.needs_groups, rule.needs_greedy]


@pytest.mark.parametrize("key", ["gamma", "lam"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_discounts_lie_between_zero_and_one(key: str, value: float) -> None:
    for params in (Gae, BiLevelGae):
        with pytest.raises(ValueError, match=key):
            params.model_validate({key: value})


@pytest.mark.parametrize("rule", [Gae(), BiLevelGae()])
def test_whitened_advantages_have_mean_zero_and_variance_one_and_returns_stay(rule: object) -> None:
    found = credited(rule, BATCH)
    advantages = np.concatenate([a for a, _ in found])
    assert advantages.mean() == pytest.approx(0, abs=1e-6)
    assert advantages.var(ddof=1) == pytest.approx(1, abs=1e-5)
    plain = credited(rule.model_copy(update={"whiten": False}), BATCH)  # type: ignore[attr-defined]
    for (_, returns), (plain_advantages, plain_returns), play in zip(found, plain, BATCH, strict=True):
        np.testing.assert_allclose(returns, plain_returns, atol=1e-6)
        values = [v for turn in play.values for v in turn]
        np.testing.assert_allclose(plain_returns, plain_advantages + values, atol=1e-6)


def test_whitening_of_little_or_nothing() -> None:
    assert whiten(np.zeros(0)).tolist() == []
    assert whiten(np.array([3.0])).tolist() == [0.0]
    assert whiten(np.array([2.0, 2.0, 2.0])).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rule", [Gae(), BiLevelGae(), TurnGae()])
def test_a_rule_that_needs_values_says_so(rule: object) -> None:
    rows, _ = make_rows(BATCH[0])
    with pytest.raises(ConfigError, match=r"needs a critic.*learn\.critic\.type"):
        rule(rows, Annotations())  # type: ignore[operator]
    assert rule.needs_values  # type: ignore[attr-defined]


def test_samples_carry_values_and_reference_logprobs_unchanged() -> None:
    rows, values = make_rows(BATCH[1], cuts=(1,))
    reference = tuple(np.full(len(v), -0.25, dtype=np.float32) for v in values)
    samples = Gae()(rows, Annotations(values=tuple(values), reference_logprobs=reference))
    for sample, row, value, ref in zip(samples, rows, values, reference, strict=True):
        assert sample.experience is row
        assert np.array_equal(sample.values, value)
        assert np.array_equal(sample.reference_logprobs, ref)
    without = Grpo()(rows, Annotations())
    assert not any(s.values.any() or s.reference_logprobs.any() for s in without)


# --- the numbers of golden/README.md, worked out by hand -------------------------------------------------------------


def test_grpo_numbers() -> None:
    groups = np.zeros(4, dtype=np.int64)
    two = estimate_grpo(np.array([1.0, 0.0]), groups[:2], scale_by_std=True)
    np.testing.assert_allclose(two, [0.70710578, -0.70710578], atol=1e-7)
    four = estimate_grpo(np.array([1, -0.1, -0.1, -0.1]), groups, scale_by_std=True)
    np.testing.assert_allclose(four, [1.49999727, *[-0.49999909] * 3], atol=1e-7)


def test_a_singleton_group_keeps_its_score_and_equal_scores_teach_nothing() -> None:
    scores, groups = np.array([0.7, 0.4, 0.4]), np.array([0, 1, 1])
    np.testing.assert_allclose(estimate_grpo(scores, groups, scale_by_std=False), [0.7, 0, 0])
    np.testing.assert_allclose(estimate_grpo(scores, groups, scale_by_std=True), [0.7, 0, 0], atol=1e-5)


def test_grpo_says_nothing_of_which_group_a_score_is_in_but_its_own() -> None:
    scores, groups = np.array([1.0, 5.0, 0.0, 9.0]), np.array([0, 1, 0, 1])
    np.testing.assert_allclose(estimate_grpo(scores, groups, scale_by_std=False), [0.5, -2, -0.5, 2])


def test_rloo_and_opmd_numbers() -> None:
    groups = np.zeros(4, dtype=np.int64)
    rloo = estimate_rloo(np.array([1.0, 0, 0, 1]), groups)
    np.testing.assert_allclose(rloo, [2 / 3, -2 / 3, -2 / 3, 2 / 3], atol=1e-8)
    soft = estimate_opmd(np.array([1.0, 0.0]), groups[:2], baseline="logavgexp", tau=1.0)
    np.testing.assert_allclose(soft, [1 - 0.62011451, -0.62011451], atol=1e-8)
    plain = estimate_opmd(np.array([1.0, 0.0, 5.0]), np.array([0, 0, 1]), baseline="mean", tau=1.0)
    np.testing.assert_allclose(plain, [0.5, -0.5, 5.0])


def test_rloo_is_each_score_against_the_mean_of_the_others() -> None:
    rng = np.random.default_rng(0)
    scores, groups = rng.normal(size=12), rng.integers(0, 3, size=12)
    for i, advantage in enumerate(estimate_rloo(scores, groups)):
        others = [scores[j] for j in range(12) if groups[j] == groups[i] and j != i]
        assert advantage == pytest.approx(scores[i] - (np.mean(others) if others else 0.0))


def test_multi_step_grpo_numbers() -> None:
    final, groups, steps = np.array([1.0, 0.0]), np.zeros(2, dtype=np.int64), np.array([3, 2])
    plain = estimate_multi_step_grpo(final, groups, steps, MultiStepGrpo())
    np.testing.assert_allclose(plain, [0.70710578, -0.70710578], atol=1e-7)
    normed = estimate_multi_step_grpo(final, groups, steps, MultiStepGrpo(step_norm=True))
    np.testing.assert_allclose(normed, [0.23570193, -0.35355289], atol=1e-7)


def test_multi_step_grpo_reads_the_last_step_and_step_return_all_of_them() -> None:
    early, late = Play([1.0, 0.0], [[0.0], [0.0]], sibling=0), Play([0.0, 0.0], [[0.0], [0.0]], sibling=1)
    assert not np.concatenate(sampled(MultiStepGrpo(), [early, late])).any()
    found = sampled(StepReturn(scale_by_std=False), [early, late])
    # Returns to come 1, 0 and 0, 0; their mean over the group's steps is 1/4.
    np.testing.assert_allclose(np.concatenate(found), [0.75, -0.25, -0.25, -0.25])


def test_step_return_counts_steps_and_not_the_calls_in_them() -> None:
    # Two calls, then one; the reward of 1 comes in the second step and is one step away from both calls of the first.
    play = Play([0.0, 0.0, 1.0], [[0.0]] * 3, steps=[0, 0, 1], sibling=0)
    other = Play([0.0], [[0.0]], sibling=1)
    found = sampled(StepReturn(gamma=0.5, scale_by_std=False), [play, other])
    # Returns of the three steps 0.5, 1 and 0, with a mean of 0.5.
    np.testing.assert_allclose(np.concatenate(found), [0.0, 0.0, 0.5, -0.5])


def test_turn_gae_gives_every_token_of_a_turn_the_same() -> None:
    play = Play([1.0, 2.0], [[0.5, 9.0], [0.25, 9.0, 9.0]])
    rule = TurnGae(gamma=0.9, lam=0.5, whiten=False)
    ((advantages, returns),) = credited(rule, [play])
    second = 2.0 - 0.25
    first = 1.0 + 0.9 * 0.25 - 0.5 + 0.9 * 0.5 * second
    np.testing.assert_allclose(advantages, [first] * 2 + [second] * 3, atol=1e-6)
    np.testing.assert_allclose(returns, [first + 0.5] * 2 + [2.0] * 3, atol=1e-6)


def test_reinforce_is_the_discounted_sum_of_what_comes() -> None:
    play = Play([1.0, 2.0], [[0.0, 0.0], [0.0]])
    ((advantages, _),) = credited(Reinforce(gamma=0.5), [play])
    np.testing.assert_allclose(advantages, [0.5 * (1 + 0.5 * 2), 1 + 0.5 * 2, 2.0])


# --- passes over runs ------------------------------------------------------------------------------------------------


def test_passes_stay_inside_their_runs() -> None:
    values, starts = np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 1, 4])
    assert scan_back(values, starts, 0.5).tolist() == [1.0, 2 + 0.5 * (4 + 0.5 * 8), 8.0, 8.0]
    assert scan_back(values, starts, 0.0).tolist() == values.tolist()
    assert shift_back(values, starts, np.array([-1.0, -2.0])).tolist() == [-1.0, 4.0, 8.0, -2.0]


def test_layout_separates_equal_turn_numbers_of_different_trajectories() -> None:
    layout = layout_from_keys(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 2]))
    assert layout.turn_starts.tolist() == [0, 2, 3, 4, 5]
    assert layout.trajectory_starts.tolist() == [0, 2, 4]
    assert layout.num_tokens == 5
    assert layout.turn_last.tolist() == [1, 2, 3, 4]
    assert layout.turn_first.tolist() == [0, 2, 3, 4]
    assert layout.sum_turns(np.array([1.0, 2.0, 4.0, 8.0])).tolist() == [3.0, 12.0]
    assert layout.turns_to_tokens(np.arange(4.0)).tolist() == [0, 0, 1, 2, 3]
    assert layout.trajectories_to_tokens(np.array([5.0, 6.0])).tolist() == [5, 5, 5, 6, 6]


def test_layout_example_of_its_docstring() -> None:
    layout = layout_from_keys(np.array([0] * 4 + [1] * 3), np.array([0, 0, 1, 1, 0, 0, 0]))
    assert isinstance(layout, TurnLayout)
    assert (layout.turn_starts.tolist(), layout.trajectory_starts.tolist()) == ([0, 2, 4, 7], [0, 2, 3])
