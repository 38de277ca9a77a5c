"""A trainer in float64 that tells its gradients: what differs between one process and several is then a mistake."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn

from turnwise.learn.parallel_context import ParallelContext
from turnwise.learn.trainer import Trainer
from turnwise.models.load import load_model, read_whole
from turnwise.types import Batch


class DoubledTrainer(Trainer):
    """`learn.type: tests.unit.learn.doubled:DoubledTrainer`."""

    @classmethod
    def open(cls, settings: Any, site: Any, team: ParallelContext | None = None) -> DoubledTrainer:
        team = team or ParallelContext(torch.device("cpu"))
        return cls(
            load_model(site.model_path, dtype=torch.float64, device=team.loads_on),
            settings,
            site.loss,
            temperature=site.temperature,
            seed=site.seed,
            model_settings=site.model,
            team=team,
        )

    def _hand_over(self) -> None:
        for module in (self.actor.model, self.critic):
            if module is not None:
                module.double()
        if self.critic is not None:
            # A new head is zero and lets no gradient through to its trunk.
            self.critic.head.out.weight.data.copy_(torch.linspace(-1, 1, 16)[None])
        for name, parameter in self.actor.model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
        super()._hand_over()

    def gradients(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Those of the update's last optimizer step, which is not made."""
        named = [*self.actor.model.named_parameters(), *_critic_parameters(self.critic)]
        found: dict[str, torch.Tensor] = {}

        def look(*_a: Any, **_k: Any) -> None:
            found.update({name: read_whole(p.grad).clone() for name, p in named if p.grad is not None})

        self.optimizer.step, plain = look, self.optimizer.step  # type: ignore[method-assign]
        self.step(batch)
        self.optimizer.step = plain  # type: ignore[method-assign]
        return found

    def num_own_numbers(self) -> int:
        """Of parameters, on the first rank."""
        return sum(getattr(p, "_local_tensor", p).numel() for p in self.actor.model.parameters())

    # --- misfortunes -------------------------------------------------------------------------------------------------

    def fall(self, rank: int) -> None:
        """One rank is gone in the middle of a call, while the others wait for it."""
        if self.team.rank == rank:
            os._exit(3)
        self.team.sum_numbers({})

    def stumble(self, rank: int) -> None:
        """One rank alone raises."""
        if self.team.rank == rank:
            raise ZeroDivisionError("stumbled")
        self.team.sum_numbers({})

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def _critic_parameters(critic: nn.Module | None) -> list[tuple[str, nn.Parameter]]:
    return [] if critic is None else [(f"critic.{name}", p) for name, p in critic.named_parameters()]
