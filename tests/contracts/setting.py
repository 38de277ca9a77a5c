"""The setting in which contracts are tested: a small model, and settings in which one name is chosen."""

from __future__ import annotations

from functools import cache

import torch
from transformers import PreTrainedModel

from tests.small_run import SMALL
from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.loop.build import load_words
from turnwise.loop.policies import resolve_model
from turnwise.models.load import load_model
from turnwise.protocols import ChatTemplate, Weights

_RUN = {"env": {"type": "frozen_lake"}, "credit": {"type": "grpo"}, "model": {"tiny": {"vocab_size": 300}}}


_WIDE_HEAD = ("model.tiny.hidden_size=32", "model.tiny.num_heads=1")
"""As narrow as a head may be for every engine."""


def settings_with(*choices: str) -> TurnwiseSettings:
    """A small run in which `choices` such as `engine.type=local` are made."""
    return load_settings(_RUN, [*SMALL, *_WIDE_HEAD, *choices])


@cache
def model_path() -> str:
    return resolve_model(settings_with())


@cache
def template() -> ChatTemplate:
    return load_words(settings_with(), model_path()).template


def make_model(*, noise_seed: int | None = None) -> PreTrainedModel:
    """The model, or another one of its shape: its weights with noise that shows in every log-prob."""
    model = load_model(model_path()).eval()
    if noise_seed is not None:
        dice = torch.Generator().manual_seed(noise_seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.2 * torch.randn(parameter.shape, generator=dice)
    return model


def copied(weights: Weights) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def are_equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
