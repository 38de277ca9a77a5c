from __future__ import annotations

import getpass
import socket
import subprocess
from pathlib import Path

import pytest

from turnwise.errors import RunError
from turnwise.report.manifest import Manifest, clean_command, collect_manifest


def test_it_records_versions_and_seeds(tmp_path: Path) -> None:
    manifest = collect_manifest("frozenlake", 7, seeds={"eval": 9}, directory=tmp_path)
    assert manifest.recipe == "frozenlake"
    assert manifest.seeds == {"run": 7, "eval": 9}
    assert manifest.packages["numpy"].count(".") >= 1
    assert manifest.num_cpus
    assert manifest.git_commit is None


def test_it_finds_the_commit_of_the_folder(tmp_path: Path) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    head = subprocess.run(["git", "-C", str(tmp_path), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert collect_manifest("r", 0, directory=tmp_path).git_commit == head.stdout.strip()


def test_a_machine_without_git_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert collect_manifest("r", 0, directory=tmp_path).git_commit is None


def test_it_names_neither_host_nor_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_PROBE", "environment-probe")
    monkeypatch.setattr(socket, "gethostname", lambda: "host-probe")
    text = collect_manifest("r", 0, command=["/usr/bin/turnwise", "train"], directory=tmp_path).to_json()
    assert "environment-probe" not in text
    assert "host-probe" not in text
    assert socket.getfqdn() not in text
    assert f'"{getpass.getuser()}"' not in text


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("engine.api_key=abc", "engine.api_key=***"),
        ("--engine.hf-token=abc", "--engine.hf-token=***"),
        ("rollout.max_new_tokens=64", "rollout.max_new_tokens=64"),
        ("engine.url=https://me:pw@example.org/v1", "engine.url=https://***@example.org/v1"),
        ("/home/probe/model", "~/model"),
    ],
)
def test_the_command_line_loses_secrets_and_the_home_folder(
    given: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/probe")
    assert clean_command(["/home/probe/bin/turnwise", "train", given]) == ["turnwise", "train", kept]


def test_a_secret_behind_its_option_is_hidden_and_the_next_word_is_not() -> None:
    assert clean_command(["t", "--api-key", "abc", "--steps", "3"]) == ["t", "--api-key", "***", "--steps", "3"]


def test_a_manifest_with_a_missing_key_is_refused(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "manifest.json").write_text(manifest.to_json().replace('"recipe"', '"recepi"'))
    with pytest.raises(RunError, match="lacks recipe"):
        Manifest.read(tmp_path / "manifest.json")
