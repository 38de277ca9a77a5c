"""The slow oracle agrees with every rule that it knows, and with none that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.audit.played import TASK, play
from tests.unit.credit.rows import Play, make_batch, make_rows, spread_over
from turnwise.audit.recompute import check_credit, check_rows
from turnwise.config.kinds import ADVANTAGE_ESTIMATORS
from turnwise.experience.build import build_experiences
from turnwise.learn.pack import pack
from turnwise.types import Annotations, Experience, Group, Sample

RULES = {
    "grpo": {},
    "dr_grpo": {},
    "rloo": {},
    "opmd": {},
    "opmd soft": {"baseline": "logavgexp", "tau": 0.7},
    "gae": {"lam": 0.9},
    "bi_level_gae": {},
    "turn_gae": {},
    "turn_gae plain": {"whiten": False},
    "reinforce": {"gamma": 0.9},
    "reinforce_pp": {"gamma": 0.9},
    "reinforce_pp_baseline": {},
    "multi_step_grpo": {},
    "multi_step_grpo by steps": {"step_norm": True, "std_threshold": 0.01},
    "multi_step_grpo by batch": {"std_level": "batch"},
    "gigpo": {},
    "gigpo scaled": {"scale_by_std": True, "step_weight": 0.5},
    "step_return": {"gamma": 0.9},
    "remax": {},
}
"""Every registered rule, some with settings beside the default ones."""


def apply(name: str, rows: list[Experience], annotations: Annotations, **more: float) -> tuple[list[Sample], Any]:
    rule = name.partition(" ")[0]
    section = ADVANTAGE_ESTIMATORS.parse({"type": rule, **RULES[name], **more})
    return section(rows, annotations), section


def credit_of(name: str) -> tuple[list[Sample], Any, Annotations]:
    plays = [play(0, (0.0, 1.0)), play(1, (0.5, -0.25, 2.0)), play(2, (1.5,))]
    rows = build_experiences([Group(task=TASK, trajectories=tuple(plays))])
    rows = [replace(row, greedy_return=0.75) for row in rows]
    # Two calls of one step.
    rows[1] = replace(rows[1], turn_steps=np.array([0, 1, 1], dtype=np.int32))
    rng = np.random.default_rng(3)
    values = tuple((rng.normal(size=len(e.segment)) * e.segment.loss_mask).astype(np.float32) for e in rows)
    penalties = tuple((-0.1 * rng.random(len(e.segment)) * e.segment.loss_mask).astype(np.float32) for e in rows)
    annotations = Annotations(values=values, token_penalties=penalties)
    return *apply(name, rows, annotations), annotations


def test_no_rule_is_without_an_oracle() -> None:
    assert {name.partition(" ")[0] for name in RULES} == {*ADVANTAGE_ESTIMATORS.shipped}


@pytest.mark.parametrize("rule", RULES)
def test_a_sound_rule_passes(rule: str) -> None:
    samples, section, annotations = credit_of(rule)
    assert check_credit(samples, annotations, section, seed=0) == []


@pytest.mark.parametrize("rule", RULES)
def test_another_sign_is_found_with_its_token(rule: str) -> None:
    samples, section, annotations = credit_of(rule)
    wrong = [replace(s, advantages=-s.advantages, returns=-s.returns) for s in samples]
    (breach,) = check_credit(wrong, annotations, section, seed=0)
    assert breach.kind == "credit"
    assert breach.details["token"] is not None
    assert samples[0].experience.segment.loss_mask[breach.details["token"]]


@pytest.mark.parametrize("rule", RULES)
def test_advantages_of_another_scale_are_found(rule: str) -> None:
    samples, section, annotations = credit_of(rule)
    wrong = [replace(s, advantages=s.advantages * np.float32(1.01)) for s in samples]
    assert [breach.kind for breach in check_credit(wrong, annotations, section, seed=0)] == ["credit"]


def alternating(rng: np.random.Generator) -> tuple[list[Experience], Annotations]:
    """Trajectories of two groups, each of up to three rows that share its turns out in any way, rows in any order."""
    rows: list[Experience] = []
    values: list[np.ndarray] = []
    penalties: list[np.ndarray] = []
    for sibling in range(4):
        num_turns = int(rng.integers(2, 7))
        sizes = rng.integers(1, 4, size=num_turns)
        played = Play(
            rewards=rng.normal(size=num_turns).tolist(),
            values=[rng.normal(size=size).tolist() for size in sizes],
            penalties=[(-0.1 * rng.random(size)).tolist() for size in sizes],
            states=rng.integers(0, 3, size=num_turns).tolist(),
            steps=np.cumsum(rng.integers(0, 2, size=num_turns)).tolist(),
            is_truncated=bool(rng.integers(2)),
            greedy_return=0.75,
            group=f"lake/train/{sibling % 2}",
            sibling=sibling,
        )
        owners = rng.integers(0, 3, size=num_turns).tolist()
        parts = [[turn for turn, own in enumerate(owners) if own == owner] for owner in dict.fromkeys(owners)]
        new_rows, new_values = make_rows(played, parts=parts)
        rows, values = rows + new_rows, values + new_values
        penalties += spread_over(new_rows, played.token_penalties)
    order = rng.permutation(len(rows))
    return [rows[i] for i in order], Annotations(
        values=tuple(values[i] for i in order), token_penalties=tuple(penalties[i] for i in order)
    )


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_turns_that_alternate_between_rows_are_no_breach_and_hide_none(rule: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, annotations = alternating(rng)
    samples, section = apply(rule, rows, annotations)
    # One seed for each of the two groups.
    assert [check_credit(samples, annotations, section, seed=n) for n in range(2)] == [[], []]
    row = int(rng.integers(len(rows)))
    token = int(rng.choice(np.flatnonzero(rows[row].segment.loss_mask)))
    advantages = samples[row].advantages.copy()
    advantages[token] += 1
    samples[row] = replace(samples[row], advantages=advantages)
    found = [breach for n in range(2) for breach in check_credit(samples, annotations, section, seed=n)]
    turn = int(rows[row].segment.turn_ids[token])
    assert {(breach.details["where"], breach.details["turn"], breach.details["token"]) for breach in found} == {
        (str(rows[row].id), turn, token)
    }


@pytest.mark.parametrize("parts", [[(0, 2), (1, 3)], [(0, 3), (1, 2)]])
@pytest.mark.parametrize("rule", RULES)
def test_two_agents_that_take_turns_pass(rule: str, parts: list[tuple[int, ...]]) -> None:
    """Also where the row that was begun first ends last."""
    rewards = [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 3.0, 1.0]
    plays = [Play(paid, [[0.1, 0.2]] * 4, sibling=n, greedy_return=0.5) for n, paid in enumerate(rewards)]
    rows, annotations = make_batch(plays, parts=parts)
    samples, section = apply(rule, rows, annotations)
    assert check_credit(samples, annotations, section, seed=0) == []


WHITENED: dict[str, dict[str, float]] = {
    "gae": {"lam": 1.0},
    "bi_level_gae": {},
    "turn_gae": {},
    "turn_gae plain": {},
    "reinforce_pp": {"gamma": 1.0},
    "reinforce_pp_baseline": {},
}
"""With what leaves plays that earn the same no other difference than the prices on their tokens."""


def nearly_alike(score: float, penalty: float) -> tuple[list[Experience], Annotations]:
    """Plays of one turn that all earn the same, but for small prices on their tokens; the critic knows nothing."""
    charged = -penalty * np.random.default_rng(11).random((8, 6))
    return make_batch([Play([score], [[0.0] * 6], penalties=[of.tolist()], sibling=n) for n, of in enumerate(charged)])


@pytest.mark.parametrize("penalty", [1e-8, 1e-7, 1e-6, 1e-5])
@pytest.mark.parametrize("score", [10.0, 5.0, -10.0, 1000.0])
@pytest.mark.parametrize("rule", WHITENED)
def test_whitening_of_plays_that_earned_nearly_the_same_passes(rule: str, score: float, penalty: float) -> None:
    rows, annotations = nearly_alike(score, penalty)
    samples, section = apply(rule, rows, annotations, **WHITENED[rule])
    assert check_credit(samples, annotations, section, seed=0) == []


@pytest.mark.parametrize("rule", WHITENED)
def test_whitening_of_plays_that_earned_nearly_the_same_is_still_looked_at(rule: str) -> None:
    rows, annotations = nearly_alike(10.0, 1e-3)
    samples, section = apply(rule, rows, annotations, **WHITENED[rule])
    wrong = [replace(s, advantages=s.advantages * np.float32(1.01)) for s in samples]
    assert [breach.kind for breach in check_credit(wrong, annotations, section, seed=0)] == ["credit"]


def test_a_lost_token_is_found_in_the_batch() -> None:
    samples, *_ = credit_of("grpo")
    rows = [sample.experience for sample in samples]
    assert check_rows(rows, samples, pack(samples)) == []
    assert [breach.kind for breach in check_rows(rows, samples, pack(samples[:1]))] == ["rows"]
    swapped = replace(pack(samples), advantages=pack(samples).advantages + 1)
    assert [breach.kind for breach in check_rows(rows, samples, swapped)] == ["rows"]
