"""Tasks from seeds: order, proportion, no repeats, and going on after a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.tasks import SeedTasks
from turnwise.errors import TaskError


def test_tags_come_in_order_and_in_proportion() -> None:
    tasks = SeedTasks(["lake", "bandit"], [2, 1], 100).take(6)
    assert [task.tag for task in tasks] == ["lake"] * 4 + ["bandit"] * 2
    assert [task.seed for task in tasks] == list(range(100, 106))
    assert {task.split for task in tasks} == {"train"}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(-5, 10**6))
def test_no_seed_is_taken_twice(rounds: list[int], first_seed: int) -> None:
    source = SeedTasks(["a", "b"], [1, 2], first_seed)
    seeds = [task.seed for num in rounds for task in source.take(3 * num)]
    assert seeds == list(range(first_seed, first_seed + 3 * sum(rounds)))


def test_restored_source_goes_on_where_it_was() -> None:
    source = SeedTasks(["a"], [1], 7)
    source.take(5)
    state = dict(source.state())
    expected = source.take(4)
    other = SeedTasks(["a"], [1], 0)
    other.restore(state)
    assert other.take(4) == expected


def test_foreign_state_is_refused() -> None:
    with pytest.raises(TaskError, match="expected 'next_seed'"):
        SeedTasks(["a"], [1], 0).restore({"position": 3})


@pytest.mark.parametrize("num_tasks", [0, 4, -3])
def test_counts_that_do_not_fit_are_refused(num_tasks: int) -> None:
    source = SeedTasks(["a", "b"], [1, 2], 0)
    with pytest.raises(TaskError, match="multiple of 3"):
        source.take(num_tasks)
    assert source.state() == {"next_seed": 0}


@pytest.mark.parametrize(("tags", "counts"), [([], []), (["a"], [1, 2]), (["a", "b"], [1, 0]), (["a", "a"], [1, 1])])
def test_tags_and_counts_must_fit(tags: list[str], counts: list[int]) -> None:
    with pytest.raises(TaskError):
        SeedTasks(tags, counts, 0)
