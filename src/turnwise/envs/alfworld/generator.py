"""Settings of ALFWorld and generated households, which depend on settings, seed and split alone.

Rooms are held out as a whole: no room of the split `unseen` occurs in `train` or `seen`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple
from zlib import crc32

from pydantic import Field, model_validator

from turnwise.config.settings import Settings, WholeSettings
from turnwise.envs.alfworld.game import TASK_TYPES, TREATMENTS, Goal, Household, Receptacle, TaskType, Thing, name_ids
from turnwise.errors import TaskError
from turnwise.infra.seeds import make_rng

_FRUIT = ("apple", "egg", "potato", "tomato")
_FOOD = (*_FRUIT, "bread", "lettuce")
_DISHES = ("bowl", "cup", "mug", "plate")
_PANS = ("pan", "pot")
_CUTLERY = ("butterknife", "fork", "knife", "spatula", "spoon")
_SHAKERS = ("peppershaker", "saltshaker")
_TOILETRIES = ("candle", "cloth", "soapbar", "soapbottle", "spraybottle", "toiletpaper")
_SMALL = ("cellphone", "creditcard", "keychain")
_DESKTOP = ("alarmclock", "book", "cd", "laptop", "pen", "pencil", *_SMALL)
_LEISURE = ("box", "laptop", "newspaper", "remotecontrol", "statue", "tissuebox", "vase", "watch", *_SMALL)

OPENABLE = frozenset(("cabinet", "drawer", "fridge", "microwave", "safe"))
LAMP = "desklamp"
LAMP_STANDS = frozenset(("desk", "dresser", "shelf", "sidetable"))
"""Where lamps stand. They cannot be carried, so nothing else takes them."""

PROPERTIES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys((*_DESKTOP, *_LEISURE, *_TOILETRIES, *_SHAKERS, "pillow"), frozenset(("pickupable",))),
    **dict.fromkeys((*_CUTLERY, "cloth", "soapbar", "dishsponge"), frozenset(("pickupable", "cleanable"))),
    **dict.fromkeys(_FRUIT, frozenset(("pickupable", "cleanable", "heatable", "coolable", "sliceable"))),
    **dict.fromkeys(_DISHES, frozenset(("pickupable", "cleanable", "heatable", "coolable", "isreceptacleobject"))),
    **dict.fromkeys((*_PANS, "bowl"), frozenset(("pickupable", "cleanable", "coolable", "isreceptacleobject"))),
    "bread": frozenset(("pickupable", "heatable", "coolable", "sliceable")),
    "lettuce": frozenset(("pickupable", "cleanable", "coolable", "sliceable")),
    "box": frozenset(("pickupable", "isreceptacleobject")),
    LAMP: frozenset(("toggleable",)),
}

CAN_CONTAIN: Mapping[str, frozenset[str]] = {
    "armchair": frozenset((*_SMALL, "box", "laptop", "newspaper", "pillow", "remotecontrol")),
    "bathtubbasin": frozenset(("cloth", "soapbar")),
    "bed": frozenset(("book", "cellphone", "laptop", "pillow")),
    "cabinet": frozenset((*_DISHES, *_PANS, *_SHAKERS, *_TOILETRIES, "dishsponge")),
    "coffeemachine": frozenset(("mug",)),
    "coffeetable": frozenset(_LEISURE),
    "countertop": frozenset((*_FOOD, *_DISHES, *_PANS, *_CUTLERY, *_SHAKERS, *_TOILETRIES, "dishsponge")),
    "desk": frozenset(_DESKTOP),
    "diningtable": frozenset((*_FOOD, *_DISHES, *_PANS, *_CUTLERY, *_SHAKERS, *_LEISURE)),
    "drawer": frozenset(
        (*_CUTLERY, *_SHAKERS, *_TOILETRIES, *_SMALL, "book", "cd", "dishsponge", "pen", "pencil", "remotecontrol")
    ),
    "dresser": frozenset(_DESKTOP),
    "fridge": frozenset((*_FOOD, *_DISHES, *_PANS)),
    "garbagecan": frozenset((*_FRUIT, "bread", "lettuce", "cd", "pen", "pencil", "newspaper", "soapbar", "soapbottle")),
    "microwave": frozenset((*_FRUIT, *_DISHES, "bread")),
    "safe": frozenset((*_SMALL, "cd", "watch")),
    "shelf": frozenset((*_SHAKERS, *_TOILETRIES, *_DESKTOP, "statue", "vase", "watch")) - {"laptop"},
    "sidetable": frozenset((*_DESKTOP, *_LEISURE)),
    "sinkbasin": frozenset((*_FRUIT, *_DISHES, *_PANS, *_CUTLERY, "lettuce", "dishsponge", "cloth", "soapbar")),
    "sofa": frozenset((*_SMALL, "box", "laptop", "newspaper", "pillow", "remotecontrol")),
    "stoveburner": frozenset(_PANS),
    "toilet": frozenset(_TOILETRIES),
}


@dataclass(frozen=True, slots=True)
class Room:
    """A kind of room: how many of each receptacle it has at most, and which objects are found there."""

    receptacles: Mapping[str, int]
    things: tuple[str, ...]


ROOMS: Mapping[str, Room] = {
    "kitchen": Room(
        {
            "cabinet": 5,
            "coffeemachine": 1,
            "countertop": 3,
            "diningtable": 1,
            "drawer": 4,
            "fridge": 1,
            "garbagecan": 1,
            "microwave": 1,
            "shelf": 2,
            "sinkbasin": 1,
            "stoveburner": 2,
        },
        (*_FOOD, *_DISHES, *_PANS, *_CUTLERY, *_SHAKERS, "dishsponge"),
    ),
    "bathroom": Room(
        {
            "bathtubbasin": 1,
            "cabinet": 5,
            "countertop": 2,
            "drawer": 4,
            "garbagecan": 1,
            "shelf": 4,
            "sinkbasin": 2,
            "toilet": 1,
        },
        _TOILETRIES,
    ),
    "bedroom": Room(
        {
            "armchair": 1,
            "bed": 2,
            "desk": 2,
            "drawer": 6,
            "dresser": 1,
            "garbagecan": 1,
            "safe": 1,
            "shelf": 4,
            "sidetable": 2,
        },
        (*_DESKTOP, "pillow"),
    ),
    "livingroom": Room(
        {
            "armchair": 2,
            "coffeetable": 2,
            "diningtable": 1,
            "drawer": 4,
            "garbagecan": 1,
            "safe": 1,
            "shelf": 4,
            "sidetable": 3,
            "sofa": 2,
        },
        (*_LEISURE, "pillow"),
    ),
}
MAX_RECEPTACLES = min(sum(room.receptacles.values()) for room in ROOMS.values())


_ONLY_GENERATED = ("task_types", "num_receptacles", "num_objects")

# Lists are welcome where a tuple is meant, because YAML knows no tuples.
TaskTypes = Annotated[tuple[TaskType, ...], Field(strict=False, min_length=1)]


class AlfWorldParams(Settings):
    """The settings of AlfWorld."""

    game_file: str | None = None
    """One game of the original, a `game.tw-pddl`; every seed and split plays it."""
    games: str | None = None
    """Many games of the original: a folder, or a list of game files, as text with one path per line or as JSON lines
    with `game_file` and, where the path does not tell, `split`. Without this and `game_file`: generated households.
    Relative paths that are not there are looked for under `$ALFWORLD_DATA`."""
    backend: Literal["builtin", "textworld"] = "builtin"
    """Who plays game files: the built-in rules, or TextWorld itself, slowly, with the extra `alfworld` installed."""
    task_types: TaskTypes = TASK_TYPES
    """Which tasks are generated, all equally often."""
    num_receptacles: int = Field(default=8, ge=4, le=MAX_RECEPTACLES)
    """Pieces of furniture in a generated room."""
    num_objects: int = Field(default=10, ge=2, le=40)
    """Objects in a generated room."""
    oracle: Literal["planner", "explorer"] = "planner"
    """Who demonstrates: one who knows where everything is and wins in the fewest commands, or one who searches for what
    the texts have not told yet."""
    eval_share: float = Field(default=0.2, gt=0, lt=1)
    """The share of all generated rooms that is held out (split `unseen`), and of the tasks in the other rooms (split
    `seen`); of listed games without a split, the share that is held out."""

    @model_validator(mode="after")
    def _sources_agree(self) -> AlfWorldParams:
        if self.game_file is not None and self.games is not None:
            raise ValueError("game_file and games are both given; expected one of them.")
        has_games = self.game_file is not None or self.games is not None or "ALFWORLD_DATA" in os.environ
        if self.backend == "textworld" and not has_games:
            raise ValueError(
                "backend 'textworld' plays game files only; give game_file or games, or set ALFWORLD_DATA."
            )
        return self

    @property
    def games_source(self) -> str | None:
        """Where games are: as `games` says, or all of `$ALFWORLD_DATA` for a backend that plays nothing else."""
        needs_games = self.backend == "textworld" and self.game_file is None
        return self.games or ("$ALFWORLD_DATA" if needs_games else None)

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.game_file is not None:
            return self.idle(*_ONLY_GENERATED, "eval_share", why=f"while {path}.game_file is set")
        return {} if self.games is None else self.idle(*_ONLY_GENERATED, why=f"while {path}.games is set")


MAX_DRAWS = 5_000
START = "loc_0"
HELP = """You can say:
look, inventory, help
go to PLACE, open PLACE, close PLACE, examine PLACE
take THING from PLACE, move THING to PLACE, examine THING, use LAMP
clean THING with SINKBASIN, heat THING with MICROWAVE, cool THING with FRIDGE, slice THING with KNIFE
"""
_TASKS: dict[TaskType, tuple[str, str]] = {
    "pick_and_place_simple": ("put a {0} in {1}.", "put some {0} on {1}."),
    "pick_two_obj_and_place": ("put two {0} in {1}.", "find two {0} and put them in {1}."),
    "pick_clean_then_place_in_recep": ("put a clean {0} in {1}.", "clean some {0} and put it in {1}."),
    "pick_heat_then_place_in_recep": ("put a hot {0} in {1}.", "heat some {0} and put it in {1}."),
    "pick_cool_then_place_in_recep": ("put a cool {0} in {1}.", "cool some {0} and put it in {1}."),
    "look_at_obj_in_light": ("look at {0} under the {1}.", "examine the {0} with the {1}."),
}
"""The two ways in which the original says each task."""


class _Placed(NamedTuple):
    """An object type and the place of its receptacle in the room's list."""

    type: str
    place: int


