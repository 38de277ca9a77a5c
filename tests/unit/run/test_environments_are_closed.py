"""Every environment that a command makes is closed by it, however it ends, and not by the garbage collector."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.small_run import SMALL_LAKE, without_plots
from turnwise.cli import main
from turnwise.envs.frozen_lake import FrozenLake
from turnwise.errors import LearnError
from turnwise.rollout.episode import EnvPool
from turnwise.run import training_run as training
from turnwise.run.api import train

OPEN: list[FrozenLake] = []
"""Holds them, so that none is collected before it is closed."""
MADE: list[FrozenLake] = []


class Counted(FrozenLake):
    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        OPEN.append(self)
        MADE.append(self)

    def close(self) -> None:
        super().close()
        if self in OPEN:
            OPEN.remove(self)


COUNTED = f"env.type={__name__}:Counted"
SMALL = [*SMALL_LAKE, COUNTED, "learn.steps=1", "eval.episodes=2"]
TAUGHT = ["warm_start={type: oracle, episodes: 4, steps: 1}", "learn.ptx={type: oracle, episodes: 4}"]


@pytest.fixture(autouse=True)
def none_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OPEN.clear()
    MADE.clear()
    without_plots(monkeypatch)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["check", "frozenlake", "--trust", *SMALL],
        ["check", f"{__name__}:Counted"],
        ["plan", "frozenlake", "--trust", *SMALL, *TAUGHT],
        ["doctor", "frozenlake", *SMALL, *TAUGHT],
        ["train", "frozenlake", *SMALL, *TAUGHT],
        ["train", "frozenlake", *SMALL, "loop.type=pipelined", "sync.max_staleness=1"],
        ["train", "frozenlake", *SMALL, "run.mode=explore", "buffer.type=sqlite", "sync.method=checkpoint"],
        ["eval", "oracle", *SMALL],
        ["eval", "myopic", *SMALL],
        ["eval", "nothing", *SMALL],
        ["play", f"{__name__}:Counted", "--agent", "oracle"],
        ["play", f"{__name__}:Counted", "--agent", "human"],
    ],
    ids=lambda words: "-".join(words[:1] + [word for word in words[1:] if "explore" in word or "pipe" in word]),
)
def test_a_command_closes_what_it_makes(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def end_of_input(*_: object) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", end_of_input)
    assert main(words) == (2 if "nothing" in words else 0)
    assert (len(MADE) > 0, OPEN) == (True, [])


def test_a_model_that_is_evaluated_and_played_closes_its_environments(tmp_path: Path) -> None:
    run = train("frozenlake", SMALL, run_dir=tmp_path / "run")
    assert main(["eval", str(run.path), "--episodes", "2"]) == 0
    assert main(["eval", str(run.policy), "--episodes", "2", COUNTED]) == 0
    assert main(["play", f"{__name__}:Counted", "--agent", str(run.path)]) == 0
    assert main(["train", "--resume", str(run.path)]) == 0
    assert OPEN == []


def test_a_run_that_fails_closes_its_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise LearnError("the update broke")

    monkeypatch.setattr(training, "find_loop", lambda _: fail)
    with pytest.raises(LearnError, match="the update broke"):
        train("frozenlake", SMALL, run_dir=tmp_path / "run")
    assert (len(MADE) > 0, OPEN) == (True, [])


def test_an_environment_that_cannot_be_closed_ends_no_run_and_keeps_no_other_open() -> None:
    class Unclosable(Counted):
        def close(self) -> None:
            super().close()
            raise RuntimeError("cannot be closed")

    with ThreadPoolExecutor(1) as threads:
        pool = EnvPool(Unclosable, threads)
        for env in [pool.take(), pool.take()]:
            pool.give_back(env, is_sound=True)
        pool.close()
    assert (len(MADE), OPEN) == (2, [])
