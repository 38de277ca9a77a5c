"""A run of the default recipe in a fraction of a second: overrides for tests that train for real."""

from __future__ import annotations

from pathlib import Path

from turnwise.config.schema import TurnwiseSettings
from turnwise.loop.build import open_components
from turnwise.loop.components import TrainComponents
from turnwise.loop.policies import resolve_model

SMALL_MODEL = [
    "model.tiny.hidden_size=16",
    "model.tiny.intermediate_size=32",
    "model.tiny.num_layers=1",
    "model.tiny.num_heads=2",
]
SMALL = [
    *SMALL_MODEL,
    "learn.steps=2",
    "learn.minibatches=2",
    "rollout.groups=3",
    "rollout.group_size=2",
    "rollout.max_turns=3",
    "eval.episodes=5",
    "eval.every=0",
    "report.checkpoint_every=0",
    "report.tensorboard=false",
]
SMALL_LAKE = [*SMALL, "warm_start.episodes=6", "warm_start.steps=2"]

PLOTS = ("turnwise.run.training_run.plot_learning_curve", "turnwise.run.training_run.plot_training_health")
"""Most of a small run's time goes into drawing; tests that do not look at the plots leave them out."""


def without_plots(patch) -> None:  # type: ignore[no-untyped-def]
    for name in PLOTS:
        patch.setattr(name, lambda *_a, **_k: None)


def build_components(settings: TurnwiseSettings, **given: Path) -> TrainComponents:
    """All components of a training run from its first model on."""
    return open_components(settings, resolve_model(settings), **given)
