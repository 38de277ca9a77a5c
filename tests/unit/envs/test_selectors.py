"""Tasks out of a finite set: order, epochs, difficulty, and going on after a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.envs.selectors import ByDifficulty, FiniteTasks, Sequential, Shuffled
from turnwise.errors import TaskError
from turnwise.types import Group, StopReason, Task, Trajectory, TrajectoryId

MAKERS: dict[str, Any] = {
    "sequential": Sequential,
    "random": Shuffled,
    "difficulty": partial(ByDifficulty, target=0.5),
}
EVERY = pytest.mark.parametrize("name", MAKERS)


def make_source(name: str, num_tasks: int = 7, tags: tuple[str, ...] = ("a",), first_seed: int = 100) -> FiniteTasks:
    return FiniteTasks(tags, [1] * len(tags), first_seed, num_tasks=num_tasks, make_selector=MAKERS[name])


def played(task: Task, outcomes: Sequence[bool | None], reason: StopReason = StopReason.TERMINATED) -> Group:
    return Group(
        task=task,
        trajectories=tuple(
            Trajectory(
                id=TrajectoryId(1, task.id, n), task=task, segments=(), turns=(), stop_reason=reason, is_success=success
            )
            for n, success in enumerate(outcomes)
        ),
    )


def explore(source: FiniteTasks, count: int, chance: float = 0.5) -> list[int]:
    """One exploration of `count` tasks whose siblings succeed by turns."""
    tasks = source.take(count)
    source.feedback([played(task, [chance > 0.5, chance > 0]) for task in tasks])
    return [task.seed for task in tasks]


@EVERY
@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_only_tasks_of_the_set_and_none_twice_in_one_exploration(name: str, counts: list[int]) -> None:
    source = make_source(name)
    for count in counts:
        seeds = explore(source, count)
        assert len(set(seeds)) == count
        assert set(seeds) <= set(range(100, 107))


@EVERY
def test_further_rounds_of_an_exploration_bring_other_tasks(name: str) -> None:
    source = make_source(name)
    taken: list[Task] = []
    for _ in range(3):
        taken += source.take(2, besides=taken)
    assert len({task.seed for task in taken}) == 6
    with pytest.raises(TaskError, match=r"8 different tasks .* tasks\.num_tasks is 7"):
        source.take(2, besides=taken)
    # Another exploration, also one that runs at the same time, may have the same tasks.
    assert len(source.take(7)) == 7


def test_in_order_and_from_the_start_again() -> None:
    source = make_source("sequential", num_tasks=3)
    assert [explore(source, 2) for _ in range(3)] == [[100, 101], [102, 100], [101, 102]]


def test_every_epoch_has_every_task_once_in_an_order_of_its_own() -> None:
    source = make_source("random", num_tasks=12)
    epochs = [[seed for _ in range(4) for seed in explore(source, 3)] for _ in range(5)]
    assert all(sorted(epoch) == list(range(100, 112)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5
    other = make_source("random", num_tasks=12, first_seed=500)
    assert [seed - 500 for seed in explore(other, 12)] != [seed - 100 for seed in epochs[0]]


@pytest.mark.parametrize(("target", "favourites"), [(0.5, range(4, 8)), (1.0, range(8, 12)), (0.0, range(4))])
def test_tasks_near_the_target_come_most_often(target: float, favourites: range) -> None:
    """Four tasks always fail, four succeed half the time, four always succeed."""
    maker = partial(ByDifficulty, target=target)
    source = FiniteTasks(["a"], [1], 0, num_tasks=12, make_selector=maker)
    seen: Counter[int] = Counter()
    for number in range(200):
        tasks = source.take(3)
        source.feedback([played(t, [t.seed // 4 == 2, t.seed // 4 > 0] * 4) for t in tasks])
        if number >= 50:
            seen.update(task.seed for task in tasks)
    assert sum(seen[seed] for seed in favourites) > 0.8 * seen.total()


def test_estimates_follow_what_was_played_and_forget() -> None:
    selector = ByDifficulty(3, 0, target=0.5)
    np.testing.assert_allclose(selector.estimates, [0.5, 0.5, 0.5])
    selector.learn(1, 4, 4)
    np.testing.assert_allclose(selector.estimates, [0.5, 5 / 6, 0.5])
    selector.learn(1, 0, 4)
    np.testing.assert_allclose(selector.estimates[1], (0.8 * 4 + 1) / (0.8 * 4 + 4 + 2))


def test_failed_plays_say_nothing_about_a_task() -> None:
    source = make_source("difficulty", num_tasks=2)
    before = source.state()
    tasks = source.take(2)
    source.feedback([played(task, [False] * 4, StopReason.ENV_ERROR) for task in tasks])
    assert source.state()["a"]["failures"] == before["a"]["failures"]


@EVERY
def test_several_environments_have_sets_of_their_own(name: str) -> None:
    source = FiniteTasks(["a", "b"], [2, 1], 10, num_tasks=4, make_selector=MAKERS[name])
    tasks = source.take(3)
    assert [task.tag for task in tasks] == ["a", "a", "b"]
    assert {task.seed for task in tasks[:2]} <= set(range(10, 14))
    assert tasks[2].seed in range(14, 18)


def test_a_foreign_state_is_refused() -> None:
    with pytest.raises(TaskError, match="expected"):
        make_source("random").restore({"next_seed": 3})
    other = make_source("difficulty", num_tasks=3)
    with pytest.raises(TaskError, match=r"tasks\.num_tasks = 7"):
        make_source("difficulty").restore(other.state())


def test_difficulty_says_once_that_nobody_says_what_a_success_is(caplog: pytest.LogCaptureFixture) -> None:
    source = make_source("difficulty")
    for _ in range(3):
        source.feedback([played(task, [None, None]) for task in source.take(2)])
    assert caplog.text.count("tasks.selector 'difficulty' has nothing to go by") == 1
    before = source.state()["a"]
    source.feedback([played(task, [None, True]) for task in source.take(1)])
    after = source.state()["a"]
    assert (sum(before["successes"]), sum(after["successes"]), sum(after["failures"])) == (0, 1, 0)
