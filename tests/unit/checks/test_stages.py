"""A check that is registered once is reported by check, plan, doctor and the start of a run, in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from turnwise.checks.setup import find_errors, validate_run
from turnwise.checks.stages import CHECKS, Subject, check, fail, run_checks, warn
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, Finding
from turnwise.report.run_dir import RunDirectory
from turnwise.run.api import train

from ...small_run import SMALL_LAKE, without_plots


@pytest.fixture(autouse=True)
def _own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    find_errors(load_settings("frozenlake"))  # registers ours
    for stage, checks in list(CHECKS.items()):
        monkeypatch.setitem(CHECKS, stage, list(checks))


def odd_steps(subject: Subject) -> Iterator[Finding]:
    if subject.settings.learn.steps % 2:
        yield warn("learn.steps", f"must be even, got {subject.settings.learn.steps}.", "Set learn.steps=2.")


def many_groups(subject: Subject) -> Iterator[Finding]:
    if subject.settings.rollout.groups > 50:
        yield fail("rollout.groups", f"must be at most 50, got {subject.settings.rollout.groups}.")


@pytest.mark.slow
def test_a_warning_is_reported_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_plots(monkeypatch)
    check("settings")(odd_steps)
    line = "learn.steps: must be even, got 3. Set learn.steps=2."
    words = ["learn.steps=3", *(word for word in SMALL_LAKE if not word.startswith("learn.steps="))]
    for command in ("check", "plan", "doctor"):
        assert main([command, "frozenlake", *words]) == 0
        assert line in " ".join(capsys.readouterr().out.split())
    run = train("frozenlake", words, run_dir=tmp_path / "run")
    (found,) = [each for each in RunDirectory.open(run.path).read_findings() if each.kind == "steps"]
    assert found.message == line


def test_an_error_stops_a_run() -> None:
    check("settings")(many_groups)
    with pytest.raises(ConfigError, match=r"^rollout\.groups: must be at most 50, got 60\.$"):
        validate_run(load_settings("frozenlake", ["rollout.groups=60"]))


def test_an_exception_is_a_finding_and_a_broken_part_is_not_checked_further() -> None:
    def broken(subject: Subject) -> None:
        raise ConfigError("learn.steps: not like this.")

    def needs_it(subject: Subject) -> Iterator[Finding]:
        yield fail("learn.steps", "checked although it is broken")

    check("setup", where="learn.steps")(broken)
    check("setup", needs=["learn"])(needs_it)
    with Subject(load_settings("frozenlake")) as subject:
        (found,) = run_checks(subject, "setup")
    assert (found.kind, found.level, found.stage) == ("broken", "error", "setup")
    assert found.text == "learn.steps: not like this."


def test_an_environment_is_made_once_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Subject(load_settings("frozenlake")) as subject:
        env = subject.make_env("env", "train")
        assert subject.make_env("env", "train") is env
        closed: list[object] = []
        monkeypatch.setattr(env, "close", lambda: closed.append(env), raising=False)
    assert closed == [env]
