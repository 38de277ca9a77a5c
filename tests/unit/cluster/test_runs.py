"""Whole runs over hosts in this process: the same updates as the serial loop, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from tests.small_run import SMALL_LAKE, without_plots
from tests.unit.cluster.here import HereCluster, opens
from turnwise.config.load import load_settings
from turnwise.errors import SyncError, WorkerLostError
from turnwise.report.run_dir import RunDirectory
from turnwise.run.api import new_directory, train
from turnwise.run.cluster_run import ClusterTraining

pytestmark = pytest.mark.slow

STEPS = 5
WORDS = [*SMALL_LAKE, f"learn.steps={STEPS}", "eval.episodes=0"]


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


@pytest.fixture
def serial(tmp_path: Path) -> dict[str, torch.Tensor]:
    return load_file(train("frozenlake", WORDS, run_dir=tmp_path / "serial").policy / "model.safetensors")


def run_on(tmp_path: Path, words: list[str], **given: Any) -> tuple[RunDirectory, HereCluster]:
    made: list[HereCluster] = []
    settings = load_settings("frozenlake", [*WORDS, "cluster.type=ray", *words])
    directory = new_directory(settings, tmp_path / "run")
    training = ClusterTraining(settings, directory, Console(quiet=True), open_cluster=opens(made, **given))
    asyncio.run(training.run())
    return directory, made[0]


def check(directory: RunDirectory, serial: dict[str, torch.Tensor]) -> None:
    assert [row["step"] for row in directory.read_metrics()] == list(range(1, STEPS + 1))
    uses = sqlite3.connect(directory.experience).execute(
        "SELECT groups.rollout, uses.step FROM uses JOIN groups USING (number)"
    )
    assert sorted(uses) == [(step, step) for step in range(1, STEPS + 1) for _ in range(3)]
    checkpoint = directory.latest_checkpoint()
    assert checkpoint is not None
    found = load_file(checkpoint / "policy" / "model.safetensors")
    for name, tensor in serial.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def names_played(cluster: HereCluster) -> list[str]:
    """Of every training episode, how often somebody was asked to play it."""
    return [
        f"{share.rollout}/{task.id}/{sibling}"
        for player in cluster.players
        for share in player.shares
        if share.kind == "train"
        for task in share.tasks
        for sibling in range(2)
        if all(str(known) != f"{share.rollout}/{task.id}/{sibling}" for known in share.known)
    ]


@pytest.mark.parametrize("words", [[], ["cluster.explorers=2"], ["loop.type=pipelined", "sync.max_staleness=0"]])
def test_the_updates_are_those_of_the_serial_loop(
    tmp_path: Path, serial: dict[str, torch.Tensor], words: list[str]
) -> None:
    directory, cluster = run_on(tmp_path, words)
    check(directory, serial)
    assert cluster.is_closed
    assert all(player.has_left for player in cluster.players)
    assert not list(directory.unfinished.glob("*.jsonl"))


def test_two_explorers_share_the_groups_of_every_rollout(tmp_path: Path) -> None:
    _, cluster = run_on(tmp_path, ["cluster.explorers=2"])
    shares = [[len(share.tasks) for share in player.shares] for player in cluster.players]
    assert [sorted(both) for both in zip(*shares, strict=True)] == [[1, 2]] * STEPS


def test_a_lost_explorer_costs_its_unfinished_episodes_and_is_replaced(
    tmp_path: Path, serial: dict[str, torch.Tensor]
) -> None:
    directory, cluster = run_on(tmp_path, [], lose_players_after=[8])
    check(directory, serial)
    first, second = cluster.players
    assert first.has_left
    taken_over = second.shares[0]
    # Six episodes are a rollout; of the second one some were heard of before it was lost.
    assert (taken_over.rollout, len(taken_over.known)) == (2, first.num_told - 6)


def test_a_lost_learner_goes_back_and_no_episode_is_played_twice(
    tmp_path: Path, serial: dict[str, torch.Tensor]
) -> None:
    directory, cluster = run_on(tmp_path, ["report.checkpoint_every=2"], lose_learner_at=[("step", 4)])
    check(directory, serial)
    assert len(cluster.learners) == 2
    played = names_played(cluster)
    assert len(played) == len(set(played)) == STEPS * 6


def test_a_learner_that_is_lost_during_its_first_lesson_begins_anew(
    tmp_path: Path, serial: dict[str, torch.Tensor]
) -> None:
    directory, cluster = run_on(tmp_path, [], lose_learner_at=[("imitate", 1), ("step", 2), ("weights", 3)])
    check(directory, serial)
    assert len(cluster.learners) == 4


def test_a_learner_that_is_always_lost_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(WorkerLostError):
        run_on(tmp_path, [], lose_learner_at=[("step", 2)] * 20)


@pytest.mark.parametrize(("engine", "is_right"), [("FarEngine", True), ("OldHead", False)])
def test_engines_of_explorers_are_compared_with_the_learner(tmp_path: Path, engine: str, is_right: bool) -> None:
    words = [f"engine.type=tests.unit.loop.test_probe:{engine}", "cluster.explorers=2", "learn.optim.lr=1e-2"]
    if not is_right:
        with pytest.raises(SyncError, match=r"engine and learner differ by .*, .* nats per token"):
            run_on(tmp_path, words)
        return
    directory, _ = run_on(tmp_path, words)
    gaps = [row["sync/probe_gap"] for row in directory.read_metrics()]
    assert len(gaps) == STEPS
    assert max(gaps) < 1e-4
