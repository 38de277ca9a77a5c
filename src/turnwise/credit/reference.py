"""Trajectories token by token in plain lists: what the slow oracle of credit reads.

In: samples and what the learner said about their rows. Out: one `Play` for each trajectory. It refuses to know how
`credit` lays out the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from math import exp, isnan, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from turnwise.types import Annotations, Experience, Sample, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One trajectory, token by token in playing order."""

    group: str
    places: list[tuple[int, int]]
    """[tokens] the row of the samples that each comes from, and where in it."""
    turns: list[int]
    """[tokens] the turn of each, counted from 0."""
    rewards: list[float]
    """[turns]"""
    states: list[int]
    """[turns]"""
    steps: list[int]
    """[turns] the step of its workflow that each belongs to."""
    penalties: list[float]
    """[tokens]"""
    values: list[float]
    """[tokens]"""
    is_truncated: bool
    greedy_return: float | None

    @property
    def total(self) -> float:
        return sum(self.rewards) + sum(self.penalties)

    def token_rewards(self) -> list[float]:
        """[tokens] that of a turn on its last token, and penalties where they were paid."""
        paid = list(self.penalties)
        for token, turn in enumerate(self.turns):
            if token + 1 == len(self.turns) or self.turns[token + 1] != turn:
                paid[token] += self.rewards[turn]
        return paid

    def turn_rewards(self) -> list[float]:
        """[turns] with the penalties of their tokens."""
        paid = list(self.rewards)
        for turn, penalty in zip(self.turns, self.penalties, strict=True):
            paid[turn] += penalty
        return paid

    def spread(self, per_turn: Sequence[float]) -> list[float]:
        """[tokens] from [turns]"""
        return [per_turn[turn] for turn in self.turns]


def play_back(samples: Sequence[Sample], annotations: Annotations, rows: Sequence[int]) -> dict[TrajectoryId, Play]:
    """Annotations are in the order of the samples' experiences, row by row."""
    of_trajectory: dict[TrajectoryId, list[int]] = {}
    for row in sorted(rows, key=lambda i: samples[i].experience.id.segment_index):
        of_trajectory.setdefault(samples[row].experience.id.trajectory, []).append(row)
    return {name: _lay_out(samples, annotations, numbers) for name, numbers in of_trajectory.items()}


class _Turn(NamedTuple):
    turn: int
    """Counted over the trajectory, as in a token: both sort by it first."""
    reward: float
    state: int
    step: int


class _Token(NamedTuple):
    turn: int
    row: int
    place: int
    penalty: float
    value: float


def _lay_out(samples: Sequence[Sample], annotations: Annotations, rows: Sequence[int]) -> Play:
    # Sorted, and not row by row: turns of two rows may alternate.
    turns = sorted(turn for row in rows for turn in _turns_of(samples[row].experience))
    tokens = sorted(token for row in rows for token in _tokens_of(samples, annotations, row))
    number_of = {turn.turn: number for number, turn in enumerate(turns)}
    last = samples[rows[-1]].experience
    return Play(
        group=last.id.trajectory.group,
        places=[(token.row, token.place) for token in tokens],
        turns=[number_of[token.turn] for token in tokens],
        rewards=[turn.reward for turn in turns],
        states=[turn.state for turn in turns],
        steps=[turn.step for turn in turns],
        penalties=[token.penalty for token in tokens],
        values=[token.value for token in tokens],
        is_truncated=last.is_truncated,
        greedy_return=last.greedy_return,
    )


def _turns_of(experience: Experience) -> Iterator[_Turn]:
    columns = (experience.turn_indices, experience.turn_rewards, experience.turn_states, experience.turn_steps)
    return starmap(_Turn, zip(*(column.tolist() for column in columns), strict=True))


def _tokens_of(samples: Sequence[Sample], annotations: Annotations, row: int) -> Iterator[_Token]:
    """The sampled ones."""
    segment, charged = samples[row].experience.segment, annotations.token_penalties
    penalties = np.zeros(len(segment)) if charged is None else charged[row]
    places = np.flatnonzero(segment.loss_mask)
    numbers = (array[places].tolist() for array in (segment.turn_ids, penalties, samples[row].values))
    for turn, penalty, value, place in zip(*numbers, places.tolist(), strict=True):
        yield _Token(turn=turn, row=row, place=place, penalty=penalty, value=value)


