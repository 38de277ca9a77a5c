"""Every command on every page, by the program itself: words, settings and files are the real ones, and runs are small.

What only looks, plays or evaluates is run. Training is run in small where it needs this process alone; otherwise it
goes as far as the first step: the recipe is found, what is changed of it is taken, and nothing refuses the whole.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from turnwise.checks.setup import validate_run
from turnwise.cli import build_parser, call_command, parse_overrides
from turnwise.config.component import ENVS
from turnwise.config.load import Loaded, load_settings, parse_params
from turnwise.config.recipes import list_recipes
from turnwise.envs.base import make_env
from turnwise.loop.policies import find_policy
from turnwise.rollout.env_specs import resolve_total_steps

from .docs_reader import (
    SMALL_RECIPES,
    first_episode,
    name_of,
    page_blocks,
    put_files,
    put_runs,
    reader,  # noqa: F401 - fixtures
    trained,  # noqa: F401
)
from .test_docs import FENCED, ROOT, pages

INLINE = re.compile(r"`((?:\.venv/bin/)?turnwise [^`]+)`")
WHOLE = re.compile(r"^ *(turnwise (?:train|plan|play) [a-z]\w+.*)$", flags=re.MULTILINE)
PLACEHOLDER = re.compile(r"^\[|…|\b[A-Z]{3,}\b")
OURS = re.compile(r"(?:\.venv/bin/)?turnwise$")
PROGRAMS = ("turnwise ", ".venv/", "make ", "python ", "pip ", "git ", "cd ", "sh ", "curl ", "shared=", "tensorboard ")
FOREIGN = {"git", "cd", "curl", "tensorboard"}
"""Programs of others, whose words are theirs."""
NEED_OTHERS = (
    "cluster.",
    "learn.parallel",
    "engine.type=vllm",
    "run.mode=",
    "trackers",
    "warm_start.url",
    "model.path",
)
"""What in the words of a training needs processes, machines or packages beside this one."""
NOT_HERE = ("trackers", "cluster.type=ray", "engine.type=vllm", "warm_start.url", "REWARD_MODEL", "./qwen3")
NOT_HERE += ("model.gguf", "owner/model")
"""Packages and models that tests do without: the settings are read, and nobody asks whether they could run."""
ELSEWHERE = ("smollm2", "http://")
"""Policies that are too large for a test, or answer somewhere else."""


def is_commands(text: str) -> bool:
    """Rather than what a program has said, a formula or a picture."""
    first = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", text)
    return first.startswith(PROGRAMS)


def command_blocks() -> Iterator[Any]:
    for page, number, kind, text in page_blocks():
        if kind in ("", "bash") and is_commands(text):
            yield pytest.param(page, text, id=name_of(page, number))


def simple_commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a block, as a shell would hand them over."""
    known: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r" && |; do |; done|; ", re.sub(r"\s+(?:# .*|&)$", "", line)):
            for name, value in known.items():
                part = part.replace(f"${name}", value)
            words = shlex.split(part)
            while words and re.match(r"[A-Za-z_]+=", words[0]):
                name, _, value = words.pop(0).partition("=")
                known[name] = value
            if words[:1] == ["for"]:
                known[words[1]] = words[3]
            elif words:
                yield words


@pytest.mark.parametrize(("page", "text"), list(command_blocks()))
def test_commands_on_a_page_do_what_the_page_says(
    page: Path,
    text: str,
    reader: Path,  # noqa: F811
    trained: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    put_files(reader, page)
    put_runs(reader, trained, f"{text} runs/mine")
    for words in simple_commands(text):
        if words[0] == "cd" and words[1] != "turnwise":
            monkeypatch.chdir(words[1])
            put_runs(Path(), trained, text)
        elif OURS.match(words[0]):
            run_ours(words[1:], trained)
        elif words[0] not in FOREIGN:
            CHECKS[Path(words[0]).name](words[1:])


def test_what_is_shown_beside_commands_is_no_command() -> None:
    shown = [text for _, _, kind, text in page_blocks() if kind in ("", "text") and not is_commands(text)]
    assert [
        line for text in shown for line in re.findall(r"^(?:\.venv/bin/)?turnwise .*", text, flags=re.MULTILINE)
    ] == []


def whole_commands() -> Iterator[Any]:
    """Trainings and plays whose recipe or world is the library's own, also inside sentences and in the help."""
    blocks = {name_of(page, n): text for page, n, kind, text in page_blocks() if kind in ("", "bash", "text")}
    sentences = {page.stem: "\n".join(INLINE.findall(FENCED.sub("", text))) for page, text in pages()}
    for name, text in [*blocks.items(), *sentences.items()]:
        lines = text if is_commands(text) else "\n".join(WHOLE.findall(text))
        for number, words in enumerate(simple_commands(lines)):
            is_whole = words[1:2] in (["train"], ["plan"], ["play"]) and words[2:3] and OURS.match(words[0])
            if is_whole and words[2] in (*list_recipes(), *ENVS) and not any(map(PLACEHOLDER.search, words)):
                yield pytest.param(words[1:], id=f"{name}-{number}")


def test_commands_in_sentences_and_help_are_found() -> None:
    names = {param.id for param in whole_commands()}
    assert {name.rsplit("-", 1)[0] for name in names} >= {"quickstart", "commands-0", "commands-4"}


@pytest.mark.parametrize("words", list(whole_commands()))
def test_what_a_page_changes_fits_the_recipe_as_it_is_shipped(words: Sequence[str]) -> None:
    options, rest = build_parser().parse_known_args(list(words))
    if options.command == "play":
        worlds = [word for word in parse_overrides(rest) if not word.startswith("context.")]
        make_env(options.env, **parse_params(worlds)).close()
    else:
        load_settings(options.recipe, parse_overrides(rest))


# --- our own program --------------------------------------------------------------------------------------------------


class Resolved(Exception):  # noqa: N818 - it is no error
    """Everything that the words say has been understood; what comes next needs more than a test has."""


def run_ours(words: Sequence[str], run: Path) -> None:
    options, rest = build_parser().parse_known_args(list(words))
    if any(word.startswith("[") or word == "…" for word in words):
        return
    for name, given in {"RUN": str(run), "EPISODE": first_episode(run)}.items():
        for key in [key for key, value in vars(options).items() if value == name]:
            setattr(options, key, given)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Resolved):
        IN_SMALL.get(options.command, lambda *_: None)(options, " ".join(words), patch)
        assert call_command(options, parse_overrides(rest)) == 0


