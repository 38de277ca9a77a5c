"""Benchmarks that rebuild a part of the library for comparison still fit the rest of it."""

from __future__ import annotations

import pytest
from benchmarks import learning_record, pipelined, replay

from turnwise.loop.serial import train_serial

from ..small_run import SMALL_LAKE

SMALL = {
    "learn.steps": 2,
    "env.train.step_s": 0.001,
    "rollout.groups": 4,
    "warm_start.steps": 1,
    "eval.episodes": 5,
}


@pytest.mark.slow
def test_both_sides_of_the_pipelined_benchmark_reach_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined, "TARGET", 0.0)
    assert pipelined._seconds_to_target(0, pipelined._with_barrier, train_serial, SMALL) > 0
    ahead = {**SMALL, "sync.max_staleness": 2}
    assert pipelined._seconds_to_target(0, lambda parts: parts, pipelined.train_pipelined, ahead) > 0


def test_a_target_that_is_not_reached_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined, "TARGET", 1.1)
    with pytest.raises(RuntimeError, match=r"success stayed below 1\.1"):
        pipelined._seconds_to_target(0, pipelined._with_barrier, train_serial, SMALL)


def test_the_learning_record_is_measured_with_and_without_it() -> None:
    result = learning_record.run(pairs=2, overrides=SMALL_LAKE)
    assert 0 < result["bytes_per_token"] < result["bytes_per_sampled_token"]  # type: ignore[operator]
    assert 0 < result["tracing_and_writing_share"] < 1  # type: ignore[operator]
    assert result["at_the_bound"]["tokens_written"] == 200_000  # type: ignore[index]


@pytest.mark.slow
def test_steps_of_a_recipe_are_replayed_and_one_that_differs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tallies = replay.run(steps=1, recipes=["gigpo"])
    assert (tallies["gigpo"].tried, tallies["gigpo"].identical, tallies["gigpo"].unrecorded) == (1, 1, set())
    assert "| all | | 1 | 1 |" in replay.show(tallies)
    found = replay.ReplayResult(step=2, from_step=0, parts={"loss": True, "weights": False})
    monkeypatch.setattr(replay, "replay", lambda *_: found)
    assert replay.main(["--steps", "1", "--recipes", "gigpo"]) == 1
    assert "`gigpo`, step 2, from step 0: weights" in replay.show(replay.run(steps=1, recipes=["gigpo"]))
