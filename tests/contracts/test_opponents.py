"""The contract of an opponent: equal seeds and texts give equal moves, and an episode begins anew."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from turnwise.config.component import OPPONENTS
from turnwise.envs.adapters.textarena_env import TextArenaParams
from turnwise.protocols import Opponent
from turnwise.rollout_io import EnvDescription

from .setting import model_path

every_opponent = pytest.mark.parametrize("name", OPPONENTS)
OFFERED = ("[0]", "[1]", "[2]", "[3]", "[4]", "[5]")
ABOUT = EnvDescription(instructions="Choose a cell.", action_names=OFFERED)


def open_named(name: str, folder: Path) -> Opponent:
    for member in ("one", "two") if name == "league" else ():
        shutil.copytree(model_path(), folder / member, dirs_exist_ok=True)
    params = {
        "policy": {"opponent_path": model_path()},
        "league": {"opponent_path": str(folder)},
        "scripted": {"opponent_moves": ["[4]", "[2]", "[5]"]},
    }
    target: Any = OPPONENTS.get_target(name)
    return target(TextArenaParams(opponent=name, **params.get(name, {})), "frozen_lake")


def moves(opponent: Opponent, seed: int, *, reseeded: int | None = None) -> list[str]:
    """Three moves of an episode; with another seed for the chances after the first."""
    opponent.begin(ABOUT, seed)
    made = [opponent.choose_move("the board is empty", OFFERED)]
    if reseeded is not None:
        opponent.reseed(reseeded)
    return made + [opponent.choose_move(f"the board after {turn}", OFFERED) for turn in (1, 2)]


@every_opponent
def test_equal_seeds_and_texts_give_equal_moves(name: str, tmp_path: Path) -> None:
    one, other = open_named(name, tmp_path), open_named(name, tmp_path)
    expected = moves(one, 3)
    assert all(isinstance(move, str) for move in expected)
    moves(other, 9)
    assert moves(other, 3) == expected
    assert moves(one, 3) == expected


@every_opponent
def test_a_new_seed_decides_what_comes_and_not_what_was(name: str, tmp_path: Path) -> None:
    opponent = open_named(name, tmp_path)
    changed = moves(opponent, 3, reseeded=7)
    assert changed[0] == moves(opponent, 3)[0]
    assert moves(opponent, 3, reseeded=7) == changed
