"""Recompute advantages and losses of an update with the slow `reference` of the chosen estimator and loss.

`BatchAudit` calls these checks. An estimator without a reference is only checked for finite numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.audit.records import batch_finding, of_experience
from turnwise.config import schema_learn as learning
from turnwise.config.kinds import AdvantageEstimator
from turnwise.credit.reference import WHITENING_VARIANCE, TokenTrajectory, unpack_samples
from turnwise.errors import Finding
from turnwise.types import Annotations, Batch, Experience, Sample, StepReport, UpdateTrace

_TOLERANCE = 1e-4
"""Of float32 against float64, relative to the largest number of a trajectory."""
_ROUNDING = float(np.finfo(np.float32).eps)
"""Of a number in float32, relative to it."""


def check_credit(
    samples: Sequence[Sample], annotations: Annotations, estimator: AdvantageEstimator, *, seed: int
) -> list[Finding]:
    """Compare one group, another one in each update, with the `reference` of its estimator, if it has one."""
    breaches = _check_numbers(samples)
    if breaches or not samples:
        return breaches
    groups = list(dict.fromkeys(sample.experience.id.trajectory.group for sample in samples))
    chosen = groups[(seed * 2654435761) % len(groups)]
    rows = range(len(samples))
    if not estimator.needs_batch():
        rows = [i for i, sample in enumerate(samples) if sample.experience.id.trajectory.group == chosen]
    trajectories = list(unpack_samples(samples, annotations, rows).values())
    expected = estimator.reference(trajectories)
    if expected is None:
        return []
    of_group = [pair for pair in zip(trajectories, expected, strict=True) if pair[0].group == chosen]
    # Whitened advantages are compared as the returns they came from; the whitening is checked over the whole batch.
    is_whitened = estimator.whitening == "from_returns"
    breaches = _compare(samples, of_group, "returns" if is_whitened else "advantages")
    return _check_whitening(samples, estimator) if is_whitened and not breaches else breaches


def _check_numbers(samples: Sequence[Sample]) -> list[Finding]:
    for sample in samples:
        if not (np.isfinite(sample.advantages).all() and np.isfinite(sample.returns).all()):
            return [of_experience("credit", sample.experience, "finite advantages and returns", "others")]
        if np.count_nonzero(sample.advantages[~sample.experience.segment.loss_mask]):
            expected = "no advantage where nothing was sampled"
            return [of_experience("credit", sample.experience, expected, "advantages on given tokens")]
    return []


# --- against the reference --------------------------------------------------------------------------------------------


def _compare(
    samples: Sequence[Sample], expected: Sequence[tuple[TokenTrajectory, Sequence[float]]], field: str
) -> list[Finding]:
    for trajectory, numbers in expected:
        found = np.array([getattr(samples[row], field)[token] for row, token in trajectory.places], dtype=np.float64)
        wrong = np.abs(found - np.array(numbers)) > _TOLERANCE * max(1.0, max(map(abs, numbers)))
        if wrong.any():
            first = int(wrong.argmax())
            row, token = trajectory.places[first]
            return [_other(samples[row], token, field, numbers[first], float(found[first]))]
    return []


def _other(sample: Sample, token: int, field: str, expected: float, found: float) -> Finding:
    return batch_finding(
        "credit",
        str(sample.experience.id),
        turn=int(sample.experience.segment.turn_ids[token]),
        token=token,
        expected=f"{field} of {expected:.6g}",
        found=f"{found:.6g}",
        wrote="the credit rule",
    )


def _check_whitening(samples: Sequence[Sample], estimator: AdvantageEstimator) -> list[Finding]:
    """Over all tokens: what comes before the whitening is in the returns."""
    bases = [base for base in map(estimator.value_baseline, samples) if base is not None]
    returns, found = _flat(samples, "returns"), _flat(samples, "advantages")
    if len(returns) < 2:
        return []
    plain = returns - np.concatenate(bases).astype(np.float64) if bases else returns
    unit = sqrt(plain.var(ddof=1) + WHITENING_VARIANCE) if estimator.whitens() else 1.0
    expected = (plain - plain.mean()) / unit if estimator.whitens() else plain
    # The rule whitened what it had before returns were rounded to float32, and a small unit makes that large.
    tolerance = 1e-3 + 2 * _ROUNDING * float(np.abs(returns).max()) / unit
    wrong = np.abs(found - expected) > tolerance * max(1.0, float(np.abs(expected).max()))
    if not wrong.any():
        return []
    first = int(wrong.argmax())
    sample, token = _find(samples, first)
    return [_other(sample, token, "advantages", float(expected[first]), float(found[first]))]


def _find(samples: Sequence[Sample], number: int) -> tuple[Sample, int]:
    """A sampled token by its number over all samples, and where it stands in its own."""
    for sample in samples:
        places = np.flatnonzero(sample.experience.segment.loss_mask)
        if number < len(places):
            return sample, int(places[number])
        number -= len(places)
    raise IndexError(number)


def _flat(samples: Sequence[Sample], name: str) -> NDArray[np.float64]:
    """[tokens] of all samples, sampled ones alone."""
    return np.concatenate([getattr(s, name)[s.experience.segment.loss_mask] for s in samples]).astype(np.float64)


def check_rows(experiences: Sequence[Experience], samples: Sequence[Sample], batch: Any) -> list[Finding]:
    """Nothing sampled was lost, doubled or changed between the buffer and the batch; packing changed nothing."""
    before = _sum_tokens([e.segment for e in experiences])
    after = _sum_tokens([batch])
    if before != after:
        found = f"{after[0]} sampled tokens with the sum {after[1]:016x}"
        return [_of_batch("rows", f"{before[0]} sampled tokens with the sum {before[1]:016x}", found)]
    for name in ("advantages", "returns", "values", "reference_logprobs"):
        packed = np.concatenate([getattr(sample, name) for sample in samples])
        if not np.array_equal(packed, getattr(batch, name), equal_nan=True):
            return [_of_batch("rows", f"the {name} of the samples, end to end", "others")]
    return []


def _sum_tokens(owners: Sequence[Any]) -> tuple[int, int]:
    """The sampled tokens with their turns and log-probs, in whatever order: how many, and a sum of their digests."""
    mask = np.concatenate([owner.loss_mask for owner in owners])
    ids = np.concatenate([owner.token_ids for owner in owners])[mask].astype(np.uint64)
    turns = np.concatenate([owner.turn_ids for owner in owners])[mask].astype(np.uint64)
    logprobs = np.concatenate([owner.behavior_logprobs for owner in owners])[mask].astype(np.float32)
    mixed = (ids * np.uint64(0x9E3779B97F4A7C15)) ^ (logprobs.view(np.uint32).astype(np.uint64) << np.uint64(17))
    mixed = (mixed ^ (turns << np.uint64(49))) * np.uint64(0xBF58476D1CE4E5B9)
    return len(ids), int((mixed ^ (mixed >> np.uint64(29))).sum(dtype=np.uint64))


def _of_batch(check: str, expected: str, found: str) -> Finding:
    return batch_finding(check, "the batch", expected=expected, found=found, wrote="a stage before the update")


Floats = NDArray[np.float64]

_LOSS_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""Of the sum over all tokens of what differs, relative to the sum of what is expected."""
_LOSS_ROUNDING = 2e-7
"""What float32 leaves of a distance per token: small ones are differences of numbers near 1."""


