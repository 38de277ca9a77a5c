"""Experts of ALFWorld: the shortest plan from any state, and a player that knows only what it has seen.

Every solution combines the same few errands (empty the hand, fetch, treat, bring); all combinations are drafted and the
shortest is taken. The game is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import NamedTuple

from turnwise.envs.alfworld.game import MARKS, TREATMENTS, Game, Receptacle


class _Draft(NamedTuple):
    """A plan so far, and where it leaves the player."""

    commands: tuple[str, ...]
    location: str
    opened: frozenset[str]
    held: str | None
    source: str | None = None
    """Where the held object was taken from."""


def shortest_plan(game: Game, sources: Iterable[str] | None = None) -> tuple[str, ...] | None:
    """The fewest commands to the goal; None where there is no way.

    `sources` are the receptacles whose contents are known: nothing is planned with what is elsewhere.
    """
    drafts = _Drafts(game, list(game.household.receptacles) if sources is None else sources)
    return min((draft.commands for draft in drafts.to_goal()), key=len, default=None)


def explore(game: Game) -> str:
    """The next command of a player who was told no more than the texts: search in order, then follow the plan."""
    searched = game.state.searched
    plan = shortest_plan(game, [name for name in game.household.receptacles if name in searched])
    if plan:
        return plan[0]
    for name, receptacle in game.household.receptacles.items():
        if name not in searched:
            return _look_into(game, name, receptacle)
    return "look"


def _look_into(game: Game, name: str, receptacle: Receptacle) -> str:
    if receptacle.location != game.state.location:
        return f"go to {name}"
    return f"examine {name}" if game.is_open(name) else f"open {name}"


class _Drafts:
    """All sensible plans from the state of a game."""

    def __init__(self, game: Game, sources: Iterable[str]) -> None:
        self._game, self._household, self._state = game, game.household, game.state
        self._goal = game.household.goal
        self._sources: dict[str, list[str]] = {}
        for receptacle in sources:
            for thing in game.contents_of(receptacle):
                self._sources.setdefault(thing, []).append(receptacle)
        self._start = _Draft((), self._state.location, frozenset(self._state.opened), self._state.held)

    def to_goal(self) -> Iterator[_Draft]:
        if self._goal.type == "look_at_obj_in_light":
            return self._to_light()
        if self._goal.type == "pick_two_obj_and_place":
            return self._to_pair()
        return self._to_place()

    def _to_place(self) -> Iterator[_Draft]:
        for thing in self._candidates():
            for holding in self._hold(self._start, thing):
                for treated in self._treat(holding, thing):
                    if self._stays(treated, thing):
                        yield treated
                    yield from (self._put(treated, receptacle) for receptacle in self._targets(thing))

    def _to_pair(self) -> Iterator[_Draft]:
        candidates = self._candidates()
        for receptacle in self._of_type(self._goal.target_type):
            outside = [thing for thing in candidates if thing not in self._state.contents[receptacle]]
            num_missing = 2 - sum(map(self._game.is_ready, self._state.contents[receptacle]))
            for things in permutations(outside, max(num_missing, 0)):
                yield from self._bring(self._start, things, receptacle)

    def _to_light(self) -> Iterator[_Draft]:
        lamps = [lamp for lamp in self._sources if self._household.objects[lamp].type == self._goal.target_type]
        for thing in self._candidates():
            for holding in self._hold(self._start, thing):
                for lamp in lamps:
                    for receptacle in self._sources[lamp]:
                        there = self._go(holding, receptacle)
                        is_on = lamp in self._state.marks["toggled"]
                        yield there if is_on else _add(there, f"use {lamp}")

    # --- what there is ---------------------------------------------------------------------------------------------

    def _candidates(self) -> list[str]:
        """Objects that can become what the task asks for, the held one included."""
        treatment = TREATMENTS.get(self._goal.type)
        needed = {"pickupable"} if treatment is None else {"pickupable", treatment[1]}
        known = dict.fromkeys((*self._sources, *((self._state.held,) if self._state.held else ())))
        kinds = self._household.objects
        return [
            thing
            for thing in known
            if kinds[thing].type == self._goal.object_type and kinds[thing].properties >= needed
        ]

    def _of_type(self, *types: str) -> list[str]:
        return [name for name, receptacle in self._household.receptacles.items() if receptacle.type in types]

    def _targets(self, thing: str) -> list[str]:
        return [name for name in self._of_type(self._goal.target_type) if self._household.fits(thing, name)]

    def _stays(self, draft: _Draft, thing: str) -> bool:
        """Whether the held object is also where it shall be: a few of the original's are in two receptacles at once."""
        targets = self._of_type(self._goal.target_type)
        return any(thing in self._state.contents[name] and name != draft.source for name in targets)

    # --- errands -----------------------------------------------------------------------------------------------------

    def _go(self, draft: _Draft, receptacle: str) -> _Draft:
        location = self._household.receptacles[receptacle].location
        return draft if draft.location == location else _add(draft, f"go to {receptacle}")._replace(location=location)

    def _reach_into(self, draft: _Draft, receptacle: str) -> _Draft:
        there = self._go(draft, receptacle)
        if receptacle in there.opened or not self._household.receptacles[receptacle].is_openable:
            return there
        return _add(there, f"open {receptacle}")._replace(opened=there.opened | {receptacle})

    def _put(self, draft: _Draft, receptacle: str) -> _Draft:
        there = self._reach_into(draft, receptacle)
        return _add(there, f"move {draft.held} to {receptacle}")._replace(held=None)

    def _hold(self, draft: _Draft, thing: str) -> Iterator[_Draft]:
        """With the object in hand, from each place where it is."""
        if draft.held == thing:
            yield draft
            return
        for free in self._empty_hand(draft):
            for receptacle in self._sources.get(thing, ()):
                there = self._reach_into(free, receptacle)
                yield _add(there, f"take {thing} from {receptacle}")._replace(held=thing, source=receptacle)

    def _empty_hand(self, draft: _Draft) -> list[_Draft]:
        held = draft.held
        if held is None:
            return [draft]
        return [self._put(draft, name) for name in self._household.receptacles if self._household.fits(held, name)]

    def _treat(self, draft: _Draft, thing: str) -> list[_Draft]:
        if self._goal.type not in TREATMENTS:
            return [draft]
        command, _, appliances = TREATMENTS[self._goal.type]
        if thing in self._state.marks[MARKS[command]]:
            return [draft]
        return [_add(self._go(draft, name), f"{command} {thing} with {name}") for name in self._of_type(*appliances)]

    def _bring(self, draft: _Draft, things: tuple[str, ...], receptacle: str) -> Iterator[_Draft]:
        """One object after the other into the same receptacle."""
        if not things:
            yield draft
        elif self._household.fits(things[0], receptacle):
            for holding in self._hold(draft, things[0]):
                yield from self._bring(self._put(holding, receptacle), things[1:], receptacle)


def _add(draft: _Draft, command: str) -> _Draft:
    return draft._replace(commands=(*draft.commands, command))
