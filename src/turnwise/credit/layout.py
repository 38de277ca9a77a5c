"""Where turns and trajectories begin and end in a flat run of sampled tokens, and ragged passes over them.

In: experiences, or padded arrays with a mask. Out: a `TurnLayout`, on which every estimator is a few array lines. It
is the one place where rows are put back into trajectories, so that no estimator can depend on how a trajectory was
cut into rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.errors import ConfigError
from turnwise.types import Annotations, Experience, FloatArray, Sample, TrajectoryId

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnLayout:
    """Sampled tokens in playing order, all trajectories one after another.

    Example, two trajectories of turns (2 + 2 tokens) and (3 tokens): `turn_starts=[0, 2, 4, 7]`,
    `trajectory_starts=[0, 2, 3]` (counted in turns), 7 tokens.
    """

    turn_starts: Ints
    """[turns + 1] offsets into the tokens."""
    trajectory_starts: Ints
    """[trajectories + 1] offsets into the turns."""

    @property
    def num_tokens(self) -> int:
        return int(self.turn_starts[-1])

    @property
    def turn_last(self) -> Ints:
        """[turns] the last token of each turn."""
        return self.turn_starts[1:] - 1

    @property
    def turn_first(self) -> Ints:
        return self.turn_starts[:-1]

    @property
    def trajectory_token_starts(self) -> Ints:
        return self.turn_starts[self.trajectory_starts]

    def turns_to_tokens(self, per_turn: Floats) -> Floats:
        return np.repeat(per_turn, np.diff(self.turn_starts))

    def trajectories_to_tokens(self, per_trajectory: Floats) -> Floats:
        return np.repeat(per_trajectory, np.diff(self.trajectory_token_starts))

    def sum_tokens(self, per_token: Floats) -> Floats:
        """[turns] sums over the tokens of each."""
        return np.add.reduceat(per_token, self.turn_starts[:-1])

    def sum_turns(self, per_turn: Floats) -> Floats:
        """[trajectories] sums over the turns of each."""
        return np.add.reduceat(per_turn, self.trajectory_starts[:-1])


def layout_from_keys(trajectory_of_token: Ints, turn_of_token: Ints) -> TurnLayout:
    """From the trajectory and the turn of every token; tokens of a turn lie side by side."""
    new_trajectory = np.flatnonzero(np.diff(trajectory_of_token, prepend=trajectory_of_token[:1] - 1))
    is_new_turn = np.diff(trajectory_of_token, prepend=-1) != 0
    is_new_turn |= np.diff(turn_of_token, prepend=turn_of_token[:1] - 1) != 0
    starts = np.flatnonzero(is_new_turn)
    turn_starts = np.append(starts, len(turn_of_token))
    trajectory_starts = np.append(np.searchsorted(starts, new_trajectory), len(starts))
    return TurnLayout(turn_starts=turn_starts.astype(np.int64), trajectory_starts=trajectory_starts.astype(np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlatTokens:
    """The sampled tokens of many experiences in playing order, and the way back to the rows they came from.

    Rewards come in two views with equal sums: per turn and per token. A rule reads one of them and has the penalties
    of its tokens in it.
    """

    layout: TurnLayout
    bare_rewards: Floats
    """[turns] the rewards of the experiences, without the penalties of tokens."""
    token_penalties: Floats
    """[tokens] zeros where the learner set none."""
    turn_states: NDArray[np.uint64]
    """[turns]"""
    turn_steps: Ints
    """[turns] the step of its workflow that each belongs to."""
    trajectory_ids: Sequence[TrajectoryId]
    is_truncated: NDArray[np.bool_]
    """[trajectories]"""
    greedy_returns: Floats
    """[trajectories] NaN where the task was not played greedily."""
    order: Ints
    """The experience indices in the order of their first turns."""
    places: Ints
    """[tokens] where each token in playing order stands in the rows laid end to end in that order."""
    turn_places: Ints
    """[turns] the same of each turn."""
    experiences: Sequence[Experience]

    @property
    def group_of_trajectory(self) -> Ints:
        """[trajectories] dense numbers"""
        return number_densely(trajectory.group for trajectory in self.trajectory_ids)

    @property
    def turn_rewards(self) -> Floats:
        """[turns] what each turn earned, less what its tokens cost."""
        return self.bare_rewards + self.layout.sum_tokens(self.token_penalties)

    @property
    def token_rewards(self) -> Floats:
        """[tokens] each token's penalty, and the reward of a turn on its last token."""
        rewards = self.token_penalties.copy()
        rewards[self.layout.turn_last] += self.bare_rewards
        return rewards

    def gather(self, per_experience: Sequence[FloatArray]) -> Floats:
        """Per-token arrays of the rows -> one value per sampled token, in playing order."""
        return _gather(per_experience, self.experiences, self.order)[self.places]

    def scatter(self, per_token: Floats) -> list[FloatArray]:
        """One value per sampled token -> per-token arrays of the rows, zero off the mask, in the given row order."""
        rows = [np.zeros(len(e.segment), dtype=np.float32) for e in self.experiences]
        laid_out = np.empty_like(per_token)
        laid_out[self.places] = per_token
        start = 0
        for i in self.order:
            mask = self.experiences[i].segment.loss_mask
            end = start + int(mask.sum())
            rows[i][mask] = laid_out[start:end]
            start = end
        return rows

    def scatter_turns(self, per_turn: Floats) -> list[FloatArray]:
        """One value per turn -> the turns of each row, in the given row order."""
        laid_out = np.empty(len(per_turn), dtype=np.float32)
        laid_out[self.turn_places] = per_turn
        ends = np.cumsum([len(self.experiences[i].turn_indices) for i in self.order])
        of_row = dict(zip(self.order.tolist(), np.split(laid_out, ends[:-1]), strict=True))
        return [of_row[i] for i in range(len(self.experiences))]


