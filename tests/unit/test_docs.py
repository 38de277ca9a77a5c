"""The documentation says what is there: generated pages are fresh, named files and names exist, examples run."""

from __future__ import annotations

import asyncio
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import turnwise
from tests.small_run import SMALL_LAKE, without_plots
from turnwise.config.load import load_settings
from turnwise.loop.build import open_rollout
from turnwise.loop.evaluate import evaluate_policy
from turnwise.loop.policies import resolve_model
from turnwise.report.trajectories import encode_trajectory
from turnwise.types import Trajectory

ROOT = Path(__file__).resolve().parents[2]
DOCS, PACKAGE = ROOT / "docs", ROOT / "src" / "turnwise"
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def pages() -> Iterator[tuple[Path, str]]:
    """Every page for people, and its text."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]:
        yield page, page.read_text(encoding="utf-8")


# --- what pages name -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "generate_configuration.py",
        "generate_coming_from.py",
        "generate_scaling.py",
        "generate_commands.py",
    ],
)
def test_a_generated_page_is_fresh(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / script), "--check"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_every_setting_has_a_type_and_a_meaning() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    rows = [re.split(r" (?<!\\)\| ", line[2:-1]) for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 200
    assert not [name for name, *_, meaning in rows if not meaning.strip()]
    assert not [name for name, kind, *_ in rows if re.match("list of 2: .*section", kind)]
    assert {"`type: truncated` or `type: masked`"} <= set(re.findall(r"## `learn.correction` with (.* or .*)", page))


def missing_modules(page: Path, text: str) -> list[str]:
    """Modules that a page names and that are nowhere where a reader would look for them."""
    of_the_reader = set(re.findall(r"^(?:# |`)([\w.]+)`?:?$", text, flags=re.MULTILINE))
    named = set(re.findall(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.py)\b", text)) - of_the_reader
    # A bare name may lie deeper: the page has said in which folder.
    deep = PACKAGE / page.stem if page.parent.name == "packages" else PACKAGE
    return sorted(
        name
        for name in named
        if not any((place / name).is_file() for place in (ROOT, PACKAGE, DOCS))
        and ("/" in name or not any(deep.rglob(name)))
    )


def test_every_module_that_a_page_names_exists() -> None:
    assert {page.name: missing for page, text in pages() if (missing := missing_modules(page, text))} == {}


def missing_tests(text: str) -> list[str]:
    """Tests that a page names, as `FILE::NAME` or, in the same line, as `::NAME`, and that are not in their file."""
    missing = []
    for line in text.splitlines():
        file = ""
        for found in re.finditer(r"`((?:[\w-]+/)*[\w-]+\.py)?::(\w+)`", line):
            file = found[1] or file
            if f"def {found[2]}(" not in (ROOT / file).read_text(encoding="utf-8"):
                missing.append(f"{file}::{found[2]}")
    return missing


def test_every_test_that_a_page_names_exists() -> None:
    assert {page.name: missing for page, text in pages() if (missing := missing_tests(text))} == {}
    assert missing_tests("`tests/unit/test_docs.py::missing_tests`, `::no_such_test`") == [
        "tests/unit/test_docs.py::no_such_test"
    ]


def test_every_link_of_a_page_leads_somewhere() -> None:
    broken = [
        f"{page.name}: {link}"
        for page, text in pages()
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCED.sub("", text))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []


def test_every_name_of_the_package_that_a_page_uses_exists() -> None:
    dotted = re.compile(r"\bturnwise((?:\.\w+)+)|`(?=protocols\.|types\.)([a-z]+\.[A-Z]\w+)")
    used = {f"turnwise.{(found[1] or found[2]).strip('.')}" for _, text in pages() for found in dotted.finditer(text)}
    assert len(used) > 10
    assert [name for name in sorted(used) if not _is_known(name)] == []


def _is_known(name: str) -> bool:
    """Whether a module of the package has it, at whatever depth."""
    found, *rest = [turnwise, *name.split(".")[1:]]
    for number, part in enumerate(rest):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(["turnwise", *rest[: number + 1]]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def test_every_package_has_a_page_and_a_line_on_the_architecture_page() -> None:
    packages = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}
    architecture = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert {page.stem for page in (DOCS / "development" / "packages").glob("*.md")} == packages
    assert {package for package in packages if f"| [`{package}/`]" not in architecture} == set()


# --- what pages promise ----------------------------------------------------------------------------------------------


def example(page: str, *, holding: str, language: str = "python") -> str:
    """The block of a page with these words in it."""
    blocks = FENCED.findall((DOCS / page).read_text(encoding="utf-8"))
    (found,) = (text for kind, text in blocks if kind == language and holding in text)
    return found


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's own, whose modules can be named in settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def play(workflow: str, *overrides: str) -> list[Trajectory]:
    """Held-out lakes, played with replies that come from a script."""
    replies = '["Right</answer>", "Down</answer>", "no idea"]'
    scripted = ["engine.type=scripted", f"engine.replies={replies}", "eval.episodes=40", "rollout.max_turns=8"]
    settings = load_settings("frozenlake", [*SMALL_LAKE, *scripted, f"rollout.workflow={workflow}", *overrides])
    return list(asyncio.run(evaluate_policy(open_rollout(settings, resolve_model(settings)))).trajectories)


@pytest.mark.parametrize("window", ["full", "single_turn"])
def test_the_first_workflow_of_the_page_plays_as_the_built_in_one(beside: Path, window: str) -> None:
    (beside / "play_environment.py").write_text(example("custom_workflow.md", holding="class PlayEnvironment"))
    given = (f"context.window={window}", "context.max_tokens=512", "rollout.invalid_penalty=-0.1")
    ours, theirs = play("environment", *given), play("play_environment:PlayEnvironment", *given)
    assert {t.is_success for t in ours} == {True, False}
    assert {len(t.segments) == 1 for t in ours if len(t.turns) > 1} == {window == "full"}
    # What stands behind the last action is all that the short version leaves out.
    told = [{**encode_trajectory(t), "final_observation": ""} for t in (*ours, *theirs)]
    assert told[: len(ours)] == told[len(ours) :]


def test_the_workflow_of_two_methods_trains(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    (beside / "my_agent.py").write_text(example("custom_workflow.md", holding="class LakeWorkflow"))
    command = example("custom_workflow.md", holding="LakeWorkflow", language="bash").split()
    assert command[:3] == ["turnwise", "train", "agent_class"]
    run = turnwise.train("agent_class", [*SMALL_LAKE, *command[3:]], run_dir=beside / "run")
    assert run.metrics()[-1]["rollout/errors"] == 0
    assert run.summary.tokens_trained > 0


def test_the_environment_of_the_page_keeps_the_contract_and_its_settings_are_taken(beside: Path) -> None:
    (beside / "guess_number.py").write_text(example("custom_environment.md", holding="class GuessNumber"))
    report = turnwise.check_env("guess_number:GuessNumber")
    assert report.ok, report.failures
    given = yaml.safe_load(example("custom_environment.md", holding="guess_number:GuessNumber", language="yaml"))
    assert load_settings(given).env.type == "guess_number:GuessNumber"


def test_the_callback_of_the_page_listens(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    (beside / "my_callbacks.py").write_text(example("callbacks.md", holding="class LongEpisodes"))
    words = [*SMALL_LAKE, "eval.episodes=0", "report.callbacks=[my_callbacks:LongEpisodes]"]
    run = turnwise.train("frozenlake", words, run_dir=beside / "run")
    assert all("mine/long_episodes" in row for row in run.metrics() if row["step"] > 0)


# --- the site ---------------------------------------------------------------------------------------------------------


def test_every_page_has_a_place_in_the_site() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = re.findall(r"'([\w/.-]+(?:\.md|/))'", repr(nav))
    assert len(listed) == len(set(listed))
    there = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if not page.name.endswith(".in.md")]
    assert [page for page in there if page not in listed and f"{Path(page).parent}/" not in listed] == []
    assert [name for name in listed if not (DOCS / name).exists()] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    pytest.importorskip("material", reason="the extra 'docs' is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra 'docs' is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]


# --- the Chinese edition ----------------------------------------------------------------------------------------------


def outline(page: str) -> dict[str, list[str]]:
    """What both editions of the README must have in common."""
    text = (ROOT / page).read_text(encoding="utf-8")
    plain = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {
        "levels of headings": re.findall(r"^(#+) ", plain, flags=re.MULTILINE),
        "code blocks": [block for _, block in FENCED.findall(text)],
        "commands": re.findall(r"`(turnwise [^`]+|make [^`]+)`", plain),
        "rows of tables": re.findall(r"^\| (`[^|]+`) \|", plain.replace("\\|", "/"), flags=re.MULTILINE),
        "links": sorted(set(re.findall(r"\]\(([^)\s]+)\)", plain)) - {"README.md", "README.zh.md"}),
    }


@pytest.mark.parametrize("what", ["levels of headings", "code blocks", "commands", "rows of tables", "links"])
def test_the_chinese_edition_says_the_same(what: str) -> None:
    assert outline("README.zh.md")[what] == outline("README.md")[what]
