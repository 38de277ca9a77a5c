"""The game itself: texts, pushes, rewards, dead states, and what is said to people."""

from __future__ import annotations

import random
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.check import check_env
from turnwise.envs.sokoban import Sokoban
from turnwise.errors import ConfigError, EnvError, TaskError

from .rooms import read_level, room_at, slow_solution_length

CORRIDOR = """
######
#PX_O#
######
"""
TWO = """
######
#__P_#
#_XXO#
#_O__#
######
"""


@pytest.mark.parametrize("params", [{}, {"rows": 8, "columns": 7, "num_boxes": 2, "view": "objects"}])
def test_keeps_the_contract(params: dict[str, object]) -> None:
    report = check_env(lambda: Sokoban(**params), num_episodes=10)
    assert report.ok, report.failures


def test_pushing_pays_when_a_box_comes_on_and_when_all_are() -> None:
    env = room_at(CORRIDOR)
    text, reward, done, info = env.step("Right")
    assert (text, reward, done) == ("######\n#_PXO#\n######", -0.1, False)
    assert info == {
        "success": False,
        "action_is_valid": True,
        "action_is_effective": True,
        "is_dead": False,
        "difficulty": "boxes: 1",
    }
    text, reward, done, info = env.step("Right")
    assert (text, reward, done) == ("######\n#__P√#\n######", pytest.approx(10.9), True)
    assert info["success"] is True


def test_one_of_two_boxes_pays_one_and_leaving_costs_one() -> None:
    env = room_at("######\n#____#\n#_PXO#\n#_OX_#\n#____#\n######", num_boxes=2)
    assert env.step("Right")[1] == pytest.approx(0.9)
    assert env.render().split("\n")[2] == "#__P√#"
    off = room_at("######\n#P√__#\n#OX__#\n######", num_boxes=2, floor_share=1.0)
    text, reward, done, info = off.step("Right")
    assert (text, reward, done) == ("######\n#_SX_#\n#OX__#\n######", pytest.approx(-1.1), False)
    assert info["success"] is False


def test_from_target_to_target_is_neither_on_nor_off() -> None:
    env = room_at("#######\n#P√O__#\n#OX___#\n#######", num_boxes=2, floor_share=1.0)
    assert env.step("Right")[1] == pytest.approx(-0.1)


def test_rewards_can_be_chosen() -> None:
    env = room_at(CORRIDOR, action_reward=-0.5, box_on_reward=2.0, solved_reward=7.0)
    assert env.step("Right")[1] == -0.5
    assert env.step("Right")[1] == pytest.approx(8.5)
    off = room_at("######\n#P√__#\n#OX__#\n######", num_boxes=2, floor_share=1.0, box_off_reward=-3.0)
    assert off.step("Right")[1] == pytest.approx(-3.1)


@pytest.mark.parametrize("move", ["Up", "Left", "Down"])
def test_walls_are_valid_cost_and_change_nothing(move: str) -> None:
    env = room_at(CORRIDOR)
    before = env.render()
    text, reward, done, info = env.step(move)
    assert (text, reward, done) == (before, -0.1, False)
    assert (info["action_is_valid"], info["action_is_effective"]) == (True, False)


def test_a_box_before_a_wall_or_a_box_does_not_move() -> None:
    for drawing in ("#####\n#_PX#\n#O__#\n#####", "#######\n#PXX__#\n#OO___#\n#######"):
        env = room_at(drawing, floor_share=1.0)
        before = env.render()
        text, _, _, info = env.step("Right")
        assert (text, info["action_is_effective"]) == (before, False)


@given(st.text())
def test_any_other_text_is_invalid_and_changes_nothing(action: str) -> None:
    env = room_at(CORRIDOR)
    if action.strip().lower() in ("left", "down", "right", "up"):
        return
    before = env.render()
    text, reward, done, info = env.step(action)
    assert (text, reward, done) == (before, 0.0, False)
    assert (info["action_is_valid"], info["action_is_effective"]) == (False, False)


@pytest.mark.parametrize("action", ["right", "RIGHT", " Right\n", "rIgHt"])
def test_case_and_space_do_not_matter(action: str) -> None:
    assert room_at(CORRIDOR).step(action)[3]["action_is_effective"] is True


def test_objects_view_names_cells_and_inner_walls() -> None:
    env = room_at("######\n#__S_#\n##X√O#\n######", num_boxes=2, view="objects", floor_share=1.0)
    assert env.render() == "Sd2 Xc3 √d3 Oe3 #b3"
    assert env.step("Left")[0] == "Pc2 Xc3 √d3 Od2 Oe3 #b3"
    assert "column a, b" in env.legend


