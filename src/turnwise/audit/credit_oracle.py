"""Credit once more, slowly: the advantages of a few trajectories from their rewards, in plain Python and float64.

In: the rows that credit saw, what the learner said about them, and the samples that came out. Out: breaches. Written
from the formulas in docs/flow.md and not from the rules in `credit`, so that a mistake would have to be made twice.
Rules that are not known here, a user's own among them, are held to finite numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.audit.breach import Breach, of_experience
from turnwise.credit.reference import TOLD_AS_RETURNS, Play, batch_spread, expect, play_back
from turnwise.types import Annotations, Experience, Sample

_TOLERANCE = 1e-4
"""Of float32 against float64, relative to the largest number of a trajectory."""
_VARIANCE = 1e-8
"""Added to the variance that whitening divides by."""
_ROUNDING = float(np.finfo(np.float32).eps)
"""Of a number in float32, relative to it."""


def check_credit(samples: Sequence[Sample], annotations: Annotations, credit: Any, *, seed: int) -> list[Breach]:
    """One group, another in each update, against what its rule should have said; `credit` is the section."""
    breaches = _check_numbers(samples)
    if breaches or not samples:
        return breaches
    groups = list(dict.fromkeys(sample.experience.id.trajectory.group for sample in samples))
    chosen = groups[(seed * 2654435761) % len(groups)]
    if credit.type == "reinforce_pp_baseline":
        return _check_whitened_scores(samples, annotations, credit, chosen)
    rows = [i for i, sample in enumerate(samples) if sample.experience.id.trajectory.group == chosen]
    plays = list(play_back(samples, annotations, rows).values())
    expected = expect(plays, credit, spread=_spread_of_batch(samples, annotations, credit))
    if expected is None:
        return []
    # Whitened advantages are compared as the returns they came from; the whitening is checked over the whole batch.
    breaches = _compare(samples, plays, expected, "returns" if credit.type in TOLD_AS_RETURNS else "advantages")
    if breaches or credit.type not in TOLD_AS_RETURNS:
        return breaches
    return _check_whitening(samples, credit.type, is_wanted=getattr(credit, "whiten", True))


def _spread_of_batch(samples: Sequence[Sample], annotations: Annotations, credit: Any) -> float | None:
    """None where the rule takes that of a group."""
    if credit.type != "multi_step_grpo" or credit.std_level != "batch":
        return None
    return batch_spread(list(play_back(samples, annotations, range(len(samples))).values()))


def _check_numbers(samples: Sequence[Sample]) -> list[Breach]:
    for sample in samples:
        if not (np.isfinite(sample.advantages).all() and np.isfinite(sample.returns).all()):
            return [of_experience("credit", sample.experience, "finite advantages and returns", "others")]
        if np.count_nonzero(sample.advantages[~sample.experience.segment.loss_mask]):
            expected = "no advantage where nothing was sampled"
            return [of_experience("credit", sample.experience, expected, "advantages on given tokens")]
    return []


# --- against what was said ------------------------------------------------------------------------------------------


def _compare(
    samples: Sequence[Sample], plays: Sequence[Play], expected: Sequence[Sequence[float]], field: str
) -> list[Breach]:
    for play, numbers in zip(plays, expected, strict=True):
        found = np.array([getattr(samples[row], field)[token] for row, token in play.places], dtype=np.float64)
        wrong = np.abs(found - np.array(numbers)) > _TOLERANCE * max(1.0, max(map(abs, numbers)))
        if wrong.any():
            first = int(wrong.argmax())
            row, token = play.places[first]
            return [_other(samples[row], token, field, numbers[first], float(found[first]))]
    return []


def _other(sample: Sample, token: int, field: str, expected: float, found: float) -> Breach:
    return Breach(
        check="credit",
        where=str(sample.experience.id),
        turn=int(sample.experience.segment.turn_ids[token]),
        token=token,
        expected=f"{field} of {expected:.6g}",
        found=f"{found:.6g}",
        wrote="the credit rule",
    )


def _check_whitening(samples: Sequence[Sample], rule: str, *, is_wanted: bool) -> list[Breach]:
    """Over all tokens: what comes before the whitening is in the returns."""
    bases = {"gae": _values, "bi_level_gae": _values, "turn_gae": _values_of_turns}
    base = bases[rule] if rule in bases else lambda sample: np.zeros(int(sample.experience.segment.loss_mask.sum()))
    returns, found = _flat(samples, "returns"), _flat(samples, "advantages")
    if len(returns) < 2:
        return []
    plain = returns - np.concatenate([base(sample) for sample in samples])
    unit = sqrt(plain.var(ddof=1) + _VARIANCE) if is_wanted else 1.0
    expected = (plain - plain.mean()) / unit if is_wanted else plain
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


def _check_whitened_scores(
    samples: Sequence[Sample], annotations: Annotations, credit: Any, chosen: str
) -> list[Breach]:
    """Nothing in a sample says what came before the whitening, so all groups are computed, and one is compared."""
    groups: dict[str, list[Play]] = {}
    for play in play_back(samples, annotations, range(len(samples))).values():
        groups.setdefault(play.group, []).append(play)
    plain = {group: expect(plays, credit) or [] for group, plays in groups.items()}
    every = np.array([number for plays in plain.values() for tokens in plays for number in tokens])
    if len(every) < 2:
        return []
    unit = sqrt(every.var(ddof=1) + _VARIANCE)
    expected = [[(number - every.mean()) / unit for number in tokens] for tokens in plain[chosen]]
    return _compare(samples, groups[chosen], expected, "advantages")


def _flat(samples: Sequence[Sample], name: str) -> NDArray[np.float64]:
    """[tokens] of all samples, sampled ones alone."""
    return np.concatenate([getattr(s, name)[s.experience.segment.loss_mask] for s in samples]).astype(np.float64)


def _values(sample: Sample) -> NDArray[np.float64]:
    return sample.values[sample.experience.segment.loss_mask].astype(np.float64)


def _values_of_turns(sample: Sample) -> NDArray[np.float64]:
    """The value before the first token of each turn, for all its tokens."""
    turns = sample.experience.segment.turn_ids[sample.experience.segment.loss_mask]
    firsts = np.flatnonzero(np.diff(turns, prepend=-1))
    return np.repeat(_values(sample)[firsts], np.diff(firsts, append=len(turns)))


def check_rows(experiences: Sequence[Experience], samples: Sequence[Sample], batch: Any) -> list[Breach]:
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


def _of_batch(check: str, expected: str, found: str) -> Breach:
    return Breach(check=check, where="the batch", expected=expected, found=found, wrote="a stage before the update")
