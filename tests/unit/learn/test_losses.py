"""Losses of single tokens against closed forms, finite differences and expectations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from turnwise.config.kinds import POLICY_LOSSES
from turnwise.learn.losses import Cispo, Gspo, OpmdLoss, PpoClip, ReinforceLoss, Sapo, Sft, estimate_kl, value_loss

ONE_TURN = torch.zeros(1, dtype=torch.long)


def surrogate(ratio: float, advantage: float, **params: float | None) -> float:
    loss, _ = PpoClip(**params)(  # type: ignore[arg-type]
        torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([advantage]), ONE_TURN
    )
    return loss.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.1, 2.0, -2.2),
        (1.5, 2.0, -2.4),  # clipped at 1.2
        (0.5, 2.0, -1.0),  # falling is never clipped for a good token
        (0.5, -1.0, 0.8),  # clipped at 0.8
        (1.5, -1.0, 1.5),  # rising is never clipped for a bad token
        (9.0, -1.0, 3.0),  # but bounded by the dual clip
        (9.0, 0.0, 0.0),
    ],
)
def test_clipped_surrogate(ratio: float, advantage: float, expected: float) -> None:
    assert surrogate(ratio, advantage) == pytest.approx(expected, rel=1e-5)


def test_every_setting_of_the_clipped_surrogate_changes_it() -> None:
    assert surrogate(0.5, -1.0, clip_low=0.4) == pytest.approx(0.6, rel=1e-5)
    assert surrogate(1.5, 1.0, clip_high=0.4) == pytest.approx(-1.4, rel=1e-5)
    assert surrogate(9.0, -1.0, dual_clip=None) == pytest.approx(9.0, rel=1e-5)
    assert surrogate(9.0, -1.0, dual_clip=5.0) == pytest.approx(5.0, rel=1e-5)


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize("ratio", [0.3, 0.9, 1.1, 1.6, 5.0])
def test_gradient_of_the_surrogate_equals_finite_differences(ratio: float, advantage: float) -> None:
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    fixed = torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64), ONE_TURN
    rule = PpoClip()
    rule(logprob, *fixed)[0].sum().backward()
    step = 1e-6
    high, low = (rule(logprob.detach() + s, *fixed)[0].item() for s in (step, -step))
    assert logprob.grad is not None
    assert logprob.grad.item() == pytest.approx((high - low) / (2 * step), abs=1e-5)
    is_clipped = (ratio > 1.2 and advantage > 0) or ((ratio < 0.8 or ratio > 3) and advantage < 0)
    assert (logprob.grad.item() == 0) == is_clipped


def test_details_tell_ratio_and_which_tokens_were_clipped() -> None:
    ratios = torch.tensor([1.5, 1.1, 0.5])
    _, details = PpoClip()(ratios.log(), torch.zeros(3), torch.tensor([1.0, 1.0, -1.0]), torch.arange(3))
    torch.testing.assert_close(details["ratio"], ratios)
    assert details["clip_fraction"].tolist() == [1.0, 0.0, 1.0]


def test_a_huge_ratio_stays_finite() -> None:
    loss, _ = PpoClip(dual_clip=None)(torch.tensor([500.0]), torch.zeros(1), torch.tensor([-1.0]), ONE_TURN)
    assert loss.isfinite().all()


def gradient(rule: Any, ratio: float, advantage: float) -> float:
    """With respect to the log-prob of a single sampled token."""
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    loss, _ = rule(logprob, torch.zeros(1, dtype=torch.float64), torch.tensor([advantage]).double(), ONE_TURN)
    loss.sum().backward()
    assert logprob.grad is not None
    return logprob.grad.item()


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_on_policy_every_loss_but_imitation_is_the_policy_gradient(name: str) -> None:
    target: Any = POLICY_LOSSES.find(name)
    rule = target()
    for advantage in (1.5, -0.5):
        expected = -1.0 if name == "sft" else -advantage
        assert gradient(rule, 1.0, advantage) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("ratio", [0.2, 0.9, 1.1, 5.0])
def test_gradients_off_policy(ratio: float) -> None:
    assert gradient(ReinforceLoss(), ratio, 2.0) == pytest.approx(-2.0)
    assert gradient(Sft(), ratio, 2.0) == pytest.approx(-1.0)
    assert gradient(OpmdLoss(tau=1.0), ratio, 2.0) == pytest.approx(-1.0)
    weight = min(max(ratio, 0.5), 1.3)
    assert gradient(Cispo(clip_low=0.5, clip_high=0.3), ratio, 2.0) == pytest.approx(-2.0 * weight)
    for advantage, tau in ((2.0, 1.0), (-2.0, 1.05)):
        gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
        # The slope of 4 / tau * sigmoid(tau (r - 1)), times r for the log: 1 at r = 1, and small again far away.
        slope = 4 * gate * (1 - gate) * ratio
        assert gradient(Sapo(), ratio, advantage) == pytest.approx(-advantage * slope)


def test_sapo_damps_tokens_far_off_the_policy() -> None:
    assert abs(gradient(Sapo(), 5.0, 1.0)) < 0.4
    assert abs(gradient(Sapo(tau_positive=3.0), 5.0, 1.0)) < 0.01
    assert abs(gradient(Sapo(tau_negative=3.0), 5.0, -1.0)) < 0.01


def test_gspo_has_one_ratio_per_turn() -> None:
    moved = torch.tensor([0.3, -0.1, 0.2, 0.0], dtype=torch.float64)
    turns = torch.tensor([0, 0, 0, 1])
    logprobs = moved.clone().requires_grad_()
    wide = Gspo(clip_low=0.5, clip_high=0.5)
    loss, details = wide(logprobs, torch.zeros(4).double(), torch.ones(4).double(), turns)
    expected = torch.tensor([math.exp(0.4 / 3)] * 3 + [1.0], dtype=torch.float64)
    torch.testing.assert_close(details["ratio"], expected)
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, -expected)


@pytest.mark.parametrize(("low", "high", "is_stopped"), [(0.1, 0.1, True), (0.1, 0.5, False)])
def test_gspo_clips_a_turn_as_a_whole(low: float, high: float, is_stopped: bool) -> None:
    logprobs = torch.tensor([0.5, 0.0], dtype=torch.float64, requires_grad=True)
    rule = Gspo(clip_low=low, clip_high=high)
    loss, _ = rule(logprobs, torch.zeros(2).double(), torch.ones(2).double(), torch.zeros(2, dtype=torch.long))
    loss.sum().backward()
    assert logprobs.grad is not None
    assert (logprobs.grad.abs().sum().item() == 0) == is_stopped
    falling = torch.tensor([-0.5, 0.0], dtype=torch.float64, requires_grad=True)
    rule(falling, torch.zeros(2).double(), -torch.ones(2).double(), torch.zeros(2, dtype=torch.long))[
        0
    ].sum().backward()
    assert falling.grad is not None
    assert falling.grad.abs().sum().item() == 0  # below 1 - clip_low for a bad turn


def test_value_loss_is_half_the_squared_error() -> None:
    loss = value_loss(torch.tensor([2.0, 0.5]), torch.zeros(2), torch.tensor([1.0, 1.0]), clip=None)
    assert loss.tolist() == [0.5, 0.125]


@pytest.mark.parametrize(
    ("value", "old", "wanted", "expected"),
    [
        (0.9, 0.0, 1.0, 0.5 * 0.8**2),  # moved towards the return by more than 0.2: only 0.2 of it counts
        (0.1, 0.0, 1.0, 0.5 * 0.9**2),  # within the clip
        (-0.9, 0.0, 1.0, 0.5 * 1.9**2),  # moved away: the worse error counts
    ],
)
def test_value_clipping(value: float, old: float, wanted: float, expected: float) -> None:
    values = torch.tensor([value], requires_grad=True)
    loss = value_loss(values, torch.tensor([old]), torch.tensor([wanted]), clip=0.2)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.sum().backward()
    assert values.grad is not None
    assert (values.grad.item() == 0) == (value == 0.9)


def test_kl_estimators_by_hand() -> None:
    policy, reference = torch.tensor([-1.0]), torch.tensor([-1.5])
    found = {name: estimate_kl(policy, reference, name).item() for name in ("k1", "k2", "k3", "abs")}  # type: ignore[arg-type]
    assert found == pytest.approx({"k1": 0.5, "k2": 0.125, "k3": math.exp(-0.5) - 0.5, "abs": 0.5}, rel=1e-5)


def test_kl_estimators_have_the_right_expectation() -> None:
    generator = torch.Generator().manual_seed(0)
    policy = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    reference = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    true_kl = (policy.exp() * (policy - reference)).sum().item()
    exact = {
        "k1": true_kl,
        "k3": true_kl,
        "k2": 0.5 * (policy.exp() * (policy - reference) ** 2).sum().item(),
        "abs": (policy.exp() * (policy - reference).abs()).sum().item(),
    }
    tokens = torch.multinomial(policy.exp(), 200_000, replacement=True, generator=generator)
    assert true_kl > 0.1
    spreads = {}
    for name, expected in exact.items():
        estimates = estimate_kl(policy[tokens], reference[tokens], name)  # type: ignore[arg-type]
        spreads[name] = estimates.std().item()
        assert estimates.mean().item() == pytest.approx(expected, abs=5 * spreads[name] / 200_000**0.5)
    assert spreads["k3"] < spreads["k1"]
    assert (estimate_kl(policy[tokens], reference[tokens], "k3") >= 0).all()
