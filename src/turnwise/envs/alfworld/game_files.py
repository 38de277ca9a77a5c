"""Reads ALFWorld game files and their PDDL: one file, a folder, or a list with paths and splits.

Files are read once per process and state. Errors name the file, the place and the setting to change.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from turnwise.envs.alfworld.game import Goal, Household, Receptacle, TaskType, Thing, name_ids
from turnwise.errors import TaskError
from turnwise.infra.parsing import parse_json

_COMMENT = re.compile(r";[^\n]*")
_FACT = re.compile(r"\(([a-z]+)\s+([^()]+)\)")
_TASK = re.compile(r'"Your task is to: ([^"]*)"')
_HELP = re.compile(r'action help \{[^}]*?feedback :: "\s*([^"#]+)"')
_WORD = re.compile(r"\(\s*([a-z]+|=)")
_GOAL_TYPE = re.compile(r"\((objecttype|receptacletype)\s+\S+\s+(\S+?)type\s*\)")

_DOMAIN = 0x53FFE051
"""The checksum of the domain of release json_2.1.1, without comments and white space."""
_MOVE = 'template :: "move {o} to {r}"'
"""How this release lets an object be put down; earlier ones had another command."""

_PROPERTIES = frozenset(
    ("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable", "isreceptacleobject", "iscool")
)
_RELATIONS = frozenset(
    (
        "atlocation",
        "receptacletype",
        "receptacleatlocation",
        "openable",
        "objecttype",
        "objectatlocation",
        "inreceptacle",
        "inreceptacleobject",
        "cancontain",
    )
)
_PLACED = frozenset(("inreceptacle", "objecttype", "receptacletype"))
_GOALS: dict[frozenset[str], TaskType] = {
    _PLACED: "pick_and_place_simple",
    _PLACED | {"not", "="}: "pick_two_obj_and_place",
    _PLACED | {"cleanable", "isclean"}: "pick_clean_then_place_in_recep",
    _PLACED | {"heatable", "ishot"}: "pick_heat_then_place_in_recep",
    _PLACED | {"coolable", "iscool"}: "pick_cool_then_place_in_recep",
    frozenset(
        ("atlocation", "holds", "inreceptacle", "istoggled", "objecttype", "receptacleatlocation", "toggleable")
    ): "look_at_obj_in_light",
}
"""A goal is known by the words it is made of."""

_Facts = dict[str, list[tuple[str, ...]]]


def read_household(text: str, source: str) -> Household:
    """The household of a game file; `source` says in messages which file it is."""
    data = _read_parts(text, source)
    _check_rules(data, source)
    task, help_text = _TASK.search(data["grammar"]), _HELP.search(data["grammar"])
    problem = _COMMENT.sub("", data["pddl_problem"]).lower()
    _, has_init, rest = problem.partition("(:init")
    init, has_goal, goal = rest.partition("(:goal")
    if task is None or not has_init or not has_goal:
        raise TaskError(f"{source}: the grammar names no task, or the problem lacks (:init or (:goal. {_ADVICE}")
    facts = _read_facts(init, source)
    try:
        return _build(facts, _read_goal(goal, source), task[1], help_text[1] if help_text else "")
    except (KeyError, IndexError, ValueError) as error:
        raise TaskError(f"{source}: the facts of the problem contradict each other at {error}. {_ADVICE}") from error


_ADVICE = "Give a game.tw-pddl of ALFWorld's release json_2.1.1."


def _read_parts(text: str, source: str) -> dict[str, str]:
    try:
        data = parse_json(text)
    except ValueError as error:
        raise TaskError(f"{source}: found text that is not JSON; expected a game file. {_ADVICE}") from error
    keys = ("pddl_domain", "pddl_problem", "grammar")
    if not isinstance(data, dict) or not all(isinstance(data.get(key), str) for key in keys):
        raise TaskError(f"{source}: expected a JSON object with texts under {', '.join(keys)}. {_ADVICE}")
    return data


def _check_rules(data: dict[str, str], source: str) -> None:
    domain = "".join(_COMMENT.sub("", data["pddl_domain"]).lower().split())
    if crc32(domain.encode()) != _DOMAIN:
        raise TaskError(f"{source}: its pddl_domain has other rules than the ones that are known here. {_ADVICE}")
    if _MOVE not in data["grammar"]:
        raise TaskError(f"{source}: its grammar has other commands than the ones that are known here. {_ADVICE}")


def _read_facts(init: str, source: str) -> _Facts:
    facts: _Facts = defaultdict(list)
    for predicate, arguments in _FACT.findall(init):
        if predicate not in _PROPERTIES and predicate not in _RELATIONS:
            raise TaskError(f"{source}: no known game begins with the fact '({predicate} {arguments})'. {_ADVICE}")
        facts[predicate].append(tuple(arguments.split()))
    return facts


def _read_goal(text: str, source: str) -> Goal:
    words = frozenset(_WORD.findall(text)) - {"exists", "and"}
    types = dict(_GOAL_TYPE.findall(text))
    kind = _GOALS.get(words)
    if kind is None or not types:
        raise TaskError(f"{source}: its goal is none of the six task types. {_ADVICE}")
    if kind == "look_at_obj_in_light":
        lamp, thing = (match[1] for match in _GOAL_TYPE.findall(text))
        return Goal(kind, thing, lamp)
    return Goal(kind, types["objecttype"], types["receptacletype"])


def _build(facts: _Facts, goal: Goal, task: str, help_text: str) -> Household:
    thing_ids = {fact[0] for predicate in (*_PROPERTIES, "objecttype", "objectatlocation") for fact in facts[predicate]}
    names = name_ids([*(fact[0] for fact in facts["receptacletype"]), *thing_ids])
    locations = {receptacle: (place,) for receptacle, place in facts["receptacleatlocation"]}
    openable = {receptacle for (receptacle,) in facts["openable"]}
    types = {receptacle: type_.removesuffix("type") for receptacle, type_ in facts["receptacletype"]}
    receptacles = {
        names[id_]: Receptacle(types[id_], locations[id_][0], id_ in openable) for id_ in names if id_ in types
    }
    nested: dict[str, list[str]] = defaultdict(list)
    for inner, outer in sorted(facts["inreceptacleobject"]):
        nested[names[outer]].append(names[inner])
    ((_, start),) = facts["atlocation"]
    return Household(
        receptacles=receptacles,
        objects=_build_things(facts, names, thing_ids),
        nested={outer: tuple(inner) for outer, inner in nested.items()},
        can_contain=_build_containment(facts),
        start=start,
        goal=goal,
        task=task,
        help=help_text,
    )


def _build_things(facts: _Facts, names: dict[str, str], thing_ids: set[str]) -> dict[str, Thing]:
    types = {thing: type_.removesuffix("type") for thing, type_ in facts["objecttype"]}
    properties, receptacles, places = defaultdict(set), defaultdict(list), defaultdict(list)
    for predicate in _PROPERTIES:
        for (thing,) in facts[predicate]:
            properties[thing].add(predicate)
    for thing, receptacle in facts["inreceptacle"]:
        receptacles[thing].append(names[receptacle])
    for thing, place in facts["objectatlocation"]:
        places[thing].append(place)
    return {
        names[id_]: Thing(
            type=types.get(id_, ""),
            properties=frozenset(properties[id_] - {"iscool"}),
            receptacles=tuple(receptacles[id_]),
            locations=tuple(places[id_]),
            is_cool="iscool" in properties[id_],
        )
        for id_ in names
        if id_ in thing_ids
    }


def _build_containment(facts: _Facts) -> dict[str, frozenset[str]]:
    table: dict[str, set[str]] = defaultdict(set)
    for receptacle_type, object_type in facts["cancontain"]:
        table[receptacle_type.removesuffix("type")].add(object_type.removesuffix("type"))
    return {receptacle_type: frozenset(types) for receptacle_type, types in table.items()}


_FOLDERS = {"train": "train", "valid_train": "train", "valid_seen": "seen", "valid_unseen": "unseen"}
"""The original's names of splits, which are folders in the path of each game."""
_SPLITS = ("train", "seen", "unseen")


