"""The examples run as a reader would run them, with tiny arguments, and say what they promise."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnwise.report.trajectories import read_trajectories

from ..clock import HANG_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run_example(name: str, *arguments: str, folder: Path) -> str:
    """Its output; the model cache is a fresh folder, so that nothing of an earlier run is used."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "TURNWISE_CACHE": str(folder / "cache")},
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("by_hand")
    return run_example("loop_by_hand.py", "--steps", "2", "--groups", "4", "--seed", "3", folder=folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The output, and the folder in which the example ran."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = ("--steps", "1", "--groups", "4", "--episodes", "8", "--root", "made")
    return run_example("train_frozenlake.py", *arguments, folder=folder), folder


@pytest.mark.xdist_group("by_hand")
def test_the_loop_by_hand_reports_every_step(by_hand: str):
    steps = re.findall(r"^step +(\d+) +mean reward (\d\.\d{3}) +mean turns (\d\.\d\d)", by_hand, flags=re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == [1, 2]
    assert all(0 <= float(reward) <= 1 for _, reward, _ in steps)
    assert all(1 <= float(turns) <= 6 for _, _, turns in steps)


@pytest.mark.xdist_group("by_hand")
def test_the_loop_by_hand_is_the_same_for_the_same_seed(by_hand: str, tmp_path: Path):
    again = run_example("loop_by_hand.py", "--steps", "1", "--groups", "4", "--seed", "3", folder=tmp_path)
    assert again
    assert by_hand.startswith(again)


@pytest.mark.xdist_group("trained")
def test_the_library_trains_and_shows_a_trajectory(trained: tuple[str, Path]):
    output, folder = trained
    assert re.search(r"frozenlake: success \d+\.\d% -> \d+\.\d%, see \S*made/frozenlake-", output)
    assert "turn 1 of" in output
    assert "ended: " in output
    assert "the oracle goes" in output
    assert len(list((folder / "made").glob("*/summary.json"))) == 1


@pytest.mark.xdist_group("trained")
def test_both_evaluations_of_one_policy_agree(trained: tuple[str, Path]):
    after = re.search(r"frozenlake: success \S+ -> (\S+),", trained[0])
    again = re.search(r"evaluated again: success (\S+) on 8 held-out episodes", trained[0])
    assert after
    assert again
    assert after[1] == again[1]


def test_an_agent_with_nothing_but_the_openai_client_is_trained(tmp_path: Path):
    pytest.importorskip("openai", reason="the openai package is not installed; it is part of the dev extra")
    arguments = ("--steps", "2", "--groups", "6", "--episodes", "6", "--root", "made")
    output = run_example("openai_agent.py", *arguments, folder=tmp_path)
    assert re.search(r"openai_agent: success \d+\.\d% -> \d+\.\d%, see \S*made/frozenlake-", output)
    (run,) = (tmp_path / "made").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps"], summary["policy_version"], summary["failures"]) == (2, 2, {})
    # Every call was a step, and what was trained is what was sampled.
    assert summary["tokens_sampled"] > 12
    assert summary["tokens_trained"] == 2 * summary["tokens_sampled"]
    (first, *_) = read_trajectories(run / "trajectories/step-000001.jsonl")
    assert len(first.segments) == len(first.turns)


def train_plug_ins(run: Path, *overrides: str) -> dict[str, Any]:
    """The command that the example gives, from the folder of the project; returns the summary."""
    command = ["train", "--config", "examples/plug_ins.yaml", "--run-dir", str(run), *overrides]
    paths = os.pathsep.join(["examples", *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [str(Path(sys.executable).parent / "turnwise"), *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "TURNWISE_CACHE": str(run.parent / "cache")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps"], summary["policy_version"], summary["failures"]) == (2, 2, {})
    assert summary["tokens_trained"] > 0
    return summary


def test_a_run_of_nothing_but_plug_ins_trains_two_steps(tmp_path: Path):
    run = tmp_path / "run"
    summary = train_plug_ins(run)
    assert summary["env"] == "plug_ins:EvenOrOdd"
    settings = (run / "config.yaml").read_text()
    named = set(re.findall(r"(?:type|workflow|method): (plug_ins:\w+)", settings))
    assert len(named) == 8
    # Each of them left its own traces.
    assert (run / "newest.safetensors").is_file()
    assert (run / "checkpoints" / "step-000002" / "sgd.pt").is_file()
    (_, *steps) = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["sync/staleness_max"] for step in steps] == [0, 1]
    assert {name for name in steps[0] if name.startswith("learn/policy")} == {"learn/policy_loss"}
    played = [t for step in (1, 2) for t in read_trajectories(run / f"trajectories/step-{step:06d}.jsonl")]
    assert any(turn.observation == "Even or odd?" for trajectory in played for turn in trajectory.turns)


def test_a_loop_of_ones_own_trains_two_steps(tmp_path: Path):
    train_plug_ins(tmp_path / "run", "loop.type=plug_ins:plain_loop", "eval.episodes=0")
    assert not (tmp_path / "run" / "newest.safetensors").exists()
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["sync/staleness_max"] for step in steps] == [0, 0]
