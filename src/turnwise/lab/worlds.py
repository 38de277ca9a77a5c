"""Worlds so small that everything about them can be computed: a table of chances and a table of rewards each.

Out come `World`s, by name in `WORLDS`. They refuse to know who plays them, and how an action is spelled in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.envs.frozen_lake.layout import neighbours

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