class _Row(NamedTuple):
    path: Path
    split: str | None


def find_data(path: str | Path, folder: Path | None = None) -> Path:
    """Where a path leads, variables filled in; a relative one that is not there is looked for under $ALFWORLD_DATA."""
    given = Path(os.path.expandvars(Path(path).expanduser()))
    here, data = (folder or Path()) / given, os.environ.get("ALFWORLD_DATA")
    if data and not given.is_absolute() and not here.exists() and (there := Path(data).expanduser() / given).exists():
        here = there
    return here.absolute()


def load_game(path: str | Path) -> Household:
    """The household of a game file; the same file in the same state is read once per process."""
    file = find_data(path)
    try:
        return _load_once(file, file.stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise TaskError(
            f"env.game_file: '{path}' cannot be read: {reason}. Give a game.tw-pddl, as alfworld-download brings them."
        ) from error


@lru_cache(maxsize=512)
def _load_once(file: Path, _mtime_ns: int) -> Household:
    return read_household(file.read_text(encoding="utf-8"), str(file))


def list_games(source: str, eval_share: float) -> Mapping[str, tuple[Path, ...]]:
    """The game files of each split, in their order; a game is in one split only."""
    path = find_data(source)
    rows = _rows_of_folder(path) if path.is_dir() else _rows_of_list(path)
    splits: dict[str, dict[Path, None]] = {split: {} for split in _SPLITS}
    for row in rows:
        splits[row.split or _split_of(row.path, eval_share)][row.path] = None
    return {split: tuple(paths) for split, paths in splits.items()}


def _rows_of_folder(folder: Path) -> list[_Row]:
    rows = [_Row(path, None) for path in sorted(folder.rglob("*.tw-pddl"))]
    if not rows:
        raise TaskError(f"env.games: there is no *.tw-pddl in the folder '{folder}'. Give a folder with game files.")
    return rows


def _rows_of_list(path: Path) -> list[_Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TaskError(
            f"env.games: '{path}' cannot be read: {reason}. Give a folder, or a list with one game file per line."
        ) from error
    rows = [_read_row(line, path.parent, f"{path}, line {number}") for number, line in _lines(text)]
    if not rows:
        raise TaskError(f"env.games: '{path}' lists no game. Give one game file per line.")
    return rows


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _read_row(line: str, folder: Path, place: str) -> _Row:
    """A path, or an object with one; paths are relative to the list."""
    if not line.startswith(("{", '"')):
        return _Row(find_data(line, folder), None)
    try:
        row = parse_json(line)
    except ValueError as error:
        raise TaskError(
            f"{place}: found {reprlib.repr(line)}, which is not valid JSON; expected a path, or an object with "
            "'game_file'. Mend the line, or set env.games to another list."
        ) from error
    fields = {"game_file": row} if isinstance(row, str) else row
    game_file, split = fields.get("game_file"), fields.get("split")
    if not isinstance(game_file, str) or not game_file.strip():
        raise TaskError(
            f"{place}: found an object with {sorted(fields) or 'no keys'}; expected the path of a game under "
            "'game_file'. Mend the line, or set env.games to another list."
        )
    if split is not None and split not in _SPLITS:
        raise TaskError(
            f"{place}: found the split {reprlib.repr(split)}; expected one of {', '.join(_SPLITS)}, or none."
        )
    return _Row(find_data(game_file, folder), split)


def _split_of(path: Path, eval_share: float) -> str:
    """By the original's folder; elsewhere by the name of the path, so that other rows do not matter."""
    for part in reversed(path.parts):
        if part in _FOLDERS:
            return _FOLDERS[part]
    return "unseen" if crc32(str(path).encode("utf-8", "surrogatepass")) / 2**32 < eval_share else "train"