_EPSILON = 1e-6
"""As docs/advantage_estimators.md adds it to a spread."""
Tokens = list[list[float]]
"""[trajectories][tokens]"""


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _spread(numbers: Sequence[float]) -> float:
    """The unbiased standard deviation; 0 of a single number."""
    mean = _mean(numbers)
    return sqrt(sum((number - mean) ** 2 for number in numbers) / max(len(numbers) - 1, 1))


def _discount(rewards: Sequence[float], gamma: float) -> list[float]:
    """What is still to come, from each on."""
    to_come, following = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        following = to_come[t] = rewards[t] + gamma * following
    return to_come


# --- one number for a trajectory --------------------------------------------------------------------------------------


def _grpo(scores: Sequence[float], _: Any) -> list[float]:
    if len(scores) == 1:
        return [scores[0] / (1 + _EPSILON)]
    return [(score - _mean(scores)) / (_spread(scores) + _EPSILON) for score in scores]


def _centred(scores: Sequence[float], _: Any = None) -> list[float]:
    return [score - _mean(scores) for score in scores] if len(scores) > 1 else list(scores)


def _rloo(scores: Sequence[float], _: Any) -> list[float]:
    others = [[other for j, other in enumerate(scores) if j != i] for i in range(len(scores))]
    return [score - (_mean(rest) if rest else 0.0) for score, rest in zip(scores, others, strict=True)]


def _opmd(scores: Sequence[float], credit: Any) -> list[float]:
    if credit.baseline == "mean" or len(scores) == 1:
        return _centred(scores)
    top = max(scores)
    soft = top + credit.tau * log(_mean([exp((score - top) / credit.tau) for score in scores]))
    return [score - soft for score in scores]


_BY_SCORE: dict[str, Callable[[Sequence[float], Any], list[float]]] = {
    "grpo": _grpo,
    "dr_grpo": _centred,
    "reinforce_pp_baseline": _centred,
    "rloo": _rloo,
    "opmd": _opmd,
}


def last_score(play: Play) -> float:
    """What a trajectory earned in its last step, with all its penalties."""
    return play.rewards[-1] + sum(play.penalties)


def batch_spread(plays: Sequence[Play]) -> float:
    """That of the last steps of all trajectories; 1 of a single one."""
    return _spread([last_score(play) for play in plays]) if len(plays) > 1 else 1.0


def _multi_step_grpo(plays: Sequence[Play], credit: Any, spread: float | None) -> list[float]:
    scores = [last_score(play) for play in plays]
    unit = None if spread is None else spread + _EPSILON
    numbers = _grpo(scores, credit) if unit is None else [score / unit for score in _centred(scores)]
    if credit.step_norm:
        numbers = [number / len(play.rewards) for number, play in zip(numbers, plays, strict=True)]
    is_dead = credit.std_threshold is not None and (len(plays) == 1 or _spread(scores) <= credit.std_threshold)
    return [0.0] * len(plays) if is_dead else numbers


# --- one number for a turn --------------------------------------------------------------------------------------------


def _gigpo(plays: Sequence[Play], credit: Any) -> Tokens:
    scores = [play.total for play in plays]
    whole = _grpo(scores, credit) if credit.scale_by_std else _centred(scores)
    to_come = [_discount(play.turn_rewards(), credit.gamma) for play in plays]
    met: dict[int, list[float]] = {}
    for play, returns in zip(plays, to_come, strict=True):
        for state, number in zip(play.states, returns, strict=True):
            met.setdefault(state, []).append(number)

    def beside(state: int, number: float) -> float:
        centred = number - _mean(met[state])
        return centred / (_spread(met[state]) + _EPSILON) if credit.scale_by_std else centred

    return [
        play.spread([score + credit.step_weight * beside(*turn) for turn in zip(play.states, returns, strict=True)])
        for play, score, returns in zip(plays, whole, to_come, strict=True)
    ]


def _step_return(plays: Sequence[Play], credit: Any) -> Tokens:
    """Calls of one step are one step: they share its reward and what is to come."""
    to_come: list[list[float]] = []
    step_of_turn: list[list[int]] = []
    for play in plays:
        paid: list[float] = []
        places: list[int] = []
        for turn, reward in enumerate(play.turn_rewards()):
            if turn == 0 or play.steps[turn] != play.steps[turn - 1]:
                paid.append(0.0)
            paid[-1] += reward
            places.append(len(paid) - 1)
        to_come.append(_discount(paid, credit.gamma))
        step_of_turn.append(places)
    every = [number for returns in to_come for number in returns]
    mean, spread = (_mean(every), _spread(every)) if len(every) > 1 else (0.0, 1.0)
    unit = spread + _EPSILON if credit.scale_by_std else 1.0
    return [
        play.spread([(returns[place] - mean) / unit for place in places])
        for play, returns, places in zip(plays, to_come, step_of_turn, strict=True)
    ]


