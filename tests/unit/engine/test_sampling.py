"""Drawing tokens: the frequencies, the log-probs, and that rows do not touch each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from turnwise.engine.sampling import draw_uniforms, sample_tokens
from turnwise.types import Sampling

LOGITS = torch.tensor([1.2, -0.4, 0.3, 2.0, -1.5, 0.9, 0.1, -0.7])


def expected_probs(logits: Tensor, sampling: Sampling) -> np.ndarray:
    """Written the slow, obvious way: sort, cut, normalise."""
    weights = {i: math.exp(float(x) / sampling.temperature) for i, x in enumerate(logits)}
    order = sorted(weights, key=lambda i: -weights[i])
    order = order[: sampling.top_k] if sampling.top_k else order
    total, kept, mass = sum(weights[i] for i in order), [], 0.0
    for i in order:
        if mass >= sampling.top_p:
            break
        kept.append(i)
        mass += weights[i] / total
    left = sum(weights[i] for i in kept)
    return np.array([weights[i] / left if i in kept else 0.0 for i in range(len(logits))])


def draw_many(sampling: Sampling, num: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    uniforms = torch.tensor(draw_uniforms(seed, num), dtype=torch.float64)
    ids, logprobs = sample_tokens(LOGITS.expand(num, -1), [sampling] * num, uniforms)
    return ids.numpy(), logprobs.numpy()


SETTINGS = [
    Sampling(),
    Sampling(temperature=0.5),
    Sampling(temperature=2.0),
    Sampling(top_k=3),
    Sampling(top_p=0.7),
    Sampling(temperature=1.5, top_k=5, top_p=0.8),
    Sampling(top_k=100),
    Sampling(top_p=1e-9),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_frequencies_match_the_distribution(sampling: Sampling) -> None:
    num = 20_000
    probs = expected_probs(LOGITS, sampling)
    counts = np.bincount(draw_many(sampling, num)[0], minlength=len(probs))
    assert not counts[probs == 0].any()
    possible = probs > 0
    chi_square = (((counts - num * probs) ** 2)[possible] / (num * probs[possible])).sum()
    # The 99.9 % point of chi-square with 7 degrees of freedom is 24.3.
    assert chi_square < 24.3


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_logprob_is_that_of_the_distribution_drawn_from(sampling: Sampling) -> None:
    ids, logprobs = draw_many(sampling, 500)
    np.testing.assert_allclose(logprobs, np.log(expected_probs(LOGITS, sampling)[ids]), atol=1e-6)


def test_greedy_takes_the_likeliest_token_with_certainty() -> None:
    ids, logprobs = draw_many(Sampling(temperature=0.0), 50)
    assert set(ids.tolist()) == {3}
    assert not logprobs.any()


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(12, 50)).astype(np.float32)) * 3
    samplings = [SETTINGS[i % len(SETTINGS)] for i in range(11)] + [Sampling(temperature=0.0)]
    uniforms = torch.from_numpy(rng.random(12))
    ids, logprobs = sample_tokens(logits, samplings, uniforms)
    for row in range(12):
        alone = sample_tokens(logits[row : row + 1], samplings[row : row + 1], uniforms[row : row + 1])
        assert (int(alone[0]), float(alone[1])) == (int(ids[row]), float(logprobs[row]))
    order = torch.from_numpy(rng.permutation(12))
    shuffled = sample_tokens(logits[order], [samplings[i] for i in order], uniforms[order])
    assert torch.equal(shuffled[0], ids[order])


@pytest.mark.parametrize("uniform", [0.0, math.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("size", [3, 1000, 100_000])
def test_extreme_uniforms_stay_in_the_support(uniform: float, size: int) -> None:
    logits = torch.from_numpy(np.random.default_rng(size).normal(size=(1, size)).astype(np.float32)) * 4
    logits[0, 0], logits[0, -1] = -60.0, -60.0
    sampling = Sampling(top_k=2, temperature=0.7)
    ids, logprobs = sample_tokens(logits, [sampling], torch.tensor([uniform], dtype=torch.float64))
    likeliest = set(logits[0].topk(2).indices.tolist())
    assert int(ids) in likeliest
    assert math.isfinite(float(logprobs))


def test_the_tail_of_a_large_vocabulary_is_reached() -> None:
    """100,000 equal tokens: a sum in float32 would be off by many tokens at the end."""
    size = 100_000
    uniforms = torch.tensor([0.5 / size, 0.5 + 0.5 / size, (size - 0.5) / size], dtype=torch.float64)
    ids, _ = sample_tokens(torch.zeros(3, size), [Sampling()] * 3, uniforms)
    assert ids.tolist() == [0, size // 2, size - 1]


def drawn_in_float64(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One distribution for all uniforms, the slow way; also how far each uniform is from the next token."""
    scaled = logits.double() / sampling.temperature
    descending = scaled.sort(descending=True).values
    if sampling.top_k:
        scaled = scaled.masked_fill(scaled < descending[min(sampling.top_k, len(scaled)) - 1], -torch.inf)
    descending, order = scaled.sort(descending=True)
    probs = descending.softmax(dim=-1)
    scaled[order[(probs.cumsum(dim=-1) - probs) >= sampling.top_p]] = -torch.inf
    cumulative = scaled.softmax(dim=-1).cumsum(dim=-1)
    cumulative = cumulative / cumulative[-1]
    ids = torch.searchsorted(cumulative, uniforms, right=True).clamp(max=len(scaled) - 1)
    before = torch.where(ids > 0, cumulative[ids - 1], 0.0)
    margin = torch.minimum((uniforms - before).abs(), (uniforms - cumulative[ids]).abs())
    return ids, torch.log_softmax(scaled, dim=-1)[ids], margin


