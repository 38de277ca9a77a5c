"""Files that are damaged, nested or hostile, given to every command that reads them: an answer, or an error in words.

Commands, and the arguments through which they read files, come from the parser; the files are all that a run, a model
folder and a config consist of. `python -m tests.fuzz.hostile_files` tries more of the same.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ..command_lines import COMMANDS, Way, ways_to_read
from .hostile_files import (
    LEVELS,
    WHOLE,
    Case,
    Ended,
    Target,
    Wound,
    draw_cases,
    list_deep,
    list_ways,
    run_case,
    write_targets,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("damaged_files")]

READING = [command for command in COMMANDS if any(ways_to_read(command))]
PER_PAIR = 1
"""Damages that are tried for each command and target."""
FOUND = [
    *(("serve", "model", "config.json", damage) for damage in ("empty", "list", "binary", "number", "not UTF-8")),
    ("serve", "model", "config.json", "JSON lists without an end"),
    *(("status", "parts", "metrics.jsonl", damage) for damage in ("mappings for numbers", "a folder")),
    ("status", "store", "summary.json", "lists for mappings"),
    ("status", "store", "checkpoints/step-000002/progress.json", "lists for mappings"),
    *(("report", "parts", "explorer.jsonl", damage) for damage in ("numbers that are none", "mappings for numbers")),
    ("report", "parts", "metrics.jsonl", "numbers that are none"),
    ("report", "parts", "findings.jsonl", "numbers that are none"),
    ("report", "parts", "summary.json", "numbers that are none"),
    ("report", "store", "roles/explorer.lock", "numbers that are none"),
    ("view", "store", "trajectories/step-000001.jsonl", "lists for mappings"),
    *(("train", "memory", "checkpoints/step-000002/buffer.bin", damage) for damage in ("number", "list", "empty")),
    ("train", "store", "metrics.jsonl", "mappings for numbers"),
    ("train", "memory", "roles/trainer.lock", "a link to itself"),
    ("train", "parts", "roles/explorer.json", "half a character"),
    ("train", "parts", "roles/explorer.json", "mappings for numbers"),
    ("compare", "parts", "evals/step-000001/eval.json", "lists for numbers"),
    ("play", "model", "chat_template.jinja", "binary"),
    ("eval", "model", "model.safetensors", "a path outside"),
]  # fmt: skip
"""What once ended with a traceback: command, target, file and damage."""


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    return write_targets(tmp_path_factory.mktemp("hostile") / "sound")


@pytest.fixture(scope="module")
def pairs(targets: list[Target]) -> list[tuple[Way, Target]]:
    return list_ways(targets)


def require_words(case: Case, place: Path) -> Ended:
    ended = run_case(case, place)
    assert not ended.fault, f"{case}: {ended.fault}\n{ended.text}"
    return ended


@pytest.mark.parametrize("command", READING)
def test_a_command_reads_what_is_sound(command: str, pairs: list[tuple[Way, Target]], tmp_path: Path) -> None:
    """Otherwise it would not come to what is damaged."""
    own = [(way, target) for way, target in pairs if way.command == command]
    codes = [require_words(Case(way, target, None), tmp_path / str(n)).code for n, (way, target) in enumerate(own)]
    # Explorers are those of a cluster.
    assert 0 in codes or command == "explorers"


@pytest.mark.parametrize("command", READING)
def test_a_damaged_file_is_answered_in_words(command: str, pairs: list[tuple[Way, Target]], tmp_path: Path) -> None:
    own = [(way, target) for way, target in pairs if way.command == command]
    for number, case in enumerate(draw_cases(own, PER_PAIR * len(own), random.Random(command))):
        require_words(case, tmp_path / str(number))


@pytest.mark.parametrize("command", READING)
def test_a_deeply_nested_file_is_answered_in_words(
    command: str, pairs: list[tuple[Way, Target]], tmp_path: Path
) -> None:
    rng = random.Random(command)
    own = [(way, target) for way, target in pairs if way.command == command]
    for number, (way, target) in enumerate(own):
        case = rng.choice(list(list_deep([(way, target)])))
        ended = require_words(case, tmp_path / str(number))
        if target.name in ("yaml", "json", "foreign"):
            # The file is all that the command has to go by.
            assert ended.code == 2, (str(case), ended.text)


@pytest.mark.parametrize(("command", "name", "file", "damage"), FOUND)
def test_what_was_found_is_answered_in_words(
    command: str, name: str, file: str, damage: str, pairs: list[tuple[Way, Target]], tmp_path: Path
) -> None:
    levels = 0 if damage in WHOLE else LEVELS[1]
    wound = Wound(file, damage, levels=levels, is_signed=True)
    own = [(way, target) for way, target in pairs if way.command == command and target.name == name]
    assert own
    for number, (way, target) in enumerate(own):
        require_words(Case(way, target, wound), tmp_path / str(number))
