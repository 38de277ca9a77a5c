"""The contract of a policy loss: one loss per sampled token, and a gradient that follows the advantage."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from turnwise.config.kinds import PolicyLoss

from .entries import names_of
from .setting import settings_with

pytestmark = pytest.mark.slow

every_loss = pytest.mark.parametrize("name", names_of("learn.loss"))
TURNS = torch.tensor([0, 0, 1, 1, 1, 2])


def open_named(name: str) -> PolicyLoss:
    return settings_with(f"learn.loss.type={name}").learn.loss


def tokens(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Policy and behaviour log-probs near each other, and advantages of both signs."""
    dice = torch.Generator().manual_seed(seed)
    behavior = -torch.rand(len(TURNS), generator=dice) * 3 - 0.1
    policy = behavior + 0.1 * torch.randn(len(TURNS), generator=dice)
    return policy, behavior, torch.randn(len(TURNS), generator=dice)


def gradient(loss: PolicyLoss, advantages: Tensor) -> Tensor:
    """Of each token's log-prob, where the policy is still the one that sampled."""
    _, behavior, _ = tokens()
    policy = behavior.clone().requires_grad_()
    loss(policy, behavior, advantages, TURNS)[0].sum().backward()
    assert policy.grad is not None
    return policy.grad


@every_loss
def test_every_token_has_one_finite_loss_and_one_of_each_number_about_it(name: str) -> None:
    for seed in range(5):
        losses, details = open_named(name)(*tokens(seed), TURNS)
        for numbers in (losses, *details.values()):
            assert numbers.shape == TURNS.shape
            assert numbers.isfinite().all()
        assert not any(numbers.requires_grad for numbers in details.values())


@every_loss
def test_a_policy_far_away_still_has_finite_losses(name: str) -> None:
    _, behavior, advantages = tokens()
    for distance in (-40.0, 40.0):
        policy = (behavior + distance).requires_grad_()
        losses, _ = open_named(name)(policy, behavior, advantages, TURNS)
        losses.sum().backward()
        assert losses.isfinite().all()
        assert policy.grad is not None
        assert policy.grad.isfinite().all()


@every_loss
def test_good_tokens_become_likelier_and_bad_ones_do_not(name: str) -> None:
    loss, ones = open_named(name), torch.ones(len(TURNS))
    good, bad = gradient(loss, ones), gradient(loss, -ones)
    assert (good < 0).all()
    # Imitation does not ask what a token was worth.
    assert (bad > 0).all() or torch.equal(good, bad)


@every_loss
def test_a_turn_has_the_same_losses_whatever_it_shares_its_batch_with(name: str) -> None:
    """How rows are packed must not change an update."""
    policy, behavior, advantages = tokens(3)
    together, _ = open_named(name)(policy, behavior, advantages, TURNS)
    for turn in range(3):
        own = turn == TURNS
        alone, _ = open_named(name)(policy[own], behavior[own], advantages[own], torch.zeros(int(own.sum())).long())
        torch.testing.assert_close(alone, together[own])