class _Draw(NamedTuple):
    """A household before it has names: the furniture, the objects and the goal."""

    furniture: tuple[str, ...]
    things: tuple[_Placed, ...]
    goal: Goal


def draw_household(params: AlfWorldParams, seed: int, split: str) -> Household:
    """The household of a seed: draws until one can be played and falls into the split."""
    rng = make_rng("household", seed)
    task_type = rng.choice(params.task_types)
    for _ in range(MAX_DRAWS):
        room = ROOMS[rng.choice(_rooms_for(task_type))]
        furniture = _draw_furniture(room, task_type, params.num_receptacles, rng)
        if is_room_held_out(furniture, params.eval_share) != (split == "unseen"):
            continue
        draw = _furnish(room, furniture, task_type, params.num_objects, rng)
        if draw is not None and (split == "unseen" or _split_of(draw, params.eval_share) == split):
            return _build(draw, rng.choice(_TASKS[task_type]))
    raise TaskError(
        f"alfworld: none of {MAX_DRAWS} random households fits the settings task_types={task_type}, "
        f"num_receptacles={params.num_receptacles}, num_objects={params.num_objects}, eval_share={params.eval_share} "
        f"(split {split}, seed {seed}). Loosen one of them."
    )


def is_room_held_out(furniture: Iterable[str], eval_share: float) -> bool:
    """Decided by the furniture alone: whatever lies in it, the same room is on the same side."""
    return _hash_share(sorted(furniture)) < eval_share


