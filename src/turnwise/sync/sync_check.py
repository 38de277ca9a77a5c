"""After a sync the engine is asked what it makes of one text, and must say what the learner said of the same weights.

In: a learner and an engine with weights of its own somewhere else. Out: a number per sync, or a SyncError. The learner
is asked when its weights are taken, because they may have changed again when the engine serves them. It knows nothing
of how weights travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from turnwise.errors import SyncError
from turnwise.protocols import Channel, Learner, Weights
from turnwise.types import FloatArray, IntArray, Metrics

_NUM_KEPT = 8
"""Versions that may be on their way at once."""
_LARGEST = {"float32": 0.02, "bfloat16": 0.2}
"""Rounding stays far below: measured on CPUs are 1e-5 in float32, and 0.05 in bfloat16."""
_LEAST_ROUNDING = 1e-5
_BEYOND_ROUNDING = 20.0
"""A small learning rate moves little, and a tensor that was left old is then seen by no fixed number: SmolLM2 with its
head one update late differs by 4e-4. The first gap, before the first update, is taken for rounding alone."""


def default_tolerance(given: float | Literal["auto"], dtype: str) -> float:
    """What `sync.max_probe_gap` means for weights of this number type."""
    return _LARGEST[dtype] if given == "auto" else given


@runtime_checkable
class LogprobEngine(Protocol):
    """An engine that holds weights of its own somewhere else, and can be asked what they make of a text."""

    async def score(self, token_ids: IntArray) -> Sequence[FloatArray]:
        """By each of its copies of the weights: how likely is each token after the first, at temperature 1."""
        ...


@runtime_checkable
class LogprobLearner(Protocol):
    """A learner that can be asked what its policy makes of a text."""

    def score(self, token_ids: IntArray) -> FloatArray:
        """How likely is each token after the first, given those before it, at temperature 1."""
        ...


class Probe:
    """One text, scored on both sides for every version that is published."""

    def __init__(
        self,
        token_ids: IntArray,
        learner: Learner,
        engine: LogprobEngine,
        *,
        max_gap: float | Literal["auto"],
        dtype: str = "float32",
    ) -> None:
        """`max_gap` is `sync.max_probe_gap`, for weights of this number type."""
        assert isinstance(learner, LogprobLearner), "only a learner that scores can be compared with"
        self._ids = token_ids
        self._learner, self._scorer = learner, learner
        self._engine = engine
        self._max_gap = default_tolerance(max_gap, dtype)
        self._expected: dict[int, FloatArray] = {}
        self._newest_gap: float | None = None
        self._allowed = self._max_gap
        self._follows_rounding = max_gap == "auto"

    def take_weights(self) -> Weights:
        """The learner's weights; what it makes of the text under them is kept for the check."""
        version = self._learner.policy_version
        self._expected.pop(version, None)
        self._expected[version] = self._scorer.score(self._ids)
        for old in list(self._expected)[:-_NUM_KEPT]:
            del self._expected[old]
        return self._learner.weights()

    async def check(self, policy_version: int) -> None:
        """The engine serves this version: does it say the same? One that was never taken here cannot be checked."""
        expected = self._expected.get(policy_version)
        if expected is None:
            return
        gaps = [float(np.abs(scores - expected).mean()) for scores in await self._engine.score(self._ids)]
        if not gaps:
            # No engine has a copy yet; each new one is sent this version.
            return
        self._newest_gap = max(gaps)
        # Not `>`: what is no number must not pass.
        if not self._newest_gap <= self._allowed:
            raise SyncError(self._describe(policy_version, gaps))
        if self._follows_rounding:
            self._follows_rounding = False
            self._allowed = min(self._max_gap, _BEYOND_ROUNDING * max(self._newest_gap, _LEAST_ROUNDING))

    def metrics(self) -> Metrics:
        return {} if self._newest_gap is None else {"sync/probe_gap": self._newest_gap}

    def _describe(self, policy_version: int, gaps: Sequence[float]) -> str:
        shown = ", ".join(f"{gap:.3g}" for gap in gaps)
        limit = (
            f"sync.max_probe_gap = {self._max_gap:g}"
            if self._allowed == self._max_gap
            else f"{self._allowed:.3g}, {_BEYOND_ROUNDING:g} times the rounding of the first sync "
            "(sync.max_probe_gap = auto; a number is taken as it is)"
        )
        return (
            f"after the sync of policy version {policy_version}, engine and learner differ by {shown} nats per token "
            f"(one number for each copy of the weights) about the same text of {len(self._ids)} tokens; expected at "
            f"most {limit}. The engine does not serve the weights that were sent: some "
            "tensor was left old, or engine and learner hold them in other number types (model.dtype)."
        )


class VerifiedPublisher:
    """A channel whose engine is asked after every publication."""

    def __init__(self, channel: Channel, probe: Probe) -> None:
        self._channel = channel
        self._probe = probe

    async def publish(self, weights: Weights, policy_version: int) -> int:
        live = await self._channel.publish(weights, policy_version)
        await self._probe.check(live)
        return live
