"""Advantage estimators. The padded-tensor functions of this package load torch on first use."""

from __future__ import annotations

import importlib

_PADDED = (
    "compute_bi_level_gae_advantage_return",
    "compute_gae_advantage_return",
    "compute_grpo_advantage",
    "compute_multi_step_grpo_advantage",
    "compute_rloo_advantage",
)


def __getattr__(name: str) -> object:
    if name in _PADDED:
        return getattr(importlib.import_module("turnwise.credit.padded"), name)
    raise AttributeError(f"module 'turnwise.credit' has no attribute '{name}'")


__all__ = list(_PADDED)  # pyright: ignore[reportUnsupportedDunderAll]
