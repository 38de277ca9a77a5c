"""`turnwise lab scale`: constants from a run that was made, forecasts from them, and what the command refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turnwise.app.run import Run, train
from turnwise.app.scaling import measure, place, read_counts
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, RunError
from turnwise.lab.scale import simulate
from turnwise.lab.scale_constants import measured_step_s, read_constants
from turnwise.report.run_dir import RunDirectory

from ...small_run import SMALL_LAKE, without_plots


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with enough steps to be counted."""
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        path = tmp_path_factory.mktemp("runs") / "measured"
        return train("frozenlake", [*SMALL_LAKE, "learn.steps=7", "rollout.groups=8"], run_dir=path)


@pytest.mark.slow
def test_the_constants_of_a_run_are_those_of_its_metrics(measured: Run) -> None:
    directory = RunDirectory.open(measured.path)
    settings = load_settings(str(directory.config))
    constants = read_constants(directory, settings)
    rows = [row for row in measured.metrics() if row["step"] > 2]
    assert (constants.episodes, constants.max_turns) == (16, 3)
    assert constants.learn_s == pytest.approx(sum(row["time/learn_s"] for row in rows) / len(rows))
    assert 1 <= constants.turns <= 3
    assert set(constants.turn_counts) <= {1, 2, 3}
    assert constants.pass_s + constants.row_s > 0
    assert constants.sync_bytes > 1000
    assert constants.experiences > 0


@pytest.mark.slow
def test_a_forecast_of_the_run_itself_is_what_was_measured(measured: Run) -> None:
    """What no metric tells is found so; with everything else too slow there is nothing left to find."""
    directory = RunDirectory.open(measured.path)
    settings = load_settings(str(directory.config))
    constants = measure(directory, settings, env_s=0.0, cores=float("inf"))
    told_s = simulate(constants, place(settings), num_steps=12).step_s
    assert told_s == pytest.approx(measured_step_s(directory), rel=0.05) or constants.turn_s == 0.0


@pytest.mark.slow
def test_the_command_tells_a_table_words_and_json(measured: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "scale", str(measured.path), "--explorers", "1,2", "--learners", "1,2", "--env-seconds", "0.5"]
    assert main([*words, "learn_s=0.01"]) == 0
    shown = capsys.readouterr().out
    assert "N x M" in shown
    assert "2 explorers, 2 learners: the bottleneck is the environments" in shown
    assert "sync.max_staleness=1" in shown
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["explorers"], row["learners"]) for row in told["rows"]] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert told["constants"]["env_s"] == 0.5
    assert {row["bottleneck"] for row in told["rows"]} == {"environment"}


@pytest.mark.slow
def test_a_run_that_is_too_short_is_refused(finished: Run) -> None:
    settings = load_settings(str(finished.path / "config.yaml"))
    with pytest.raises(RunError, match="has 2 steps with their times; expected more than 2"):
        read_constants(RunDirectory.open(finished.path), settings)


def test_without_a_run_constants_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "scale", "--explorers", "4", "--json", "learn_s=3", "row_s=0.001", "reply_tokens=8"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["bottleneck"] == "learner"
    assert row["step_s"] > 3


def test_the_rules_of_a_placement_are_those_of_the_settings() -> None:
    def of(*words: str) -> tuple[int | None, int, bool]:
        placement = place(load_settings("frozenlake", words))
        return placement.rules.max_staleness, placement.max_running, placement.is_one_process  # type: ignore[attr-defined]

    apart = ("run.mode=explore", "buffer.type=sqlite", "sync.method=checkpoint")
    assert of() == (0, 1, True)
    assert of("sync.interval=3") == (2, 1, True)
    assert of("loop.type=pipelined") == (1, 2, True)
    assert of("loop.type=pipelined", "sync.max_staleness=4") == (4, 5, True)
    assert of(*apart) == (None, 2, False)
    assert of(*apart, "sync.max_staleness=2") == (2, 3, False)
    bounded = place(load_settings("frozenlake"), max_staleness=2)
    assert (bounded.max_running, bounded.rules.needed_for(5)) == (3, 2)


@pytest.mark.parametrize("text", ["0", "1,x", "", "-1,2", "1,,2"])
def test_numbers_of_explorers_are_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--explorers: .* expected numbers above 0"):
        read_counts(text, "--explorers")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lab", "scale", "--world", "lake"], "--world goes with 'lab credit', not with 'lab scale'"),
        (["lab", "credit", "--explorers", "2"], "--explorers goes with 'lab scale', not with 'lab credit'"),
        (["lab", "scale", "--cores", "0"], "cores: 0 given"),
        (["lab", "scale", "--env-seconds", "-1"], "env_s: -1 given"),
        (["lab", "scale", "/nowhere"], "nowhere"),
        (["lab", "scale", "lern_s=1"], "Did you mean 'learn_s'"),
    ],
)
def test_what_does_not_belong_here_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert told in capsys.readouterr().err
