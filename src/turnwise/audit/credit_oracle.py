"""Credit once more, slowly: the advantages of a few trajectories from their rewards, in plain Python and float64.

In: the rows that credit saw, what the learner said about them, and the samples that came out. Out: breaches. Written
from the formulas in docs/flow.md and not from the rules in `credit`, so that a mistake would have to be made twice.
Rules that are not known here, a user's own among them, are held to finite numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from turnwise.audit.breach import Breach, of_experience
from turnwise.types import Annotations, Experience, Sample, TrajectoryId

_TOLERANCE = 1e-4
"""Of float32 against float64, relative to the largest number of a trajectory."""
_EPSILON = 1e-6
"""As docs/flow.md adds it to a spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Play:
    """One trajectory, token by token in playing order: plain lists."""

    rows: list[int]
    """Of the samples, in order."""
    turns: list[int]
    """[tokens] the turn of each, counted from 0."""
    rewards: list[float]
    """[turns]"""
    penalties: list[float]
    """[tokens]"""
    values: list[float]
    """[tokens]"""
    is_truncated: bool

    @property
    def total(self) -> float:
        return sum(self.rewards) + sum(self.penalties)

    def token_rewards(self) -> list[float]:
        paid = list(self.penalties)
        for token, turn in enumerate(self.turns):
            if token + 1 == len(self.turns) or self.turns[token + 1] != turn:
                paid[token] += self.rewards[turn]
        return paid


def check_credit(samples: Sequence[Sample], annotations: Annotations, credit: Any, *, seed: int) -> list[Breach]:
    """One group, another in each update, against what its rule should have said; `credit` is the section."""
    breaches = _check_numbers(samples)
    if breaches or not samples:
        return breaches
    groups = list(dict.fromkeys(sample.experience.id.trajectory.group for sample in samples))
    chosen = groups[(seed * 2654435761) % len(groups)]
    rows = [i for i, sample in enumerate(samples) if sample.experience.id.trajectory.group == chosen]
    plays = _play_back(samples, annotations, rows)
    expected = _expect(plays, credit)
    if expected is None:
        return []
    # Whitened advantages are compared as the returns they came from; the whitening is checked over the whole batch.
    is_whitened = getattr(credit, "whiten", False) and credit.type in _WITH_VALUES
    field = "returns" if credit.type in _WITH_VALUES else "advantages"
    breaches = _compare(samples, plays, expected, field)
    return breaches or (_check_whitening(samples) if is_whitened else [])


def _check_numbers(samples: Sequence[Sample]) -> list[Breach]:
    for sample in samples:
        if not (np.isfinite(sample.advantages).all() and np.isfinite(sample.returns).all()):
            return [of_experience("credit", sample.experience, "finite advantages and returns", "others")]
        if np.count_nonzero(sample.advantages[~sample.experience.segment.loss_mask]):
            expected = "no advantage where nothing was sampled"
            return [of_experience("credit", sample.experience, expected, "advantages on given tokens")]
    return []


def _play_back(samples: Sequence[Sample], annotations: Annotations, rows: Sequence[int]) -> dict[TrajectoryId, _Play]:
    """Annotations are in the order of the samples' experiences, row by row."""
    of_trajectory: dict[TrajectoryId, list[int]] = {}
    for row in sorted(rows, key=lambda i: samples[i].experience.id.segment_index):
        of_trajectory.setdefault(samples[row].experience.id.trajectory, []).append(row)
    return {name: _lay_out(samples, annotations, numbers) for name, numbers in of_trajectory.items()}


def _lay_out(samples: Sequence[Sample], annotations: Annotations, rows: list[int]) -> _Play:
    turns: list[int] = []
    rewards: list[float] = []
    penalties: list[float] = []
    values: list[float] = []
    for row in rows:
        experience = samples[row].experience
        mask = experience.segment.loss_mask
        first = int(experience.turn_indices[0]) - len(rewards) if len(experience.turn_indices) else 0
        turns += (experience.segment.turn_ids[mask] - first).tolist()
        rewards += experience.turn_rewards.astype(float).tolist()
        charged = annotations.token_penalties
        penalties += (charged[row][mask] if charged is not None else np.zeros(mask.sum())).astype(float).tolist()
        values += samples[row].values[mask].astype(float).tolist()
    return _Play(
        rows=rows,
        turns=turns,
        rewards=rewards,
        penalties=penalties,
        values=values,
        is_truncated=samples[rows[-1]].experience.is_truncated,
    )


# --- the rules ------------------------------------------------------------------------------------------------------


def _expect(plays: Mapping[TrajectoryId, _Play], credit: Any) -> list[list[float]] | None:
    """[trajectories][tokens] returns of rules with a critic, advantages of the others; None for rules not known."""
    if credit.type in _WITH_VALUES:
        return [_WITH_VALUES[credit.type](play, credit) for play in plays.values()]
    if credit.type not in _BY_GROUP:
        return None
    scores = [play.total for play in plays.values()]
    by_play = [score if len(scores) == 1 else None for score in scores]
    numbers = [
        _BY_GROUP[credit.type](scores, i) if alone is None else _alone(alone, credit.type)
        for i, alone in enumerate(by_play)
    ]
    return [[number] * len(play.turns) for number, play in zip(numbers, plays.values(), strict=True)]


