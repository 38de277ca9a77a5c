"""Runs on a local cluster that the command starts itself, and explorers that join and leave while one goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.small_run import SMALL_LAKE, without_plots
from turnwise.cli import main
from turnwise.errors import ClusterError, ConfigError
from turnwise.run.api import train

ray = pytest.importorskip("ray", reason="the package ray is not installed; `make test-ray` installs it")
pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


@pytest.mark.parametrize("loop", ["serial", "pipelined"])
def test_one_command_makes_a_cluster_trains_and_takes_it_away(loop: str, tmp_path: Path) -> None:
    words = [*SMALL_LAKE, "cluster.type=ray", "learn.steps=3", f"loop.type={loop}", f"--run-dir={tmp_path / 'run'}"]
    assert main(["train", "frozenlake", *words]) == 0
    assert not ray.is_initialized()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert {path.name for path in (tmp_path / "run" / "logs").iterdir()} == {
        "buffer.log",
        "explorer-1.log",
        "learner.log",
    }


def test_a_mistake_in_an_actor_is_told_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_module"):
        train("frozenlake", [*SMALL_LAKE, "cluster.type=ray", "engine.type=no_such_module:Engine"], run_dir=tmp_path)


def test_an_address_where_nobody_is_names_the_setting(tmp_path: Path) -> None:
    words = [*SMALL_LAKE, "cluster.type=ray", "cluster.address=127.0.0.1:1"]
    with pytest.raises(ClusterError, match=r"cluster\.address: '127\.0\.0\.1:1' given"):
        train("frozenlake", words, run_dir=tmp_path / "run")


def test_a_cluster_without_room_says_what_was_asked(nodes: Any, watch: Callable[..., Any]) -> None:
    nodes.add_node(num_cpus=1)
    run = watch("cluster.explorer_cpus=4", "cluster.start_timeout_s=30")
    run.wait_to_fail()
    assert "cluster.explorer_cpus" in str(run.failure)
    assert "0 of 1 CPU" in str(run.failure)


def test_explorers_join_and_leave_while_it_runs(nodes: Any, watch: Callable[..., Any]) -> None:
    nodes.add_node(num_cpus=4)
    run = watch("learn.steps=2000", "eval.episodes=0")
    run.wait_for_step(2)
    assert main(["explorers", str(run.directory.path), "3"]) == 0
    run.wait_until(lambda: "(3 of 3)" in run.told(), "three explorers")
    assert main(["explorers", str(run.directory.path), "1"]) == 0
    run.wait_until(lambda: run.told().count("leaves") == 2, "two explorers to leave")
    step = run.steps()[-1]
    run.wait_for_step(step + 3)
    run.stop()
