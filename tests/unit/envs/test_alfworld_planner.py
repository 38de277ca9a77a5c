"""Plans for households: never longer than needed, from any state, and honest where little was seen."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import pairwise

import pytest

from turnwise.envs.alfworld.game import TASK_TYPES, Game, Goal, Household, Receptacle, Thing
from turnwise.envs.alfworld.generator import AlfWorldParams, draw_household
from turnwise.envs.alfworld.planner import explore, shortest_plan

from .alfworld_games import needs_games, packed_games


def fewest_commands(game: Game) -> int:
    """Breadth first through everything that can be done."""
    layer, seen, depth = [game], {key(game)}, 0
    while not any(state.is_won() for state in layer):
        depth += 1
        following = []
        for before in layer:
            for command in before.commands:
                after = Game(before.household, before.state.copy())
                outcome = after.play(command)
                if outcome is not None and outcome.is_effective and key(after) not in seen:
                    seen.add(key(after))
                    following.append(after)
        layer = following
        assert layer, "the goal cannot be reached"
    return depth


def key(game: Game) -> object:
    state = game.state
    sets = [*state.contents.values(), *state.marks.values(), state.opened]
    return state.location, state.held, tuple(frozenset(members) for members in sets)


def play_out(game: Game, plan: tuple[str, ...]) -> None:
    """All commands are possible, and only the last one wins."""
    for command in plan:
        assert not game.is_won()
        assert game.play(command) is not None, command
    assert game.is_won()


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_no_plan_is_shorter_from_the_start_or_from_anywhere(task_type: str) -> None:
    params = AlfWorldParams.model_validate({"task_types": (task_type,), "num_receptacles": 4, "num_objects": 3})
    for seed in range(2):
        rng = random.Random(seed)
        game = Game(draw_household(params, seed, "train"))
        for num_random in (0, 25):
            for _ in range(num_random):
                if not game.is_won():
                    game.play(rng.choice(sorted(game.commands)))
            plan = shortest_plan(game)
            assert plan is not None
            assert len(plan) == fewest_commands(game)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_a_plan_wins_after_any_detour(task_type: str) -> None:
    params = AlfWorldParams.model_validate({"task_types": (task_type,)})
    for seed in range(20):
        rng = random.Random(seed)
        game = Game(draw_household(params, seed, "seen"))
        for _ in range(30):
            if not game.is_won():
                game.play(rng.choice(sorted(game.commands)))
        plan = shortest_plan(game)
        assert plan is not None
        if plan:
            play_out(game, plan)


@needs_games
def test_the_plan_for_a_real_game_wins_and_is_never_longer_than_the_experts() -> None:
    for household, expert_plan in packed_games():
        plan = shortest_plan(Game(household))
        assert plan is not None
        assert len(plan) <= len(expert_plan)
        play_out(Game(household), plan)


def test_the_explorer_names_only_what_it_was_told() -> None:
    for seed in range(60):
        game = Game(draw_household(AlfWorldParams(), seed, "train"))
        told = game.introduce()
        for _ in range(60):
            command = explore(game)
            words = command.split()
            for name in (f"{word} {number}" for word, number in pairwise(words)):
                if name in game.household.objects:
                    assert f"a {name}" in told
            outcome = game.play(command)
            assert outcome is not None
            told += outcome.text
            if game.is_won():
                break
        assert game.is_won()


def test_a_closed_receptacle_counts_as_searched_once_it_is_open() -> None:
    game = Game(draw_household(AlfWorldParams(), 0, "train"))
    closed = next(name for name, receptacle in game.household.receptacles.items() if receptacle.is_openable)
    game.play(f"go to {closed}")
    assert closed not in game.state.searched
    game.play(f"open {closed}")
    assert closed in game.state.searched


def test_an_object_in_two_receptacles_need_not_be_brought_back() -> None:
    mug = Thing("mug", frozenset(("pickupable", "cleanable")), ("shelf 1", "table 1"), ("here",))
    household = Household(
        receptacles={
            "shelf 1": Receptacle("shelf", "here", is_openable=False),
            "sinkbasin 1": Receptacle("sinkbasin", "wet", is_openable=False),
            "table 1": Receptacle("table", "here", is_openable=False),
        },
        objects={"mug 1": mug},
        nested={},
        can_contain={"shelf": frozenset(("mug",)), "table": frozenset(("mug",))},
        start="middle",
        goal=Goal("pick_clean_then_place_in_recep", "mug", "shelf"),
        task="put a clean mug in shelf.",
        help="",
    )
    game = Game(household)
    plan = shortest_plan(game)
    assert plan is not None
    assert len(plan) == fewest_commands(game) == 4
    play_out(game, plan)


@pytest.mark.slow
def test_plans_are_the_same_in_every_process() -> None:
    code = (
        "from turnwise.envs.alfworld import AlfWorld\n"
        "env = AlfWorld(num_receptacles=20, num_objects=40)\n"
        "for seed in range(60):\n"
        "    print(env.reset(seed), env.oracle(), AlfWorld.baselines['explorer'](env))\n"
        "    print(env._plan, env.admissible_actions())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
