"""The reference of each policy loss agrees with the loss itself, and with none that is wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from turnwise.audit.recompute import check_update
from turnwise.config.kinds import POLICY_LOSSES
from turnwise.config.load import load_settings
from turnwise.config.schema_learn import LearnSettings
from turnwise.types import Batch, StepReport, UpdateTrace

LOSS_SETTINGS = {
    "ppo_clip": "",
    "reinforce": "",
    "gspo": "",
    "gspo wide": ", clip_low: 0.3, clip_high: 0.4",
    "cispo": "",
    "cispo narrow": ", clip_low: 0.1, clip_high: 0.1",
    "sapo": "",
    "sapo sharp": ", tau_positive: 3.0, tau_negative: 0.2",
    "opmd": "",
    "opmd pulled": ", tau: 0.7",
    "sft": "",
}
"""Every registered loss, some with settings beside the default ones."""
TURN_LENGTHS = [[3, 1, 2], [4], [2, 2, 2, 5]]
"""Of each row; a given token stands before each turn."""


@cache
def learn_settings(loss: str) -> LearnSettings:
    words = [f"learn.loss={{type: {loss.partition(' ')[0]}{LOSS_SETTINGS[loss]}}}"]
    return load_settings("frozenlake", [*words, "learn.critic={type: none}", "credit={type: grpo}"]).learn


def batch_of(rng: np.random.Generator) -> tuple[Batch, np.ndarray]:
    """Rows of older samples, and the log-probs of the policy that is updated."""
    rows = [[turn if at else -1 for turn, n in enumerate(row) for at in range(n + 1)] for row in TURN_LENGTHS]
    turn_ids = np.concatenate(rows).astype(np.int32)
    mask, size = turn_ids >= 0, len(turn_ids)
    behavior = np.where(mask, -rng.exponential(size=size), 0).astype(np.float32)
    policy = np.where(mask, behavior + 0.4 * rng.normal(size=size), 0).astype(np.float32)
    zeros = np.zeros(size, dtype=np.float32)
    batch = Batch(
        row_starts=np.cumsum([0, *map(len, rows)]),
        trajectory_of_row=np.array([0, 0, 1]),
        token_ids=np.ones(size, dtype=np.int32),
        loss_mask=mask,
        turn_ids=turn_ids,
        behavior_logprobs=behavior,
        reference_logprobs=zeros,
        advantages=np.where(mask, rng.normal(size=size), 0).astype(np.float32),
        returns=zeros,
        values=zeros,
    )
    return batch, policy


def update(loss: str, batch: Batch, policy: np.ndarray, settings: LearnSettings) -> StepReport:
    """What a learner reports that has called the loss as it is."""
    mask, row = batch.loss_mask, np.repeat(np.arange(batch.num_rows), batch.row_lengths)
    numbers = {key: n for n, key in enumerate(dict.fromkeys(zip(row[mask], batch.turn_ids[mask], strict=True)))}
    turns = torch.tensor([numbers[key] for key in zip(row[mask], batch.turn_ids[mask], strict=True)])
    columns = (policy, batch.behavior_logprobs, batch.advantages)
    per_token, _ = settings.loss(*(torch.from_numpy(column[mask]) for column in columns), turns)  # type: ignore[operator]
    losses = np.zeros(len(mask), dtype=np.float32)
    # token_mean
    losses[mask] = per_token.numpy() / mask.sum()
    blank = np.zeros_like(losses)
    trace = UpdateTrace(
        proximal_logprobs=policy,
        proximal_steps=np.zeros(batch.num_rows, dtype=np.int32),
        first_ratios=blank,
        last_ratios=blank,
        entropies=blank,
        is_clipped=np.zeros(len(mask), dtype=np.bool_),
        first_losses=losses,
        first_distances=None,
    )
    return StepReport(policy_version=1, metrics={}, trace=trace)


def change(report: StepReport, token: int, share: float) -> StepReport:
    assert report.trace is not None
    assert report.trace.first_losses is not None
    losses = report.trace.first_losses.copy()
    losses[token] += share * np.abs(losses).sum()
    return replace(report, trace=replace(report.trace, first_losses=losses))


def test_no_loss_is_without_a_reference() -> None:
    assert {name.partition(" ")[0] for name in LOSS_SETTINGS} == set(POLICY_LOSSES.shipped)


@pytest.mark.parametrize("loss", LOSS_SETTINGS)
def test_a_sound_loss_passes_and_a_wrong_token_is_named(loss: str) -> None:
    settings = learn_settings(loss)
    for seed in range(20):
        batch, policy = batch_of(np.random.default_rng(seed))
        report = update(loss, batch, policy, settings)
        assert check_update(batch, report, settings, dtype="float32") == []
        token = int(np.flatnonzero(batch.loss_mask)[seed % batch.loss_mask.sum()])
        (breach,) = check_update(batch, change(report, token, 0.01), settings, dtype="float32")
        assert breach.kind == "loss"
        assert breach.details["turn"] == batch.turn_ids[token]


@pytest.mark.parametrize("named", LOSS_SETTINGS)
def test_another_loss_than_the_settings_name_is_found(named: str) -> None:
    batch, policy = batch_of(np.random.default_rng(5))
    reports = {used: update(used, batch, policy, learn_settings(used)) for used in LOSS_SETTINGS}
    passed = {
        used
        for used, report in reports.items()
        if check_update(batch, report, learn_settings(named), dtype="float32") == []
    }
    # Without a pull, opmd is the policy gradient.
    assert passed == ({"opmd", "reinforce"} if named in ("opmd", "reinforce") else {named})