def check_update(batch: Batch, report: StepReport, settings: learning.LearnSettings, *, dtype: str) -> list[Finding]:
    """Every sampled token was counted, and each with the loss that the settings say."""
    told = report.metrics.get("learn/action_tokens")
    if told is not None and told != batch.loss_mask.sum():
        return [_of_update(f"{batch.loss_mask.sum()} tokens in the loss", f"{told:g}")]
    trace = report.trace
    if trace is None or trace.first_losses is None or settings.type != "ppo":
        return []
    if np.count_nonzero(np.nan_to_num(trace.first_losses[~batch.loss_mask])):
        return [_of_update("no loss where nothing was sampled", "losses on given tokens")]
    rows = _first_rows(batch, trace, settings)
    if rows is not None and (breaches := _check_distances(batch, trace, settings, rows, dtype)):
        return breaches
    expected = None if rows is None else _expect(batch, trace, settings, rows)
    if expected is None or rows is None:
        return []
    found = trace.first_losses[rows].astype(np.float64)
    gap, size = np.abs(found - expected), np.abs(expected).sum()
    tolerance = _LOSS_TOLERANCE[dtype] * max(float(size), 1e-6) + _rounding(batch, settings, rows)
    # Not `>`: what is no number must not pass.
    if gap.sum() <= tolerance:
        return []
    worst = int(np.argmax(gap))
    told = f"a summand of {expected[worst]:.6g} in the loss (learn.loss, kl, critic, entropy, aggregation)"
    return [_of_token(batch, int(rows[worst]), told, f"{found[worst]:.6g}")]


def check_penalties(samples: Sequence[Sample], annotations: Annotations, kl: Any) -> list[Finding]:
    """What leaving the reference costs in the reward, where its price is fixed; `kl` is the section."""
    charged, said = annotations.token_penalties, annotations.reference_logprobs
    if not isinstance(kl, learning.KlReward) or kl.target is not None or charged is None or said is None:
        return []
    for sample, penalties, reference in zip(samples, charged, said, strict=True):
        segment = sample.experience.segment
        difference = segment.behavior_logprobs.astype(np.float64) - reference
        expected = np.where(segment.loss_mask, -kl.coef * _kl(difference, kl.estimator), 0.0)
        wrong = np.abs(penalties - expected) > kl.coef * (1e-3 * np.abs(_kl(difference, kl.estimator)) + _LOSS_ROUNDING)
        if wrong.any():
            token = int(wrong.argmax())
            told = f"a penalty of {expected[token]:.6g} for leaving the reference"
            return [
                batch_finding(
                    "loss",
                    str(sample.experience.id),
                    turn=int(segment.turn_ids[token]),
                    token=token,
                    expected=told,
                    found=f"{penalties[token]:.6g}",
                    wrote="the learner",
                )
            ]
    return []


