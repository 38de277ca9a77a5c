"""Tasks from seeds: order, proportion, no repeats, and going on after a restart."""

from __future__ import annotations

import pytest

from turnwise.envs.base import SeedTasks
from turnwise.errors import TaskError


def test_tags_come_in_order_and_in_proportion() -> None:
    tasks = SeedTasks(["lake", "bandit"], [2, 1], 100).take(6)
    assert [task.tag for task in tasks] == ["lake"] * 4 + ["bandit"] * 2
    assert [task.seed for task in tasks] == list(range(100, 106))
    assert {task.split for task in tasks} == {"train"}


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
