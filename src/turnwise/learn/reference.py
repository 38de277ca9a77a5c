"""The frozen policy that an update must not leave too far behind: how it is held, and how it is asked.

It is the actor with its adapters off, a second model, or one whose weights lie in a file while nobody asks: it is
scored before an update, and memory is short within one. Its log-probs are bit for bit the same in all three.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from turnwise.config import schema_learn as learning
from turnwise.config.schema_learn import is_offloaded
from turnwise.learn.pack import MicroBatch
from turnwise.learn.policy import PolicyModel, TokenScores
from turnwise.models.adapters import adapter_off, has_adapter
from turnwise.models.load import cache_folder, cast_parameters


class AdapterOffPolicy:
    """The reference of an actor with adapters: the actor itself with its adapters switched off, so no second model."""

    def __init__(self, actor: PolicyModel) -> None:
        self._actor = actor
        self.at_hand = actor.at_hand

    @torch.no_grad()
    def score(self, micro: MicroBatch) -> TokenScores:
        with adapter_off(self._actor.model):
            return self._actor.score(micro)


class OffloadedPolicy(PolicyModel):
    """Frozen. Outside of `at_hand` its parameters are empty, and a question would fail."""

    def __init__(self, model: PreTrainedModel, temperature: float) -> None:
        super().__init__(model, temperature)
        cache_folder().mkdir(parents=True, exist_ok=True)
        # Without a name: it ends with the process, however that ends. Not in the system's folder for temporary files,
        # which may itself be memory.
        self._file: Any = tempfile.TemporaryFile(dir=cache_folder())  # noqa: SIM115 - open as long as it lives
        self._put_away(changed=True)

    @contextmanager
    def at_hand(self, *, changing: bool = False) -> Iterator[None]:
        self._file.seek(0)
        stored: dict[str, Tensor] = torch.load(self._file, map_location=self.model.device, weights_only=True)
        for name, parameter in self.model.named_parameters():
            parameter.data = stored.pop(name)
        try:
            yield
        finally:
            self._put_away(changed=changing)

    def _put_away(self, *, changed: bool) -> None:
        parameters = dict(self.model.named_parameters())
        if changed:
            self._file.seek(0)
            self._file.truncate()
            torch.save({name: parameter.data for name, parameter in parameters.items()}, self._file)
            self._file.flush()
        for parameter in parameters.values():
            parameter.data = parameter.data.new_empty(0)


Reference = PolicyModel | AdapterOffPolicy


def make_reference(settings: learning.LearnSettings, actor: PolicyModel) -> Reference | None:
    if isinstance(settings.kl, learning.NoKl):
        return None
    if has_adapter(actor.model):
        return AdapterOffPolicy(actor)
    frozen = copy.deepcopy(actor.model).eval().requires_grad_(False)
    if actor.dtype == torch.bfloat16:
        cast_parameters(frozen, actor.dtype)
    make = OffloadedPolicy if is_offloaded(settings) else PolicyModel
    return make(frozen, actor.temperature)


def freeze(reference: PolicyModel, policy: PreTrainedModel) -> None:
    """The reference is from now on what the policy is at this moment."""
    with reference.at_hand(changing=True), torch.no_grad():
        for frozen, own in zip(reference.model.parameters(), policy.parameters(), strict=True):
            frozen.copy_(own)
