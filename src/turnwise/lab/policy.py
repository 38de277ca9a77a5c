"""A policy as a table: in every state two tokens of two kinds spell one of four actions.

The reply is a binary tree in heap order: node 0 is the empty reply, nodes 1 and 2 are replies of one token, leaves 3 to
6 are the actions; the child of a node by a token is `2 * node + 1 + token`. The policy sees the state and not how many
turns are left, as a model that reads an observation does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.lab.worlds import NUM_ACTIONS, Floats, World

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
