"""Estimates of advantages are held against the truth. In: a number per sampled token, and `Exact`. Out: a `Score`.

Rules speak in scales of their own (some divide by a spread), so errors are measured after a rule's scale is taken
out: the slope of its estimates on the true advantage, over the cells, is brought to 1. This way a rule that is right
on average has no bias, however noisy it is. What is left splits into three parts whose squares add up:

- *bias*: wrong on average, differently for the tokens that compete in one place; this turns the gradient;
- *offset*: wrong on average by the same amount for all tokens of a place, like a baseline that is not there; the
  gradient is right on average, and noisier;
- *noise*: the spread of the estimates of one cell.

Each is in units of the typical true advantage: 1 is an error as large as what is to be estimated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnwise.lab.exact import Exact, Ints
from turnwise.lab.policy import NUM_TOKENS
from turnwise.lab.worlds import Floats

_SIGN_THRESHOLD = 0.1
"""In typical advantages: below it, a sign means little."""
_SURE = 3.0
"""Standard errors by which something must stand above 0 to count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """What is wrong with a rule at its own scale, in typical true advantages."""

    scale: float
    """An estimate times this is in the units of the reward."""
    bias: float
    offset: float
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    cosine: float
    """Between the gradient of one batch and the true one, averaged over the batches."""
    cosine_error: float
    """The standard error of that mean; 0 for a single batch."""
    correlation: float
    """With the true advantage, over all tokens."""
    right_sign: float
    """The share of tokens that are pushed the right way; not pushed at all counts as wrong."""
    errors: Errors | None
    """None where the estimates say nothing sure about the truth, so that they have no scale."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledTokens:
    """All sampled tokens of a study, batch after batch."""

    cells: Ints
    batches: Ints


def score(estimates: Floats, tokens: SampledTokens, exact: Exact) -> Score:
    truth = exact.advantages.ravel()[tokens.cells]
    cosines = _gradient_cosines(estimates, tokens, exact)
    matters = np.abs(truth) > _SIGN_THRESHOLD * exact.typical_advantage
    is_right = np.sign(estimates[matters]) == np.sign(truth[matters])
    return Score(
        cosine=float(cosines.mean()),
        cosine_error=float(cosines.std(ddof=1) / np.sqrt(len(cosines))) if len(cosines) > 1 else 0.0,
        correlation=_correlation(estimates, truth),
        right_sign=float(is_right.mean()) if len(is_right) else 0.0,
        errors=_split_errors(estimates, tokens.cells, exact),
    )


def _gradient_cosines(estimates: Floats, tokens: SampledTokens, exact: Exact) -> Floats:
    """[batches] how well the gradient of each batch, in the logits of the policy, points along the true one."""
    num_batches, num_logits = int(tokens.batches.max()) + 1, exact.gradient.size
    # Cells are numbered with the turns left in front, so the rest is the place in the policy's table.
    places = tokens.batches * num_logits + tokens.cells % num_logits
    pushes = np.bincount(places, estimates, minlength=num_batches * num_logits)
    pushes = pushes.reshape(num_batches, *exact.gradient.shape)
    gradients = pushes - exact.policy.token_probs * pushes.sum(axis=-1, keepdims=True)
    lengths = np.sqrt((gradients**2).sum(axis=(1, 2, 3)) * (exact.gradient**2).sum())
    along = (gradients * exact.gradient).sum(axis=(1, 2, 3))
    return np.divide(along, lengths, out=np.zeros(num_batches), where=lengths > 0)


def _correlation(estimates: Floats, truth: Floats) -> float:
    # Rounding leaves a constant with a tiny spread, which must not count as one.
    if estimates.std() <= 1e-9 * np.abs(estimates).max():
        return 0.0
    return float(np.corrcoef(estimates, truth)[0, 1])


def _split_errors(estimates: Floats, cells: Ints, exact: Exact) -> Errors | None:
    is_seen_twice = np.bincount(cells)[cells] > 1
    if not is_seen_twice.any():
        return None
    estimates = estimates[is_seen_twice]
    seen, cell_of_token = np.unique(cells[is_seen_twice], return_inverse=True)
    counts = np.bincount(cell_of_token).astype(np.float64)
    truth, places = exact.advantages.ravel()[seen], np.unique(seen // NUM_TOKENS, return_inverse=True)[1]
    means = np.bincount(cell_of_token, estimates) / counts
    variances = np.bincount(cell_of_token, (estimates - means[cell_of_token]) ** 2) / (counts - 1)

    scale = _fit_scale(means, variances, truth, counts, places)
    if scale is None:
        return None
    wrong, variances = scale * means - truth, scale**2 * variances
    offsets = _place_means(wrong, counts, places)
    # A mean of few estimates is off by chance; that share of the squares belongs to the noise.
    chance_in_offsets = variances * counts / np.bincount(places, counts)[places]
    total, unit = counts.sum(), exact.typical_advantage
    squares = {
        "bias": _beyond_chance(counts * (wrong - offsets) ** 2, variances - chance_in_offsets),
        "offset": _beyond_chance(counts * offsets**2, chance_in_offsets),
        "noise": (counts * variances).sum(),
    }
    return Errors(scale=scale, **{name: float(np.sqrt(square / total) / unit) for name, square in squares.items()})


def _beyond_chance(squares: Floats, by_chance: Floats) -> float:
    """The sum of squares without what chance alone adds to it; 0 where it does not stand out from that."""
    excess = float((squares - by_chance).sum())
    # The square of a mean that is 0 but for chance has twice the squared variance as its own variance.
    return excess if excess > _SURE * np.sqrt(2 * (by_chance**2).sum()) else 0.0


def _place_means(per_cell: Floats, counts: Floats, places: Ints) -> Floats:
    """[cells] the mean over all visits of the cell's place."""
    return (np.bincount(places, counts * per_cell) / np.bincount(places, counts))[places]


def _fit_scale(means: Floats, variances: Floats, truth: Floats, counts: Floats, places: Ints) -> float | None:
    """1 / slope of the estimates on the truth, each against the mean of its place, by least squares."""
    truth = truth - _place_means(truth, counts, places)
    weight = (counts * truth**2).sum()
    if weight == 0:
        return None
    slope = (counts * truth * means).sum() / weight
    doubt = np.sqrt((counts * truth**2 * variances).sum()) / weight
    rounding = 1e-6 * np.sqrt((counts * means**2).sum() / weight)
    return float(1 / slope) if slope > _SURE * doubt + rounding else None