def _alone(score: float, rule: str) -> float:
    return score / (1 + _EPSILON) if rule == "grpo" else score


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _grpo(scores: Sequence[float], i: int) -> float:
    mean = _mean(scores)
    spread = sqrt(sum((score - mean) ** 2 for score in scores) / (len(scores) - 1))
    return (scores[i] - mean) / (spread + _EPSILON)


def _dr_grpo(scores: Sequence[float], i: int) -> float:
    return scores[i] - _mean(scores)


def _rloo(scores: Sequence[float], i: int) -> float:
    return scores[i] - _mean([score for j, score in enumerate(scores) if j != i])


def _gae(play: _Play, credit: Any) -> list[float]:
    """Returns: advantages and values."""
    behind = play.values[-1] if play.is_truncated and credit.truncation == "bootstrap" else 0.0
    return _chain(play.token_rewards(), play.values, behind, credit.gamma, credit.lam)


def _chain(rewards: Sequence[float], values: Sequence[float], behind: float, gamma: float, lam: float) -> list[float]:
    returns, advantage, following = [0.0] * len(rewards), 0.0, behind
    for t in reversed(range(len(rewards))):
        advantage = rewards[t] + gamma * following - values[t] + gamma * lam * advantage
        returns[t] = advantage + values[t]
        following = values[t]
    return returns


def _bi_level_gae(play: _Play, credit: Any) -> list[float]:
    paid, num_turns = play.token_rewards(), len(play.rewards)
    tokens = [[t for t, turn in enumerate(play.turns) if turn == k] for k in range(num_turns)]
    which = -1 if credit.turn_value_at == "last" else 0
    turn_values = [play.values[of_turn[which]] for of_turn in tokens]
    turn_rewards = [sum(paid[t] for t in of_turn) for of_turn in tokens]
    behind = play.values[-1] if play.is_truncated and credit.truncation == "bootstrap" else 0.0
    goals = _chain(turn_rewards, turn_values, behind, credit.high_level_gamma, credit.high_level_lam)
    returns: list[float] = []
    for of_turn, goal in zip(tokens, goals, strict=True):
        rewards = [paid[t] for t in of_turn]
        rewards[-1] = goal - sum(rewards[:-1])
        returns += _chain(rewards, [play.values[t] for t in of_turn], 0.0, credit.gamma, credit.lam)
    return returns


_BY_GROUP: dict[str, Callable[[Sequence[float], int], float]] = {"grpo": _grpo, "dr_grpo": _dr_grpo, "rloo": _rloo}
_WITH_VALUES: dict[str, Callable[[_Play, Any], list[float]]] = {"gae": _gae, "bi_level_gae": _bi_level_gae}


# --- against what was said ------------------------------------------------------------------------------------------


def _compare(
    samples: Sequence[Sample], plays: Mapping[TrajectoryId, _Play], expected: Sequence[Sequence[float]], field: str
) -> list[Breach]:
    for play, numbers in zip(plays.values(), expected, strict=True):
        rows = [samples[row] for row in play.rows]
        found = np.concatenate([getattr(row, field)[row.experience.segment.loss_mask] for row in rows])
        wrong = np.abs(found - np.array(numbers)) > _TOLERANCE * max(1.0, max(map(abs, numbers)))
        if wrong.any():
            token = int(wrong.argmax())
            return [_other(rows, token, field, numbers[token], float(found[token]))]
    return []


def _other(rows: Sequence[Sample], token: int, field: str, expected: float, found: float) -> Breach:
    for row in rows:
        places = np.flatnonzero(row.experience.segment.loss_mask)
        if token < len(places):
            return Breach(
                check="credit",
                where=str(row.experience.id),
                turn=int(row.experience.segment.turn_ids[places[token]]),
                token=int(places[token]),
                expected=f"{field} of {expected:.6g}",
                found=f"{found:.6g}",
                wrote="the credit rule",
            )
        token -= len(places)
    raise IndexError(token)


def _check_whitening(samples: Sequence[Sample]) -> list[Breach]:
    masks = [sample.experience.segment.loss_mask for sample in samples]

    def flat(name: str) -> np.ndarray:
        return np.concatenate([getattr(s, name)[m] for s, m in zip(samples, masks, strict=True)]).astype(np.float64)

    plain = flat("returns") - flat("values")
    if len(plain) < 2:
        return []
    expected = (plain - plain.mean()) / sqrt(plain.var(ddof=1) + 1e-8)
    wrong = np.abs(flat("advantages") - expected) > 1e-3 * max(1.0, float(np.abs(expected).max()))
    if not wrong.any():
        return []
    token = int(wrong.argmax())
    return [_other(samples, token, "advantages", float(expected[token]), float(flat("advantages")[token]))]


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
