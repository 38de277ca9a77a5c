"""Worlds so small that everything about them can be computed: a table of chances and a table of rewards each.

Out come `World`s, by name in `WORLDS`. They refuse to know who plays them, and how an action is spelled in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.envs.frozen_lake.layout import neighbours
from turnwise.types import Experience, ExperienceId, FloatArray, Segment, TrajectoryId

Floats = NDArray[np.float64]
Outcome = tuple[float, int, float]
"""The chance of it, the next state, the reward on the way."""
NUM_ACTIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """A finite world with a budget of turns. The budget is part of the task: when it is used up, the world ends."""

    name: str
    about: str
    states: tuple[str, ...]
    actions: tuple[str, str, str, str]
    starts: tuple[int, ...]
    """One task each."""
    horizon: int
    """Turns at most."""
    transitions: Floats
    """[states, actions, states] chances."""
    rewards: Floats
    """[states, actions, states]"""
    is_final: NDArray[np.bool_]
    """[states] where the world has ended; nothing is earned from there on."""


def make_world(
    move: Callable[[int, int], Sequence[Outcome]],
    *,
    name: str,
    about: str,
    states: Sequence[str],
    actions: tuple[str, str, str, str],
    starts: tuple[int, ...],
    finals: tuple[int, ...],
    horizon: int,
) -> World:
    """Tables from a rule: `move(state, action)` lists what can happen, for states that are not final."""
    shape = (len(states), NUM_ACTIONS, len(states))
    transitions, rewards = np.zeros(shape), np.zeros(shape)
    for state in range(len(states)):
        for action in range(NUM_ACTIONS):
            for chance, following, reward in [(1.0, state, 0.0)] if state in finals else move(state, action):
                transitions[state, action, following] += chance
                rewards[state, action, following] = reward
    return World(
        name=name,
        about=about,
        states=tuple(states),
        actions=actions,
        starts=starts,
        horizon=horizon,
        transitions=transitions,
        rewards=rewards,
        is_final=np.isin(np.arange(len(states)), finals),
    )


_LAKE_SIZE, _LAKE_HOLE, _LAKE_GOAL = 3, 4, 8


def _slide(cell: int, action: int) -> list[Outcome]:
    """Six times in ten the way one wants, two in ten to each side."""
    ways = [(0.6, action), (0.2, (action + 1) % 4), (0.2, (action - 1) % 4)]
    targets = [(chance, neighbours(_LAKE_SIZE)[cell][way]) for chance, way in ways]
    return [(chance, target, float(target == _LAKE_GOAL)) for chance, target in targets]


_COINS = (0.0, 0.5, -0.5, 1.0, -1.0, 0.5, 0.25)


def _walk_on(cell: int, num_cells: int) -> list[Outcome]:
    target = min(cell + num_cells, len(_COINS) - 1)
    return [(1.0, target, _COINS[target] if num_cells else -0.1)]


_OPEN = 6


def _seek_key(state: int, action: int) -> list[Outcome]:
    """State = cell + 3 with the key in hand. The key lies in cell 0, the door is in cell 2."""
    key, cell = divmod(state, 3)
    if action == 3 and key and cell == 2:
        return [(1.0, _OPEN, 1.0)]
    if action == 2:
        key = max(key, int(cell == 0))
    elif action < 2:
        cell = min(max(cell + (-1, 1)[action], 0), 2)
    return [(1.0, 3 * key + cell, 0.0)]


_CHANCES_TO_WIN = ((0.9, 0.5, 0.4, 0.2), (0.1, 0.3, 0.2, 0.8), (0.5, 0.1, 0.7, 0.3))
_WON, _LOST = 3, 4


def _pull(machine: int, arm: int) -> list[Outcome]:
    chance = _CHANCES_TO_WIN[machine][arm]
    return [(chance, _WON, 1.0), (1 - chance, _LOST, 0.0)]


WORLDS = {
    world.name: world
    for world in (
        make_world(
            _pull,
            name="bandit",
            about="one turn: four arms that win with different chances",
            states=("machine 1", "machine 2", "machine 3", "won", "lost"),
            actions=("A", "B", "C", "D"),
            starts=(0, 1, 2),
            finals=(_WON, _LOST),
            horizon=1,
        ),
        make_world(
            _walk_on,
            name="corridor",
            about="a reward or a loss in every turn, nothing is left to chance",
            states=[f"cell {cell}" for cell in range(len(_COINS))],
            actions=("Wait", "Step", "Jump", "Leap"),
            starts=(0, 1, 2),
            finals=(len(_COINS) - 1,),
            horizon=6,
        ),
        make_world(
            _seek_key,
            name="key_door",
            about="fetch a key, open a door: one reward, at the very end",
            states=[f"cell {cell}{key}" for key in ("", ", key") for cell in range(3)] + ["open"],
            actions=("Left", "Right", "Take", "Open"),
            starts=(0, 1, 2),
            finals=(_OPEN,),
            horizon=12,
        ),
        make_world(
            _slide,
            name="lake",
            about="a slippery lake of 3x3 with a hole in the middle: one reward, at the goal, much chance",
            states=[f"row {cell // _LAKE_SIZE}, column {cell % _LAKE_SIZE}" for cell in range(_LAKE_SIZE**2)],
            actions=("Left", "Down", "Right", "Up"),
            starts=(0, 2, 6),
            finals=(_LAKE_HOLE, _LAKE_GOAL),
            horizon=8,
        ),
    )
}


NUM_NODES = 3
"""Places where a token is chosen."""
NUM_TOKENS = 2
"""Kinds of tokens, and also tokens per reply."""
FIRST_LEAF = NUM_NODES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    token_probs: Floats
    """[states, nodes, tokens]"""

    @property
    def action_probs(self) -> Floats:
        """[states, actions]"""
        return (self.token_probs[:, 0, :, None] * self.token_probs[:, 1:, :]).reshape(-1, NUM_ACTIONS)

    def make_greedy(self) -> Policy:
        """Always the likelier token; the first of two that are equally likely."""
        return Policy(token_probs=np.eye(NUM_TOKENS)[self.token_probs.argmax(axis=-1)])


def softmax_policy(logits: Floats) -> Policy:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return Policy(token_probs=shifted / shifted.sum(axis=-1, keepdims=True))


def draw_policy(world: World, rng: np.random.Generator) -> Policy:
    """Undecided, with a leaning of its own in every state."""
    return softmax_policy(rng.normal(0.0, 0.7, size=(len(world.states), NUM_NODES, NUM_TOKENS)))


def nodes_of(actions: NDArray[np.int64]) -> NDArray[np.int64]:
    """[..., 2] the nodes in which the tokens of an action are chosen."""
    return np.stack([np.zeros_like(actions), 1 + actions // NUM_TOKENS], axis=-1)


def tokens_of(actions: NDArray[np.int64]) -> NDArray[np.int64]:
    """[..., 2] the tokens that spell an action."""
    return np.stack([actions // NUM_TOKENS, actions % NUM_TOKENS], axis=-1)


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exact:
    policy: Policy
    values: Floats
    """[turns left, states, nodes and leaves] what is still to be earned, after the tokens of the node."""
    advantages: Floats
    """[turns left, states, nodes, tokens] by how much a token changes that."""
    visits: Floats
    """[turns left, states, nodes, tokens] how often an episode comes by."""

    @property
    def gradient(self) -> Floats:
        """[states, nodes, tokens] of the expected return, in the logits of the policy."""
        # A softmax passes a push on one token on to its siblings; exact advantages have mean 0, so nothing is left.
        return (self.visits * self.advantages).sum(axis=0)

    @property
    def typical_advantage(self) -> float:
        """The root mean square of the advantage over the tokens that are played."""
        return float(np.sqrt(np.average(self.advantages**2, weights=self.visits)))


def solve(world: World, policy: Policy, start_weights: Floats) -> Exact:
    """`start_weights` [states]: the share of episodes that start in each state."""
    values = _solve_values(world, policy)
    children = values[..., 1:].reshape(*values.shape[:2], NUM_NODES, NUM_TOKENS)
    return Exact(
        policy=policy,
        values=values,
        advantages=children - values[..., :NUM_NODES, None],
        visits=_count_visits(world, policy, start_weights),
    )


def _solve_values(world: World, policy: Policy) -> Floats:
    values = np.zeros((world.horizon + 1, len(world.states), FIRST_LEAF + world.transitions.shape[1]))
    for left in range(1, world.horizon + 1):
        to_come = world.rewards + values[left - 1, :, 0]
        values[left, :, FIRST_LEAF:] = (world.transitions * to_come).sum(axis=-1)
        for node in reversed(range(NUM_NODES)):
            children = values[left, :, 2 * node + 1 : 2 * node + 1 + NUM_TOKENS]
            values[left, :, node] = (policy.token_probs[:, node] * children).sum(axis=-1)
    return values


def _count_visits(world: World, policy: Policy, start_weights: Floats) -> Floats:
    visits = np.zeros((world.horizon + 1, len(world.states), NUM_NODES, NUM_TOKENS))
    present = start_weights
    for left in range(world.horizon, 0, -1):
        present = np.where(world.is_final, 0.0, present)
        first = present[:, None] * policy.token_probs[:, 0]
        visits[left, :, 0] = first
        visits[left, :, 1:] = first[:, :, None] * policy.token_probs[:, 1:]
        present = np.einsum("s,sa,san->n", present, policy.action_probs, world.transitions)
    return visits


def cell_numbers(world: World, turns_left: Ints, states: Ints, nodes: Ints, tokens: Ints) -> Ints:
    shape = (world.horizon + 1, len(world.states), NUM_NODES, NUM_TOKENS)
    return np.ravel_multi_index((turns_left, states, nodes, tokens), shape).astype(np.int64)


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
