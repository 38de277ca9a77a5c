"""`turnwise show` and `turnwise status`: a run directory in the terminal."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from turnwise.cli import main
from turnwise.report.run_dir import RunDirectory
from turnwise.view.run_files import RunFiles, RunState

from .made_run import add_step, forget_success, make_run

NAME = "2/frozen_lake/train/200/1"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_an_episode_is_shown_with_the_numbers_of_its_tokens(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run")
    code, out, _ = call(capsys, "show", str(run), NAME)
    assert code == 0
    assert "turn 1 of 2" in out
    assert "<answer>Down</answer>" in out
    token = next(token for token in RunFiles(run).tokens(2).of(NAME) if token.is_sampled)
    assert f"{token.advantage:+.3f}" in out
    assert f"{token.behavior_logprob:.3f}" in out


def test_an_episode_as_json_has_every_column_of_the_record(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run")
    code, out, _ = call(capsys, "show", str(run), f"2:{NAME}", "--json")
    told = json.loads(out)
    recorded = RunFiles(run).tokens(2).of(NAME)
    assert code == 0
    assert (told["id"], told["step"], told["is_success"]) == (NAME, 2, True)
    assert told["tokens"]["token_id"] == [token.token_id for token in recorded]
    assert np.float32(told["tokens"]["advantage"]).tolist() == [token.advantage for token in recorded]
    assert [sibling["id"] for sibling in told["siblings"]] == ["2/frozen_lake/train/200/0", NAME]


def test_an_unknown_episode_names_the_closest_and_a_run_without_any_says_so(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run")
    code, _, err = call(capsys, "show", str(run), "2/frozen_lake/train/200/7")
    assert code == 2
    assert "Did you mean '2/frozen_lake/train/200/" in err
    assert call(capsys, "show", str(run), "frozen_lake/train/200/1")[0] == 2
    empty = make_run(tmp_path / "empty", steps=0)
    code, _, err = call(capsys, "show", str(empty), "1/x/train/1/0")
    assert code == 2
    assert "report.trajectories_per_step" in err


def test_a_hostile_reply_cannot_command_the_terminal(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run", replies=("\x1b]0;owned\x07 [bold]x[/bold]",))
    _, out, _ = call(capsys, "show", str(run), NAME)
    assert "\x1b]0" not in out
    assert "[bold]x[/bold]" in out


def test_status_says_how_a_run_stands(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run")
    waits = [{"who": "the trainer", "for": "experiences", "since": time.time() - 12, "deadline_s": 600}]
    (run / "waiting.json").write_text(json.dumps(waits))
    code, out, _ = call(capsys, "status", str(run), "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["state"], told["step"], told["steps"], told["seed"]) == ("ended", 3, 4, 3)
    assert told["failures"] == {"EnvError: the lake has melted": 2}
    assert 11 < told["waits"][0]["waited_s"] < 100
    assert told["time_split"]["rollout"] == 4.5
    _, out, _ = call(capsys, "status", str(run))
    assert "the trainer waits for experiences" in out
    assert "the lake has melted" in out


def test_a_status_of_damaged_files_still_tells_the_rest(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text("{")
    (run / "waiting.json").write_text('{"who": 1}')
    (run / "findings.jsonl").write_text('not json\n{"step": 2, "kind": "clipping", "message": "lower the rate"}\n')
    code, out, _ = call(capsys, "status", str(run), "--json")
    told = json.loads(out)
    assert code == 0
    assert [finding["kind"] for finding in told["findings"]] == ["clipping"]
    assert told["waits"] == []


# --- the state of a run ----------------------------------------------------------------------------------------------


def age(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (then, then))


def test_a_run_without_a_summary_runs_while_it_writes_and_was_killed_when_it_is_long_silent(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", has_ended=False)
    assert RunFiles(run).state is RunState.RUNNING
    age(run, 3600)
    assert RunFiles(run).state is RunState.KILLED


def test_a_lock_that_is_held_says_that_a_silent_run_goes_on(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run", has_ended=False)
    lock = run / "roles" / "trainer.lock"
    lock.parent.mkdir()
    lock.write_text(json.dumps({"pid": 12, "host": socket.gethostname(), "since": "noon"}))
    age(run, 3600)
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert RunFiles(run).state is RunState.RUNNING
        _, out, _ = call(capsys, "status", str(run))
        assert "trainer: process 12 on" in out
    assert RunFiles(run).state is RunState.KILLED


def test_a_lock_that_nobody_holds_says_that_a_run_was_killed_a_moment_ago(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", has_ended=False)
    assert RunFiles(run).state is RunState.RUNNING
    (run / "run.lock").touch()
    assert RunFiles(run).state is RunState.KILLED
    (run / "run.lock").write_text('{"host": "another machine"}')
    assert RunFiles(run).state is RunState.RUNNING


def test_an_end_by_the_watch_is_a_collapse_and_a_resumed_run_runs_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "stopped": {"kind": "success_lost", "step": 3}}))
    assert RunFiles(run).state is RunState.COLLAPSED
    then = time.time() - 600
    os.utime(run / "summary.json", (then, then))
    add_step(RunDirectory.open(run), 4)
    assert RunFiles(run).state is RunState.RUNNING


def test_metrics_are_read_as_they_grow_and_anew_after_a_resume(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", has_ended=False)
    files = RunFiles(run)
    assert [row["step"] for row in files.metrics] == [1, 2, 3]
    with files.directory.metrics.open("a") as file:
        file.write('{"step": 4, "rollout/suc')
    assert [row["step"] for row in files.metrics] == [1, 2, 3]
    with files.directory.metrics.open("a") as file:
        file.write('cess": 0.5}\n')
    assert files.metrics[-1] == {"step": 4, "rollout/success": 0.5}
    first = files.tokens(2).of(NAME)
    RunDirectory.reopen(run, step=1)
    add_step(files.directory, 2, siblings=3)
    assert [row["step"] for row in files.metrics] == [1, 2]
    assert files.tokens(2).of(NAME) != first


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["uvicorn", "starlette.applications"])
def test_the_page_says_which_package_it_lacks(tmp_path: Path, capsys, monkeypatch, package: str) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = call(capsys, "view", str(run))
    assert code == 2
    assert f"`turnwise view` needs the package '{package}'" in err
    assert "pip install 'turnwise[serve]'" in err


def test_the_page_refuses_what_is_no_run_and_a_port_that_is_none(tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    assert "there is no folder 'runs' here" in call(capsys, "view")[2]
    assert "is no run and has none in it" in call(capsys, "view", str(tmp_path))[2]
    pytest.importorskip("uvicorn", reason="needs the extra serve: pip install 'turnwise[serve]'")
    run = make_run(tmp_path / "run")
    code, _, err = call(capsys, "view", str(run), "--port", "70000")
    assert code == 2
    assert "--port: 70000 given" in err


def test_a_report_is_one_file_whose_data_cannot_end_its_element(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run", replies=("</script><script>alert(1)</script>",))
    code, out, _ = call(capsys, "report", str(run), "--episodes", "5")
    text = (run / "report.html").read_text()
    assert code == 0
    assert str(run / "report.html") in out
    assert text.count("</script>") == 3
    assert "src=" not in text.split("<script")[0]
    embedded = text.split('id="embedded">')[1].split("</script>")[0]
    assert not set("<>&") & set(embedded)
    answers = json.loads(embedded)
    assert any(key.startswith('["credit"') for key in answers)
    assert call(capsys, "report", str(run), "--episodes", "-1")[0] == 2


def test_success_that_nobody_said_is_unknown_in_the_terminal(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run")
    forget_success(run)
    _, status, _ = call(capsys, "status", str(run))
    assert [line.split() for line in status.splitlines() if "/success" in line] == [
        ["rollout/success", "unknown"],
        ["eval/success", "unknown"],
    ]
    _, shown, _ = call(capsys, "show", str(run), NAME)
    assert "success unknown  return 1" in shown