def _split_of(draw: _Draw, eval_share: float) -> str:
    return "seen" if _hash_share([*draw.furniture, *map(str, draw.things), str(draw.goal)]) < eval_share else "train"


def _hash_share(words: Sequence[str]) -> float:
    """A number from 0 to 1 that depends on the words alone, in every process."""
    return crc32("/".join(words).encode()) / 2**32


def _rooms_for(task_type: TaskType) -> list[str]:
    """Kinds of rooms that can have what the task needs."""
    needed = _needed_receptacles(task_type)
    return [name for name, room in ROOMS.items() if not needed or needed & room.receptacles.keys()]


def _needed_receptacles(task_type: TaskType) -> frozenset[str]:
    """Types of which one must be there."""
    if task_type == "look_at_obj_in_light":
        return LAMP_STANDS
    return frozenset(TREATMENTS[task_type][2]) if task_type in TREATMENTS else frozenset()


def _draw_furniture(room: Room, task_type: TaskType, num_receptacles: int, rng: random.Random) -> tuple[str, ...]:
    pool = [type_ for type_, most in room.receptacles.items() for _ in range(most)]
    furniture = []
    needed = sorted(_needed_receptacles(task_type) & room.receptacles.keys())
    if needed:
        furniture.append(rng.choice(needed))
        pool.remove(furniture[0])
    return tuple(sorted([*furniture, *rng.sample(pool, num_receptacles - len(furniture))]))


