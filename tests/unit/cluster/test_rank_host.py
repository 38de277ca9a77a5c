"""A rank at the other end of a call: what it notes comes as it works, and its log has what is not in our words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.small_run import SMALL_LAKE
from turnwise.cluster.explorer_pool import unpack_weights
from turnwise.cluster.workers import RankHost
from turnwise.config.load import load_settings
from turnwise.errors import LearnError
from turnwise.learn.workers import Note, send_weights
from turnwise.loop.build import open_learner
from turnwise.protocols import Weights

RANKS = "learn.parallel={type: ddp, ranks: 2}"


class SaidRank:
    """Stands where `Rank` stands."""

    def __init__(self, weights: Weights | None = None) -> None:
        self._weights = weights or {}
        self.num_noted = 0

    def call(self, method: str, arguments: tuple[Any, ...], note: Note) -> Any:
        match method:
            case "weights":
                return send_weights(self._weights, note)
            case "count":
                for number in range(arguments[0]):
                    note(number, arguments[0])
                    self.num_noted += 1
                return "counted"
            case "refuse":
                raise LearnError("refused")
            case _:
                raise ZeroDivisionError("stumbled")


def host_of(rank: Any) -> RankHost:
    return RankHost(rank)


def test_notes_come_before_the_answer() -> None:
    rank = SaidRank()
    news = host_of(rank).tell("count", (2,))
    assert list(news) == [("note", (0, 2)), ("note", (1, 2)), ("done", "counted")]
    assert host_of(rank).call("count", (3,)) == "counted"
    assert rank.num_noted == 5


def test_weights_are_those_of_the_first_rank_and_ties_are_kept() -> None:
    tied = torch.arange(4.0)
    packed, _ = host_of(SaidRank({"a": tied, "b": tied, "c": torch.ones(2, dtype=torch.bfloat16)})).weights()
    found = unpack_weights(packed)
    assert torch.equal(found["a"], tied)
    assert torch.equal(found["b"], tied)
    assert found["c"].dtype == torch.bfloat16
    assert unpack_weights(host_of(SaidRank()).weights()[0]) == {}


@pytest.mark.parametrize(
    "ask", [lambda host, method: host.call(method, ()), lambda host, method: list(host.tell(method, ()))]
)
def test_the_log_has_the_story_of_a_failure_that_is_not_ours(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LearnError, match="refused"):
        ask(host_of(SaidRank()), "refuse")
    assert capsys.readouterr().err == ""
    with pytest.raises(ZeroDivisionError, match="stumbled"):
        ask(host_of(SaidRank()), "stumble")
    assert "Traceback" in capsys.readouterr().err


class NotedCalls:
    """`RankHosts` that only listen."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.is_stopped = False
        self.kept: Weights = {"a": torch.zeros(1)}

    def call(self, method: str, *arguments: Any, on_note: Note | None = None) -> Any:
        self.calls.append((method, arguments))
        return 0

    def weights(self) -> Weights:
        return self.kept

    def stop(self) -> None:
        self.is_stopped = True


def test_who_starts_ranks_decides_where_their_weights_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = NotedCalls()
    settings = load_settings("frozenlake", [*SMALL_LAKE, RANKS])
    learner: Any = open_learner(settings, "model", start_ranks=lambda *_a, **_k: hosts)
    assert learner.weights() is hosts.kept
    monkeypatch.chdir(tmp_path)
    learner.save_state(Path("here"))
    assert hosts.calls[-1] == ("save_state", (tmp_path / "here",))
    learner.close()
    assert hosts.is_stopped