@pytest.mark.parametrize(
    "sampling",
    [*SETTINGS[:6], Sampling(top_k=2000), Sampling(temperature=0.1), Sampling(temperature=4.0, top_p=0.999)],
    ids=str,
)
@pytest.mark.parametrize("size", [8, 1024, 1300, 5000])
def test_tokens_and_logprobs_are_those_of_sums_in_float64(sampling: Sampling, size: int) -> None:
    """But for uniforms that fall on the border between two tokens."""
    num = 2000
    rng = np.random.default_rng(size)
    logits = torch.from_numpy(rng.normal(size=size).astype(np.float32)) * 4 + 20
    uniforms = torch.from_numpy(rng.random(num))
    expected, expected_logprobs, margin = drawn_in_float64(logits, sampling, uniforms)
    ids, logprobs = sample_tokens(logits.expand(num, -1), [sampling] * num, uniforms)
    is_clear = margin > 1e-6
    assert is_clear.double().mean() > 0.9
    assert torch.equal(ids[is_clear], expected[is_clear])
    np.testing.assert_allclose(logprobs[is_clear], expected_logprobs[is_clear].numpy(), atol=2e-6)


@pytest.mark.parametrize("sampling", [*SETTINGS[:3], Sampling(top_k=600), Sampling(top_p=0.97)], ids=str)
def test_frequencies_match_the_distribution_of_a_large_vocabulary(sampling: Sampling) -> None:
    size, num = 2500, 6000
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(size=size).astype(np.float32))
    probs = expected_probs(logits, sampling)
    drawn, _ = sample_tokens(logits.expand(num, -1), [sampling] * num, torch.from_numpy(rng.random(num)))
    # Tokens in 10 bins of about the same mass, along the vocabulary.
    bins = np.minimum((np.cumsum(probs) - probs) * 10, 9).astype(int)
    expected = num * np.bincount(bins, weights=probs, minlength=10)
    counts = np.bincount(bins[drawn.numpy()], minlength=10)
    # The 99.9 % point of chi-square with 9 degrees of freedom is 27.9.
    assert ((counts - expected) ** 2 / expected).sum() < 27.9
    assert probs[drawn.numpy()].all()


@pytest.mark.slow
@pytest.mark.parametrize("size", [300, 1300, 152_000])
def test_a_row_is_bit_for_bit_the_same_in_any_batch_and_with_any_number_of_threads(size: int) -> None:
    rng = np.random.default_rng(1)
    samplings = [SETTINGS[i % len(SETTINGS)] for i in range(9)]
    logits = torch.from_numpy(rng.normal(size=(9, size)).astype(np.float32)) * 3
    uniforms = torch.from_numpy(rng.random(9))
    ids, logprobs = sample_tokens(logits, samplings, uniforms)
    num_threads = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for rows in ([0], [7, 1], [4, 8, 5, 0, 2], [8, 7, 6, 5, 4, 3, 2, 1, 0]):
                again = sample_tokens(logits[rows], [samplings[row] for row in rows], uniforms[rows])
                assert torch.equal(again[0], ids[rows])
                assert torch.equal(again[1], logprobs[rows])
    finally:
        torch.set_num_threads(num_threads)


def test_top_p_finds_a_mass_that_is_spread_over_most_of_the_vocabulary() -> None:
    sampling = Sampling(top_p=0.75)
    logits = torch.linspace(0.0, 1e-3, 8000)[None]
    ids, logprobs = sample_tokens(logits, [sampling], torch.tensor([0.0], dtype=torch.float64))
    assert int(ids) == pytest.approx(2000, abs=3)
    assert float(logprobs) == pytest.approx(-math.log(6000), abs=1e-3)


def test_uniforms_come_from_the_seed_alone() -> None:
    assert list(draw_uniforms(7, 5)) == list(draw_uniforms(7, 20))[:5]
    assert list(draw_uniforms(7, 5)) != list(draw_uniforms(8, 5))
    assert all(0 <= uniform < 1 for uniform in draw_uniforms(2**64 - 1, 1000))