# --- one number for a token -------------------------------------------------------------------------------------------


def _chain(rewards: Sequence[float], values: Sequence[float], behind: float, gamma: float, lam: float) -> list[float]:
    """Returns: advantages and values."""
    returns, advantage, following = [0.0] * len(rewards), 0.0, behind
    for t in reversed(range(len(rewards))):
        advantage = rewards[t] + gamma * following - values[t] + gamma * lam * advantage
        returns[t] = advantage + values[t]
        following = values[t]
    return returns


def _behind(play: Play, credit: Any) -> float:
    return play.values[-1] if play.is_truncated and credit.truncation == "bootstrap" else 0.0


def _gae(play: Play, credit: Any) -> list[float]:
    return _chain(play.token_rewards(), play.values, _behind(play, credit), credit.gamma, credit.lam)


def _turn_gae(play: Play, credit: Any) -> list[float]:
    firsts = [play.values[play.turns.index(turn)] for turn in range(len(play.rewards))]
    return play.spread(_chain(play.turn_rewards(), firsts, _behind(play, credit), credit.gamma, credit.lam))


def _bi_level_gae(play: Play, credit: Any) -> list[float]:
    paid, num_turns = play.token_rewards(), len(play.rewards)
    tokens = [[t for t, turn in enumerate(play.turns) if turn == k] for k in range(num_turns)]
    which = -1 if credit.turn_value_at == "last" else 0
    turn_values = [play.values[of_turn[which]] for of_turn in tokens]
    turn_rewards = [sum(paid[t] for t in of_turn) for of_turn in tokens]
    goals = _chain(turn_rewards, turn_values, _behind(play, credit), credit.high_level_gamma, credit.high_level_lam)
    returns: list[float] = []
    for of_turn, goal in zip(tokens, goals, strict=True):
        rewards = [paid[t] for t in of_turn]
        rewards[-1] = goal - sum(rewards[:-1])
        returns += _chain(rewards, [play.values[t] for t in of_turn], 0.0, credit.gamma, credit.lam)
    return returns


def _returns(play: Play, credit: Any) -> list[float]:
    return _discount(play.token_rewards(), credit.gamma)


def _remax(play: Play, _: Any) -> list[float]:
    if play.greedy_return is None or isnan(play.greedy_return):
        return [0.0] * len(play.turns)
    return [number - play.greedy_return for number in _discount(play.token_rewards(), 1.0)]


_BY_PLAY: dict[str, Callable[[Play, Any], list[float]]] = {
    "gae": _gae,
    "turn_gae": _turn_gae,
    "bi_level_gae": _bi_level_gae,
    "reinforce": _returns,
    "reinforce_pp": _returns,
    "remax": _remax,
}
_BY_TURNS: dict[str, Callable[[Sequence[Play], Any], Tokens]] = {"gigpo": _gigpo, "step_return": _step_return}
TOLD_AS_RETURNS = frozenset({"gae", "turn_gae", "bi_level_gae", "reinforce_pp"})
"""Whose advantages may be whitened: their returns are what comes before that."""


def expect(plays: Sequence[Play], credit: Any, *, spread: float | None = None) -> Tokens | None:
    """What the rule says of the trajectories of one group, before any whitening: returns of those named above,
    advantages of the others; None of a rule that is not known. `spread` is that of the batch, where it counts.
    """
    if credit.type in _BY_PLAY:
        return [_BY_PLAY[credit.type](play, credit) for play in plays]
    if credit.type in _BY_TURNS:
        return _BY_TURNS[credit.type](plays, credit)
    numbers: list[float] | None = None
    if credit.type == "multi_step_grpo":
        numbers = _multi_step_grpo(plays, credit, spread)
    elif credit.type in _BY_SCORE:
        numbers = _BY_SCORE[credit.type]([play.total for play in plays], credit)
    if numbers is None:
        return None
    return [[number] * len(play.turns) for number, play in zip(numbers, plays, strict=True)]
