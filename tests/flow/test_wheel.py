"""The package as a user gets it: a wheel, installed elsewhere, without the source tree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from turnwise.cli import find_commands
from turnwise.config.recipes import SHIPPED

from ..small_run import SMALL_LAKE

pytestmark = pytest.mark.slow
SOURCES = Path(__file__).parents[2]

COMMAND_LINES = {
    "train": ["train", "--resume", "run"],
    "eval": ["eval", "run", "--episodes", "3"],
    "compare": ["compare", "run", "run"],
    "play": ["play", "frozen_lake", "--agent", "oracle"],
    "envs": ["envs"],
    "check": ["check", "frozenlake"],
    "convert": ["convert", "theirs.yaml"],
    "plan": ["plan", "starpo"],
    "doctor": ["doctor", "frozenlake", *SMALL_LAKE],
    "export": ["export", "run", "--out", "experience.jsonl"],
    "export-model": ["export-model", "run", "exported"],
    "lab": ["lab", "credit", "--world", "bandit", "--batches", "1", "--episodes", "8"],
    "audit": ["audit", "run"],
    "replay": ["replay", "run", "--step", "1"],
    "completion": ["completion", "bash"],
    "status": ["status", "run"],
    "report": ["report", "run", "--out", "report.html"],
}
RUN_DIR = ["--run-dir", "run"]
RUN_ALL = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from turnwise.cli import main

answers = {}
for name, words in json.loads(sys.argv[1]).items():
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        code = main(words)
    answers[name] = (code, output.getvalue())
print(json.dumps(answers))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    site: Path
    """Where the wheel was unpacked."""
    folder: Path
    """Where commands are run: nothing of the source tree is near."""

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.site)}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built from a copy, so that nothing is left in the source tree."""
    work = tmp_path_factory.mktemp("wheel")
    shutil.copytree(SOURCES / "src", work / "copy" / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(SOURCES / name, work / "copy")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    build = [*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", str(work), str(work / "copy")]
    subprocess.run(build, check=True)
    (wheel,) = work.glob("*.whl")
    subprocess.run([*pip, "install", *offline, "--target", str(work / "site"), str(wheel)], check=True)
    shutil.rmtree(work / "copy")
    (work / "elsewhere").mkdir()
    (work / "elsewhere" / "theirs.yaml").write_text("env_cfgs: {env_name: FrozenLake}\n")
    return Installed(site=work / "site", folder=work / "elsewhere")


@pytest.fixture(scope="module")
def trained(installed: Installed) -> Installed:
    """With a run, made by the script that an install puts on the path."""
    done = installed.run(str(installed.site / "bin" / "turnwise"), "train", *SMALL_LAKE, "buffer.type=sqlite", *RUN_DIR)
    assert done.returncode == 0, done.stderr
    return installed


@pytest.fixture(scope="module")
def answers(trained: Installed) -> dict[str, tuple[int, str]]:
    """Exit code and output of every command, all in one process: most of a command's time goes into its imports."""
    done = trained.run("-c", RUN_ALL, json.dumps(COMMAND_LINES))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_imported_is_the_wheel(installed: Installed) -> None:
    done = installed.run("-c", "import turnwise; print(turnwise.__file__)")
    assert done.stdout.strip() == str(installed.site / "turnwise" / "__init__.py")


def test_recipes_and_the_mark_of_types_are_in_the_wheel(installed: Installed) -> None:
    package = installed.site / "turnwise"
    assert sorted(file.name for file in (package / "recipes").iterdir()) == sorted(
        file.name for file in SHIPPED.iterdir()
    )
    assert (package / "py.typed").is_file()


def test_every_command_is_tried() -> None:
    # `serve`, `view` and `show` below, and `serve-env` is served alike; `explorers` only goes with a run on a cluster.
    assert COMMAND_LINES.keys() | {"serve", "serve-env", "view", "show", "explorers"} == set(find_commands())


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_a_command_runs_without_the_source_tree(answers: dict[str, tuple[int, str]], command: str) -> None:
    code, output = answers[command]
    assert code == 0, output
    assert output
    assert str(SOURCES / "src") not in output


def test_an_episode_is_shown_without_the_source_tree(trained: Installed) -> None:
    (line,) = (trained.folder / "run" / "trajectories" / "step-000001.jsonl").read_text().splitlines()[:1]
    done = trained.run("-m", "turnwise", "show", "run", json.loads(line)["id"])
    assert done.returncode == 0, done.stderr
    assert "advantage" in done.stdout


@pytest.mark.parametrize("name", ["serve", "view"])
def test_a_server_runs_without_the_source_tree(trained: Installed, name: str) -> None:
    command = [sys.executable, "-u", "-m", "turnwise", name, "run"]
    with subprocess.Popen(
        command, cwd=trained.folder, env=trained.environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert any("http://127.0.0.1" in line for line in process.stdout)
        finally:
            process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode in (0, 130)
