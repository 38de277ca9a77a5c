"""Files of prompts, puzzles, problems, products and games: a world that begins, or a clear error."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.envs.shops import ABOUT, CHAIR, LAMP
from turnwise.envs.base import make_env
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import TurnwiseError

from .damage import damaged

PROMPTS = [{"prompt": f"Question {n}?", "response": str(n)} for n in range(6)]
PROBLEMS = [{"query": f"What is {n} + 1?", "response": f"The answer is: {n + 1}"} for n in range(6)]
PUZZLES = [{"nums": [1, 2, n], "target": 3 + n} for n in range(1, 7)]
GAME = json.dumps(
    {
        "pddl_domain": "(define (domain alfred) (:requirements :typing) (:types agent location receptacle object))",
        "pddl_problem": "(define (problem plan_0) (:domain alfred) (:objects agent1 - agent Apple_1 - object loc_1 - "
        "location Desk_1 - receptacle) (:init (receptacleType Desk_1 DeskType) (objectType Apple_1 AppleType) "
        "(inReceptacle Apple_1 Desk_1) (receptacleAtLocation Desk_1 loc_1) (atLocation agent1 loc_1)) "
        "(:goal (and (exists (?r - receptacle) (exists (?o - object) (inReceptacle ?o ?r))))))",
        "grammar": "grammar :: { 'task': [{'rhs': 'put an apple in desk'}] }",
        "solvable": True,
        "walkthrough": ["go to desk 1"],
    }
)


def lines(rows: list[dict[str, object]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


FILES: dict[str, tuple[str, str, bytes]] = {
    "prompts.json": ("prompts", "path", json.dumps(PROMPTS).encode()),
    "prompts.jsonl": ("prompts", "path", lines(PROMPTS)),  # type: ignore[arg-type]
    "prompts.csv": ("prompts", "path", b"prompt,response\nOne?,1\nTwo?,2\n\"Three, four?\",3\nFive?,5\n"),
    "prompts.txt": ("prompts", "path", b"One?\nTwo?\nThree?\nFour?\nFive?\n"),
    "problems.json": ("metamathqa", "path", json.dumps(PROBLEMS).encode()),
    "puzzles.jsonl": ("countdown", "path", lines(PUZZLES)),  # type: ignore[arg-type]
    "products.jsonl": ("webshop", "products", lines([LAMP | ABOUT["B000000001"], CHAIR | ABOUT["B000000002"]])),  # type: ignore[operator]
    "game.tw-pddl": ("alfworld", "game_file", GAME.encode()),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize("name", FILES)
@given(st.data())
def test_damaged_files(folder: Path, name: str, data: st.DataObject) -> None:
    env_name, key, whole = FILES[name]
    file = folder / name
    file.write_bytes(data.draw(damaged(whole)))
    with suppress(TurnwiseError):
        env = make_env(env_name, **{key: str(file)})
        for split in ("train", "eval"):
            with suppress(TurnwiseError):
                reset_env(env, 0, split=split)
                step_env(env, data.draw(st.text(max_size=20)))
