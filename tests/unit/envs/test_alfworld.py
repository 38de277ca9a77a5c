"""AlfWorld as an environment: contract, rewards, splits, settings, and where its games come from."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import turnwise as tw
from turnwise.config.load import env_params, load_settings
from turnwise.envs.alfworld import AlfWorld
from turnwise.envs.alfworld.game import TASK_TYPES, Household
from turnwise.envs.alfworld.game_files import list_games
from turnwise.envs.alfworld.generator import (
    CAN_CONTAIN,
    LAMP,
    PROPERTIES,
    AlfWorldParams,
    draw_household,
    is_room_held_out,
)
from turnwise.envs.check import check_env
from turnwise.errors import ConfigError, EnvError, TaskError

from .alfworld_games import GAMES, needs_games, unpack_games


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_games(tmp_path_factory.mktemp("games"))


def oracle_episode(env: AlfWorld, max_steps: int = 60) -> list[tuple[str, float, bool, dict[str, object]]]:
    results = []
    for _ in range(max_steps):
        results.append(env.step(env.oracle()))
        if results[-1][2]:
            return results
    raise AssertionError("the oracle does not come to an end")


def furniture_of(household: Household) -> tuple[str, ...]:
    return tuple(sorted(receptacle.type for receptacle in household.receptacles.values()))


def contents_of(household: Household) -> str:
    things = sorted((thing.type, *thing.receptacles) for thing in household.objects.values())
    return f"{things} {household.goal}"


@pytest.mark.parametrize("oracle", ["planner", "explorer"])
def test_keeps_the_contract(oracle: str) -> None:
    report = check_env(lambda: AlfWorld(oracle=oracle))
    assert report.ok, report.failures


def test_is_made_by_name_and_pays_once_at_the_end() -> None:
    env = tw.make_env("alfworld")
    assert isinstance(env, AlfWorld)
    for seed in range(1000):
        env.reset(seed, split=("train", "seen", "unseen", "eval")[seed % 4])
        *before, (_, reward, done, info) = oracle_episode(env)
        assert (reward, done, info["won"], info["success"]) == (1.0, True, True, True)
        assert all((reward, done, info["won"]) == (0.0, False, False) for _, reward, done, info in before)


def test_a_command_counts_only_as_it_is_listed() -> None:
    env = AlfWorld()
    env.reset(0)
    before = env.admissible_commands
    text, reward, done, info = env.step("Go To The Moon")
    assert (text, reward, done) == ("Nothing happens.", 0.0, False)
    assert (info["action_is_valid"], info["action_is_effective"]) == (False, False)
    assert info["admissible_commands"] == before
    text, _, _, info = env.step(f" {before[0]}\n")
    assert text.startswith("You arrive at")
    assert (info["action_is_valid"], info["action_is_effective"]) == (True, True)
    assert env.step("look")[3]["action_is_effective"] is False


def test_the_list_of_commands_belongs_to_the_caller() -> None:
    env = AlfWorld()
    env.reset(0)
    commands = env.step("look")[3]["admissible_commands"]
    assert isinstance(commands, list)
    commands.clear()
    assert env.step("look")[3]["action_is_valid"]


def test_a_step_after_the_end_is_refused() -> None:
    env = AlfWorld()
    with pytest.raises(EnvError, match="call reset first"):
        env.step("look")
    env.reset(0)
    oracle_episode(env)
    with pytest.raises(EnvError, match="is over"):
        env.step("look")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=5))
def test_garbage_changes_nothing(answers: list[str]) -> None:
    env = AlfWorld()
    env.reset(1)
    commands, state = env.admissible_commands, env.game.state.copy()
    for answer in answers:
        if answer.strip() not in commands:
            assert env.step(answer)[:3] == ("Nothing happens.", 0.0, False)
    assert env.game.state == state


def test_ten_thousand_random_steps_keep_every_object_in_one_place() -> None:
    env, rng = AlfWorld(num_receptacles=12, num_objects=20), random.Random(0)
    done, num_episodes = True, 0
    for step in range(10_000):
        if done or step % 500 == 0:
            env.reset(num_episodes)
            num_episodes += 1
        _, _, done, info = env.step(rng.choice(env.admissible_commands))
        assert info["action_is_valid"]
        state = env.game.state
        found = Counter(thing for things in state.contents.values() for thing in things)
        found.update([state.held] if state.held else [])
        assert set(found) == set(env.game.household.objects)
        assert set(found.values()) == {1}


def test_the_oracle_goes_on_after_a_detour() -> None:
    env = AlfWorld()
    for seed in range(30):
        env.reset(seed)
        env.step(env.oracle())
        env.step("look")
        rng = random.Random(seed)
        for _ in range(5):
            if env.step(rng.choice(env.admissible_commands))[2]:
                break
        else:
            oracle_episode(env)


def test_an_explorer_takes_longer_than_one_who_knows() -> None:
    lengths = {}
    for oracle in ("planner", "explorer"):
        env = AlfWorld(oracle=oracle)
        lengths[oracle] = []
        for seed in range(50):
            env.reset(seed)
            lengths[oracle].append(len(oracle_episode(env)))
    pairs = list(zip(lengths["planner"], lengths["explorer"], strict=True))
    assert all(planned <= explored for planned, explored in pairs)
    assert sum(planned < explored for planned, explored in pairs) > 25


# --- generated households -------------------------------------------------------------------------------------------


def test_splits_share_rooms_only_where_they_should() -> None:
    params = AlfWorldParams(num_receptacles=5)
    rooms, whole = {}, {}
    for split in ("train", "seen", "unseen"):
        drawn = [draw_household(params, seed, split) for seed in range(400)]
        rooms[split] = {furniture_of(household) for household in drawn}
        whole[split] = {(furniture_of(household), contents_of(household)) for household in drawn}
    assert not rooms["unseen"] & (rooms["train"] | rooms["seen"])
    assert rooms["train"] & rooms["seen"]
    assert not whole["train"] & whole["seen"]
    env = AlfWorld()
    assert env.reset(3, split="eval") == env.reset(3, split="unseen")
    assert env.reset(3, split="eval") != env.reset(3, split="train")
    with pytest.raises(TaskError, match="train, eval, seen, unseen"):
        env.reset(0, split="test")


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_a_share_of_the_rooms_is_held_out(share: float) -> None:
    rooms = {furniture_of(draw_household(AlfWorldParams(eval_share=share), seed, "unseen")) for seed in range(50)}
    assert all(is_room_held_out(room, share) for room in rooms)
    others = [tuple(sorted(random.Random(seed).choices(sorted(CAN_CONTAIN), k=8))) for seed in range(2000)]
    assert sum(is_room_held_out(room, share) for room in others) / 2000 == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_a_task_type_is_drawn_alone(task_type: str) -> None:
    params = AlfWorldParams.model_validate({"task_types": [task_type]})
    drawn = [draw_household(params, seed, "train") for seed in range(30)]
    assert {household.goal.type for household in drawn} == {task_type}
    assert len({household.task for household in drawn}) > 10


def test_all_task_types_are_drawn_equally_often() -> None:
    counts = Counter(draw_household(AlfWorldParams(), seed, "train").goal.type for seed in range(1200))
    assert set(counts) == set(TASK_TYPES)
    assert min(counts.values()) > 150


@pytest.mark.parametrize(("num_receptacles", "num_objects"), [(4, 2), (8, 10), (20, 40)])
def test_sizes_are_exact_and_everything_fits(num_receptacles: int, num_objects: int) -> None:
    params = AlfWorldParams(num_receptacles=num_receptacles, num_objects=num_objects)
    for seed in range(60):
        household = draw_household(params, seed, "train")
        assert (len(household.receptacles), len(household.objects)) == (num_receptacles, num_objects)
        for name, thing in household.objects.items():
            (home,) = thing.receptacles
            assert thing.type == LAMP or household.fits(name, home)


def test_settings_that_allow_no_household_are_one_clear_error() -> None:
    params = AlfWorldParams(task_types=("pick_heat_then_place_in_recep",), num_receptacles=20, eval_share=0.0001)
    with pytest.raises(TaskError, match=r"num_receptacles=20.*Loosen one of them"):
        draw_household(params, 0, "unseen")


@needs_games
def test_generated_rooms_hold_only_what_the_originals_do(games: Path) -> None:
    real: dict[str, set[str]] = {}
    for table in json.loads((GAMES / "can_contain.json").read_text()).values():
        for receptacle, things in table.items():
            real.setdefault(receptacle.lower(), set()).update(map(str.lower, things))
    assert all(things <= real[receptacle] for receptacle, things in CAN_CONTAIN.items())
    for file in games.rglob("game.tw-pddl"):
        env = AlfWorld(game_file=str(file))
        env.reset(0)
        for thing in env.game.household.objects.values():
            if thing.type in PROPERTIES:
                assert thing.properties == PROPERTIES[thing.type]


# --- game files -----------------------------------------------------------------------------------------------------


@needs_games
def test_one_game_file_is_every_episode(games: Path) -> None:
    file = next(games.rglob("game.tw-pddl"))
    env = AlfWorld(game_file=str(file))
    assert len({env.reset(seed, split=split) for seed in range(3) for split in ("train", "eval", "seen")}) == 1
    report = check_env(lambda: AlfWorld(game_file=str(file)), num_episodes=2)
    assert report.ok, report.failures


@needs_games
def test_resolved_settings_play_game_files(games: Path) -> None:
    resolved = load_settings({"env": {"type": "alfworld", "games": str(games)}})
    env = tw.make_env("alfworld", **env_params(resolved.env, "eval"))
    assert env.reset(0, split="eval") == AlfWorld(games=str(games)).reset(0, split="eval")


@needs_games
def test_a_folder_is_split_by_the_originals_names(games: Path) -> None:
    env = AlfWorld(games=str(games))
    for split, folder in (
        ("train", "train"),
        ("seen", "valid_seen"),
        ("unseen", "valid_unseen"),
        ("eval", "valid_unseen"),
    ):
        files = sorted(games.rglob(f"{folder}/**/game.tw-pddl"))
        texts = [AlfWorld(game_file=str(file)).reset(0) for file in files]
        assert [env.reset(seed, split=split) for seed in range(len(files) + 1)] == [*texts, texts[0]]


@needs_games
@pytest.mark.parametrize("style", ["plain", "objects", "strings"])
def test_a_list_names_one_game_per_row(games: Path, tmp_path: Path, style: str) -> None:
    files = sorted(games.rglob("train/**/game.tw-pddl"))[:3]
    write = {
        "plain": str,
        "objects": lambda file: json.dumps({"game_file": str(file)}),
        "strings": lambda file: f'"{file}"',
    }
    (tmp_path / "games.txt").write_text("\ufeff" + "\r\n\n".join(map(write[style], files)) + "\n")
    env = AlfWorld(games=str(tmp_path / "games.txt"))
    assert [env.reset(seed) for seed in range(3)] == [AlfWorld(game_file=str(file)).reset(0) for file in files]
    with pytest.raises(TaskError, match=r"no game of the split 'unseen'.*env\.eval_share"):
        env.reset(0, split="eval")


@needs_games
def test_a_row_may_say_its_split_and_be_relative_to_the_list(games: Path) -> None:
    first, second = sorted(games.rglob("train/**/game.tw-pddl"))[:2]
    rows = [
        {"game_file": str(first.relative_to(games)), "split": "unseen", "target": ""},
        {"game_file": str(second.relative_to(games))},
    ]
    (games / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    env = AlfWorld(games=str(games / "rows.jsonl"))
    assert env.reset(0, split="eval") == AlfWorld(game_file=str(first)).reset(0)
    assert env.reset(0, split="train") == AlfWorld(game_file=str(second)).reset(0)


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_games_without_a_split_are_held_out_by_their_path(tmp_path: Path, share: float) -> None:
    (tmp_path / "games.txt").write_text("\n".join(f"house_{number}.tw-pddl" for number in range(1000)))
    env = AlfWorld(games=str(tmp_path / "games.txt"), eval_share=share)
    sizes = {split: len(paths) for split, paths in env._games.items()}
    assert sizes["seen"] == 0
    assert sizes["train"] + sizes["unseen"] == 1000
    assert sizes["unseen"] / 1000 == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"game": "x"}', "found an object with ['game']"),
        ("{}", "no keys"),
        ('{"game_file": 7}', "expected the path of a game"),
        ('{"game_file": "x"', "not valid JSON"),
        ('{"game_file": "x", "split": "test"}', "expected one of train, seen, unseen"),
    ],
)
def test_a_bad_row_is_one_error_with_its_line(tmp_path: Path, row: str, message: str) -> None:
    (tmp_path / "games.jsonl").write_text(f"a.tw-pddl\n\n{row}\n")
    with pytest.raises(TaskError, match=r"games\.jsonl, line 3") as caught:
        AlfWorld(games=str(tmp_path / "games.jsonl"))
    assert message in str(caught.value)


def test_missing_files_are_named_with_their_setting(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"env\.game_file: '.*none\.tw-pddl' cannot be read: No such file"):
        AlfWorld(game_file=str(tmp_path / "none.tw-pddl"))
    with pytest.raises(TaskError, match=r"env\.games: '.*none\.txt' cannot be read: No such file"):
        AlfWorld(games=str(tmp_path / "none.txt"))
    with pytest.raises(TaskError, match=r"env\.games: there is no \*\.tw-pddl in the folder"):
        AlfWorld(games=str(tmp_path))
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(TaskError, match="lists no game"):
        AlfWorld(games=str(tmp_path / "empty.txt"))
    (tmp_path / "odd.tw-pddl").write_bytes(b"\xff\xfe")
    with pytest.raises(TaskError, match="it is not text"):
        AlfWorld(game_file=str(tmp_path / "odd.tw-pddl"))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"game_file": "a", "games": "b"}, "both given"),
        ({"backend": "textworld"}, "backend 'textworld' plays game files only; give game_file or games"),
        ({"num_receptacles": 3}, "num_receptacles"),
        ({"num_receptacles": 21}, "num_receptacles"),
        ({"task_types": []}, "task_types"),
        ({"task_types": ["sleep"]}, "task_types"),
        ({"orakle": "planner"}, "Did you mean 'oracle'?"),
    ],
)
def test_wrong_settings_are_explained(params: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AlfWorld(**params)
    assert message in str(caught.value)


@needs_games
def test_the_variable_of_the_original_says_where_games_are(games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = next(iter(sorted(games.rglob("*.tw-pddl"))))
    with pytest.raises(TaskError, match="cannot be read"):
        AlfWorld(game_file=str(file.relative_to(games)))
    monkeypatch.setenv("ALFWORLD_DATA", str(games))
    for path in (str(file.relative_to(games)), f"$ALFWORLD_DATA/{file.relative_to(games)}"):
        env = AlfWorld(game_file=path)
        assert env.raw_task(3)["game_file"] == str(file)
        assert "Your task is to" in env.reset(seed=1)
    assert list_games("$ALFWORLD_DATA", 0.2) == list_games(str(games), 0.2)
