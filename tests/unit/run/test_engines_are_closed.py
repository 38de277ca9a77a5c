"""Whoever opens an engine closes it, however the work ended: engines may hold servers and processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_run import SMALL_LAKE, without_plots
from turnwise.engine.local import LocalEngine
from turnwise.errors import LearnError
from turnwise.run import training_run as training
from turnwise.run.api import Run, evaluate, train


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened to engines, in order."""
    happened: list[str] = []
    open_engine, close_engine = LocalEngine.open.__func__, LocalEngine.close  # type: ignore[attr-defined]

    def opened(cls: type[LocalEngine], *given: object) -> LocalEngine:
        happened.append("open")
        return open_engine(cls, *given)

    async def closed(engine: LocalEngine) -> None:
        happened.append("close")
        await close_engine(engine)

    monkeypatch.setattr(LocalEngine, "open", classmethod(opened))
    monkeypatch.setattr(LocalEngine, "close", closed)
    without_plots(monkeypatch)
    return happened


def trained(folder: Path, *overrides: str) -> Run:
    return train("frozenlake", [*SMALL_LAKE, *overrides], run_dir=folder)


def test_after_training_and_after_an_evaluation(engines: list[str], tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    assert engines == ["open", "close"]
    evaluate(run, episodes=2)
    assert engines == ["open", "close"] * 2


def test_after_a_run_that_failed(engines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise LearnError("the update broke")

    monkeypatch.setattr(training, "find_loop", lambda _: fail)
    with pytest.raises(LearnError, match="the update broke"):
        trained(tmp_path / "run")
    assert engines == ["open", "close"]


def test_an_explorer_closes_its_own_and_a_trainer_opens_one_to_evaluate_alone(
    engines: list[str], tmp_path: Path
) -> None:
    shared = ("buffer.type=sqlite", "sync.method=checkpoint", "learn.steps=1")
    trained(tmp_path / "run", *shared, "run.mode=explore")
    assert engines == ["open", "close"]
    train(tmp_path / "run" / "config.yaml", ["run.mode=train"], run_dir=tmp_path / "run")
    assert engines == ["open", "close"] * 2
