"""A household before anything is done in it: furniture, objects, what fits where, and the task.

In come facts under ids; out comes a frozen `Household` under the names that the game speaks of. It refuses to know
where the facts were written, what a command does and how far an episode is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

TaskType = Literal[
    "pick_and_place_simple",
    "pick_two_obj_and_place",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "look_at_obj_in_light",
]
TASK_TYPES: tuple[TaskType, ...] = get_args(TaskType)


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A piece of furniture that holds objects."""

    type: str
    location: str
    is_openable: bool


@dataclass(frozen=True, slots=True)
class Thing:
    """An object. A few of the original's stand in several places at once, and some in none."""

    type: str
    properties: frozenset[str]
    """The original's words for what can be done with it, in lower case: pickupable, heatable, toggleable and so on."""
    receptacles: tuple[str, ...]
    locations: tuple[str, ...]
    is_cool: bool = False


@dataclass(frozen=True, slots=True)
class Goal:
    """What must hold in the end. Where an object is looked at in light, `target_type` is the kind of lamp."""

    type: TaskType
    object_type: str
    target_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Household:
    """Everything that stays the same while playing, by name. Lists in texts are in the order of these mappings.

    Example: `receptacles={"shelf 2": ..., "shelf 1": ...}`, `objects={"mug 1": Thing("mug", ...)}`, `start="loc_0"`,
    `goal=Goal("pick_and_place_simple", "mug", "shelf")`, `task="put a mug in shelf."`.
    """

    receptacles: Mapping[str, Receptacle]
    objects: Mapping[str, Thing]
    nested: Mapping[str, tuple[str, ...]]
    """What lies in an object that is itself a vessel, such as a pen in a mug."""
    can_contain: Mapping[str, frozenset[str]]
    """The types of objects that a type of receptacle takes."""
    start: str
    goal: Goal
    task: str
    help: str
    """The answer to `help`."""

    def fits(self, thing: str, receptacle: str) -> bool:
        taken = self.can_contain.get(self.receptacles[receptacle].type, frozenset())
        return self.objects[thing].type in taken


def name_ids(ids: Iterable[str]) -> dict[str, str]:
    """Names such as `shelf 2` for ids such as `shelf_bar__plus_01`, in the order of the ids.

    The number counts down: the first id of a kind gets the highest. A basin is part of its sink's or bathtub's id.
    """
    ordered = sorted(ids)
    kinds = {id_: _kind(id_) for id_ in ordered}
    left = Counter(kinds.values())
    names = {}
    for id_, kind in kinds.items():
        names[id_] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names


def _kind(id_: str) -> str:
    return id_.split("_bar_", 1)[0] + ("basin" if "basin" in id_ else "")
