"""What engine and learner make of one text after a sync."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import numpy as np
import pytest

from turnwise.errors import SyncError
from turnwise.protocols import Learner
from turnwise.sync.sync_check import LogprobEngine, Probe, VerifiedPublisher, default_tolerance
from turnwise.types import FloatArray, IntArray

TEXT = np.asarray([3, 1, 4, 1], dtype=np.int32)


class Pupil:
    """A learner of one number."""

    policy_version = 0
    number = 1.0

    def score(self, token_ids: IntArray) -> FloatArray:
        return np.full(len(token_ids) - 1, self.number, dtype=np.float32)

    def weights(self) -> Any:
        return {"number": self.number}


class Far:
    """An engine with two copies of it, the second of which may be late."""

    def __init__(self) -> None:
        self.copies = [0.0, 0.0]
        self.is_late = False

    async def publish(self, weights: Any, policy_version: int) -> int:
        self.copies = [weights["number"], self.copies[1] if self.is_late else weights["number"]]
        return policy_version

    async def score(self, token_ids: IntArray) -> list[FloatArray]:
        return [np.full(len(token_ids) - 1, copy, dtype=np.float32) for copy in self.copies]


@pytest.fixture
def pupil() -> Pupil:
    return Pupil()


@pytest.fixture
def far() -> Far:
    return Far()


@pytest.fixture
def probe(pupil: Pupil, far: Far) -> Probe:
    return Probe(TEXT, cast(Learner, pupil), cast(LogprobEngine, far), max_gap=0.1)


def publish(far: Far, probe: Probe, version: int, weights: Any = None) -> None:
    weights = probe.take_weights() if weights is None else weights
    asyncio.run(VerifiedPublisher(far, probe).publish(weights, version))


def test_a_right_sync_is_a_number(pupil: Pupil, far: Far, probe: Probe) -> None:
    assert probe.metrics() == {}
    publish(far, probe, 0)
    assert probe.metrics() == {"sync/probe_gap": 0.0}


def test_a_small_step_that_did_not_arrive_is_noticed(pupil: Pupil, far: Far) -> None:
    probe = Probe(TEXT, cast(Learner, pupil), cast(LogprobEngine, far), max_gap="auto")
    publish(far, probe, 0)
    pupil.policy_version, pupil.number, far.is_late = 1, 1.001, True
    with pytest.raises(
        SyncError, match=r"differ by 0, 0\.001 nats .*at most 0\.0002, 20 times the rounding of the first"
    ):
        publish(far, probe, 1)


def test_what_rounding_does_is_no_alarm(pupil: Pupil, far: Far) -> None:
    probe = Probe(TEXT, cast(Learner, pupil), cast(LogprobEngine, far), max_gap="auto")
    publish(far, probe, 0)
    pupil.policy_version, pupil.number, far.is_late = 1, 1.0001, True
    publish(far, probe, 1)
    assert probe.metrics()["sync/probe_gap"] == pytest.approx(1e-4, rel=0.01)


def test_a_number_that_is_given_is_all_that_counts(pupil: Pupil, far: Far, probe: Probe) -> None:
    publish(far, probe, 0)
    pupil.policy_version, pupil.number, far.is_late = 1, 1.05, True
    publish(far, probe, 1)
    assert probe.metrics()["sync/probe_gap"] == pytest.approx(0.05, rel=0.01)


def test_one_wrong_copy_ends_the_run_with_what_was_expected_and_found(pupil: Pupil, far: Far, probe: Probe) -> None:
    publish(far, probe, 0)
    pupil.policy_version, pupil.number, far.is_late = 1, 1.5, True
    with pytest.raises(SyncError, match=r"policy version 1, .* differ by 0, 0\.5 nats .*sync\.max_probe_gap = 0\.1"):
        publish(far, probe, 1)
    assert probe.metrics() == {"sync/probe_gap": 0.5}


def test_a_score_that_is_no_number_does_not_pass(pupil: Pupil, far: Far, probe: Probe) -> None:
    pupil.number = math.nan
    with pytest.raises(SyncError, match="differ by nan"):
        publish(far, probe, 0)


def test_the_learner_may_have_gone_on_when_the_engine_serves(pupil: Pupil, far: Far, probe: Probe) -> None:
    taken = probe.take_weights()
    pupil.policy_version, pupil.number = 1, 9.0
    probe.take_weights()
    publish(far, probe, 0, taken)
    assert probe.metrics() == {"sync/probe_gap": 0.0}


def test_weights_that_nobody_took_here_are_not_checked(far: Far, probe: Probe) -> None:
    publish(far, probe, 5, {"number": 7.0})
    assert probe.metrics() == {}


def test_the_largest_gap_follows_the_number_type_unless_it_is_given() -> None:
    assert default_tolerance("auto", "float32") < default_tolerance("auto", "bfloat16")
    assert default_tolerance(0.5, "float32") == 0.5