def _furnish(
    room: Room, furniture: tuple[str, ...], task_type: TaskType, num_objects: int, rng: random.Random
) -> _Draw | None:
    """Objects and a goal; None where the furniture allows no such task."""
    goal = _draw_goal(room, furniture, task_type, rng)
    if goal is None:
        return None
    wanted = [
        place
        for place, type_ in enumerate(furniture)
        if type_ != goal.target_type and goal.object_type in CAN_CONTAIN[type_]
    ]
    num_wanted = 2 if task_type == "pick_two_obj_and_place" else 1
    things = [_Placed(goal.object_type, rng.choice(wanted)) for _ in range(num_wanted)]
    if task_type == "look_at_obj_in_light":
        stands = [place for place, type_ in enumerate(furniture) if type_ in LAMP_STANDS]
        things.append(_Placed(LAMP, rng.choice(stands)))
    others = [
        _Placed(type_, place)
        for type_ in room.things
        for place, receptacle in enumerate(furniture)
        # A wanted object that is in the right place already would make the task easier than it reads.
        if type_ in CAN_CONTAIN[receptacle] and (type_ != goal.object_type or place in wanted)
    ]
    things += [rng.choice(others) for _ in range(num_objects - len(things))]
    return _Draw(furniture, tuple(sorted(things)), goal)


def _draw_goal(room: Room, furniture: tuple[str, ...], task_type: TaskType, rng: random.Random) -> Goal | None:
    """Any pair of object and target for which the object can also lie elsewhere."""
    kinds = sorted(set(furniture))
    _, property_, appliances = TREATMENTS.get(task_type, ("", "pickupable", ()))
    carried = [type_ for type_ in room.things if property_ in PROPERTIES[type_]]
    homes = {type_: [kind for kind in kinds if type_ in CAN_CONTAIN[kind]] for type_ in carried}
    if task_type == "look_at_obj_in_light":
        goals = [Goal(task_type, type_, LAMP) for type_ in carried if homes[type_]]
    else:
        goals = [
            Goal(task_type, type_, kind)
            for type_ in carried
            for kind in homes[type_]
            if len(homes[type_]) > 1 and kind not in appliances
        ]
    return rng.choice(goals) if goals else None


def _build(draw: _Draw, phrase: str) -> Household:
    """Names and places for everything; each piece of furniture has a location of its own."""
    receptacle_ids = [_make_id(type_, place) for place, type_ in enumerate(draw.furniture)]
    thing_ids = [_make_id(thing.type, number) for number, thing in enumerate(draw.things)]
    names = name_ids([*receptacle_ids, *thing_ids])
    receptacles, things = {}, {}
    for place, (id_, type_) in enumerate(zip(receptacle_ids, draw.furniture, strict=True)):
        receptacles[names[id_]] = Receptacle(type_, f"loc_{place + 1}", type_ in OPENABLE)
    for id_, (type_, place) in zip(thing_ids, draw.things, strict=True):
        home = (names[receptacle_ids[place]],)
        things[names[id_]] = Thing(type_, PROPERTIES[type_], home, (f"loc_{place + 1}",))
    return Household(
        receptacles=receptacles,
        objects=things,
        nested={},
        can_contain=CAN_CONTAIN,
        start=START,
        goal=draw.goal,
        task=phrase.format(draw.goal.object_type, draw.goal.target_type),
        help=HELP,
    )


def _make_id(type_: str, number: int) -> str:
    """As the original spells ids: a basin is a part of something."""
    whole = type_.removesuffix("basin")
    return f"{whole}_bar_{number:02}" if whole == type_ else f"{whole}_bar_{number:02}_bar_basin"
