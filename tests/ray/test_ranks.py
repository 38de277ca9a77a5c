"""The learner's ranks as actors: the updates of one process, and the loss of one of them is that of a learner."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnwise as tw
from tests.small_run import SMALL_LAKE, without_plots
from turnwise.cluster.buffer_worker import ActorConfig
from turnwise.errors import ClusterError, LearnError, WorkerLostError
from turnwise.run.api import train

ray = pytest.importorskip("ray", reason="the package ray is not installed; `make test-ray` installs it")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

RANKS = ("learn.parallel={type: fsdp, ranks: 2}", "learn.num_threads=1")


def test_a_run_with_ranks_learns_what_one_process_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    one = train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "one")
    many = train("frozenlake", [*SMALL_LAKE, *RANKS, "cluster.type=ray"], run_dir=tmp_path / "many")
    assert not ray.is_initialized()
    first, expected = (tw.open_run(str(run.path)).tokens(step=1) for run in (many, one))
    np.testing.assert_array_equal(first.batch.token_ids, expected.batch.token_ids)
    np.testing.assert_array_equal(first.batch.loss_mask, expected.batch.loss_mask)
    rows, wanted = many.metrics(), one.metrics()
    assert [row["step"] for row in rows] == [row["step"] for row in wanted] == [0, 1, 2]
    assert rows[1]["learn/grad_norm"] == pytest.approx(wanted[1]["learn/grad_norm"], rel=1e-5)
    assert {path.name for path in (many.path / "logs").iterdir()} == {
        "buffer.log",
        "explorer-1.log",
        "rank-0.log",
        "rank-1.log",
    }


@pytest.mark.parametrize("name", ["rank-0", "rank-1"])
def test_a_killed_rank_is_survived(name: str, nodes: Any, watch: Callable[..., Any]) -> None:
    nodes.add_node(num_cpus=3)
    run = watch(*RANKS, "learn.steps=4", "report.checkpoint_every=1", "eval.episodes=0")
    run.wait_for_step(2)
    lost = dict(run.actors)
    run.kill(name)
    run.finish()
    assert run.steps() == [1, 2, 3, 4], run.told()
    assert f"{name} is gone" in run.told()
    # Those that were there with it are others now as well.
    assert all(run.actors[each] != lost[each] for each in ("rank-0", "rank-1"))


def test_ranks_that_find_no_place_say_how_many_there_are(nodes: Any, watch: Callable[..., Any]) -> None:
    nodes.add_node(num_cpus=2)
    run = watch(*RANKS, "cluster.learner_cpus=2", "cluster.start_timeout_s=5")
    run.wait_to_fail()
    assert isinstance(run.failure, ClusterError)
    assert "the learner's 2 ranks found no place in 5 s" in str(run.failure)


# --- calls to all of them --------------------------------------------------------------------------------------------


class ToldRank:
    """An actor that does as it is told."""

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        match method:
            case "refuse":
                raise LearnError("refused")
            case "stumble":
                raise ZeroDivisionError("stumbled")
            case "sleep":
                time.sleep(600)
        return arguments

    def tell(self, method: str, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
        for number in range(3):
            yield "note", (number, 3)
        yield "done", self.call(method, arguments)

    def weights(self) -> tuple[np.ndarray, None]:
        pack: Any = importlib.import_module("turnwise.cluster.explorer_pool").pack_weights
        return pack({}), None


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def ranks(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    told: Any = importlib.import_module("turnwise.cluster.ray_cluster")
    monkeypatch.setattr(told, "_GRACE_S", 2.0)
    site = ActorConfig(name="", settings_yaml="", run_path=tmp_path, working_folder=tmp_path)
    actors = [ray.remote(ToldRank).options(num_cpus=0).remote() for _ in range(2)]
    made = [(actor, replace(site, name=f"rank-{rank}")) for rank, actor in enumerate(actors)]
    opened = told.RayRanks(made, timeout_s=60.0)
    assert opened.call("start", 1) == (1,)
    return opened


def test_notes_are_heard_and_a_failure_of_all_ends_none(ranks: Any) -> None:
    heard: list[tuple[int, int]] = []
    assert ranks.call("imitate", "a", on_note=lambda *told: heard.append(told)) == ("a",)
    assert heard == [(0, 3), (1, 3), (2, 3)]
    assert dict(ranks.weights()) == {}
    with pytest.raises(LearnError, match=r"^refused$"):
        ranks.call("refuse")
    assert ranks.call("again") == ()


def test_a_fault_in_a_rank_ends_all_and_names_its_log(ranks: Any) -> None:
    with pytest.raises(LearnError, match=r"rank-\d failed: ZeroDivisionError\('stumbled'\); see .*logs/rank-\d\.log"):
        ranks.call("stumble")
    with pytest.raises(LearnError, match="stumbled"):
        ranks.call("again")


def test_a_rank_that_is_gone_is_lost_with_all_others(ranks: Any) -> None:
    ray.kill(ranks.actors[1])
    with pytest.raises(WorkerLostError, match="rank-1 is gone"):
        ranks.call("again")
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(ranks.actors[0].call.remote("alone", ()), timeout=60)
    with pytest.raises(WorkerLostError, match="rank-1 is gone"):
        ranks.weights()


def test_a_rank_that_says_nothing_is_given_up(ranks: Any) -> None:
    ranks._timeout_s = 0.5
    with pytest.raises(LearnError, match=r"no answer to 'sleep' within learn.parallel.timeout_s = 0.5 .*: 0, 1\)"):
        ranks.call("sleep")


def test_a_call_that_was_broken_off_ends_all(ranks: Any) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ranks.call("imitate", on_note=interrupt)
    with pytest.raises(LearnError, match="'imitate' was broken off"):
        ranks.call("again")
