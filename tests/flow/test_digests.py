"""Eight short runs compute what they computed before, to the last bit; see `digests.py`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from .digests import FILE, RUNS, as_text, differences, is_left_out, make_pinned

RECORDED: dict[str, Any] = json.loads(FILE.read_text())


@pytest.mark.slow
def test_short_runs_compute_what_they_computed(tmp_path: Path) -> None:
    found = make_pinned(tmp_path)
    differing = differences(RECORDED["runs"], found["runs"])
    if differing and found["numerics"] != RECORDED["numerics"]:
        pytest.skip(f"computed by other means than the digests: {found['numerics']} here, {RECORDED['numerics']} there")
    assert not differing, (
        "\n".join(differing)
        + "\nIf this change is meant to change what runs compute, say so in the commit and write the file again: "
        "python -m tests.flow.digests --write"
    )


def test_every_run_is_recorded_and_has_something_in_each_part() -> None:
    assert RECORDED["runs"].keys() == RUNS.keys()
    for digests in RECORDED["runs"].values():
        assert all(digests[part] for part in ("metrics", "summary", "weights", "trajectories", "learning_record"))
        # Runs in which every episode earns the same would notice little.
        learned_from = [value for value in digests["metrics"]["learn/grad_norm"] if value != "absent"]
        assert len(set(learned_from)) == len(learned_from) == 4
    assert "adapter.safetensors" in RECORDED["runs"]["lora"]["weights"]
    assert "critic.safetensors" in RECORDED["runs"]["critic"]["weights"]


def test_the_earliest_difference_is_named() -> None:
    found = copy.deepcopy(RECORDED["runs"])
    found["kl"]["metrics"]["learn/entropy"][3] += 1e-15
    found["kl"]["metrics"]["rollout/return"][2] = 7.5
    recorded = RECORDED["runs"]["kl"]["metrics"]["rollout/return"][2]
    expected = f"kl, metrics: rollout/return is 7.5 in entry 2, in the file {recorded} (and 1 more)"
    assert differences(RECORDED["runs"], found) == [expected]


def test_weights_trajectories_and_record_are_compared_as_well() -> None:
    found = copy.deepcopy(RECORDED["runs"])
    found["lora"]["weights"]["adapter.safetensors"] = "0"
    found["mix"]["trajectories"].popitem()
    found["mix"]["learning_record"]["advantage"][1] = "0"
    del found["critic"]
    parts = [line.split(":")[0] for line in differences(RECORDED["runs"], found)]
    assert parts == ["critic", "lora, weights", "mix, trajectories", "mix, learning_record"]


def test_the_order_of_keys_does_not_matter_and_a_rename_is_told() -> None:
    found = copy.deepcopy(RECORDED["runs"])
    metrics = found["serial"]["metrics"]
    found["serial"]["metrics"] = dict(reversed(metrics.items()))
    assert differences(RECORDED["runs"], found) == []
    metrics = found["serial"]["metrics"]
    metrics["health/findings"] = metrics.pop("watch/findings")
    assert differences(RECORDED["runs"], found) == [
        "serial, metrics: health/findings is only in this code (and 1 more)"
    ]


def test_the_file_is_as_it_is_written() -> None:
    assert as_text(RECORDED) == FILE.read_text()


def test_times_are_left_out() -> None:
    names = ["time_s", "time/rollout_s", "rollout/tokens_per_s", "sync/trainer_wait_s", "time/engine_busy_row_s"]
    assert all(map(is_left_out, names))
    assert not any(map(is_left_out, ["step", "time/engine_passes", "learn/entropy", "rollout/num_turns"]))
