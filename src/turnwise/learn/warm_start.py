"""Supervised learning on demonstrations, over the same tokens and masks that reinforcement learning uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from turnwise.learn.pack import count_sampled, pack_without_credit
from turnwise.learn.parallel.team import Team
from turnwise.learn.policy import PolicyModel
from turnwise.learn.schedule import make_adamw
from turnwise.protocols import Imitation
from turnwise.types import Batch, Experience


def imitate(
    actor: PolicyModel,
    demonstrations: Sequence[Experience],
    how: Imitation,
    *,
    seed: int,
    micro_batch_tokens: int,
    team: Team | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> float:
    """Maximise the likelihood of the demonstrated tokens; returns the last step's mean loss per token."""
    team = team or Team(actor.model.device)
    batch = pack_without_credit(demonstrations)
    rng = np.random.default_rng(seed)
    trained = [p for p in actor.model.parameters() if p.requires_grad]
    optimizer = make_adamw([{"params": trained}], lr=how.lr, betas=(0.9, 0.95), weight_decay=0.0)
    loss = 0.0
    for step in range(how.steps):
        rows = rng.choice(batch.num_rows, size=min(how.batch_rows, batch.num_rows), replace=False)
        loss = add_imitation_gradient(actor, batch, rows, coef=1.0, micro_batch_tokens=micro_batch_tokens, team=team)
        team.sum_gradients(trained)
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_step is not None:
            on_step(step + 1, how.steps)
    return team.sum_numbers({"loss": loss})["loss"]


def add_imitation_gradient(
    actor: PolicyModel, batch: Batch, rows: NDArray[np.int64], *, coef: float, micro_batch_tokens: int, team: Team
) -> float:
    """Add the gradient of `coef` times the mean loss per token of these rows; returns the bare mean loss.

    Both are this rank's share of them.
    """
    num_tokens = count_sampled(batch, rows)
    loss = 0.0
    for micro in team.micro_batches(batch, rows, micro_batch_tokens, shares_prompts=actor.shares_prompts):
        part = -actor.score(micro).logprobs.sum() / num_tokens
        (coef * part).backward()
        loss += float(part.detach())
    return loss
