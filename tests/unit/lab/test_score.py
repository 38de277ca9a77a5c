"""Errors of known size are put on top of the truth and must be found again."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise.lab.estimator_benchmark import SampledTokens, score
from turnwise.lab.mdps import WORLDS, Exact, draw_policy, play_groups, solve


@pytest.fixture(scope="module")
def played() -> tuple[SampledTokens, Exact, np.ndarray]:
    """Tokens of two batches, the truth, and the true advantage of each token."""
    world, rng = WORLDS["corridor"], np.random.default_rng(0)
    policy = draw_policy(world, rng)
    exact = solve(world, policy, np.bincount(world.starts, minlength=len(world.states)) / len(world.starts))
    batches = [play_groups(world, policy, world.starts, group_size=400, rollout=n, rng=rng) for n in range(2)]
    cells = [np.concatenate(plays.cells) for plays in batches]
    tokens = SampledTokens(cells=np.concatenate(cells), batches=np.repeat([0, 1], [len(c) for c in cells]))
    return tokens, exact, exact.advantages.ravel()[tokens.cells]


def test_the_truth_in_any_scale_is_without_error(played: tuple[SampledTokens, Exact, np.ndarray]) -> None:
    tokens, exact, truth = played
    found = score(3 * truth, tokens, exact)
    assert found.correlation == pytest.approx(1)
    assert found.right_sign == 1
    assert found.cosine > 0.99
    assert found.errors is not None
    assert found.errors.scale == pytest.approx(1 / 3)
    assert [found.errors.bias, found.errors.offset, found.errors.noise] == pytest.approx([0, 0, 0], abs=1e-6)
    assert score(-truth, tokens, exact).cosine == pytest.approx(-found.cosine)
    assert score(-truth, tokens, exact).right_sign == 0


def test_noise_is_no_bias(played: tuple[SampledTokens, Exact, np.ndarray]) -> None:
    tokens, exact, truth = played
    size = 0.7 * exact.typical_advantage
    errors = score(truth + np.random.default_rng(1).normal(0, size, len(truth)), tokens, exact).errors
    assert errors is not None
    assert errors.noise == pytest.approx(0.7, rel=0.05)
    assert (errors.bias, errors.offset) == (0, 0)
    assert errors.scale == pytest.approx(1, rel=0.05)


def test_an_offset_leaves_the_gradient_right_and_a_bias_turns_it(
    played: tuple[SampledTokens, Exact, np.ndarray],
) -> None:
    tokens, exact, truth = played
    rng = np.random.default_rng(2)
    per_place = rng.normal(0, exact.typical_advantage, exact.advantages.size // 2)[tokens.cells // 2]
    per_cell = rng.normal(0, exact.typical_advantage, exact.advantages.size)[tokens.cells]
    offset, bias = score(truth + per_place, tokens, exact), score(truth + per_cell, tokens, exact)
    assert offset.errors is not None
    assert bias.errors is not None
    assert offset.errors.offset == pytest.approx(np.sqrt((per_place**2).mean()) / exact.typical_advantage, rel=0.02)
    assert offset.errors.bias == pytest.approx(0, abs=1e-6)
    assert bias.errors.bias > 0.3
    assert bias.errors.noise == pytest.approx(0, abs=1e-6)
    assert offset.cosine > 0.95 > bias.cosine
    # The three parts are all there is: together they are the mean square of what is wrong.
    wrong = bias.errors.scale * (truth + per_cell) - truth
    parts = bias.errors.bias**2 + bias.errors.offset**2
    assert np.sqrt(parts) == pytest.approx(np.sqrt((wrong**2).mean()) / exact.typical_advantage, rel=0.01)


@pytest.mark.parametrize("constant", [0.0, 0.3])
def test_who_says_nothing_has_no_scale(played: tuple[SampledTokens, Exact, np.ndarray], constant: float) -> None:
    tokens, exact, truth = played
    found = score(np.full(len(truth), constant), tokens, exact)
    assert found.correlation == 0
    assert found.errors is None
    assert abs(found.cosine) < 0.5
    guessed = score(np.random.default_rng(3).normal(size=len(truth)), tokens, exact)
    assert guessed.errors is None
    assert abs(guessed.correlation) < 0.05
    assert guessed.right_sign == pytest.approx(0.5, abs=0.05)


def test_too_few_tokens_have_a_cosine_and_no_errors(played: tuple[SampledTokens, Exact, np.ndarray]) -> None:
    tokens, exact, truth = played
    found = score(truth[:2], SampledTokens(cells=tokens.cells[:2], batches=tokens.batches[:2]), exact)
    assert found.errors is None
    assert found.cosine_error == 0
    assert -1 <= found.cosine <= 1
