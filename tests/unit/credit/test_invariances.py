"""What must not change an advantage: cuts, the order of rows, tokens that nobody sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.config.registry import CREDITS
from turnwise.credit.bi_level import BiLevelGae, BiLevelGaeParams
from turnwise.credit.gae import Gae, GaeParams
from turnwise.credit.gigpo import Gigpo, GigpoParams
from turnwise.credit.group import (
    DrGrpo,
    Grpo,
    Opmd,
    OpmdParams,
    ReinforcePpBaseline,
    Rloo,
)
from turnwise.credit.reinforce import Reinforce, ReinforceParams, ReinforcePp, ReinforcePpParams
from turnwise.credit.remax import Remax
from turnwise.credit.steps import MultiStepGrpo, MultiStepGrpoParams, StepReturn, StepReturnParams
from turnwise.credit.turn import TurnGae, TurnGaeParams
from turnwise.types import Annotations

from .rows import Play, make_batch, make_rows, sampled

RULES = {
    "gae": Gae(GaeParams(gamma=0.9, lam=0.8)),
    "bi_level_first": BiLevelGae(BiLevelGaeParams(gamma=0.9, lam=0.8, high_level_lam=0.7, turn_value_at="first")),
    "bi_level_last": BiLevelGae(BiLevelGaeParams(gamma=0.9, lam=0.8, high_level_lam=0.7)),
    "turn_gae": TurnGae(TurnGaeParams(lam=0.8)),
    "grpo": Grpo(Grpo.Params()),
    "dr_grpo": DrGrpo(DrGrpo.Params()),
    "rloo": Rloo(Rloo.Params()),
    "opmd": Opmd(OpmdParams(baseline="logavgexp", tau=0.5)),
    "reinforce": Reinforce(ReinforceParams(gamma=0.9)),
    "reinforce_pp": ReinforcePp(ReinforcePpParams(gamma=0.9)),
    "reinforce_pp_baseline": ReinforcePpBaseline(ReinforcePpBaseline.Params()),
    "multi_step_grpo": MultiStepGrpo(MultiStepGrpoParams(step_norm=True, std_level="batch", std_threshold=0.1)),
    "step_return": StepReturn(StepReturnParams(gamma=0.9)),
    "gigpo": Gigpo(GigpoParams(scale_by_std=True)),
    "remax": Remax(Remax.Params()),
}


def test_every_rule_is_held_to_this() -> None:
    assert {type(rule) for rule in RULES.values()} == {CREDITS.get_target(name) for name in CREDITS}


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


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25, deadline=None)
@given(batch=batches(), cuts=st.sets(st.integers(1, 3)))
def test_cutting_a_trajectory_into_experiences_changes_no_advantage(
    name: str, batch: list[Play], cuts: set[int]
) -> None:
    assert_same(RULES[name], batch, cuts=sorted(cuts))


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=10, deadline=None)
@given(batch=batches(), padding=st.integers(2, 6))
def test_tokens_that_nobody_sampled_change_no_advantage(name: str, batch: list[Play], padding: int) -> None:
    assert_same(RULES[name], batch, padding=padding)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25, deadline=None)
@given(batch=batches(), data=st.data())
def test_the_order_of_rows_changes_no_advantage(name: str, batch: list[Play], data: st.DataObject) -> None:
    rows, annotations = make_batch(batch, cuts=(2,))
    values, penalties = annotations.values or (), annotations.token_penalties or ()
    straight = RULES[name](rows, annotations)
    order = data.draw(st.permutations(range(len(rows))))
    reordered = Annotations(values=tuple(values[i] for i in order), token_penalties=tuple(penalties[i] for i in order))
    shuffled = RULES[name]([rows[i] for i in order], reordered)
    for place, i in enumerate(order):
        assert shuffled[place].experience is rows[i]
        np.testing.assert_allclose(shuffled[place].advantages, straight[i].advantages, atol=1e-6)
        np.testing.assert_allclose(shuffled[place].returns, straight[i].returns, atol=1e-6)


def test_group_statistics_count_trajectories_and_not_rows() -> None:
    """One sibling in four rows, three in one row each: over rows the mean would be 4/7, over trajectories it is 1/4."""
    batch = [Play([0, 0, 0, 1.0], [[0.0]] * 4, sibling=0)]
    batch += [Play([0, 0, 0, 0.0], [[0.0]] * 4, sibling=n) for n in (1, 2, 3)]
    rows = make_rows(batch[0], cuts=(1, 2, 3))[0] + make_batch(batch[1:])[0]
    samples = DrGrpo(DrGrpo.Params())(rows, Annotations())
    for sample, expected in zip(samples, [0.75] * 4 + [-0.25] * 3, strict=True):
        mask = sample.experience.segment.loss_mask
        np.testing.assert_allclose(sample.advantages[mask], expected, atol=1e-6)


def test_long_trajectories_do_not_weigh_more_in_a_group() -> None:
    long, short = Play([0.0, 1.0], [[0.0] * 4] * 2, sibling=0), Play([0.0], [[0.0]], sibling=1)
    first, second = sampled(Grpo(Grpo.Params()), [long, short])
    np.testing.assert_allclose(first, 0.70710578, atol=1e-6)
    np.testing.assert_allclose(second, -0.70710578, atol=1e-6)


def test_groups_of_different_rollouts_are_not_compared() -> None:
    rows = [row for n in (0, 1) for row in make_rows(Play([float(n)], [[0.0]]), rollout=n)[0]]
    samples = DrGrpo(DrGrpo.Params())(rows, Annotations())
    assert [float(s.advantages.sum()) for s in samples] == [0.0, 1.0]  # alone in its group, a score stays as it is
