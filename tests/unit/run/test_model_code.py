"""Python files in model folders: no command runs one, whatever stands at the terminal and answers its questions.

The commands and their words come from the parser, so that a new command that takes a model is tried as well.
"""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

import pytest
import yaml

import turnwise
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.errors import EngineError, ModelError
from turnwise.infra.atomic_files import write_checksums
from turnwise.loop.policies import resolve_model
from turnwise.models.load import load_classifier, load_config, load_model, load_tokenizer_of
from turnwise.run.api import Run
from turnwise.run.policy_process import PolicyProcess
from turnwise.view.policy_query import PolicyQuery

from ...clock import HANG_S
from ...command_lines import COMMANDS, HARMLESS, READS, arguments, serves, ways_to_read
from ...small_run import SMALL_MODEL

_SERVES_S, _ENDS_BY_S = 4.0, 120.0
"""A command that serves is interrupted after the first, any other after the second."""


class Answering(io.StringIO):
    """A terminal that says yes to everything, for ever."""

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        return "y\n"

    def read(self, size: int | None = -1, /) -> str:
        return "y\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model folder without anything wrong in it."""
    made = resolve_model(load_settings("bandit", SMALL_MODEL))
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("models") / "sound"))


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


class Hostile:
    """Model folders with code, and recipes and runs that lead to them."""

    def __init__(self, model: Path, place: Path) -> None:
        self._model, self._place = model, place
        self.marker = place / "the code was run"

    def _folder(self, name: str) -> Path:
        folder = Path(shutil.copytree(self._model, self._place / name))
        (folder / "evil.py").write_text(
            f"open({str(self.marker)!r}, 'w').close()\n"
            "from transformers import PreTrainedConfig, PreTrainedTokenizerFast, LlamaForCausalLM\n"
            "class EvilConfig(PreTrainedConfig):\n    model_type = 'evil'\n"
            "class EvilTokenizer(PreTrainedTokenizerFast): ...\n"
            "class EvilModel(LlamaForCausalLM): ...\n"
        )
        return folder

    def config(self, name: str = "config") -> Path:
        folder = self._folder(name)
        edit(
            folder / "config.json",
            model_type="evil",
            auto_map={
                "AutoConfig": "evil.EvilConfig",
                "AutoModelForCausalLM": "evil.EvilModel",
                "AutoModelForSequenceClassification": "evil.EvilModel",
            },
        )
        return folder

    def tokenizer(self, name: str = "tokenizer") -> Path:
        folder = self._folder(name)
        names = {"AutoTokenizer": [None, "evil.EvilTokenizer"]}
        edit(folder / "tokenizer_config.json", tokenizer_class="EvilTokenizer", auto_map=names)
        return folder

    def recipe(self, name: str, **settings: object) -> Path:
        file = self._place / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"env": {"type": "bandit"}} | settings))
        return file

    def run(self, finished: Run, folder: Path) -> Path:
        """A copy of a run whose model and whose checkpoints are this folder."""
        run = Path(shutil.copytree(finished.path, self._place / f"run-{folder.name}"))
        settings = yaml.safe_load((run / "config.yaml").read_text())
        settings["model"]["path"] = str(folder)
        (run / "config.yaml").write_text(yaml.safe_dump(settings))
        for checkpoint in (run / "checkpoints").iterdir():
            shutil.copytree(folder, checkpoint / "policy", dirs_exist_ok=True)
            write_checksums(checkpoint)
        return run


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    return Hostile(model, tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def hostile(folders: Hostile) -> Hostile:
    folders.marker.unlink(missing_ok=True)
    return folders


@pytest.fixture(scope="module")
def targets(folders: Hostile, finished: Run) -> dict[str, list[Path]]:
    hostile = folders
    config, tokenizer = hostile.config(), hostile.tokenizer()
    game = {"type": "textarena:TicTacToe-v0"}
    league = {"workflow": "league", "group_size": 2, "workflow_args": {"opponents": [str(config)]}}
    return {
        "folders": [config, tokenizer],
        "recipes": [
            hostile.recipe("model", model={"path": str(config)}),
            hostile.recipe("tokenizer", model={"path": str(tokenizer)}),
            hostile.recipe("reward", reward={"judge": {"type": "model", "path": str(config)}}),
            hostile.recipe("reward_tokenizer", reward={"judge": {"type": "model", "path": str(tokenizer)}}),
            *([hostile.recipe("opponent", env=game, rollout=league)] if find_spec("textarena") else []),
        ],
        "runs": [hostile.run(finished, config), hostile.run(finished, tokenizer)],
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_every_kind_of_word_is_known_here(command: str) -> None:
    """A word that leads to a model must not be left out because nothing here has its name."""
    for action in arguments(command):
        metavar = str(action.metavar)
        if action.nargs != 0:
            assert metavar in READS or metavar in HARMLESS, (command, metavar)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_the_code_of_a_model_folder(
    command: str, hostile: Hostile, targets: dict[str, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", Answering())
    for way in ways_to_read(command):
        for target in (target for kind in way.kinds for target in targets[kind]):
            interrupt = Timer(_SERVES_S if serves(command) else _ENDS_BY_S, os.kill, (os.getpid(), signal.SIGINT))
            interrupt.start()
            with suppress(SystemExit):
                main(way.words(target, made=str(tmp_path / f"made-{target.name}")))
            interrupt.cancel()
            assert not hostile.marker.exists(), (way.before, target.name)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_the_code_of_a_model_that_a_setting_names(
    command: str,
    hostile: Hostile,
    targets: dict[str, list[Path]],
    finished: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", Answering())
    harmless = HARMLESS | {"RECIPE": "bandit", "FILE|ENV": "bandit", "TARGET": "oracle", "RUN": str(finished.path)}
    actions = [action for action in arguments(command) if action.required]
    named = [(action.option_strings[:1], str(action.metavar)) for action in actions]
    needed = [word for option, metavar in named for word in (*option, harmless.get(metavar, metavar))]
    for folder in targets["folders"]:
        interrupt = Timer(_SERVES_S if serves(command) else _ENDS_BY_S, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with suppress(SystemExit):
            main([command, *needed, f"model.path={folder}"])
        interrupt.cancel()
        assert not hostile.marker.exists(), (command, folder)


@pytest.mark.slow
def test_a_question_of_the_page_runs_no_code(hostile: Hostile, targets: dict[str, list[Path]]) -> None:
    voice = PolicyProcess(deadline_s=HANG_S)
    try:
        for run in targets["runs"]:
            (checkpoint, *_) = sorted((run / "checkpoints").iterdir())
            question = PolicyQuery(
                folder=checkpoint, dtype="float32", prefix_ids=(5,), temperature=1.0, num_alternatives=2,
                max_new_tokens=2,
            )  # fmt: skip
            with pytest.raises(EngineError, match="does not run"):
                voice.ask(question)
    finally:
        voice.close()
    assert not hostile.marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("command", "name", "terminal"), [("check", "model", "pty"), ("eval", "tokenizer", "pipe")])
def test_a_real_terminal_that_answers_yes_changes_nothing(
    command: str, name: str, terminal: str, hostile: Hostile, targets: dict[str, list[Path]], tmp_path: Path
) -> None:
    kind = "folders" if command == "eval" else "recipes"
    target = next(path for path in targets[kind] if path.stem == name)
    ours, theirs = pty.openpty() if terminal == "pty" else os.pipe()[::-1]
    # More than any number of questions takes; a terminal holds about 4,000 characters.
    os.write(ours, b"y\n" * 1000)
    done = subprocess.run(
        [sys.executable, "-m", "turnwise", command, str(target)],
        stdin=theirs, capture_output=True, text=True, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert not hostile.marker.exists()
    assert done.returncode == 2, done.stderr
    assert "needs its own Python code (`auto_map`), which turnwise does not run" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


# --- the one place that loads ----------------------------------------------------------------------------------------


def test_a_folder_of_a_known_architecture_loads_without_its_code(hostile: Hostile, model: Path) -> None:
    folder = hostile._folder("known")
    edit(folder / "config.json", auto_map={"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"})
    assert type(load_model(folder)) is type(load_model(model))
    assert not hostile.marker.exists()


def test_code_beside_a_model_for_generating_is_not_run(hostile: Hostile) -> None:
    folder = hostile._folder("generates")
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "evil.py", folder / "custom_generate" / "generate.py")
    edit(folder / "generation_config.json", custom_generate=str(folder), auto_map={"GenerationConfig": "evil.Evil"})
    for name in ("processor_config.json", "preprocessor_config.json"):
        (folder / name).write_text(json.dumps({"auto_map": {"AutoProcessor": "evil.Evil"}}))
    load_model(folder)
    load_tokenizer_of(folder)
    assert not hostile.marker.exists()


@pytest.mark.parametrize(
    "auto_map", [["evil.EvilTokenizer", None], ["evil.EvilTokenizer"], [], "evil", {"AutoTokenizer": []}, 3]
)
def test_an_auto_map_of_any_form_is_refused_in_words(auto_map: object, hostile: Hostile, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(hostile._model, tmp_path / "model"))
    edit(folder / "tokenizer_config.json", tokenizer_class="EvilTokenizer", auto_map=auto_map)
    with pytest.raises(ModelError):
        load_tokenizer_of(folder)
    edit(folder / "config.json", model_type="evil", auto_map=auto_map)
    for load in (load_config, load_classifier):
        with pytest.raises(ModelError):
            load(folder)


def test_an_adapter_in_a_model_folder_is_refused(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "adapted"))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "/"}))
    with pytest.raises(ModelError, match="holds an adapter"):
        load_model(folder)
    with pytest.raises(ModelError, match="holds an adapter"):
        load_classifier(folder)


def test_a_kernel_of_the_hub_is_refused(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "kernel"))
    edit(folder / "config.json", attn_implementation="someone/kernel")
    with pytest.raises(ModelError, match="asks for the attention kernel 'someone/kernel'"):
        load_model(folder)


def test_models_are_loaded_in_one_place_without_their_code() -> None:
    """Every call of an Auto class is in pretrained.py, and passes trust_remote_code=False there."""
    package = Path(turnwise.__file__).parent
    for file in package.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        loads = [
            call
            for call in calls
            if isinstance(call.func, ast.Attribute) and call.func.attr in {"from_pretrained", "from_config"}
        ]
        imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        names = {alias.name for node in imported for alias in node.names if node.module.split(".")[0] == "transformers"}
        if file != package / "models" / "load.py":
            assert not loads, f"{file}: load models through turnwise.models.load"
            assert not {name for name in names if name.startswith("Auto") or name == "pipeline"}, file
            continue
        assert loads
        for call in loads:
            given = {word.arg: word.value for word in call.keywords}
            trusted = given.get("trust_remote_code")
            assert isinstance(trusted, ast.Constant), ast.unparse(call)
            assert trusted.value is False, ast.unparse(call)
