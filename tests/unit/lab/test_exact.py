"""The truth is checked by listing every way an episode can go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from turnwise.lab.mdps import WORLDS, Policy, World, draw_policy, nodes_of, softmax_policy, solve, tokens_of

every_world = pytest.mark.parametrize("world", [replace(w, horizon=min(3, w.horizon)) for w in WORLDS.values()])


def uniform_starts(world: World) -> np.ndarray:
    return np.bincount(world.starts, minlength=len(world.states)) / len(world.starts)


def list_episodes(
    world: World, policy: Policy, state: int, left: int
) -> Iterator[tuple[float, float, tuple[int, ...]]]:
    """Every way to go on: its chance, its return, its actions."""
    if left == 0 or world.is_final[state]:
        yield 1.0, 0.0, ()
        return
    for action in range(4):
        first, second = divmod(action, 2)
        chance = policy.token_probs[state, 0, first] * policy.token_probs[state, 1 + first, second]
        for following in np.flatnonzero(world.transitions[state, action]):
            for rest_chance, rest_return, rest in list_episodes(world, policy, int(following), left - 1):
                total = chance * world.transitions[state, action, following] * rest_chance
                yield total, world.rewards[state, action, following] + rest_return, (action, *rest)


@every_world
def test_values_and_advantages_are_those_of_all_episodes_listed(world: World) -> None:
    policy = draw_policy(world, np.random.default_rng(3))
    exact = solve(world, policy, uniform_starts(world))
    for state in np.flatnonzero(~world.is_final):
        episodes = list(list_episodes(world, policy, int(state), world.horizon))
        assert sum(chance for chance, _, _ in episodes) == pytest.approx(1.0)
        # After the tokens of a node: only the episodes whose first action begins with them.
        begins = [range(4), (0, 1), (2, 3), (0,), (1,), (2,), (3,)]
        means = []
        for actions in begins:
            chosen = [(chance, gained) for chance, gained, played in episodes if played[0] in actions]
            means.append(sum(c * g for c, g in chosen) / sum(c for c, _ in chosen))
        assert exact.values[world.horizon, state] == pytest.approx(means)
        np.testing.assert_allclose(
            exact.advantages[world.horizon, state],
            [[means[1] - means[0], means[2] - means[0]], [means[3] - means[1], means[4] - means[1]],
             [means[5] - means[2], means[6] - means[2]]],
            atol=1e-12,
        )  # fmt: skip


@pytest.mark.parametrize("world", WORLDS.values(), ids=lambda world: world.name)
def test_the_gradient_is_the_slope_of_the_expected_return(world: World) -> None:
    logits = np.random.default_rng(5).normal(size=(len(world.states), 3, 2))
    weights = uniform_starts(world)

    def expected_return(at: np.ndarray) -> float:
        return float(weights @ solve(world, softmax_policy(at), weights).values[world.horizon, :, 0])

    slopes = np.zeros_like(logits)
    for place in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[place] = 1e-5
        slopes[place] = (expected_return(logits + step) - expected_return(logits - step)) / 2e-5
    np.testing.assert_allclose(solve(world, softmax_policy(logits), weights).gradient, slopes, atol=1e-9)
    assert np.abs(slopes).max() > 1e-3


def test_an_action_is_spelled_by_the_tokens_on_the_way_to_its_leaf() -> None:
    actions = np.arange(4)
    nodes, tokens = nodes_of(actions), tokens_of(actions)
    assert (2 * nodes[:, 0] + 1 + tokens[:, 0]).tolist() == nodes[:, 1].tolist()
    assert (2 * nodes[:, 1] + 1 + tokens[:, 1]).tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("world", WORLDS.values(), ids=lambda world: world.name)
def test_worlds_are_sound(world: World) -> None:
    np.testing.assert_allclose(world.transitions.sum(axis=-1), 1.0)
    assert not world.rewards[world.is_final].any()
    assert not world.is_final[list(world.starts)].any()
    assert world.is_final.any()
    exact = solve(world, draw_policy(world, np.random.default_rng(0)), uniform_starts(world))
    assert exact.typical_advantage > 0.02  # something is to be decided
