"""The original's game files, `game.tw-pddl`: a JSON object with a PDDL domain, a PDDL problem and a text grammar.

In comes the text of a file; out comes a `Household`. The rules and texts of the one release that all game files share
are built into `game.py`, so it refuses files with other rules instead of playing them wrongly.
"""

from __future__ import annotations

import re
from collections import defaultdict
from zlib import crc32

from turnwise.envs.alfworld.household import Goal, Household, Receptacle, TaskType, Thing, name_ids
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
