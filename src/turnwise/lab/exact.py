"""The truth by dynamic programming: what every token is really worth, and where the gradient really points.

In: a world, a policy, and how often each task is played. Out: `Exact`. Nothing is sampled here and nothing discounted.
A *cell* is (turns left, state, node, token); `cell_numbers` puts a cell into one number, its place in the flat tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.lab.policy import FIRST_LEAF, NUM_NODES, NUM_TOKENS, Policy
from turnwise.lab.worlds import Floats, World

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
