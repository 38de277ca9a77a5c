"""`@command`: found in the source, built from the signature; a new command is one file."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

import pytest

from turnwise import commands
from turnwise.cli import build_parser, find_commands, load_command, main
from turnwise.commands import REGISTERED, Command, Option, Target
from turnwise.run.api import Run, train

from ...small_run import SMALL_LAKE, without_plots

COUNT = '''
"""Throw-away command."""

from pathlib import Path
from typing import Annotated

from turnwise.commands import Target, command


@command("count", help="Count the episodes of a run")
def count(run: Annotated[Path, Target("RUN")], split: str = "train", json: bool = False) -> int:
    from turnwise.report.document import Document, show
    from turnwise.report.trajectories import read_trajectories

    files = sorted((run / "trajectories").glob("*.jsonl"))
    number = sum(t.task.split == split for file in files for t in read_trajectories(file))
    return show(Document("Episodes", facts={"episodes": number}), json=json)
'''


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        return train("frozenlake", SMALL_LAKE, run_dir=tmp_path_factory.mktemp("commands") / "run")


@pytest.fixture
def forget() -> Iterator[None]:
    yield
    REGISTERED.pop("count", None)
    for name in ("turnwise.commands.count", "count_package"):
        sys.modules.pop(name, None)


def check_count(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", str(run.path), "--json"]) == 0
    number = json.loads(capsys.readouterr().out)["episodes"]
    assert number > 0
    assert main(["count", str(run.path), "--split", "eval"]) == 0
    assert capsys.readouterr().out == "Episodes\nepisodes  0\n"
    assert main(["count", str(run.path), "learn.steps=3"]) == 2
    assert "unrecognized argument 'learn.steps=3'. See 'turnwise count --help'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["count", "--help"])
    text = capsys.readouterr().out
    assert all(part in text for part in ("[--split SPLIT] [--json] RUN", "(default: train)", "print JSON"))


@pytest.mark.usefixtures("forget")
def test_a_command_is_one_file(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "count.py").write_text(COUNT)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    check_count(finished, capsys)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "count       Count the episodes of a run" in capsys.readouterr().out
    assert main(["completion", "bash"]) == 0
    assert "_shtab_turnwise_count_pos_0_COMPGEN=_shtab_compgen_files" in capsys.readouterr().out


@pytest.mark.usefixtures("forget")
def test_another_package_adds_a_command_by_an_entry_point(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "count_package.py").write_text(COUNT)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = metadata.EntryPoint("count", "count_package", "turnwise.commands")
    monkeypatch.setattr("turnwise.cli.entry_points", lambda group: [entry] if group == entry.group else [])
    check_count(finished, capsys)
    wrong = metadata.EntryPoint("counts", "count_package", "turnwise.commands")
    monkeypatch.setattr("turnwise.cli.entry_points", lambda group: [wrong])
    assert main(["counts"]) == 2
    assert "count_package does not register the command 'counts'" in capsys.readouterr().err


def test_what_is_read_from_the_source_is_what_is_registered() -> None:
    found = find_commands()
    loaded = {name: load_command(name, declared) for name, declared in found.items()}
    assert {name: one.help for name, one in loaded.items()} == {name: one.help for name, one in found.items()}
    assert {name: one.function.__module__ for name, one in loaded.items()} == {n: d.module for n, d in found.items()}
    ours = {name for name, one in REGISTERED.items() if one.function.__module__.startswith("turnwise.")}
    assert ours == set(found)
    assert next(iter(found)) == "train"


def test_only_the_module_of_the_chosen_command_is_imported() -> None:
    code = (
        "import sys\nfrom turnwise.cli import main\n"
        "try: main(['{}'])\nexcept SystemExit: pass\n"
        "heavy = ('torch', 'pydantic', 'omegaconf', 'rich', 'shtab', 'turnwise.commands.lab')\n"
        "print([m for m in (*heavy, 'turnwise.commands.eval') if m in sys.modules], file=sys.stderr)\n"
    )
    for words, found in (("--help", "[]"), ("eval', '--help", "['turnwise.commands.eval']")):
        done = subprocess.run([sys.executable, "-c", code.format(words)], capture_output=True, text=True, check=True)
        assert done.stderr.strip() == found


def example(
    first: str,
    number: Annotated[int, Target("N", "how many")],
    more: Annotated[Sequence[Path], Target("MORE")] = (),
    *,
    needed: float,
    kind: Annotated[str | None, Option(choices=("a", "b"), complete="recipes")] = None,
    is_on: bool = False,
    overrides: Sequence[str] = (),
) -> int:
    given.append((first, number, more, needed, kind, is_on, overrides))
    return 7


given: list[tuple[object, ...]] = []


def test_a_signature_is_the_command_line() -> None:
    command = Command("example", "Do it", "", example)
    parser = argparse.ArgumentParser(prog="example")
    for parameter in command.parameters():
        parameter.add_to(parser)
    words = ["x", "3", "p", "q", "--needed", "1.5", "--kind", "b", "--is-on"]
    assert command.run(vars(parser.parse_args(words)), ["a=b"]) == 7
    assert command.run(vars(parser.parse_args(["y", "4", "--needed", "2"])), []) == 7
    assert given == [("x", 3, [Path("p"), Path("q")], 1.5, "b", True, ["a=b"]), ("y", 4, [], 2.0, None, False, [])]
    assert {one.name: one.complete for one in command.parameters() if one.complete} == {
        "more": "files",
        "kind": "recipes",
    }
    for wrong in (["x", "3"], ["x", "many", "--needed", "1"], ["x", "3", "--needed", "1", "--kind", "c"]):
        with pytest.raises(SystemExit):
            parser.parse_args(wrong)


def test_help_texts_are_sentences() -> None:
    build_parser()
    for one in REGISTERED.values():
        assert one.help[0].isupper(), one.name
        assert not one.help.endswith("."), one.name
