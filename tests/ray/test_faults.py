"""Any part of a run on a cluster is killed: the run goes on, nothing is lost, nothing is learnt twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.small_run import SMALL_LAKE, without_plots
from turnwise.run.api import train

pytest.importorskip("ray", reason="the package ray is not installed; `make test-ray` installs it")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

STEPS = 8
WORDS = (f"learn.steps={STEPS}", "report.checkpoint_every=3", "learn.num_threads=1")


@pytest.fixture
def undisturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """The weights that the serial loop of one process ends with."""
    without_plots(monkeypatch)
    before = torch.get_num_threads()
    run = train("frozenlake", [*SMALL_LAKE, *WORDS], run_dir=tmp_path / "undisturbed")
    torch.set_num_threads(before)
    return load_file(run.policy / "model.safetensors")


def check(run: Any, expected: dict[str, torch.Tensor]) -> None:
    run.finish()
    assert run.steps() == list(range(STEPS + 1)), run.told()
    db = sqlite3.connect(run.directory.experience)
    uses = db.execute("SELECT groups.rollout, uses.step FROM uses JOIN groups USING (number)").fetchall()
    assert all(rollout == step for rollout, step in uses), uses
    assert len(uses) == STEPS * run.settings.rollout.groups
    policy = run.directory.latest_checkpoint() / "policy" / "model.safetensors"
    found = load_file(policy)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)


def test_an_undisturbed_run_ends_as_the_serial_loop_does(
    nodes: Any, watch: Callable[..., Any], undisturbed: dict[str, torch.Tensor]
) -> None:
    nodes.add_node(num_cpus=3)
    check(watch("cluster.explorers=2", *WORDS), undisturbed)


@pytest.mark.parametrize("name", ["explorer-1", "learner", "buffer"])
def test_a_killed_actor_costs_nothing(
    name: str, nodes: Any, watch: Callable[..., Any], undisturbed: dict[str, torch.Tensor]
) -> None:
    nodes.add_node(num_cpus=3)
    run = watch("cluster.explorers=2", *WORDS)
    run.wait_for_step(4)
    run.kill(name)
    check(run, undisturbed)


def test_a_lost_node_costs_nothing(nodes: Any, watch: Callable[..., Any], undisturbed: dict[str, torch.Tensor]) -> None:
    first = nodes.add_node(num_cpus=3)
    run = watch("cluster.explorers=2", *WORDS)
    run.wait_for_step(4)
    nodes.add_node(num_cpus=3)
    nodes.remove_node(first, allow_graceful=False)
    check(run, undisturbed)
