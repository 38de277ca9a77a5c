"""Episodes in a small world, as the experiences that credit rules are given in training.

In: a world, a policy, the start of each group. Out: `Plays`: one `Experience` per episode, with one observation token
before every reply, and the cell of every sampled token. It refuses to know what credit is computed from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.lab.exact import Ints, cell_numbers
from turnwise.lab.policy import NUM_TOKENS, Policy, nodes_of, tokens_of
from turnwise.lab.worlds import Floats, World
from turnwise.types import Experience, ExperienceId, FloatArray, Segment, TrajectoryId

_ROW_OF_TURN = 1 + NUM_TOKENS
"""An observation token, then the reply."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plays:
    experiences: tuple[Experience, ...]
    cells: tuple[Ints, ...]
    """Per experience, the cell of each sampled token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Walks:
    """[episodes, horizon] each; only the first `num_turns` of a row were played."""

    states: Ints
    actions: Ints
    rewards: Floats
    num_turns: Ints


def play_groups(
    world: World, policy: Policy, starts: Sequence[int], *, group_size: int, rollout: int, rng: np.random.Generator
) -> Plays:
    """One group of siblings per start, each beside a greedy play of the same task."""
    first = np.array(starts, dtype=np.int64)
    greedy_returns = _walk(world, policy.make_greedy(), first, rng).rewards.sum(axis=1)
    walks = _walk(world, policy, np.repeat(first, group_size), rng)
    experiences, cells = [], []
    for episode in range(len(first) * group_size):
        group, sibling = divmod(episode, group_size)
        # Groups of one task are told apart by their place, as tasks with seeds of their own would be.
        trajectory = TrajectoryId(rollout, f"{world.name}/train/{group}", sibling)
        num_turns = int(walks.num_turns[episode])
        states, actions = walks.states[episode, :num_turns], walks.actions[episode, :num_turns]
        rewards = walks.rewards[episode, :num_turns].astype(np.float32)
        nodes, tokens = nodes_of(actions), tokens_of(actions)
        left = world.horizon - np.arange(num_turns)
        cells.append(cell_numbers(world, left[:, None], states[:, None], nodes, tokens).ravel())
        experiences.append(
            Experience(
                id=ExperienceId(trajectory, 0),
                segment=_make_segment(states, tokens, np.log(policy.token_probs[states[:, None], nodes, tokens])),
                turn_indices=np.arange(num_turns, dtype=np.int32),
                raw_rewards=rewards,
                turn_rewards=rewards,
                turn_states=states.astype(np.uint64),
                turn_steps=np.arange(num_turns, dtype=np.int32),
                policy_version=0,
                is_last=True,
                # The budget belongs to the task and to the true values: using it up is an end like any other.
                is_truncated=False,
                greedy_return=float(greedy_returns[group]),
            )
        )
    return Plays(experiences=tuple(experiences), cells=tuple(cells))


def spread_over_row(experience: Experience, per_token: Floats) -> FloatArray:
    """Numbers of the sampled tokens as an array over the whole row, 0 off the loss mask."""
    row = np.zeros(len(experience.segment), dtype=np.float32)
    row[experience.segment.loss_mask] = per_token
    return row


def _walk(world: World, policy: Policy, states: Ints, rng: np.random.Generator) -> _Walks:
    """All episodes side by side, turn by turn; those that have ended stay where they are and earn nothing."""
    action_ladder, state_ladder = policy.action_probs.cumsum(axis=-1), world.transitions.cumsum(axis=-1)
    seen, played, earned = [], [], []
    for _ in range(world.horizon):
        actions = _draw(action_ladder[states], rng)
        following = _draw(state_ladder[states, actions], rng)
        seen.append(states)
        played.append(actions)
        earned.append(world.rewards[states, actions, following])
        states = following
    was_open = ~world.is_final[np.stack(seen, axis=1)]
    return _Walks(
        states=np.stack(seen, axis=1),
        actions=np.stack(played, axis=1),
        rewards=np.stack(earned, axis=1),
        num_turns=was_open.sum(axis=1),
    )


def _draw(ladders: Floats, rng: np.random.Generator) -> Ints:
    """One index per row, from cumulated chances."""
    # The last rung counts as open: rounding may leave it a little below 1.
    return (ladders[:, :-1] <= rng.random(len(ladders))[:, None]).sum(axis=1)


def _make_segment(states: Ints, tokens: Ints, logprobs: Floats) -> Segment:
    """Per turn: the state as a token of its own (above the kinds of reply tokens), then the reply."""
    rows = np.zeros((len(states), _ROW_OF_TURN))
    token_ids = np.column_stack([NUM_TOKENS + states, tokens])
    turn_ids = np.column_stack([np.full(len(states), -1), np.repeat(np.arange(len(states))[:, None], NUM_TOKENS, 1)])
    rows[:, 1:] = logprobs
    return Segment(
        token_ids=token_ids.ravel().astype(np.int32),
        loss_mask=turn_ids.ravel() >= 0,
        behavior_logprobs=rows.ravel().astype(np.float32),
        turn_ids=turn_ids.ravel().astype(np.int32),
    )
