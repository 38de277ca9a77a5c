"""The functions over padded tensors: parity with other systems, numbers by hand, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from turnwise.credit import (
    compute_bi_level_gae_advantage_return,
    compute_gae_advantage_return,
    compute_grpo_advantage,
    compute_multi_step_grpo_advantage,
    compute_rloo_advantage,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "advantages.json"
"""What the functions of other systems return for six random batches of many turns."""
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text())
numbered = pytest.mark.parametrize("number", range(len(CASES)))


def tensors(case: dict[str, Any], *names: str) -> list[torch.Tensor]:
    return [torch.tensor(case[name]) for name in names]


def assert_close_on(mask: torch.Tensor, found: torch.Tensor, expected: Any) -> None:
    keep = mask.bool()
    torch.testing.assert_close(found[keep], torch.tensor(expected)[keep], atol=1e-5, rtol=0)
    assert not found[~keep].any()


@numbered
@pytest.mark.parametrize("with_turn_ids", [False, True])
def test_bi_level_gae_equals_ragen(number: int, with_turn_ids: bool) -> None:
    case = CASES[number]
    rewards, values, mask = tensors(case, "rewards", "values", "mask")
    turn_ids = None
    if with_turn_ids:
        turn_ids = torch.full(mask.shape, -1)
        for row, turns in enumerate(case["turns"]):
            for turn, (start, end, _) in enumerate(turns):
                turn_ids[row, start:end] = turn
    advantages, returns = compute_bi_level_gae_advantage_return(
        rewards, values, mask, case["gamma"], case["lam"], case["high_level_gamma"], turn_ids=turn_ids
    )
    assert_close_on(mask, advantages, case["ragen_bi_level"]["adv"])
    assert_close_on(mask, returns, case["ragen_bi_level"]["ret"])


@numbered
def test_gae_equals_verl(number: int) -> None:
    case = CASES[number]
    rewards, values, mask = tensors(case, "rewards", "values", "mask")
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, case["gamma"], case["lam"])
    assert_close_on(mask, advantages, case["verl_gae"]["adv"])
    assert_close_on(mask, returns, case["verl_gae"]["ret"])


@numbered
def test_grpo_equals_verl(number: int) -> None:
    case = CASES[number]
    rewards, mask = tensors(case, "rewards", "mask")
    advantages, returns = compute_grpo_advantage(rewards, mask, case["groups"])
    assert_close_on(mask, advantages, case["verl_grpo"])
    assert torch.equal(advantages, returns)


MASK = torch.tensor([[1.0, 1, 0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("rewards", "values", "advantages", "returns"),
    [
        ([0, 1, 0, 0, 0, 2], [0.1, 0.2, 9, 9, 0.3, 0.4], [2.7, 2.6, 0, 0, 1.7, 1.6], [2.8, 2.8, 0, 0, 2, 2]),
        ([0, 0, 0, 0, 0, 2], [0] * 6, [1.8, 1.8, 0, 0, 2, 2], [1.8, 1.8, 0, 0, 2, 2]),
        ([0, 1, 0, 0, 0, 0], [0] * 6, [1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]),
    ],
)
def test_bi_level_gae_by_hand(
    rewards: list[float], values: list[float], advantages: list[float], returns: list[float]
) -> None:
    found = compute_bi_level_gae_advantage_return(
        torch.tensor([rewards], dtype=torch.float32),
        torch.tensor([values], dtype=torch.float32),
        MASK,
        1.0,
        1.0,
        0.9,
        whiten=False,
    )
    torch.testing.assert_close(found[0], torch.tensor([advantages], dtype=torch.float32), atol=1e-6, rtol=0)
    torch.testing.assert_close(found[1], torch.tensor([returns], dtype=torch.float32), atol=1e-6, rtol=0)


def test_turn_ids_separate_turns_that_the_mask_joins() -> None:
    rewards, values = torch.tensor([[0.0, 0, 1]]), torch.zeros(1, 3)
    mask = torch.ones(1, 3)
    joined, _ = compute_bi_level_gae_advantage_return(rewards, values, mask, 1.0, 1.0, 0.5, whiten=False)
    apart, _ = compute_bi_level_gae_advantage_return(
        rewards, values, mask, 1.0, 1.0, 0.5, turn_ids=torch.tensor([[0, 1, 2]]), whiten=False
    )
    assert joined.tolist() == [[1, 1, 1]]
    assert apart.tolist() == [[0.25, 0.5, 1]]


def end_turns_at_rewards(
    rewards: list[float], values: list[float], mask: list[int], gamma: float, lam: float, high: float
) -> list[float]:
    """Two plain loops over the sampled tokens of a row; a turn ends where something is paid, the last at the end."""
    tokens = [t for t, sampled in enumerate(mask) if sampled]
    ends = [t for t in tokens if rewards[t]]
    ends += tokens[-1:] if tokens[-1] not in ends else []
    returns, behind, following = {}, 0.0, 0.0
    for end in reversed(ends):
        behind = rewards[end] + high * following - values[end] + high * lam * behind
        following = values[end]
        returns[end] = behind + values[end]
    found, chain, later = [0.0] * len(mask), 0.0, 0.0
    for t in reversed(tokens):
        if t in returns:
            chain, later = returns[t] - values[t], values[t]
        else:
            chain = gamma * later - values[t] + gamma * lam * chain
            later = values[t]
        found[t] = chain
    return found


def test_ending_turns_at_rewards_equals_plain_loops() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        mask = torch.randint(0, 2, (1, 9), generator=generator)
        mask[0, 4] = 1
        paid = torch.randint(0, 2, (1, 9), generator=generator) * mask
        rewards, values = (torch.randn(1, 9, generator=generator, dtype=torch.float64) for _ in range(2))
        rewards = rewards * paid
        found, _ = compute_bi_level_gae_advantage_return(
            rewards, values, mask, 0.9, 0.8, 0.7, whiten=False, turn_ids="rewards"
        )
        wanted = end_turns_at_rewards(rewards[0].tolist(), values[0].tolist(), mask[0].tolist(), 0.9, 0.8, 0.7)
        assert found[0].tolist() == pytest.approx(wanted)


def test_turns_that_may_touch_are_never_joined_in_silence() -> None:
    rewards, values, mask = torch.tensor([[0.0, 1, 0, 2]]), torch.zeros(1, 4), torch.ones(1, 4)

    def compute(**given: Any) -> list[float]:
        return compute_bi_level_gae_advantage_return(rewards, values, mask, 1, 1, 0.5, whiten=False, **given)[
            0
        ].tolist()[0]

    with pytest.raises(ValueError, match=r"row 0 has a reward at token 1 .* Give turn_ids; or turn_ids='rewards'"):
        compute()
    assert compute(turn_ids="rewards") == compute(turn_ids=torch.tensor([[0, 0, 1, 1]])) == [2, 2, 2, 2]
    assert compute(turn_ids="mask") == compute(turn_ids=torch.tensor([[0, 0, 0, 0]])) == [3, 3, 2, 2]
    with pytest.raises(ValueError, match="turn_ids: 'turns' given"):
        compute(turn_ids="turns")


@pytest.mark.parametrize("turn_ids", [[[0, 0, 0, -1, 1, 1]], [[0, -1, -1, -1, 1, 1]]])
def test_turn_ids_must_fit_the_mask(turn_ids: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="turn_ids must be >= 0 on exactly the tokens"):
        compute_bi_level_gae_advantage_return(
            torch.zeros(1, 6), torch.zeros(1, 6), MASK, 1.0, 1.0, 0.9, turn_ids=torch.tensor(turn_ids)
        )


@pytest.mark.parametrize(
    "compute",
    [
        lambda r, v, m: compute_bi_level_gae_advantage_return(r, v, m, 0.9, 0.8, 0.7, whiten=False, turn_ids="mask"),
        lambda r, v, m: compute_gae_advantage_return(r, v, m, 0.9, 0.8, whiten=False),
        lambda r, v, m: compute_grpo_advantage(r, m, ["a", "a", "b"]),
    ],
)
def test_padding_on_either_side_and_masked_values_change_nothing(compute: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 1]])
    rewards = torch.randn(3, 5, generator=generator) * mask
    values = torch.randn(3, 5, generator=generator)
    plain, _ = compute(rewards, values, mask)

    def pad(x: torch.Tensor, fill: float) -> torch.Tensor:
        return torch.nn.functional.pad(x, (2, 3), value=fill)

    padded, _ = compute(pad(rewards, 0), pad(values, 7.0), pad(mask, 0))
    torch.testing.assert_close(padded[:, 2:-3], plain, atol=1e-6, rtol=0)
    changed, _ = compute(rewards, torch.where(mask.bool(), values, 99.0), mask)
    torch.testing.assert_close(changed, plain, atol=1e-6, rtol=0)
    assert plain.abs().sum() > 0


def test_an_empty_mask_gives_zeros() -> None:
    advantages, returns = compute_gae_advantage_return(torch.ones(2, 3), torch.ones(2, 3), torch.zeros(2, 3), 1, 1)
    assert not advantages.any()
    assert not returns.any()


def test_grpo_settings() -> None:
    rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([[0, 1], [1, 1]])
    scaled, _ = compute_grpo_advantage(rewards, mask, [7, 7])
    plain, _ = compute_grpo_advantage(rewards, mask, [7, 7], scale_by_std=False)
    loose, _ = compute_grpo_advantage(rewards, mask, [7, 7], epsilon=1.0)
    torch.testing.assert_close(scaled, torch.tensor([[0, 0.70710578], [-0.70710578, -0.70710578]]))
    torch.testing.assert_close(plain, torch.tensor([[0, 0.5], [-0.5, -0.5]]))
    torch.testing.assert_close(loose[0, 1], torch.tensor(0.5 / (0.5**0.5 + 1)))
    assert scaled.dtype == rewards.dtype


def test_whitening_is_over_the_mask() -> None:
    rewards, values = torch.tensor([[0.0, 1, 0], [0, 0, 5]]), torch.tensor([[0.1, 0.2, 9], [0.3, 0.4, 9]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    advantages, _ = compute_gae_advantage_return(rewards, values, mask, 1.0, 1.0)
    kept = advantages[mask.bool()]
    assert kept.mean().item() == pytest.approx(0, abs=1e-6)
    assert kept.var().item() == pytest.approx(1, abs=1e-5)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import turnwise.credit  # noqa: PLC0415

    with pytest.raises(AttributeError, match="no_such_rule"):
        turnwise.credit.no_such_rule  # noqa: B018


@numbered
def test_rloo_equals_verl(number: int) -> None:
    case = CASES[number]
    mask, rewards = torch.tensor(case["mask"]), torch.tensor(case["rewards"])
    advantages, _ = compute_rloo_advantage(rewards, mask, case["groups"])
    wanted = torch.tensor(case["verl_rloo"])
    torch.testing.assert_close(advantages[mask.bool()], wanted[mask.bool()], atol=1e-5, rtol=0)


def test_multi_step_grpo_over_rows_in_any_order() -> None:
    rewards, mask = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]), torch.tensor([[1, 0]] * 5)
    runs, steps = [0, 0, 0, 1, 1], [0, 1, 2, 0, 1]
    expected = torch.tensor([0.23570193] * 3 + [-0.35355289] * 2)
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        advantages, _ = compute_multi_step_grpo_advantage(
            rewards[order],
            mask[order],
            ["task"] * 5,
            [runs[i] for i in order],
            [steps[i] for i in order],
            enable_step_norm=True,
        )
        torch.testing.assert_close(advantages[:, 0], expected[order])
        assert not advantages[:, 1].any()
    dead, _ = compute_multi_step_grpo_advantage(torch.ones(5), mask, ["task"] * 5, runs, steps, std_threshold=0.01)
    assert not dead.any()
