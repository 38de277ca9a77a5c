"""Real games and recorded plays for the tests of the household game, from the folder `shared` beside the repository."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnwise.envs.alfworld.game import Goal, Household, Receptacle, Thing, name_ids

SHARED = Path(__file__).parents[3].parent / "shared"
GAMES = SHARED / "data" / "alfworld"
TRACES = SHARED / "golden" / "alfworld_traces.json.gz"

needs_games = pytest.mark.skipif(not GAMES.is_dir(), reason=f"the original's games are not in {GAMES}")
needs_traces = pytest.mark.skipif(
    not TRACES.is_file() or not GAMES.is_dir(), reason=f"there are no recorded plays in {SHARED}"
)
STRIDE = 1 if os.environ.get("TURNWISE_EVERY_GAME") else 25
"""Of the packed games, every so many are played; all of them take a minute."""


def unpack_games(folder: Path) -> Path:
    """The untouched game files, below the folder."""
    for archive in ("sample_games_raw.tar.xz", "more_games_raw.tar.xz"):
        # Not `tarfile`: its `filter` came with Python 3.11.4.
        shutil.unpack_archive(GAMES / archive, folder)
    return folder


def packed_games() -> Iterator[tuple[Household, list[str]]]:
    """Households of the packed games with their expert plans."""
    tables = json.loads((GAMES / "can_contain.json").read_text())
    rows = [
        line
        for split in ("train", "valid_seen", "valid_unseen", "valid_train")
        for line in gzip.decompress((GAMES / f"{split}.jsonl.gz").read_bytes()).splitlines()
    ]
    for line in rows[::STRIDE]:
        game = json.loads(line)
        yield _household(game, tables[game["cc"]]), game["walk"]


def _household(game: dict[str, Any], table: dict[str, list[str]]) -> Household:
    furniture = {id_.lower(): facts for id_, facts in game["rec"].items()}
    things = {id_.lower(): facts for id_, facts in game["obj"].items()}
    names = name_ids([*furniture, *things])
    types = [type_.lower() for type_ in game["goal"]]
    if game["type"] == "look_at_obj_in_light":
        types.reverse()
    return Household(
        receptacles={
            names[id_]: Receptacle(
                furniture[id_]["t"].lower(), furniture[id_]["l"][0].lower(), "openable" in furniture[id_].get("f", ())
            )
            for id_ in names
            if id_ in furniture
        },
        objects={names[id_]: _thing(things[id_], names) for id_ in names if id_ in things},
        nested={},
        can_contain={kind.lower(): frozenset(map(str.lower, types)) for kind, types in table.items()},
        start=game["agent"].lower(),
        goal=Goal(game["type"], types[0], types[1]),
        task=game["task"],
        help="",
    )


def _thing(facts: dict[str, Any], names: dict[str, str]) -> Thing:
    properties = {name.lower() for name in facts.get("f", ())}
    return Thing(
        type=facts.get("t", "").lower(),
        properties=frozenset(properties - {"iscool"}),
        receptacles=tuple(names[id_.lower()] for id_ in facts.get("in", ())),
        locations=tuple(place.lower() for place in facts.get("l", ())),
        is_cool="iscool" in properties,
    )
