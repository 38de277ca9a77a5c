"""The slow oracle agrees with every rule that it knows, and with none that is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.audit.played import TASK, play
from turnwise.audit.credit_oracle import check_credit, check_rows
from turnwise.config.choices import read_section
from turnwise.config.registry import CREDITS
from turnwise.experience.build import build_experiences
from turnwise.learn.pack import pack
from turnwise.types import Annotations, Group, Sample

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
    "gigpo": {},
    "gigpo scaled": {"scale_by_std": True, "step_weight": 0.5},
    "step_return": {"gamma": 0.9},
    "remax": {},
}
"""Every registered rule, some with settings beside the default ones."""


def credit_of(name: str) -> tuple[list[Sample], Annotations, object]:
    plays = [play(0, (0.0, 1.0)), play(1, (0.5, -0.25, 2.0)), play(2, (1.5,))]
    rows = build_experiences([Group(task=TASK, trajectories=tuple(plays))])
    rows = [replace(row, greedy_return=0.75) for row in rows]
    # Two calls of one step.
    rows[1] = replace(rows[1], turn_steps=np.array([0, 1, 1], dtype=np.int32))
    rng = np.random.default_rng(3)
    values = tuple((rng.normal(size=len(e.segment)) * e.segment.loss_mask).astype(np.float32) for e in rows)
    penalties = tuple((-0.1 * rng.random(len(e.segment)) * e.segment.loss_mask).astype(np.float32) for e in rows)
    annotations = Annotations(values=values, token_penalties=penalties)
    rule = name.partition(" ")[0]
    section = read_section("credit", {"type": rule, **RULES[name]})
    return CREDITS.get_target(rule)(section)(rows, annotations), annotations, section  # type: ignore[operator]


def test_no_rule_is_without_an_oracle() -> None:
    assert {name.partition(" ")[0] for name in RULES} == {
        name for name in CREDITS if CREDITS[name].startswith("turnwise.")
    }


@pytest.mark.parametrize("rule", RULES)
def test_a_sound_rule_passes(rule: str) -> None:
    samples, annotations, section = credit_of(rule)
    assert check_credit(samples, annotations, section, seed=0) == []


@pytest.mark.parametrize("rule", RULES)
def test_another_sign_is_found_with_its_token(rule: str) -> None:
    samples, annotations, section = credit_of(rule)
    wrong = [replace(s, advantages=-s.advantages, returns=-s.returns) for s in samples]
    (breach,) = check_credit(wrong, annotations, section, seed=0)
    assert breach.check == "credit"
    assert breach.token is not None
    assert samples[0].experience.segment.loss_mask[breach.token]


@pytest.mark.parametrize("rule", RULES)
def test_advantages_of_another_scale_are_found(rule: str) -> None:
    samples, annotations, section = credit_of(rule)
    wrong = [replace(s, advantages=s.advantages * np.float32(1.01)) for s in samples]
    assert [breach.check for breach in check_credit(wrong, annotations, section, seed=0)] == ["credit"]


def test_a_lost_token_is_found_in_the_batch() -> None:
    samples, _, _ = credit_of("grpo")
    rows = [sample.experience for sample in samples]
    assert check_rows(rows, samples, pack(samples)) == []
    assert [breach.check for breach in check_rows(rows, samples, pack(samples[:1]))] == ["rows"]
    swapped = replace(pack(samples), advantages=pack(samples).advantages + 1)
    assert [breach.check for breach in check_rows(rows, samples, swapped)] == ["rows"]
