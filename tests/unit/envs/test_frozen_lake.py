"""The game itself: texts, moves, rewards, slips, and what is said to people."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.frozen_lake import FrozenLake
from turnwise.envs.frozen_lake.layout import Layout
from turnwise.errors import ConfigError, EnvError, TaskError


def lake_at(layout: Layout, **params: object) -> FrozenLake:
    """A lake with a layout of our choice, by way of the public snapshots."""
    env = FrozenLake(size=layout.size, **params)
    env.restore((layout, layout.start, "playing", None))
    return env


SMALL = Layout(3, 4, 8, 1 << 0 | 1 << 5)
"""O _ _ / _ P O / _ _ G"""


def test_grid_view() -> None:
    env = lake_at(SMALL)
    assert env.render() == "O__\n_PO\n__G"
    assert env.step("Down")[0] == "O__\n__O\n_PG"
    assert env.step("Right")[0] == "O__\n__O\n__√"


def test_objects_view() -> None:
    env = lake_at(SMALL, view="objects")
    assert env.render() == "Pb2 Gc3 Oa1 Oc2"
    assert env.step("Right")[0] == "Xc2 Gc3 Oa1 Oc2"


def test_objects_are_sorted_by_column_and_then_by_number() -> None:
    layout = Layout(10, 99, 98, 1 << 90 | 1 << 10 | 1 << 1)
    assert lake_at(layout, view="objects").render() == "Pj10 Gi10 Oa2 Oa10 Ob1"


def test_goal_pays_and_ends() -> None:
    env = lake_at(SMALL)
    env.step("Down")
    text, reward, done, info = env.step("Right")
    assert (reward, done) == (1.0, True)
    assert info == {"success": True, "action_is_valid": True, "action_is_effective": True}
    assert env.render() == text


def test_hole_ends_without_pay() -> None:
    text, reward, done, info = lake_at(SMALL).step("Right")
    assert (text, reward, done) == ("O__\n__X\n__G", 0.0, True)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": True}


def test_wall_is_valid_and_without_effect() -> None:
    env = lake_at(SMALL)
    env.step("Left")
    text, reward, done, info = env.step("Left")
    assert (text, reward, done) == ("O__\nP_O\n__G", 0.0, False)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": False}


@given(st.text())
def test_any_other_text_is_invalid_and_changes_nothing(action: str) -> None:
    env = lake_at(SMALL)
    before = env.render()
    if action.strip().lower() in ("left", "down", "right", "up"):
        return
    text, reward, done, info = env.step(action)
    assert (text, reward, done) == (before, 0.0, False)
    assert info == {"success": False, "action_is_valid": False, "action_is_effective": False}


@pytest.mark.parametrize("action", ["down", "DOWN", " Down\n", "dOwN"])
def test_case_and_space_do_not_matter(action: str) -> None:
    assert lake_at(SMALL).step(action)[0] == "O__\n__O\n_PG"


def test_step_is_refused_before_reset_and_after_the_end() -> None:
    env = FrozenLake()
    with pytest.raises(EnvError, match="call reset"):
        env.step("Left")
    with pytest.raises(EnvError, match="call reset"):
        env.oracle()
    env = lake_at(SMALL)
    env.step("Right")
    with pytest.raises(EnvError, match="episode is over; call reset"):
        env.step("Left")
    env.reset(1)
    env.step("nonsense")


def test_siblings_share_the_layout_and_not_the_slips() -> None:
    env = FrozenLake(is_slippery=True, size=8, hole_rate=0.0)
    texts, ends = set(), set()
    for dynamics_seed in range(20):
        texts.add(env.reset(3, dynamics_seed=dynamics_seed))
        for _ in range(3):
            if env.step("Down")[2]:
                break
        ends.add(env.render())
    assert len(texts) == 1
    assert len(ends) > 3


def test_without_dynamics_seed_the_slips_follow_the_seed() -> None:
    def play(env: FrozenLake) -> list[str]:
        texts = [env.reset(3)]
        for _ in range(12):
            text, _, done, _ = env.step("Down")
            texts.append(text)
            if done:
                break
        return texts

    params = {"is_slippery": True, "size": 8, "hole_rate": 0.0}
    assert play(FrozenLake(**params)) == play(FrozenLake(**params))


@pytest.mark.parametrize("slip_rate", [2 / 3, 0.2])
def test_slips_go_to_both_sides_evenly(slip_rate: float) -> None:
    middle = Layout(5, 12, 24, 0)
    env = FrozenLake(size=5, hole_rate=0.0, is_slippery=True, slip_rate=slip_rate)
    ends: Counter[int] = Counter()
    for dynamics_seed in range(3000):
        env.reset(0, dynamics_seed=dynamics_seed)
        _, _, _, slips = env.snapshot()  # type: ignore[misc]
        env.restore((middle, 12, "playing", slips))
        env.step("Up")
        ends[env.cell] += 1
    assert ends[7] / 3000 == pytest.approx(1 - slip_rate, abs=0.04)
    assert ends[11] / 3000 == pytest.approx(slip_rate / 2, abs=0.04)
    assert ends[13] / 3000 == pytest.approx(slip_rate / 2, abs=0.04)


def test_ice_that_is_not_slippery_ignores_the_slip_rate() -> None:
    env = lake_at(SMALL, slip_rate=1.0)
    assert env.step("Down")[0] == "O__\n__O\n_PG"


def test_own_symbols_reach_view_and_legend() -> None:
    symbols = {"player": "@", "ice": ".", "hole": "#", "goal": "*", "fallen": "!", "arrived": "+"}
    env = lake_at(SMALL, symbols=symbols)
    assert env.render() == "#..\n.@#\n..*"
    assert env.legend.startswith("@: you, *: goal, #: hole, .: ice, !: you in a hole, +: you on the goal")
    words = lake_at(SMALL, symbols=symbols, view="objects")
    assert words.step("Right")[0] == "!c2 *c3 #a1 #c2"
    assert "#: hole" in words.legend
    assert "column" in words.legend


def test_instructions_tell_of_slippery_ice() -> None:
    assert "slippery" in FrozenLake(is_slippery=True).instructions
    assert "slippery" not in FrozenLake().instructions


def test_unknown_split_lists_the_known_ones() -> None:
    with pytest.raises(TaskError, match=r"'test'.*train, eval"):
        FrozenLake().reset(0, split="test")


def test_without_a_seed_layouts_vary() -> None:
    env = FrozenLake(size=8)
    assert len({env.reset() for _ in range(5)}) > 1


def test_snapshot_repeats_the_slips() -> None:
    env = FrozenLake(is_slippery=True, size=8, hole_rate=0.0)
    env.reset(1)
    env.step("Down")
    state = env.snapshot()
    first = [env.step("Down")[0] for _ in range(3)]
    env.restore(state)
    assert [env.step("Down")[0] for _ in range(3)] == first


def test_ten_thousand_random_steps() -> None:
    env, rng = FrozenLake(size=6, is_slippery=True, slip_rate=0.3), random.Random(0)
    done, seed, num_arrivals = True, 0, 0
    for _ in range(10_000):
        if done:
            env.reset(seed, split=("train", "eval")[seed % 2])
            seed += 1
        text, reward, done, info = env.step(rng.choice(("Left", "Down", "Right", "Up", "jump", "")))
        num_arrivals += reward == 1.0
        assert (reward == 1.0) == info["success"] == ("√" in text)
        assert done == ("√" in text or "X" in text)
    assert num_arrivals > 50


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"sise": 4}, "env 'frozen_lake': sise: unknown setting. Did you mean 'size'?"),
        ({"size": 1}, "size: 1 given"),
        ({"size": 27}, "size: 27 given"),
        ({"size": "4"}, "size: '4' given"),
        ({"view": "gird"}, "view: 'gird' given"),
        ({"symbols": {"plyer": "@"}}, "symbols.plyer: unknown setting. Did you mean 'player'?"),
        ({"symbols": {"hole": "P"}}, "not all different"),
        ({"symbols": {"ice": " "}}, "symbols.ice: ' ' given"),
        ({"min_distance": 5, "max_distance": 2}, "max_distance 2 is below min_distance 5"),
    ],
)
def test_wrong_settings_are_explained(params: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FrozenLake(**params)
    assert message in str(caught.value)