def _check_distances(
    batch: Batch, trace: UpdateTrace, settings: learning.LearnSettings, tokens: NDArray[np.int64], dtype: str
) -> list[Finding]:
    """By themselves: in the sum of all losses a small price hides whatever is wrong with what it is a price of."""
    if not isinstance(settings.kl, learning.KlLoss) or trace.first_distances is None:
        return []
    difference = trace.proximal_logprobs[tokens].astype(np.float64) - batch.reference_logprobs[tokens]
    expected = _kl(difference, settings.kl.estimator)
    found = trace.first_distances[tokens].astype(np.float64)
    gap = np.abs(found - expected)
    if gap.sum() <= _LOSS_TOLERANCE[dtype] * np.abs(expected).sum() + _LOSS_ROUNDING * len(tokens):
        return []
    worst = int(np.argmax(gap))
    told = f"a distance of {expected[worst]:.6g} from the reference ({settings.kl.estimator})"
    return [_of_token(batch, int(tokens[worst]), told, f"{found[worst]:.6g}")]


def _first_rows(batch: Batch, trace: UpdateTrace, settings: learning.LearnSettings) -> NDArray[np.int64] | None:
    """The sampled tokens of the first mini-batch; None where the trace does not say which those are."""
    if not isinstance(settings.correction, learning.NoCorrection) or not isinstance(settings.ptx, learning.NoPtx):
        return None
    is_first = np.repeat(trace.proximal_steps == 0, batch.row_lengths)
    tokens = np.flatnonzero(batch.loss_mask & is_first)
    # Rows without a gradient are not met, and then a mini-batch may have had more rows than are seen.
    losses = trace.first_losses
    return tokens if losses is not None and len(tokens) and not np.isnan(losses[tokens]).any() else None


def _expect(
    batch: Batch, trace: UpdateTrace, settings: learning.LearnSettings, tokens: NDArray[np.int64]
) -> Floats | None:
    policy, behavior, advantages = (
        array[tokens].astype(np.float64)
        for array in (trace.proximal_logprobs, batch.behavior_logprobs, batch.advantages)
    )
    rows = np.searchsorted(batch.row_starts, tokens, side="right") - 1
    _, turns = np.unique(np.stack([rows, batch.turn_ids[tokens]]), axis=1, return_inverse=True)
    losses = settings.loss.reference(policy, behavior, advantages, turns.ravel().astype(np.int32))
    if losses is None:
        return None
    losses = losses - settings.entropy_coef * trace.entropies[tokens]
    if isinstance(settings.kl, learning.KlLoss):
        difference = policy - batch.reference_logprobs[tokens]
        losses += settings.kl.coef * _kl(difference, settings.kl.estimator)
    if not isinstance(settings.critic, learning.NoCritic):
        # Before the first optimizer step the critic says what it said when it was asked for credit.
        errors = batch.values[tokens].astype(np.float64) - batch.returns[tokens]
        losses += getattr(settings.critic, "coef", 1.0) * 0.5 * errors**2
    return losses * _weights(batch, tokens, settings.aggregation)


def _rounding(batch: Batch, settings: learning.LearnSettings, tokens: NDArray[np.int64]) -> float:
    """What float32 leaves of the distances in the sum: without advantages they may be all there is."""
    if not isinstance(settings.kl, learning.KlLoss):
        return 0.0
    return settings.kl.coef * _LOSS_ROUNDING * float(_weights(batch, tokens, settings.aggregation).sum())


def _kl(difference: Floats, estimator: str) -> Floats:
    """Of policy and reference, by the difference of their log-probs."""
    return {
        "k1": difference,
        "k2": difference**2 / 2,
        "k3": np.expm1(-difference) + difference,
        "abs": np.abs(difference),
    }[estimator]


def _weights(batch: Batch, tokens: NDArray[np.int64], aggregation: str) -> Floats:
    if aggregation == "token_mean":
        return np.full(len(tokens), 1 / len(tokens))
    rows = np.searchsorted(batch.row_starts, tokens, side="right") - 1
    _, trajectory, lengths = np.unique(batch.trajectory_of_row[rows], return_inverse=True, return_counts=True)
    share = 1.0 if aggregation == "seq_mean_token_sum" else 1 / lengths[trajectory]
    return share * np.ones(len(tokens)) / len(lengths)


def _of_token(batch: Batch, place: int, expected: str, found: str) -> Finding:
    row = int(np.searchsorted(batch.row_starts, place, side="right")) - 1
    return batch_finding(
        "loss",
        f"row {row} of the update",
        turn=int(batch.turn_ids[place]),
        token=place - int(batch.row_starts[row]),
        expected=expected,
        found=found,
        wrote="the learner",
    )


def _of_update(expected: str, found: str) -> Finding:
    return batch_finding("loss", "the update", expected=expected, found=found, wrote="the learner")
