"""`make bench-against`: its arithmetic on made runs, its errors, and that it measures the code of each side."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from benchmarks import against
from benchmarks.against import Measured, MeasureError, Side


def a_run(seconds: float, units: float = 1.0, **other_units: float) -> Measured:
    """Every section takes as long and does as much, except for those that are given."""
    return Measured(dict.fromkeys(against.UNITS, seconds), {**dict.fromkeys(against.UNITS, units), **other_units})


def test_a_ratio_is_of_seconds_per_unit_of_work() -> None:
    rows = {row.section: row for row in against.compare(1, [(a_run(2.0), a_run(3.0, rollout=3.0))])}
    assert rows["update"].ratios == [1.5]
    assert rows["rollout"].ratios == [0.5]
    assert rows["rollout"].work == [3.0]
    assert (rows["rollout"].rev_s, rows["rollout"].head_s) == (2.0, 3.0)


def test_sums_are_of_equal_work() -> None:
    twice_the_tokens = a_run(1.0)
    for section in ("rollout", "environment", "update", "other"):
        twice_the_tokens.seconds[section] = 2.0  # type: ignore[index]
        twice_the_tokens.units[section] = 2.0  # type: ignore[index]
    rows = {row.section: row for row in against.compare(1, [(a_run(1.0), twice_the_tokens)])}
    assert rows["all steps"].ratios == [1.0]
    assert rows["all steps"].rev_s == pytest.approx(4 * 1.5)
    assert rows["total"].ratios == [1.0]
    assert rows["total"].rev_s == pytest.approx(4 * 1.5 + 3)


def test_a_table_has_median_and_spread_of_the_pairs() -> None:
    rows = against.compare(2, [(a_run(1.0), a_run(seconds)) for seconds in (1.0, 4.0, 2.0)])
    line = next(line for line in against.format_table(rows, "abc").splitlines() if "| update |" in line)
    assert line == "| 2 | update | 1.00 | 2.00 | 2.00 | 1.00 - 4.00 | 1.00 | trained token |"


def test_a_section_without_work_has_no_ratio() -> None:
    nothing = a_run(0.0, units=0.0)
    rows = against.compare(1, [(nothing, a_run(1.0))])
    assert all(row.ratios == [] for row in rows)
    assert "| - | - | - |" in against.format_table(rows, "abc")


def test_sections_of_a_run_add_up_to_the_command(tmp_path: Path) -> None:
    split = {"rollout": 5.0, "env": 1.0, "learn": 7.0, "sync": 0.5, "other": 1.5}
    summary = {"wall_s": 30.0, "setup_s": 9.0, "time_split": split, "steps": 2, "eval_episodes": 40}
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "tokens_sampled": 100, "tokens_trained": 200}))
    lines = [{"step": 0}, {"step": 1, "rollout/env_steps": 30.0}, {"step": 2, "rollout/env_steps": 20.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = against.read_run(tmp_path, process_s=34.0, cpu_s=50.0)
    assert sum(run.seconds[name] for name in against.SUMS["total"]) == pytest.approx(34.0)
    assert run.seconds["evaluation"] == pytest.approx(6.0)
    assert run.seconds["other"] == pytest.approx(2.0)
    assert run.per_unit("environment") == pytest.approx(1 / 50)
    assert run.per_unit("rollout") == pytest.approx(5 / 100)
    assert run.per_unit("update") == pytest.approx(7 / 200)


def test_settings_that_differ_are_named() -> None:
    rev = {"learn.lr": 0.1, "learn.steps": 8, "only.old": 1}
    assert against.changed_settings(rev, {"learn.lr": 0.2, "learn.steps": 8, "new": 1}) == {"learn.lr": (0.1, 0.2)}


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("# started on Thu\n\n1234,,instructions:u,99,100.00,,\n", 1234),
        ("1000,,cpu_core/instructions:u/,9,50.00,,\n234,,cpu_atom/instructions:u/,9,50.00,,\n", 1234),
        ("<not supported>,,instructions:u,0,100.00,,\n", None),
        ("==7== \n==7== I   refs:      1,234\n", 1234),
        ("", None),
    ],
)
def test_instructions_are_read_from_what_counters_write(text: str, counted: int | None) -> None:
    assert against.parse_instructions(text) == counted


def test_instructions_of_a_step_are_those_beyond_the_first() -> None:
    assert against.instruction_ratios(100, 300, 150, 250) == {"command": 1.5, "step": 0.5}
    assert against.instruction_ratios(100, 100, 150, 250) == {"command": 1.5, "step": None}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit with a module `turnwise` in `src`."""
    root = tmp_path / "repository"
    (root / "src" / "turnwise").mkdir(parents=True)
    (root / "src" / "turnwise" / "__init__.py").write_text("")
    for args in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(root), *args], check=True)
    return root


@pytest.mark.parametrize("rev", ["", "no-such-commit", "HEAD~1", "--all"])
def test_an_unknown_commit_is_refused(repository: Path, rev: str) -> None:
    with pytest.raises(ValueError, match=f"`REV` must be a commit of this repository, got {rev!r}"):
        against.find_commit(rev, repository)
    assert len(against.find_commit("HEAD", repository)) == 40


def test_changes_that_are_not_committed_are_refused_in_src_alone(repository: Path) -> None:
    (repository / "notes.txt").write_text("x")
    against.check_is_committed(repository)
    (repository / "src" / "new.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"`src` must be as committed, got 1 changed files \(src/new.py"):
        against.check_is_committed(repository)


def test_a_mistake_in_the_command_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for args, message in ((["no-such-commit"], "`REV` must be"), (["HEAD", "--pairs", "0"], "at least 1, got '0'")):
        with pytest.raises(SystemExit) as ended:
            against.main(args)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def unpacked(repository: Path, folder: Path, code: str) -> Side:
    against.unpack("HEAD", folder, repository)
    side = Side("abc", folder)
    (side.source / "turnwise" / "cli.py").write_text(code)
    return side


@pytest.mark.slow
def test_the_code_of_the_side_runs_and_its_failure_is_shown(repository: Path, tmp_path: Path) -> None:
    side = unpacked(repository, tmp_path / "rev", "import sys\n\ndef main(args):\n    sys.exit('no such recipe')\n")
    with pytest.raises(MeasureError, match="the run of abc failed:\nno such recipe"):
        against.warm_up(side)


@pytest.mark.slow
def test_a_side_whose_code_is_not_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rev" / "src").mkdir(parents=True)
    with pytest.raises(MeasureError, match="instead of"):
        against.warm_up(Side("abc", tmp_path / "rev"))


def test_pairs_alternate_between_the_sides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(against, "_train", lambda side, steps, threads: (side.folder, steps, threads))
    monkeypatch.setattr(against, "read_run", lambda folder, steps, threads: a_run(1.0 + (folder.name == "head")))
    rows, runs = against.measure(Side("rev", tmp_path / "rev"), Side("head", tmp_path / "head"), 8, 3, [1])
    assert [run["side"] for run in runs] == ["rev", "head", "head", "rev", "rev", "head"]
    assert all(row.ratios == [2.0, 2.0, 2.0] for row in rows)


def test_without_a_counter_instructions_are_skipped_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(against.shutil, "which", lambda name: None)
    found = against.compare_instructions(Side("a", tmp_path), Side("b", tmp_path), use_valgrind=True)
    assert found["counted_by"] is None
    assert "--valgrind" in str(found["why"])
