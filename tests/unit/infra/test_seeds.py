"""Seeds are frozen: published results depend on their values."""

from __future__ import annotations

import random

import pytest

from turnwise.experience.buffer import priority_seed
from turnwise.infra.seeds import derive_seed, hash64, make_rng, random_seed


def test_derived_seeds_keep_their_values() -> None:
    assert derive_seed(1, "a", 2) == hash64("1/a/2") == 14885716101866245751
    assert hash64("") == 16476032584258269876
    assert priority_seed("3/frozen_lake/train/10003", 1) == 4632010314624515508


def test_derived_seeds_depend_on_every_part() -> None:
    given = [(1, "a", 2), (2, "a", 2), (1, "b", 2), (1, "a", 3), (1, "a")]
    assert len({derive_seed(*parts) for parts in given}) == len(given)


def test_a_generator_is_the_one_of_its_name() -> None:
    assert make_rng("layout", 7).random() == random.Random("layout/7").random()
    assert make_rng("price", "é").random() == random.Random("price/é").random()
    assert make_rng("layout", 7).random() != make_rng("slips", 7).random()


@pytest.mark.parametrize("text", ["\ud800", "an observation that ends in half a smile \ud83d"])
def test_half_a_surrogate_pair_is_a_text_like_any_other(text: str) -> None:
    assert hash64(text) == hash64(text) != hash64(text[:-1])
    assert derive_seed("task", text) != derive_seed("task", "")
    assert make_rng(text).random() != make_rng("").random()


def test_drawn_seeds_differ() -> None:
    assert len({random_seed() for _ in range(5)}) > 1
