"""The command line: what it answers, and how it says no."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Timer

import pytest
import yaml

import turnwise
from turnwise.cli import build_parser, find_commands, main, parse_overrides
from turnwise.config.kinds import ADVANTAGE_ESTIMATORS
from turnwise.config.load import load_settings
from turnwise.errors import LearnError
from turnwise.lab.mdps import WORLDS
from turnwise.learn.trainer import Trainer
from turnwise.run.api import Run, train

from ..small_run import SMALL_LAKE, without_plots

COMMANDS = tuple(find_commands())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        return train("frozenlake", SMALL_LAKE, run_dir=tmp_path_factory.mktemp("cli") / "run")


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        code = main(list(words))
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The message of a mistake: exit code 2, said on stderr, without a traceback."""
    code, _, err = call(capsys, *words)
    assert code == 2
    assert err.startswith("turnwise: ")
    assert "Traceback" not in err
    return " ".join(err.split())


# --- overrides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["learn.steps=3"], ["learn.steps=3"]),
        (["--learn.steps=3"], ["learn.steps=3"]),
        (["--learn.steps", "3"], ["learn.steps=3"]),
        (["--rollout.invalid_penalty", "-0.5"], ["rollout.invalid_penalty=-0.5"]),
        (["--report.tensorboard"], ["report.tensorboard=true"]),
        (["--report.tensorboard", "--learn.steps", "3", "a=b"], ["report.tensorboard=true", "learn.steps=3", "a=b"]),
        (["--context.system_prompt", "be good"], ["context.system_prompt=be good"]),
        ([], []),
    ],
)
def test_forms_of_overrides(words: list[str], expected: list[str]) -> None:
    assert parse_overrides(words) == expected


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["--learn.steps", "7"], 7),
        (["--learn.steps=7"], 7),
        (["learn.steps=7"], 7),
        (["frozenlake", "--learn.steps", "7"], 7),
        (["--learn.steps", "7", "frozenlake"], 7),
        (["--learn.steps", "7", "--config-name", "frozenlake"], 7),
        (["frozenlake", "learn.epochs=2", "--learn.steps", "7", "--json"], 7),
        (["--json", "--context.system_prompt", "be good", "--learn.steps", "7"], 7),
        ([], 160),
    ],
)
def test_settings_reach_the_recipe_in_any_form_and_place(
    capsys: pytest.CaptureFixture[str], words: list[str], steps: int
) -> None:
    assert load_settings("frozenlake").learn.steps == 160
    words = words if "--json" in words else [*words, "--json"]
    code, out, err = call(capsys, "plan", *words)
    assert (code, err) == (0, "")
    plan = json.loads(out)
    assert (plan["steps"], plan["recipe"]) == (steps, "frozenlake")


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train", ["RECIPE", "--config FILE", "--config-name NAME", "--run-dir DIR", "--resume RUN", "key.path=value"]),
        ("eval", ["TARGET", "--env ENV", "--recipe RECIPE", "--episodes N", "--split S", "--json", "key.path=value"]),
        ("play", ["ENV", "--seed N", "--split S", "--agent WHO", "key=value"]),
        ("envs", ["--json"]),
        ("export-model", ["RUN", "DIR", "--step N", "--push NAME"]),
        ("check", ["FILE|ENV", "--python PROGRAM", "--json", "key.path=value"]),
        ("serve-env", ["ENV", "--host H", "--port N", "--max-sessions N", "--python PROGRAM", "key=value"]),
        ("plan", ["RECIPE", "--config FILE", "--config-name NAME", "--json", "key.path=value"]),
        ("doctor", ["RECIPE", "--config FILE", "--config-name NAME", "--json", "key.path=value"]),
        ("lab", ["credit", "--world NAME", "--critic C", "--critic-noise X", "--episodes N", "--out DIR", "--json"]),
        ("lab", ["--group-size N", "--batches N", "--seed N", "NAME.setting=value"]),
        ("serve", ["TARGET", "--port N", "--recipe RECIPE", "TURNWISE_SERVE_TOKEN", "key.path=value"]),
    ],
)
def test_help_lists_every_option(capsys: pytest.CaptureFixture[str], command: str, options: list[str]) -> None:
    code, out, _ = call(capsys, command, "--help")
    assert code == 0
    for option in options:
        assert option in out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert set(COMMANDS) == {
        "serve-env",
        "audit",
        "replay",
        "train",
        "eval",
        "compare",
        "completion",
        "play",
        "envs",
        "check",
        "convert",
        "plan",
        "doctor",
        "explorers",
        "export",
        "export-model",
        "lab",
        "serve",
        "show",
        "status",
        "view",
        "report",
    }
    assert all(re.search(rf"^    {command}\s", out, re.MULTILINE) for command in COMMANDS)
    assert call(capsys, "--version")[1].startswith("turnwise ")


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "learn.stepz=3"], "learn.stepz: unknown setting. Did you mean 'steps'?"),
        (["train", "--learn.stepz", "3"], "learn.stepz: unknown setting"),
        (["train", "learn.steps=many"], "learn.steps: 'many' given"),
        (["train", "rollout.groups=-1"], "rollout.groups: -1 given; expected greater than 0"),
        (["train", "env.type=frozen_like"], "no environment named 'frozen_like'. Did you mean 'frozen_lake'?"),
        (["train", "frozenlak"], "no recipe named 'frozenlak'. Did you mean 'frozenlake'?"),
        (["train", "missing.yaml"], "config file 'missing.yaml' does not exist"),
        (["train", "--config", "missing.yaml"], "--config: file 'missing.yaml' does not exist"),
        (["train", "--config-name", "nothing"], "no recipe named 'nothing'"),
        (["train", "frozenlake", "--config-name", "bandit"], "frozenlake and bandit given; expected one recipe"),
        (["train", ""], "RECIPE must not be empty"),
        (["train", "--config-name", ""], "--config-name must not be empty"),
        (["train", "--config", " "], "--config must not be empty"),
        (["train", "--resume", ""], "--resume must not be empty"),
        (["plan", ""], "RECIPE must not be empty"),
        (["doctor", ""], "RECIPE must not be empty"),
        (["eval", "oracle", "--recipe", ""], "--recipe must not be empty"),
        (["train", "frozenlake", "bandit"], "override 'bandit' is not of the form key.path=value"),
        (["train", "rollout.group_size=1", "credit={type: grpo}", "--credit.type", "grpo"], "credit"),
        (["train", "buffer.train_batch_size=2", "rollout.group_size=3"], "a group does not fit into"),
        (["train", "--resume", "no_run"], "no_run is not a run"),
        (["train", "frozenlake", "--resume", "no_run"], "omit the recipe and overrides"),
        (["train", "--resume", "no_run", "learn.steps=3"], "omit the recipe and overrides"),
        (["tarin"], "unknown command 'tarin'. Did you mean 'train'?"),
        ([], "COMMAND"),
        (["eval"], "TARGET"),
        (["eval", "./no/such/folder"], "'no/such/folder' is neither a run directory nor a model folder"),
        (["eval", "nothing"], "'nothing' is neither a run directory nor a model folder"),
        (["eval", "oracle", "--env", "bandit", "--recipe", "bandit"], "expected one of them"),
        (["check", "frozen_lake", "size=1"], "size"),
        (["eval", "oracle", "--episodes", "0"], "--episodes must be at least 1, got 0"),
        (["eval", "oracle", "--episodes", "-3"], "--episodes must be at least 1, got -3"),
        (["eval", "oracle", "--episodes", "few"], "invalid int value: 'few'"),
        (["eval", "oracle", "--env", "lake"], "no environment named 'lake'"),
        (["eval", "oracle", "--split", "nowhere"], "no split 'nowhere'"),
        (["eval", "oracle", "--episode", "3"], "episode: unknown setting"),
        (["play", "frozen_lak"], "Did you mean 'frozen_lake'?"),
        (["play", "frozen_lake", "--agent", "nobody"], "--agent: 'nobody' given; expected human, oracle, random"),
        (["play", "frozen_lake", "sise=3", "--agent", "random"], "sise: unknown setting"),
        (["envs", "more"], "unrecognized argument 'more'"),
        (["check", "frozenlake", "learn.steps=-1"], "learn.steps: -1 given"),
        (["check", "frozenlake", "env.train.sise=3"], "env.train"),
        (["plan", "frozenlake", "engine.type=nope"], "engine.type: there is no engine named 'nope'"),
        (["serve", "frozenlik"], "no recipe named 'frozenlik'. Did you mean 'frozenlake'?"),
        (["serve", "frozenlake", "--recipe", "bandit"], "--recipe goes with a model folder"),
        (["lab"], "credit"),
        (["lab", "credits"], "invalid choice: 'credits'"),
        (["lab", "credit", "--world", "lak"], "--world: there is no world named 'lak'. Did you mean 'lake'?"),
        (["lab", "credit", "--critic", "none"], "--critic: 'none' given; expected one of noisy, exact"),
        (["lab", "credit", "--critic", "exact", "--critic-noise", "1"], "--critic-noise goes with --critic noisy"),
        (["lab", "credit", "--critic-noise", "-1"], "--critic-noise: -1.0 given; expected at least 0"),
        (["lab", "credit", "--critic-noise", "nan"], "--critic-noise: nan given; expected"),
        (["lab", "credit", "--episodes", "0"], "--episodes: 0 given; expected at least 1"),
        (["lab", "credit", "--episodes", "9"], "--episodes: 9 given; expected whole groups, a multiple of"),
        (["lab", "credit", "--group-size", "1"], "--group-size: 1 given; expected at least 2"),
        (["lab", "credit", "--batches", "0"], "--batches: 0 given; expected at least 1"),
        (["lab", "credit", "--seed", "-1"], "--seed: -1 given; expected at least 0"),
        (["lab", "credit", "gae.lamb=1"], "gae.lamb: unknown setting. Did you mean 'lam'?"),
        (["lab", "credit", "more"], "override 'more' is not of the form"),
    ],
)
def test_a_mistake_gets_one_clear_message(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert message in refused(capsys, *words)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_argument_is_named_as_the_help_names_it(capsys: pytest.CaptureFixture[str], command: str) -> None:
    commands = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    actions = [action for action in commands.choices[command]._actions if action.nargs != 0]
    for chosen in [action for action in actions if action.type is None and action.choices is None]:
        words = [command]
        for action in actions:
            if action is chosen or action.required:
                value = "" if action is chosen else "1" if action.type is int else next(iter(action.choices or "x"))
                words += [*action.option_strings[:1], value]
        name = chosen.option_strings[0] if chosen.option_strings else chosen.metavar
        assert f"turnwise: {name} must not be empty" in refused(capsys, *words), words


def test_broken_yaml(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("learn: {steps: 3")
    for command in ("train", "check", "plan"):
        assert "broken.yaml' is not valid YAML" in refused(capsys, command, str(file))


def test_groups_that_are_too_small_for_the_rule(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("env: {type: bandit}\ncredit: {type: grpo}\n")
    assert "needs at least 2" in refused(capsys, "train", str(file), "rollout.group_size=1")


def test_a_model_folder_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    words = ["train", f"model.path={tmp_path / 'model'}", "--run-dir", str(tmp_path / "run")]
    assert "is no model folder" in refused(capsys, *words)


def test_a_model_folder_without_a_chat_template(capsys: pytest.CaptureFixture[str], tmp_path: Path, run: Run) -> None:
    shutil.copytree(run.policy, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    words = ["train", f"model.path={tmp_path / 'model'}", "--run-dir", str(tmp_path / "run")]
    assert "has no chat template" in refused(capsys, *words)
    assert "has no chat template" in refused(capsys, "eval", str(tmp_path / "model"))


def test_run_directories_that_cannot_be_used(capsys: pytest.CaptureFixture[str], tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(capsys, "train", "--run-dir", str(tmp_path / "file"))
    assert "cannot be made" in refused(capsys, "train", "--run-dir", str(tmp_path / "file" / "run"))
    assert "cannot be made" in refused(capsys, "train", f"run.root={tmp_path / 'file'}")
    assert "already holds a run" in refused(capsys, "train", "--run-dir", str(run.path))


def test_a_split_that_the_environment_does_not_have(capsys: pytest.CaptureFixture[str], run: Run) -> None:
    """Every episode would fail; a success of 0 would be a lie."""
    assert "no split 'nowhere'" in refused(capsys, "eval", str(run.path), "--split", "nowhere", "--episodes", "2")


def test_a_run_of_another_environment_cannot_play(capsys: pytest.CaptureFixture[str], run: Run) -> None:
    assert "plays 'frozen_lake', not 'bandit'" in refused(capsys, "play", "bandit", "--agent", str(run.path))
    assert "brings its own settings" in refused(capsys, "play", "frozen_lake", "size=5", "--agent", str(run.path))


def test_a_failed_run_is_not_a_users_mistake(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LearnError("the gradient norm is nan")

    monkeypatch.setattr(Trainer, "step", fail)
    code, _, err = call(capsys, "train", *SMALL_LAKE, "--run-dir", str(tmp_path / "run"))
    assert code == 1
    assert err == "turnwise: the run failed: the gradient norm is nan\n"


@pytest.mark.parametrize(
    ("number", "file", "message"),
    [
        (errno.ENOSPC, None, "Cannot read or write a file: no space left on device."),
        (errno.EFBIG, "runs/x/step.bin", "Cannot read or write runs/x/step.bin: file too large."),
        (errno.EACCES, "runs/x/roles", "Cannot read or write runs/x/roles: permission denied."),
        (errno.EROFS, "runs/x", "Cannot read or write runs/x: read-only file system."),
    ],
)
def test_a_disk_that_fails_wherever_it_is_met_gets_one_clear_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, file: str | None, message: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number), file)

    monkeypatch.setattr("turnwise.cli.call_command", fail)
    monkeypatch.setattr("turnwise.cli.find_user_frame", lambda _: None)
    assert message in refused(capsys, "train", "frozenlake")


@pytest.mark.slow
def test_a_disk_that_is_full_from_the_start_gets_one_clear_message(tmp_path: Path) -> None:
    # As tempfile says it, where a library looks for a place of its own while it is loaded.
    program = (
        "import sys, tempfile\n"
        "def nowhere(): raise FileNotFoundError(2, \"No usable temporary directory found in ['/tmp']\")\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch': nowhere()\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from turnwise.cli import main\n"
        "sys.exit(main(['train', 'frozenlake', '--run-dir', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "run"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "no usable temporary directory" in done.stderr
    assert "its disk has space" in " ".join(done.stderr.split())


def test_an_error_that_is_ours_is_not_blamed_on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise ConnectionResetError(errno.ECONNRESET, "gone")

    monkeypatch.setattr("turnwise.cli.call_command", fail)
    monkeypatch.setattr("turnwise.cli.find_user_frame", lambda _: None)
    with pytest.raises(ConnectionResetError):
        main(["train", "frozenlake"])


def test_an_interrupted_run_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "step", interrupt)
    code, _, err = call(capsys, "train", *SMALL_LAKE, "--run-dir", str(tmp_path / "run"))
    assert code == 130
    assert "--resume" in err


@pytest.mark.slow
def test_a_mistake_in_a_process_of_its_own() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "turnwise", "train", "learn.stepz=3"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr == "turnwise: learn.stepz: unknown setting. Did you mean 'steps'?\n"


# --- what works ------------------------------------------------------------------------------------------------------


def test_train_and_resume(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    code, out, _ = call(capsys, "train", "--learn.steps", "1", *SMALL_LAKE[1:], "--run-dir", str(tmp_path / "run"))
    assert code == 0
    assert "turnwise eval" in out
    assert (tmp_path / "run" / "summary.json").is_file()
    assert call(capsys, "train", "--resume", str(tmp_path / "run"))[0] == 0


def test_eval_of_a_run(capsys: pytest.CaptureFixture[str], run: Run) -> None:
    code, out, _ = call(capsys, "eval", str(run.path), "--episodes", "4", "--json")
    assert code == 0
    (row,) = json.loads(out)
    assert (row["target"], row["env"], row["split"], row["episodes"]) == (str(run.path), "frozen_lake", "eval", 4)
    assert 0 <= row["success"] <= 1
    assert "success" in call(capsys, "eval", str(run.path), "--episodes", "4")[1]
    assert "--env goes with oracle, random, other scripted policies and endpoints" in refused(
        capsys, "eval", str(run.path), "--env", "bandit"
    )
    assert json.loads(call(capsys, "eval", str(run.path), "--json")[1])[0]["episodes"] == 5


def test_eval_of_rules(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "eval", "oracle", "--env", "bandit", "--episodes", "3", "--json")
    assert code == 0
    assert json.loads(out)[0]["success"] == 1.0
    code, out, _ = call(capsys, "eval", "random", "--episodes", "30", "--split", "train", "--json")
    (row,) = json.loads(out)
    assert (row["env"], row["split"], row["episodes"]) == ("frozen_lake", "train", 30)
    assert row["success"] < 1


def test_play_with_a_run_and_with_rules(capsys: pytest.CaptureFixture[str], run: Run) -> None:
    code, out, _ = call(capsys, "play", "frozen_lake", "--agent", str(run.path), "--seed", "3")
    assert code == 0
    assert "frozen_lake/eval/3" in out or "turn" in out
    code, out, _ = call(capsys, "play", "frozen_lake", "size=3", "--agent", "oracle")
    assert code == 0
    assert "success, return 1" in out
    assert "no success" not in out
    refusal = refused(capsys, "play", "frozen_lake", "--agent", "oracle", "context.max_tokens=9")
    assert "is about how a model is talked to" in refusal
    first, again, other = (call(capsys, "play", "frozen_lake", "--agent", "random", "--seed", s)[1] for s in "112")
    assert first == again != other


def test_play_with_a_model_folder_shows_the_prompt_and_what_was_not_understood(
    capsys: pytest.CaptureFixture[str], run: Run, tmp_path: Path
) -> None:
    shutil.copytree(run.policy, tmp_path / "model")
    own = (tmp_path / "model" / "chat_template.jinja").read_text()
    (tmp_path / "model" / "chat_template.jinja").write_text(f"{own}{{# another one #}}")
    words = ["size=3", "rollout.max_turns=2", "context.max_response_tokens=5"]
    code, out, _ = call(capsys, "play", "frozen_lake", "--agent", str(tmp_path / "model"), *words)
    assert code == 0
    assert "prompt, as the model sees it" in out
    assert "in exactly one of these forms: <answer>" in " ".join(out.split())
    assert "turn 2 of 2" in out
    assert "not understood" in out
    assert "replies were not understood: expected the format 'answer'" in " ".join(out.split())
    assert "plays 'frozen_lake', not 'bandit'" in refused(capsys, "play", "bandit", "--agent", str(run.path))


def test_an_exported_model_can_be_evaluated(capsys: pytest.CaptureFixture[str], run: Run, tmp_path: Path) -> None:
    code, out, _ = call(capsys, "export-model", str(run.path), str(tmp_path / "exported"))
    assert (code, out) == (0, f"written: {tmp_path / 'exported'}\n")
    words = ["--episodes", "2", "--json", *SMALL_LAKE[:4], "rollout.max_turns=2"]
    (row,) = json.loads(call(capsys, "eval", str(tmp_path / "exported"), *words)[1])
    assert (row["env"], row["episodes"]) == ("frozen_lake", 2)
    assert {"success_interval", "invalid", "replies", "stop_reasons", "reasons"} <= row.keys()


@pytest.mark.parametrize("env", ["alfworld", "webshop", "countdown", "metamathqa", "sokoban", "bandit"])
def test_random_play_takes_what_is_offered(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "play", env, "--agent", "random")
    assert code == 0
    assert "return" in out
    assert "is not an action here" not in out


def test_random_play_without_a_list_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "play", "prompts", "--agent", "random")
    assert code == 2
    assert "prompts takes any text and knows no list of actions" in err


def test_play_as_a_person(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Dragon\n"))
    code, out, _ = call(capsys, "play", "bandit", "--split", "train", "--agent", "human")
    assert code == 0
    assert "Dragon paid" in out
    assert "success, return" in out
    monkeypatch.setattr("sys.stdin", io.StringIO("Sideways\n"))
    code, out, _ = call(capsys, "play", "frozen_lake")
    assert code == 0  # the end of the input ends the game
    assert "'Sideways' is not an action here." in out


def test_envs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "envs", "--json")
    assert code == 0
    rows = {row["env"]: row for row in json.loads(out)}
    assert {"frozen_lake", "bandit"} <= rows.keys()
    assert "Right" in rows["frozen_lake"]["actions"]
    assert "frozen_lake" in call(capsys, "envs")[1]


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    no_effect = ["learn.optim.schedule=constant", "learn.optim.final_lr_share=0.5"]
    code, out, _ = call(capsys, "check", "frozenlake", *no_effect)
    assert code == 0
    assert "frozenlake.yaml is valid." in " ".join(out.split())
    assert "note: learn.optim.final_lr_share has no effect" in " ".join(out.split())
    checked = json.loads(call(capsys, "check", "frozenlake", "--json")[1])
    assert checked["settings"]["env"]["type"] == "frozen_lake"
    assert checked["notes"] == []
    code, out, _ = call(capsys, "check", "bandit", "--json")
    assert code == 0
    assert all(row["passed"] == "yes" for row in json.loads(out))
    # A name of both: what is changed says which one is meant.
    checked = json.loads(call(capsys, "check", "bandit", "learn.steps=3", "--json")[1])
    assert (checked["settings"]["recipe"], checked["settings"]["learn"]["steps"]) == ("bandit", 3)
    code, out, _ = call(capsys, "check", "prompts", "--json")
    assert code == 0
    assert [row["passed"] for row in json.loads(out) if row["check"] == "actions"] == ["not made"]


@pytest.mark.slow
def test_check_under_another_python(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "check", "bandit", "--python", sys.executable, "--json")
    assert code == 0
    assert all(row["passed"] == "yes" for row in json.loads(out))
    code, _, err = call(capsys, "check", "frozenlake", "--python", sys.executable)
    assert code == 2
    assert "rollout.isolation.python" in err


def test_check_of_an_environment_that_breaks_the_contract(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_env.py").write_text(
        "from turnwise.config.settings import Settings\n"
        "from turnwise.envs.base import BaseEnv\n"
        "class P(Settings):\n    pass\n"
        "class Bad(BaseEnv):\n"
        "    Params = P\n"
        "    def reset(self, seed=None, *, split='train', dynamics_seed=None):\n        return 5\n"
        "    def step(self, action):\n        return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = call(capsys, "check", "bad_env:Bad", "--json")
    assert code == 2
    assert any(row["passed"] == "NO" for row in json.loads(out))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("frozen_lak", "there is no recipe, file or environment named 'frozen_lak'. Did you mean 'frozen_lake'?"),
        ("tests.unit.envs.test_boundary:Stepless", "has no step"),
        ("nowhere_at_all:Env", "module 'nowhere_at_all' cannot be imported"),
    ],
)
def test_check_of_what_is_no_environment(target: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "check", target)
    assert code == 2
    assert message in err


def test_check_of_an_unknown_name_lists_each_name_once(capsys: pytest.CaptureFixture[str]) -> None:
    names = refused(capsys, "check", "xyzzy").partition("Known: ")[2].rstrip(".").split(", ")
    assert "bandit" in names  # a recipe and an environment
    assert len(names) == len(set(names))


def test_check_of_a_file_that_is_no_recipe_says_what_it_looks_like(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("Say hi.\nSay bye.\n")
    message = refused(capsys, "check", str(tmp_path / "prompts.txt"))
    assert "prompts.txt' is no settings file: it looks like plain text (2 lines)" in message


@pytest.mark.slow
def test_whoever_only_asks_does_not_wait_for_torch() -> None:
    """A list, a sound recipe, and mistakes in the settings are answered without it."""
    asked = (["envs", "--json"], ["check", "frozenlake"], ["train", "learn.stepz=3"], ["plan", "nothing"])
    code = (
        "import sys\nfrom turnwise.cli import main\n"
        f"for words in {asked!r}:\n    main(words)\nassert 'torch' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "plan", "frozenlake")
    assert code == 0
    assert "frozenlake: 160 steps of 256 episodes (40,960 in all)." in " ".join(out.split())


def test_lab_credit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["lab", "credit", "--batches", "2", "--episodes", "16"]
    code, out, _ = call(capsys, *words, "--json")
    assert code == 0
    rows = json.loads(out)
    assert {(row["world"], row["rule"]) for row in rows} >= {
        (world, rule) for world in WORLDS for rule in ADVANTAGE_ESTIMATORS
    }
    assert call(capsys, *words, "--json", "gae.lam=0.1")[1] != out
    code, out, _ = call(capsys, *words, "--world", "bandit", "--out", str(tmp_path / "new"))
    assert code == 0
    assert "step_return" in out
    assert f"written: {tmp_path / 'new' / 'credit_lab.md'}" in out
    assert (tmp_path / "new" / "credit_lab.png").is_file()
    (tmp_path / "new" / "credit_lab.md").write_text("mine")
    assert "has no marks" in refused(capsys, *words, "--out", str(tmp_path / "new"))
    (tmp_path / "file").write_text("")
    assert "Cannot write" in refused(capsys, *words, "--world", "bandit", "--out", str(tmp_path / "file"))


# --- shells and citations ---------------------------------------------------------------------------------------------


def complete(script: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    typed = " ".join(f"'{word}'" for word in words)
    lines = (
        f'source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_turnwise; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True, cwd=script.parent)
    return done.stdout.split()


@pytest.mark.slow
def test_bash_completes_commands_options_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = call(capsys, "completion", "bash")
    assert code == 0
    script = tmp_path / "turnwise.bash"
    script.write_text(text)
    assert complete(script, "turnwise", "com") == ["compare", "completion"]
    assert "frozenlake" in complete(script, "turnwise", "train", "frozen")
    assert complete(script, "turnwise", "eval", "--su") == ["--suite"]
    assert complete(script, "turnwise", "play", "soko") == ["sokoban"]


ZSH_SETUP = """\
PROMPT=; fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; bindkey '^I' complete-word
mark() {{ print -r -- $'\\1' }}; compprefuncs=(mark); comppostfuncs=(mark exit)
compadd() {{ if [[ " ${{@[1,(i)(-|--)]}} " == *" "-(O|A|D)" "* ]]; then builtin compadd "$@"; return; fi
local -a hits; builtin compadd -A hits "$@"; (( $#hits )) && print -rl -- $hits }}
"""
"""What would be offered is printed between two marks, and the shell ends."""


def complete_by_zsh(folder: Path, line: str) -> set[str]:
    """What a real zsh offers at the end of a line: it completes only before a terminal, so it is given one."""
    ours, theirs = pty.openpty()
    files = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(["zsh", "-f", "-i"], cwd=folder, **files) as shell:  # type: ignore[call-overload]
        os.close(theirs)
        os.write(ours, f"{ZSH_SETUP.format(folder=folder)}{line}\t".encode())
        deadline = Timer(600, shell.kill)
        deadline.start()
        said = b""
        # The end of the shell closes the terminal, which Linux tells by an error.
        with suppress(OSError):
            while chunk := os.read(ours, 4096):
                said += chunk
        os.close(ours)
        deadline.cancel()
    return set(said.split(b"\x01")[1].decode().split())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh: apt install zsh")
def test_zsh_completes_commands_options_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "_turnwise").write_text(call(capsys, "completion", "zsh")[1])
    assert complete_by_zsh(tmp_path, "turnwise com") == {"compare", "completion"}
    assert "frozenlake" in complete_by_zsh(tmp_path, "turnwise train frozen")
    assert complete_by_zsh(tmp_path, "turnwise eval --su") == {"--suite"}
    assert "sokoban" in complete_by_zsh(tmp_path, "turnwise play soko")


def test_zsh_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = call(capsys, "completion", "zsh")
    assert code == 0
    assert text.startswith("#compdef turnwise")
    assert [name for name in COMMANDS if f"\n    {name}:'" not in text] == []
    assert call(capsys, "completion", "fish")[0] == 2


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (turnwise.__version__, "Apache-2.0")
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
