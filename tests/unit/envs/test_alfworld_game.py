"""The rules of the household game: word for word those of the original."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from turnwise.envs.alfworld import AlfWorld
from turnwise.envs.alfworld.game import Game, Goal, Household, Receptacle, Thing, name_ids
from turnwise.envs.alfworld.game_files import read_household
from turnwise.errors import TaskError

from .alfworld_games import TRACES, needs_games, needs_traces, packed_games, unpack_games


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_games(tmp_path_factory.mktemp("games"))


def kitchen(goal: Goal | None = None) -> Household:
    """A drawer and a table at one place, appliances elsewhere."""
    food = frozenset(("pickupable", "cleanable", "heatable", "coolable", "sliceable"))
    carried = frozenset(("pickupable",))
    everything = frozenset(("apple", "knife", "pen", "mug"))
    return Household(
        receptacles={
            "drawer 1": Receptacle("drawer", "here", is_openable=True),
            "fridge 1": Receptacle("fridge", "cold", is_openable=True),
            "microwave 1": Receptacle("microwave", "warm", is_openable=True),
            "sinkbasin 1": Receptacle("sinkbasin", "wet", is_openable=False),
            "table 2": Receptacle("table", "here", is_openable=False),
            "table 1": Receptacle("table", "there", is_openable=False),
        },
        objects={
            "apple 1": Thing("apple", food, ("table 2",), ("here",)),
            "knife 1": Thing("knife", carried, ("drawer 1",), ("here",)),
            "lamp 1": Thing("lamp", frozenset(("toggleable",)), ("table 2",), ("here",)),
            "mug 1": Thing("mug", carried | {"isreceptacleobject"}, ("table 1",), ("there",)),
            "pen 1": Thing("pen", carried, ("table 1",), ("there",)),
        },
        nested={"mug 1": ("pen 1",)},
        can_contain={"drawer": everything, "table": everything, "fridge": frozenset(("apple",))},
        start="middle",
        goal=goal or Goal("pick_and_place_simple", "apple", "fridge"),
        task="put a apple in fridge.",
        help="Help yourself.",
    )


def say(game: Game, *commands: str) -> str:
    """The answer to the last of the commands; all of them must be possible."""
    texts = []
    for command in commands:
        outcome = game.play(command)
        assert outcome is not None, f"'{command}' is not possible"
        texts.append(outcome.text)
    return texts[-1]


@needs_traces
def test_every_recorded_play_of_the_original_is_repeated_exactly(games: Path) -> None:
    plays = json.loads(gzip.decompress(TRACES.read_bytes()))
    assert len(plays) == 40
    for play in plays:
        env = AlfWorld(game_file=str(games / play["game"]))
        assert env.reset(0) == play["reset"]
        assert env.admissible_commands == play["admissible"]
        for step in play["steps"]:
            text, reward, done, info = env.step(step["action"])
            assert (text, reward, done) == (step["feedback"], step["score"], step["done"])
            assert info["admissible_commands"] == step["admissible"]
            assert info["won"] == info["success"] == step["won"]


@needs_games
def test_the_expert_plan_of_each_game_file_wins_with_its_last_command(games: Path) -> None:
    files = sorted(games.rglob("game.tw-pddl"))
    assert len(files) == 54
    for file in files:
        env = AlfWorld(game_file=str(file))
        env.reset(0)
        results = [env.step(command) for command in json.loads(file.read_text())["walkthrough"]]
        assert all(info["action_is_valid"] for *_, info in results)
        assert [done for _, _, done, _ in results] == [False] * (len(results) - 1) + [True]


@needs_games
def test_the_expert_plan_of_each_packed_game_wins() -> None:
    for household, plan in packed_games():
        game = Game(household)
        say(game, *plan)
        assert game.is_won(), household.task


@needs_games
def test_help_is_read_from_the_game_file(games: Path) -> None:
    file = next(games.rglob("game.tw-pddl"))
    env = AlfWorld(game_file=str(file))
    env.reset(0)
    text = env.step("help")[0]
    assert text.startswith("Available commands:\n  look:")
    assert text.endswith("sharp object\n")


@needs_games
@pytest.mark.parametrize(
    ("part", "old", "new", "message"),
    [
        ("pddl_domain", "(not (isCool ?o))", "", "other rules"),
        ("grammar", "move {o} to {r}", "put {o} in/on {r}", "other commands"),
        ("grammar", "Your task is to: ", "Do: ", "names no task"),
        ("pddl_problem", "(:init", "(:start", "lacks"),
        ("pddl_problem", "(:init", "(:init (opened Safe_bar_1)", "begins with the fact '(opened safe_bar_1)'"),
        ("pddl_problem", "(:goal", "(:goal (isSliced ?o)", "six task types"),
        ("pddl_problem", "(:init", "(:init (inReceptacle Cup_bar_1 Safe_bar_9)", "contradict"),
    ],
)
def test_a_file_with_other_rules_is_refused(games: Path, part: str, old: str, new: str, message: str) -> None:
    data = json.loads(next(games.rglob("game.tw-pddl")).read_text())
    assert old in data[part]
    data[part] = data[part].replace(old, new)
    with pytest.raises(TaskError, match=r"here\.tw-pddl") as caught:
        read_household(json.dumps(data), "here.tw-pddl")
    assert message in str(caught.value)


@needs_games
def test_comments_and_line_breaks_do_not_make_other_rules(games: Path) -> None:
    text = next(games.rglob("game.tw-pddl")).read_text()
    data = json.loads(text)
    data["pddl_domain"] = "; a word\n" + data["pddl_domain"].replace("\n", "\n\n")
    assert read_household(json.dumps(data), "") == read_household(text, "")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"pddl_domain": 1}', "[" * 100_000])
def test_a_file_that_is_no_game_is_refused(text: str) -> None:
    with pytest.raises(TaskError, match=r"odd\.tw-pddl.*json_2\.1\.1"):
        read_household(text, "odd.tw-pddl")


def test_numbers_count_down_and_a_basin_belongs_to_its_sink() -> None:
    ids = ["cup_bar_b", "cup_bar_a", "sink_bar_1_bar_sinkbasin", "sink_bar_2"]
    assert name_ids(ids) == {
        "cup_bar_a": "cup 2",
        "cup_bar_b": "cup 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
        "sink_bar_2": "sink 1",
    }


def test_the_first_look_names_the_furniture_and_later_ones_only_what_is_here() -> None:
    game = Game(kitchen())
    assert "you see a drawer 1, a fridge 1, a microwave 1, a sinkbasin 1, a table 2, and a table 1." in game.introduce()
    assert say(game, "look").endswith("you see nothing.")
    say(game, "go to table 2")
    assert say(game, "look") == "You are facing the drawer 1, and table 2. Next to it, you see nothing."


def test_what_moved_between_neighbours_is_seen_next_to_them() -> None:
    game = Game(kitchen())
    say(game, "go to drawer 1", "open drawer 1", "take knife 1 from drawer 1", "move knife 1 to table 2")
    assert say(game, "look").endswith("Next to it, you see a knife 1.")
    say(game, "take knife 1 from table 2", "move knife 1 to drawer 1")
    assert say(game, "look").endswith("Next to it, you see a knife 1.")
    say(game, "take knife 1 from drawer 1", "go to table 1", "move knife 1 to table 1")
    assert say(game, "look").endswith("you see nothing.")


def test_a_closed_receptacle_hides_and_keeps_what_is_in_it() -> None:
    game = Game(kitchen())
    assert say(game, "go to drawer 1") == "You arrive at drawer 1. The drawer 1 is closed."
    assert "take knife 1 from drawer 1" not in game.commands
    assert say(game, "open drawer 1") == "You open the drawer 1. The drawer 1 is open. In it, you see a knife 1."
    assert say(game, "take knife 1 from drawer 1") == "You pick up the knife 1 from the drawer 1."
    assert say(game, "close drawer 1") == "You close the drawer 1."
    assert "move knife 1 to drawer 1" not in game.commands
    assert say(game, "inventory") == "You are carrying: a knife 1."


def test_a_held_object_tells_what_was_done_to_it() -> None:
    game = Game(kitchen())
    say(game, "go to table 2", "take apple 1 from table 2")
    assert say(game, "examine apple 1") == "There's nothing special about apple 1."
    say(game, "go to microwave 1", "heat apple 1 with microwave 1")
    assert say(game, "examine apple 1") == "This is a hot apple 1."
    say(game, "go to sinkbasin 1", "clean apple 1 with sinkbasin 1")
    assert say(game, "examine apple 1") == "This is a hot and clean apple 1."
    say(game, "go to fridge 1", "cool apple 1 with fridge 1")
    assert say(game, "examine apple 1") == "This is a cool and clean apple 1."
    say(game, "go to table 1", "move apple 1 to table 1", "take mug 1 from table 1")
    assert say(game, "examine mug 1") == "This is a normal mug 1. In it, you see a pen 1."


def test_a_knife_slices_what_lies_here() -> None:
    game = Game(kitchen())
    say(game, "go to drawer 1", "open drawer 1", "take knife 1 from drawer 1")
    assert say(game, "slice apple 1 with knife 1") == "You sliced the apple 1 with the knife 1."
    say(game, "go to table 1")
    assert not [command for command in game.commands if command.startswith("slice")]
    say(game, "move knife 1 to table 1", "go to table 2", "take apple 1 from table 2")
    assert say(game, "examine apple 1") == "This is a sliced apple 1."


def test_only_changes_are_effective() -> None:
    game = Game(kitchen())
    expected = {
        "look": False,
        "go to table 2": True,
        "examine table 2": False,
        "use lamp 1": True,
        "take apple 1 from table 2": True,
        "help": False,
        "go to microwave 1": True,
        "heat apple 1 with microwave 1": True,
    }
    for command, is_effective in expected.items():
        outcome = game.play(command)
        assert outcome is not None
        assert outcome.is_effective is is_effective, command
    again = game.play("heat apple 1 with microwave 1")
    assert again is not None
    assert not again.is_effective


def test_a_task_is_done_when_its_object_is_in_a_receptacle_of_the_type() -> None:
    assert Game(kitchen(Goal("pick_and_place_simple", "apple", "table"))).is_won()
    game = Game(kitchen(Goal("pick_and_place_simple", "pen", "drawer")))
    say(game, "go to table 1", "take pen 1 from table 1", "go to drawer 1", "open drawer 1")
    assert not game.is_won()
    say(game, "move pen 1 to drawer 1")
    assert game.is_won()


def test_two_objects_must_be_in_the_same_receptacle() -> None:
    household = kitchen(Goal("pick_two_obj_and_place", "pen", "table"))
    pens = dict.fromkeys(("pen 2", "pen 1"), household.objects["pen 1"])
    game = Game(replace(household, objects=household.objects | pens))
    assert game.is_won()
    say(game, "go to table 1", "take pen 1 from table 1", "go to table 2", "move pen 1 to table 2")
    assert not game.is_won()


def test_heat_is_lost_in_the_fridge() -> None:
    game = Game(kitchen(Goal("pick_heat_then_place_in_recep", "apple", "table")))
    assert not game.is_won()
    say(game, "go to table 2", "take apple 1 from table 2", "go to microwave 1", "heat apple 1 with microwave 1")
    warm = Game(game.household, game.state.copy())
    say(warm, "go to table 1", "move apple 1 to table 1")
    assert warm.is_won()
    say(game, "go to fridge 1", "cool apple 1 with fridge 1", "go to table 1", "move apple 1 to table 1")
    assert not game.is_won()


def test_light_counts_where_the_lamp_is_and_with_the_object_in_hand() -> None:
    game = Game(kitchen(Goal("look_at_obj_in_light", "pen", "lamp")))
    say(game, "go to table 2", "use lamp 1")
    assert not game.is_won()
    say(game, "go to table 1", "take pen 1 from table 1")
    assert not game.is_won()
    say(game, "go to table 2")
    assert game.is_won()


@pytest.mark.parametrize("seed", range(5))
def test_a_copied_state_is_apart(seed: int) -> None:
    rng = random.Random(seed)
    game = Game(kitchen())
    for _ in range(20):
        say(game, rng.choice(sorted(game.commands)))
    before = game.state.copy()
    other = Game(game.household, game.state.copy())
    for _ in range(50):
        say(other, rng.choice(sorted(other.commands)))
    assert game.state == before
