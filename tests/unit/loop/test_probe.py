"""In every loop an engine with weights of its own is compared with the learner after each sync."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from tests.small_run import SMALL_LAKE, build_components
from turnwise.config.load import load_settings
from turnwise.engine.local import LocalEngine
from turnwise.errors import SyncError
from turnwise.hooks import TrainStep
from turnwise.loop.build import find_loop
from turnwise.report.metrics import Stopwatch
from turnwise.types import FloatArray, IntArray

pytestmark = pytest.mark.slow


class FarEngine(LocalEngine):
    """The local engine as if it were elsewhere."""

    samples_in_place = False

    async def score(self, token_ids: IntArray) -> list[FloatArray]:
        ids = torch.as_tensor(token_ids).long()
        with torch.no_grad():
            table = torch.log_softmax(self._model(input_ids=ids[None], use_cache=False).logits[0, :-1], dim=-1)
        return [table.gather(1, ids[1:, None]).squeeze(1).numpy()]


class OldHead(FarEngine):
    """The fault that the check is for: after the first sync the output layer stays as it was."""

    _old: torch.Tensor | None = None

    async def update_weights(self, weights: Any, policy_version: int) -> None:
        kept = dict(weights)
        self._old = kept["lm_head.weight"].clone() if self._old is None else self._old
        await super().update_weights(kept | {"lm_head.weight": self._old}, policy_version)


def train(engine: type[LocalEngine], *overrides: str) -> list[TrainStep]:
    name = f"{__name__}:{engine.__name__}"
    settings = load_settings("frozenlake", [*SMALL_LAKE, f"engine.type={name}", *overrides])
    steps: list[TrainStep] = []

    async def note(step: TrainStep) -> None:
        steps.append(step)

    async def run() -> None:
        components = build_components(settings)
        await components.publish(components.trainer.learner.policy_version)
        await find_loop(settings)(components, Stopwatch(), start_step=0, on_step=note)

    asyncio.run(run())
    return steps


@pytest.mark.parametrize("loop", ["serial", "pipelined"])
def test_the_gap_is_a_metric_of_every_step(loop: str) -> None:
    gaps = [step.metrics["sync/probe_gap"] for step in train(FarEngine, f"loop.type={loop}", "learn.steps=3")]
    assert len(gaps) == 3
    assert max(gaps) < 1e-4


@pytest.mark.parametrize("loop", ["serial", "pipelined"])
def test_a_tensor_that_was_left_old_ends_the_run(loop: str) -> None:
    # One update of a small model moves it by far less than `sync.max_probe_gap`.
    with pytest.raises(SyncError, match=r"policy version [12], .*expected at most .*, 20 times the rounding"):
        train(OldHead, f"loop.type={loop}", "learn.steps=4")


def test_an_engine_of_this_process_is_not_asked() -> None:
    (first, *_) = train(LocalEngine, "engine.type=local")
    assert "sync/probe_gap" not in first.metrics


def test_the_learner_scores_a_text_as_a_plain_pass_does() -> None:
    components = build_components(load_settings("frozenlake", [*SMALL_LAKE, "rollout.temperature=0.5"]))
    learner: Any = components.trainer.learner
    ids = np.arange(2, 30).astype(np.int32)
    row = torch.as_tensor(ids).long()
    with torch.no_grad():
        table = torch.log_softmax(learner.model(input_ids=row[None]).logits[0, :-1], dim=-1)
    np.testing.assert_allclose(learner.score(ids), table.gather(1, row[1:, None]).squeeze(1), atol=1e-5)