def test_own_symbols_reach_both_views_and_the_legend() -> None:
    symbols = {"wall": "W", "floor": ".", "target": "t", "box": "b", "stored": "B", "player": "@"}
    symbols |= {"player_on_target": "+"}
    assert room_at(CORRIDOR, symbols=symbols).render() == "WWWWWW\nW@b.tW\nWWWWWW"
    words = room_at(TWO, num_boxes=2, floor_share=1.0, symbols=symbols, view="objects")
    assert words.render() == "@d2 bc3 bd3 te3 tc4"
    for env in (room_at(CORRIDOR, symbols=symbols), words):
        assert env.legend.startswith("@: you, b: box, t: target, W: wall")
        assert "+: you on a target, B: box on a target" in env.legend


def test_a_push_into_a_corner_is_dead_and_stays_so() -> None:
    env = room_at("######\n#_XP_#\n#____#\n#_O__#\n######")
    info = env.step("Left")[3]
    assert info["is_dead"] is True
    assert env.is_dead
    assert env.step(env.oracle())[3] == {
        "success": False,
        "action_is_valid": True,
        "action_is_effective": True,
        "is_dead": True,
        "difficulty": "boxes: 1",
    }
    other = Sokoban()
    other.restore(env.snapshot())
    assert other.is_dead


def test_the_oracle_of_a_walled_in_player_still_says_an_action() -> None:
    env = room_at("#####\n#PX##\n##_O#\n#####", floor_share=1.0)
    assert env.oracle() in env.action_names


@pytest.mark.parametrize(("rows", "columns", "num_boxes"), [(6, 6, 1), (5, 7, 2)])
def test_oracle_and_dead_are_exact_wherever_random_play_leads(rows: int, columns: int, num_boxes: int) -> None:
    """Against a search that shares nothing with the solver, in states far off the best path."""
    env, rng = Sokoban(rows=rows, columns=columns, num_boxes=num_boxes), random.Random(5)
    num_dead = num_solvable = 0
    for seed in range(30):
        env.reset(seed)
        done = False
        while not done and rng.random() < 0.95:
            done = env.step(rng.choice(env.action_names))[2]
        if done:
            continue
        expected = slow_solution_length(env.render())
        assert env.is_dead == (expected is None)
        num_dead += expected is None
        if expected is not None:
            num_solvable += 1
            num_moves = 0
            while not done:
                done = env.step(env.oracle())[2]
                num_moves += 1
            assert num_moves == expected
    assert num_dead > 3
    assert num_solvable > 5


def test_siblings_share_one_search_and_leave_nothing_behind() -> None:
    first, second = Sokoban(), Sokoban()
    first.reset(3)
    second.reset(3)
    assert first._distances is second._distances
    known = weakref.ref(first._distances)
    first.reset(4)
    second.reset(5)
    assert known() is None


def test_ten_thousand_random_steps() -> None:
    env, rng = Sokoban(rows=7, columns=8, num_boxes=2), random.Random(0)
    actions = ["Up", "Down", "Left", "Right", "jump", ""]
    done, seed, num_solved = True, 0, 0
    for _ in range(10_000):
        if done or rng.random() < 0.01:
            env.reset(seed, split=("train", "eval")[seed % 2])
            seed += 1
        text, _, done, info = env.step(rng.choice(actions))
        num_solved += done
        assert done == info["success"]
        assert sum(text.count(symbol) for symbol in "X√") == 2
        assert sum(text.count(symbol) for symbol in "PS") == 1
        assert sum(text.count(symbol) for symbol in "O√S") == 2
    assert num_solved > 0


def test_step_is_refused_before_reset_and_after_the_end() -> None:
    env = Sokoban()
    with pytest.raises(EnvError, match="call reset"):
        env.step("Left")
    with pytest.raises(EnvError, match="call reset"):
        env.oracle()
    env = room_at(CORRIDOR)
    env.step("Right")
    env.step("Right")
    with pytest.raises(EnvError, match="episode is over; call reset"):
        env.step("Left")


def test_unknown_split_lists_the_known_ones() -> None:
    with pytest.raises(TaskError, match=r"'test'.*train, eval"):
        Sokoban().reset(0, split="test")


def test_without_a_seed_levels_vary() -> None:
    env = Sokoban(rows=8, columns=8)
    assert len({env.reset() for _ in range(5)}) > 1


def test_a_drawing_is_read_as_it_is_shown() -> None:
    assert room_at(TWO, num_boxes=2, floor_share=1.0).render() == TWO.strip()
    assert read_level(TWO).boxes.bit_count() == 2


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"row": 4}, "env 'sokoban': row: unknown setting. Did you mean 'rows'?"),
        ({"rows": 2}, "rows: 2 given"),
        ({"columns": 27}, "columns: 27 given"),
        ({"num_boxes": 0}, "num_boxes: 0 given"),
        ({"num_boxes": 9}, "leave 11 cells of floor; 9 boxes, their targets and the player need 19"),
        ({"min_moves": 5, "max_moves": 2}, "max_moves 2 is below min_moves 5"),
        ({"view": "gird"}, "view: 'gird' given"),
        ({"symbols": {"box": "P"}}, "not all different"),
    ],
)
def test_wrong_settings_are_explained(params: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sokoban(**params)
    assert message in str(caught.value)