def train_small(options: argparse.Namespace, words: str, patch: pytest.MonkeyPatch) -> None:
    def resolve(loaded: Loaded, **_: object) -> None:
        if not any(word in words for word in NOT_HERE):
            validate_run(loaded.settings)
        resolve_total_steps(loaded.settings)
        raise Resolved

    if options.recipe not in SMALL_RECIPES or any(word in words for word in NEED_OTHERS):
        patch.setattr("turnwise.run.api.train_loaded", resolve)


def eval_small(options: argparse.Namespace, words: str, patch: pytest.MonkeyPatch) -> None:
    def resolve(target: str, overrides: Sequence[str], _: object, *, recipe: Any, split: str) -> None:
        find_policy(target, overrides, recipe=recipe)
        raise Resolved

    options.episodes = 2
    if options.target.startswith(ELSEWHERE):
        patch.setattr("turnwise.run.evaluation.evaluate_policy", resolve)


def play_small(options: argparse.Namespace, words: str, patch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object) -> None:
        raise Resolved

    def end_of_input(*_: object) -> str:
        raise EOFError

    patch.setattr("rich.console.Console.input", end_of_input)
    if options.agent.startswith(ELSEWHERE):
        patch.setattr("turnwise.run.play._play_policy", resolve)


def lab_small(options: argparse.Namespace, words: str, patch: pytest.MonkeyPatch) -> None:
    if options.experiment == "credit":
        options.batches = 1
    else:
        options.explorers, options.learners = "1", "1"


def export_small(options: argparse.Namespace, words: str, patch: pytest.MonkeyPatch) -> None:
    options.dir = f"{options.dir}-{options.step}"
    patch.setattr("turnwise.run.export_model._upload", lambda *_: None)


def pretend_cluster(options: argparse.Namespace, words: str, patch: pytest.MonkeyPatch) -> None:
    settings = load_settings("frozenlake", ["cluster.type=ray"])
    patch.setattr("turnwise.config.load.load_settings", lambda _: settings)


IN_SMALL: dict[str, Callable[[argparse.Namespace, str, pytest.MonkeyPatch], None]] = {
    "train": train_small,
    "eval": eval_small,
    "play": play_small,
    "lab": lab_small,
    "export-model": export_small,
    "explorers": pretend_cluster,
    "view": lambda _options, _words, patch: patch.setattr("turnwise.view.server.ViewServer.run", lambda _: None),
}
"""What a command is spared here."""


# --- programs of the house and of others ------------------------------------------------------------------------------


def check_make(words: Sequence[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {word for word in words if not word.startswith("-")} <= targets


def check_module(words: Sequence[str]) -> None:
    """`python -m package.module --option …`: the module is there, and knows the option."""
    assert words[0] == "-m"
    (source,) = (file for file in [ROOT / f"{words[1].replace('.', '/')}.py"] if file.is_file())
    options = {word for word in words[2:] if word.startswith("--")}
    assert {option for option in options if f'"{option}"' not in source.read_text()} == set()


def check_pip(words: Sequence[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    wanted = [word for word in words[1:] if not word.startswith(("-", ".")) and not word.endswith(".txt")]
    for name, extras in (re.fullmatch(r"([\w-]+)(?:==[\d.]+)?(?:\[([\w,-]+)\])?", word).groups() for word in wanted):  # type: ignore[union-attr]
        if name == "turnwise":
            assert set(extras.split(",")) <= set(project["optional-dependencies"])
        else:
            assert name in pinned


def check_paths(words: Sequence[str]) -> None:
    paths = [word for word in words if "/" in word]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists() and not path.startswith(".venv")] == []


CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "make": check_make,
    "python": check_module,
    "pip": check_pip,
    "sh": check_paths,
    "pytest": check_paths,
}
