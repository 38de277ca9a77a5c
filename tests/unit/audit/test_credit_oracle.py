"""The slow oracle agrees with every rule that it knows, and with none that is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.audit.played import played_group
from turnwise.audit.credit_oracle import check_credit, check_rows
from turnwise.config.choices import read_section
from turnwise.config.registry import CREDITS
from turnwise.learn.pack import pack
from turnwise.types import Annotations, Sample

RULES = ("grpo", "dr_grpo", "rloo", "gae", "bi_level_gae")


def credit_of(rule: str) -> tuple[list[Sample], Annotations, object]:
    rows = played_group()
    rng = np.random.default_rng(3)
    values = tuple((rng.normal(size=len(e.segment)) * e.segment.loss_mask).astype(np.float32) for e in rows)
    penalties = tuple((-0.1 * rng.random(len(e.segment)) * e.segment.loss_mask).astype(np.float32) for e in rows)
    annotations = Annotations(values=values, token_penalties=penalties)
    section = read_section("credit", {"type": rule})
    return CREDITS.get_target(rule)(section)(rows, annotations), annotations, section  # type: ignore[operator]


@pytest.mark.parametrize("rule", RULES)
def test_a_sound_rule_passes(rule: str) -> None:
    samples, annotations, section = credit_of(rule)
    assert check_credit(samples, annotations, section, seed=0) == []


@pytest.mark.parametrize("rule", RULES)
def test_another_sign_is_found_with_its_token(rule: str) -> None:
    samples, annotations, section = credit_of(rule)
    wrong = [replace(s, advantages=-s.advantages) for s in samples]
    (breach,) = check_credit(wrong, annotations, section, seed=0)
    assert breach.check == "credit"
    assert breach.token is not None
    assert samples[0].experience.segment.loss_mask[breach.token]


def test_a_lost_token_is_found_in_the_batch() -> None:
    samples, _, _ = credit_of("grpo")
    rows = [sample.experience for sample in samples]
    assert check_rows(rows, samples, pack(samples)) == []
    assert [breach.check for breach in check_rows(rows, samples, pack(samples[:1]))] == ["rows"]
    swapped = replace(pack(samples), advantages=pack(samples).advantages + 1)
    assert [breach.check for breach in check_rows(rows, samples, swapped)] == ["rows"]
