"""Rules of ALFWorld: a `Household`, commands and the original's answers, word for word.

A command is accepted exactly as it is listed, as in the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, get_args

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


NOTHING_HAPPENS = "Nothing happens."
TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", "cleanable", ("sinkbasin", "sink")),
    "pick_heat_then_place_in_recep": ("heat", "heatable", ("microwave",)),
    "pick_cool_then_place_in_recep": ("cool", "coolable", ("fridge",)),
}
"""By task type: the command, what an object must be for it, and where it is done."""
_KNIVES = ("knife", "butterknife")
_LOOKS = (
    (("hot", "clean", "sliced"), "This is a hot and clean sliced {}."),
    (("cool", "clean", "sliced"), "This is a cool and clean sliced {}."),
    (("clean", "sliced"), "This is a clean sliced {}."),
    (("hot", "sliced"), "This is a hot sliced {}."),
    (("cool", "sliced"), "This is a cool sliced {}."),
    (("hot", "clean"), "This is a hot and clean {}."),
    (("cool", "clean"), "This is a cool and clean {}."),
    (("hot",), "This is a hot {}."),
    (("clean",), "This is a clean {}."),
    (("cool",), "This is a cold {}."),
)
"""What a held object looks like; the first line that holds counts."""


class Outcome(NamedTuple):
    """The answer to a command, and whether anything changed."""

    text: str
    is_effective: bool


Act = Callable[[], Outcome]


@dataclass(slots=True)
class State:
    """Everything that changes while playing."""

    location: str
    contents: dict[str, set[str]]
    places: dict[str, set[str]]
    """Where objects are, as slicing sees it."""
    marks: dict[str, set[str]]
    """Which objects are clean, hot, cool, sliced or toggled."""
    held: str | None = None
    opened: set[str] = field(default_factory=set)
    searched: set[str] = field(default_factory=set)
    """Receptacles whose contents were told; for players that know no more than they saw."""
    left: set[tuple[str, str]] = field(default_factory=set)
    """Objects with the receptacles they were taken from and not put back into."""

    def copy(self) -> State:
        return State(
            location=self.location,
            contents={name: set(things) for name, things in self.contents.items()},
            places={name: set(places) for name, places in self.places.items()},
            marks={mark: set(things) for mark, things in self.marks.items()},
            held=self.held,
            opened=set(self.opened),
            searched=set(self.searched),
            left=set(self.left),
        )


class Game:
    """One play of a household."""

    def __init__(self, household: Household, state: State | None = None) -> None:
        self.household = household
        self.state = _begin(household) if state is None else state
        self._rank = {thing: rank for rank, thing in enumerate(household.objects)}
        self._here: dict[str, list[str]] = {}
        for name, receptacle in household.receptacles.items():
            self._here.setdefault(receptacle.location, []).append(name)
        self._walks: dict[str, dict[str, Act]] = {}
        self._acts: dict[str, Act] | None = None

    # --- playing -------------------------------------------------------------------------------------------------

    def introduce(self) -> str:
        """The first text: the room and the task."""
        room = f"You are in the middle of a room. Looking quickly around you, you see {_listed(self.all_receptacles)}."
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{room}\n\nYour task is to: {self.household.task}"

    @property
    def all_receptacles(self) -> list[str]:
        return list(self.household.receptacles)

    @property
    def commands(self) -> dict[str, Act]:
        """Every possible command, with what it would do."""
        if self._acts is None:
            self._acts = self._list_acts()
        return self._acts

    def play(self, command: str) -> Outcome | None:
        """Carry out a command; None where it is not possible now, and nothing changes."""
        act = self.commands.get(command)
        if act is None:
            return None
        outcome = act()
        if outcome.is_effective:
            self._acts = None
        return outcome

    def is_won(self) -> bool:
        goal, state = self.household.goal, self.state
        if goal.type == "look_at_obj_in_light":
            is_held = state.held is not None and self.household.objects[state.held].type == goal.object_type
            return is_held and any(
                self.household.objects[thing].type == goal.target_type
                for receptacle in self._here.get(state.location, ())
                for thing in state.contents[receptacle] & state.marks["toggled"]
            )
        num_needed = 2 if goal.type == "pick_two_obj_and_place" else 1
        return any(
            sum(map(self.is_ready, state.contents[name])) >= num_needed
            for name, receptacle in self.household.receptacles.items()
            if receptacle.type == goal.target_type
        )

    def is_ready(self, thing: str) -> bool:
        """Whether an object is of the wanted kind and was treated as the task wants."""
        goal, kind = self.household.goal, self.household.objects[thing]
        if kind.type != goal.object_type:
            return False
        if goal.type not in TREATMENTS:
            return True
        command, property_, _ = TREATMENTS[goal.type]
        return property_ in kind.properties and thing in self.state.marks[MARKS[command]]

    def contents_of(self, receptacle: str) -> list[str]:
        """What is in it, in the household's order: that of a set is another one in every process."""
        return sorted(self.state.contents[receptacle], key=self._rank.__getitem__)

    def is_open(self, receptacle: str) -> bool:
        """Whether one can reach into it."""
        return receptacle in self.state.opened or not self.household.receptacles[receptacle].is_openable

    # --- what is possible ----------------------------------------------------------------------------------------

    def _list_acts(self) -> dict[str, Act]:
        location = self.state.location
        if location not in self._walks:
            self._walks[location] = self._list_walks(location)
        acts = dict(self._walks[location])
        for receptacle in self._here.get(location, ()):
            self._add_acts_at(receptacle, acts)
        held = self.state.held
        if held is not None:
            acts[f"examine {held}"] = partial(self._examine_thing, held)
            if self.household.objects[held].type in _KNIVES:
                self._add_cuts(held, acts)
        return acts

    def _list_walks(self, location: str) -> dict[str, Act]:
        """What is always possible at a location."""
        acts: dict[str, Act] = {"look": self._look, "inventory": self._take_stock, "help": self._help}
        for name, receptacle in self.household.receptacles.items():
            if receptacle.location == location:
                acts[f"examine {name}"] = partial(self._examine, name)
            else:
                acts[f"go to {name}"] = partial(self._go, name)
        return acts

    def _add_acts_at(self, receptacle: str, acts: dict[str, Act]) -> None:
        state, is_open = self.state, self.is_open(receptacle)
        if self.household.receptacles[receptacle].is_openable:
            verb, act = ("close", self._close) if is_open else ("open", self._open)
            acts[f"{verb} {receptacle}"] = partial(act, receptacle)
        for thing in state.contents[receptacle]:
            properties = self.household.objects[thing].properties
            if is_open and state.held is None and "pickupable" in properties:
                acts[f"take {thing} from {receptacle}"] = partial(self._take, thing, receptacle)
            if "toggleable" in properties:
                acts[f"use {thing}"] = partial(self._use, thing)
        if state.held is not None:
            self._add_acts_with(state.held, receptacle, acts)

    def _add_acts_with(self, held: str, receptacle: str, acts: dict[str, Act]) -> None:
        if self.is_open(receptacle) and self.household.fits(held, receptacle):
            acts[f"move {held} to {receptacle}"] = partial(self._move, held, receptacle)
        properties, type_ = self.household.objects[held].properties, self.household.receptacles[receptacle].type
        for command, property_, appliances in TREATMENTS.values():
            if type_ in appliances and property_ in properties:
                acts[f"{command} {held} with {receptacle}"] = partial(self._treat, command, held, receptacle)

    def _add_cuts(self, knife: str, acts: dict[str, Act]) -> None:
        for thing, places in self.state.places.items():
            if self.state.location in places and "sliceable" in self.household.objects[thing].properties:
                acts[f"slice {thing} with {knife}"] = partial(self._slice, thing, knife)

    # --- what it does --------------------------------------------------------------------------------------------

    def _look(self) -> Outcome:
        here = self._here.get(self.state.location)
        if here is None:
            # Only the first look names the furniture: the original lists what is here, and here is nothing.
            text = "You are in the middle of a room. Looking quickly around you, you see nothing."
        else:
            text = f"You are facing the {_joined(here)}. Next to it, you see {_listed(self._list_nearby(here))}."
        return Outcome(text, is_effective=False)

    def _list_nearby(self, here: list[str]) -> list[str]:
        """What the original takes for lying on the floor: objects that went from one receptacle here to another.

        One that left two receptacles here is named twice.
        """
        state = self.state
        if not state.left:
            return []
        nearby = (thing for thing in self._rank if state.location in state.places[thing])
        return [thing for thing in nearby for receptacle in here if (thing, receptacle) in state.left]

    def _take_stock(self) -> Outcome:
        held = self.state.held
        text = "You are not carrying anything." if held is None else f"You are carrying: a {held}."
        return Outcome(text, is_effective=False)

    def _help(self) -> Outcome:
        return Outcome(self.household.help, is_effective=False)

    def _examine(self, receptacle: str) -> Outcome:
        return Outcome(self._describe(receptacle), is_effective=False)

    def _examine_thing(self, thing: str) -> Outcome:
        return Outcome(self._describe_thing(thing), is_effective=False)

    def _go(self, receptacle: str) -> Outcome:
        self.state.location = self.household.receptacles[receptacle].location
        return Outcome(f"You arrive at {receptacle}. {self._describe(receptacle)}", is_effective=True)

    def _open(self, receptacle: str) -> Outcome:
        self.state.opened.add(receptacle)
        return Outcome(f"You open the {receptacle}. {self._describe(receptacle)}", is_effective=True)

    def _close(self, receptacle: str) -> Outcome:
        self.state.opened.remove(receptacle)
        return Outcome(f"You close the {receptacle}.", is_effective=True)

    def _take(self, thing: str, receptacle: str) -> Outcome:
        self.state.contents[receptacle].remove(thing)
        self.state.left.add((thing, receptacle))
        self.state.places[thing].discard(self.state.location)
        self.state.held = thing
        return Outcome(f"You pick up the {thing} from the {receptacle}.", is_effective=True)

    def _move(self, thing: str, receptacle: str) -> Outcome:
        self.state.contents[receptacle].add(thing)
        self.state.left.discard((thing, receptacle))
        self.state.places[thing].add(self.state.location)
        self.state.held = None
        return Outcome(f"You move the {thing} to the {receptacle}.", is_effective=True)

    def _treat(self, command: str, thing: str, receptacle: str) -> Outcome:
        is_new = self._mark(thing, MARKS[command])
        if command != "clean":
            self.state.marks["cool" if command == "heat" else "hot"].discard(thing)
        return Outcome(f"You {command} the {thing} using the {receptacle}.", is_effective=is_new)

    def _use(self, thing: str) -> Outcome:
        # A lamp is never off again: the original's answers and goals ask whether it was ever switched.
        return Outcome(f"You turn on the {thing}.", is_effective=self._mark(thing, "toggled"))

    def _slice(self, thing: str, knife: str) -> Outcome:
        return Outcome(f"You sliced the {thing} with the {knife}.", is_effective=self._mark(thing, "sliced"))

    def _mark(self, thing: str, mark: str) -> bool:
        """Whether the object was not marked so before."""
        is_new = thing not in self.state.marks[mark]
        self.state.marks[mark].add(thing)
        return is_new

    # --- what it looks like --------------------------------------------------------------------------------------

    def _describe(self, receptacle: str) -> str:
        if not self.is_open(receptacle):
            return f"The {receptacle} is closed."
        self.state.searched.add(receptacle)
        contents = _listed(self.contents_of(receptacle))
        if receptacle in self.state.opened:
            return f"The {receptacle} is open. In it, you see {contents}."
        return f"On the {receptacle}, you see {contents}."

    def _describe_thing(self, thing: str) -> str:
        properties = self.household.objects[thing].properties
        if "isreceptacleobject" in properties:
            return f"This is a normal {thing}. In it, you see {_listed(self.household.nested.get(thing, ()))}."
        marks = {mark for mark, things in self.state.marks.items() if thing in things}
        for needed, text in _LOOKS:
            if marks.issuperset(needed):
                return text.format(thing)
        if "toggleable" in properties and "toggled" in marks:
            return f"This {thing} is on."
        return f"This is a sliced {thing}." if "sliced" in marks else f"There's nothing special about {thing}."


MARKS = {"clean": "clean", "heat": "hot", "cool": "cool"}
"""What an object is after a treatment."""


def _begin(household: Household) -> State:
    contents: dict[str, set[str]] = {name: set() for name in household.receptacles}
    for thing, kind in household.objects.items():
        for receptacle in kind.receptacles:
            contents[receptacle].add(thing)
    marks: dict[str, set[str]] = {mark: set() for mark in ("clean", "hot", "cool", "sliced", "toggled")}
    marks["cool"] = {thing for thing, kind in household.objects.items() if kind.is_cool}
    places = {thing: set(kind.locations) for thing, kind in household.objects.items()}
    return State(location=household.start, contents=contents, places=places, marks=marks)


def _listed(names: Iterable[str]) -> str:
    return _joined([f"a {name}" for name in names])


def _joined(names: list[str]) -> str:
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"
