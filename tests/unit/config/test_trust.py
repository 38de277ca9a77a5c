"""Looking at a stranger's file runs nothing that it names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from turnwise.cli import main

STRANGER = """
from pathlib import Path
Path("ran").write_text("")

from turnwise.envs.frozen_lake import FrozenLake


class Lake(FrozenLake):
    pass


def pay(prompt, response):
    return 1.0


def shape(turn):
    return turn.reward
"""
NAMES = {
    "env": "env: {type: 'stranger_NUMBER:Lake', size: 4}",
    "function": "env: {type: 'function:stranger_NUMBER:pay'}",
    "gymnasium": "env: {type: 'gymnasium:stranger_NUMBER:Lake-v0'}",
    "verifiers": "env: {type: 'verifiers:stranger_NUMBER'}",
    "python": "env: {type: bandit}\nrollout: {isolation: {type: process, python: './stranger_NUMBER.py'}}",
    "openenv": "env: {type: 'openenv:http://127.0.0.1:9'}",
    "mix": "env: {type: bandit}\nmix: {other: {env: {type: 'stranger_NUMBER:Lake'}}}",
    "workflow": "env: {type: bandit}\nrollout: {workflow: 'stranger_NUMBER:Flow'}",
    "agent": "env: {type: bandit}\nrollout: {workflow: agent, workflow_args: {agent_cls: 'stranger_NUMBER:Agent'}}",
    "engine": "env: {type: bandit}\nengine: {type: 'stranger_NUMBER:Engine', own: 3}",
    "credit": "env: {type: bandit}\ncredit: {type: 'stranger_NUMBER:Credit'}",
    "loss": "env: {type: bandit}\nlearn: {loss: {type: 'stranger_NUMBER:Loss', own: 1}}",
    "judge": "env: {type: prompts}\ncontext: {answer: {type: plain}}\n"
    "reward: {judge: {type: function, target: 'stranger_NUMBER:pay'}}",
    "shaping": "env: {type: bandit}\nreward: {shaping: 'stranger_NUMBER:shape'}",
    "endpoint": "env: {type: bandit}\nwarm_start: {type: endpoint, url: 'http://127.0.0.1:9', model: x}",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, kind: str) -> str:
    """A module of a name that no other test has imported, and a file that names it."""
    name = f"{kind}_{id(folder)}"
    (folder / f"stranger_{name}.py").write_text(STRANGER)
    (folder / "file.yaml").write_text(NAMES[kind].replace("NUMBER", name))
    return f"stranger_{name}"


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("command", ["check", "plan"])
def test_no_module_that_a_file_names_is_imported_without_trust(
    folder: Path, kind: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = write(folder, kind)
    code = main([command, "file.yaml"])
    assert module not in sys.modules
    assert not (folder / "ran").exists()
    said = capsys.readouterr()
    assert "--trust" in said.out + said.err
    assert code == (0 if command == "check" else 2)


def test_with_trust_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = write(folder, "env")
    assert main(["check", "file.yaml", "--trust"]) == 0
    assert module in sys.modules
    assert "is valid." in capsys.readouterr().out


def test_json_says_what_was_not_looked_at(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = write(folder, "env")
    assert main(["check", "file.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_looked_at"] == [f"{module}:Lake"]


def test_what_is_wrong_elsewhere_is_still_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "env")
    assert main(["check", "file.yaml", "learn.steps=-3"]) == 2
    assert "learn.steps" in capsys.readouterr().err
