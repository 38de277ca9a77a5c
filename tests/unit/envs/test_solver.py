"""The oracle is optimal, with and without slips, and the simple rules are as strong as they are said to be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from turnwise.envs.frozen_lake import FrozenLake
from turnwise.envs.frozen_lake.layout import Layout, best_moves, blind_move, myopic_move, neighbours

from .lakes import HARD_4X4, random_policy, success_rate
from .test_layout import layouts, slow_distances


@given(layouts())
def test_neighbours_are_the_cells_beside(layout: Layout) -> None:
    size = layout.size
    for cell, targets in enumerate(neighbours(size)):
        row, column = divmod(cell, size)
        for target, (down, right) in zip(targets, ((0, -1), (1, 0), (0, 1), (-1, 0)), strict=True):
            expected = (min(max(row + down, 0), size - 1), min(max(column + right, 0), size - 1))
            assert divmod(target, size) == expected


@given(layouts())
def test_every_move_of_the_oracle_comes_one_nearer(layout: Layout) -> None:
    distances = slow_distances(layout)
    moves = best_moves(layout, 0.0)
    for cell, num_moves in distances.items():
        if cell != layout.goal:
            assert distances[neighbours(layout.size)[cell][moves[cell]]] == num_moves - 1


def test_oracle_needs_exactly_the_distance() -> None:
    env = FrozenLake(size=6, hole_rate=0.35)
    for seed in range(100):
        env.reset(seed)
        num_moves = slow_distances(env.layout)[env.cell]
        for turn in range(1, num_moves + 1):
            _, reward, done, _ = env.step(env.oracle())
            assert (reward, done) == ((1.0, True) if turn == num_moves else (0.0, False))


def arrival_chances(layout: Layout, policies: NDArray[np.int_], slip_rate: float) -> NDArray[np.float64]:
    """The chance to arrive within 2**16 steps, per policy and cell, by squaring transition matrices."""
    num_cells = layout.size**2
    matrices = np.zeros((len(policies), num_cells, num_cells))
    for cell in range(num_cells):
        if cell == layout.goal or layout.has_hole(cell):
            matrices[:, cell, cell] = 1
            continue
        for index, move in enumerate(policies[:, cell]):
            for side, chance in ((0, 1 - slip_rate), (1, slip_rate / 2), (3, slip_rate / 2)):
                matrices[index, cell, neighbours(layout.size)[cell][(move + side) % 4]] += chance
    for _ in range(16):
        matrices = matrices @ matrices
    return matrices[:, :, layout.goal]


@pytest.mark.parametrize("slip_rate", [0.2, 2 / 3, 1.0])
@pytest.mark.parametrize("holes", [{1, 5}, {3, 4, 6}, {0, 2, 4}, {3, 5, 6, 7}])
def test_slippery_oracle_is_the_best_of_all_policies(holes: set[int], slip_rate: float) -> None:
    """3x3 with the goal in the corner: every one of the 4**k policies of the open cells is evaluated."""
    layout = Layout(3, 0, 8, sum(1 << cell for cell in holes))
    free = [cell for cell in range(8) if cell not in holes][:5]
    ours = np.array([best_moves(layout, slip_rate)])
    policies = np.repeat(ours, 4 ** len(free), axis=0)
    policies[:, free] = list(itertools.product(range(4), repeat=len(free)))
    best = arrival_chances(layout, policies, slip_rate).max(axis=0)
    assert arrival_chances(layout, ours, slip_rate)[0] == pytest.approx(best, abs=1e-6)


def test_slippery_oracle_arrives_where_nothing_can_go_wrong() -> None:
    """Without holes every policy is equally safe, also the ones that never arrive."""
    layout = Layout(8, 0, 63, 0)
    chances = arrival_chances(layout, np.array([best_moves(layout, 2 / 3)]), 2 / 3)
    assert chances.min() == pytest.approx(1.0, abs=1e-6)


def test_slippery_oracle_succeeds_as_often_as_computed() -> None:
    env = FrozenLake(is_slippery=True, hole_rate=0.35)

    def chance_of(seed: int) -> float:
        env.reset(seed)
        moves = np.array([best_moves(env.layout, 2 / 3)])
        return float(arrival_chances(env.layout, moves, 2 / 3)[0, env.layout.start])

    # A lake on which luck decides; on many the oracle is safe.
    seed = next(seed for seed in range(100) if 0.3 < chance_of(seed) < 0.7)
    expected, num_successes = chance_of(seed), 0
    for dynamics_seed in range(1500):
        env.reset(seed, dynamics_seed=dynamics_seed)
        done, info = False, {}
        while not done:
            _, _, done, info = env.step(env.oracle())
        num_successes += bool(info["success"])
    assert num_successes / 1500 == pytest.approx(expected, abs=0.05)


def test_rules_on_a_drawn_lake() -> None:
    """P _ G / O O _ / _ _ _ seen from the top left: both rules walk right; from below the holes they differ."""
    layout = Layout(3, 0, 2, 1 << 3 | 1 << 4)
    assert (blind_move(layout, 0), myopic_move(layout, 0)) == (2, 2)
    assert (blind_move(layout, 6), myopic_move(layout, 6)) == (3, 2)
    assert (blind_move(layout, 7), myopic_move(layout, 7)) == (3, 2)
    assert (blind_move(layout, 5), myopic_move(layout, 5)) == (3, 3)


def test_strength_of_simple_rules_on_the_default_task() -> None:
    env = FrozenLake(**HARD_4X4)
    policies = {**env.baselines, "random": random_policy(0), "oracle": FrozenLake.oracle}
    rates = {name: success_rate(env, rule, num_episodes=1500, max_turns=10) for name, rule in policies.items()}
    assert rates["hole_blind"] == pytest.approx(0.5, abs=0.04)
    assert rates["myopic"] == pytest.approx(0.86, abs=0.04)
    assert rates["random"] == pytest.approx(0.10, abs=0.03)
    assert rates["oracle"] == 1


@settings(max_examples=30)
@given(layouts())
def test_myopic_never_walks_into_a_hole(layout: Layout) -> None:
    for cell in slow_distances(layout).keys() - {layout.goal}:
        assert not layout.has_hole(neighbours(layout.size)[cell][myopic_move(layout, cell)])