def flatten_experiences(experiences: Sequence[Experience], annotations: Annotations) -> FlatTokens:
    """Put rows back into trajectories, whatever order they come in; turns of two rows may alternate."""
    order = np.array(sorted(range(len(experiences)), key=lambda i: experiences[i].id), dtype=np.int64)
    ordered = [experiences[i] for i in order]
    last_rows = {e.id.trajectory: e for e in ordered}
    counts = [e.segment.num_action_tokens for e in ordered]
    trajectory_of_row = number_densely(e.id.trajectory for e in ordered)
    trajectory_of_token = np.repeat(trajectory_of_row, counts)
    turn_of_token = np.concatenate([e.segment.turn_ids[e.segment.loss_mask] for e in ordered]).astype(np.int64)
    places = _in_playing_order(trajectory_of_token, turn_of_token)
    turn_places = _in_playing_order(
        np.repeat(trajectory_of_row, [len(e.turn_indices) for e in ordered]),
        np.concatenate([e.turn_indices for e in ordered]),
    )
    penalties = annotations.token_penalties
    return FlatTokens(
        layout=layout_from_keys(trajectory_of_token[places], turn_of_token[places]),
        bare_rewards=np.concatenate([e.turn_rewards for e in ordered]).astype(np.float64)[turn_places],
        token_penalties=np.zeros(sum(counts)) if penalties is None else _gather(penalties, experiences, order)[places],
        turn_states=np.concatenate([e.turn_states for e in ordered])[turn_places],
        turn_steps=np.concatenate([e.turn_steps for e in ordered]).astype(np.int64)[turn_places],
        trajectory_ids=tuple(last_rows),
        is_truncated=np.array([e.is_truncated for e in last_rows.values()], dtype=np.bool_),
        greedy_returns=np.array([e.greedy_return for e in last_rows.values()], dtype=np.float64),
        order=order,
        places=places,
        turn_places=turn_places,
        experiences=experiences,
    )


play_back = flatten_experiences
"""Old name of `flatten_experiences`."""


def _in_playing_order(trajectories: Ints, turns: NDArray[np.integer]) -> Ints:
    """Trajectory by trajectory and turn by turn; what belongs to one turn stays in its order."""
    return np.lexsort((turns, trajectories)).astype(np.int64)


def number_densely(keys: Iterable[Hashable]) -> Ints:
    """Equal keys get equal numbers: 0, 1, 2, ... in the order in which keys are first met."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _gather(per_experience: Sequence[FloatArray], experiences: Sequence[Experience], order: Ints) -> Floats:
    return np.concatenate([per_experience[i][experiences[i].segment.loss_mask] for i in order]).astype(np.float64)


def scan_back(values: Floats, starts: Ints, decay: float) -> Floats:
    """`y[i] = values[i] + decay * y[i + 1]` inside each run `starts[k]:starts[k + 1]`, all runs at once."""
    if decay == 0 or len(values) == 0:
        return values.copy()
    lengths = np.diff(starts)
    width = int(lengths.max())
    run = np.repeat(np.arange(len(lengths)), lengths)
    # Right-aligned, runs side by side in a row: the zeros before a run's start are computed and never read.
    column = width - (np.repeat(starts[1:], lengths) - np.arange(len(values)))
    table = np.zeros((width, len(lengths)))
    table[column, run] = values
    for i in range(width - 2, -1, -1):
        table[i] += decay * table[i + 1]
    return table[column, run]


def shift_back(values: Floats, starts: Ints, last: Floats) -> Floats:
    """The next value inside each run; `last[k]` behind the end of run k."""
    following = np.append(values[1:], 0.0)
    following[starts[1:] - 1] = last
    return following


def whiten(advantages: Floats) -> Floats:
    """Mean 0 and variance 1 over the sampled tokens (unbiased variance, as verl and RAGEN compute it)."""
    if len(advantages) < 2:
        return advantages - advantages.mean() if len(advantages) else advantages
    return (advantages - advantages.mean()) / np.sqrt(advantages.var(ddof=1) + 1e-8)


def require_values(annotations: Annotations, rule: str) -> Sequence[FloatArray]:
    if annotations.values is None:
        raise ConfigError(
            f"credit.type '{rule}' needs a critic's values and learn.critic.type is 'none'. "
            "Set learn.critic.type to 'value_head' or 'model', or choose a rule without a critic, such as 'grpo'."
        )
    return annotations.values


def make_samples(played: FlatTokens, advantages: Floats, returns: Floats, annotations: Annotations) -> list[Sample]:
    """Back to rows, in the order in which the experiences were given."""
    empty = [np.zeros(len(e.segment), dtype=np.float32) for e in played.experiences]
    values = annotations.values if annotations.values is not None else empty
    reference = annotations.reference_logprobs if annotations.reference_logprobs is not None else empty
    rows = zip(played.experiences, played.scatter(advantages), played.scatter(returns), values, reference, strict=True)
    return [Sample(experience=e, advantages=a, returns=r, values=v, reference_logprobs=ref) for e, a, r, v, ref in rows]
