"""Every plug-in trains two steps in a run that is otherwise the library's own, and goes on from its checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.small_run import without_plots
from turnwise.run.api import evaluate, resume, train

from .entries import choice_at, plug_ins
from .setting import settings_with

pytestmark = pytest.mark.slow

every_plug_in = pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, names in plug_ins().items() for name in names]
)


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


@every_plug_in
def test_a_plug_in_trains_two_steps_and_is_resumed(path: str, name: str, tmp_path: Path) -> None:
    chosen = f"{path}.{choice_at(path).key}={name}"
    # Only this loop hands weights over by a transport; without staleness it can be repeated.
    loop = ["loop.type=pipelined", "sync.max_staleness=0"] if path == "sync" else []
    settings = settings_with(chosen, *loop, "report.checkpoint_every=1")
    run = train(settings.model_dump(), run_dir=tmp_path / "run")
    assert (run.summary.steps, run.summary.policy_version, run.summary.failures) == (2, 2, {})
    assert run.summary.tokens_trained > 0
    assert evaluate(run, episodes=2).episodes == 2
    weights = (run.policy / "model.safetensors").read_bytes()
    shutil.rmtree(run.path / "checkpoints" / "step-000002")
    again = resume(run.path)
    assert (again.summary.steps, again.summary.policy_version) == (2, 2)
    assert (again.policy / "model.safetensors").read_bytes() == weights
