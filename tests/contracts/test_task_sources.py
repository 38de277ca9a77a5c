"""The contract of a task source: no task twice in one exploration, and a state to go on from."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.config.schema import TaskSettings
from turnwise.loop.build import build_tasks
from turnwise.protocols import TaskSource
from turnwise.rollout.env_specs import all_envs
from turnwise.types import Group, StopReason, Task, Trajectory, TrajectoryId

from .setting import settings_with

pytestmark = pytest.mark.slow

SELECTORS = get_args(TaskSettings.model_fields["selector"].annotation)
every_source = pytest.mark.parametrize("name", ["endless", *SELECTORS])
MIXED = ["rollout.groups=2", "mix.other.env.type=bandit", "mix.other.groups=1"]


def open_source(name: str, *choices: str) -> TaskSource:
    """Endless, or twelve tasks in the order of a selector."""
    given = [] if name == "endless" else ["tasks.num_tasks=12", f"tasks.selector={name}"]
    chosen = settings_with(*given, *choices)
    return build_tasks(chosen, all_envs(chosen))


def explore(source: TaskSource, counts: list[int]) -> list[Task]:
    """Rounds of one exploration; of its siblings every second succeeds."""
    taken: list[Task] = []
    for count in counts:
        taken += source.take(3 * count, besides=taken)
    source.feedback([played(task) for task in taken])
    return taken


def played(task: Task) -> Group:
    ended = {"segments": (), "turns": (), "stop_reason": StopReason.TERMINATED}
    ids = [TrajectoryId(1, task.id, number) for number in range(2)]
    trajectories = tuple(Trajectory(id=id, task=task, is_success=id.sibling == 0, **ended) for id in ids)  # type: ignore[arg-type]
    return Group(task=task, trajectories=trajectories)


rounds = st.lists(st.integers(1, 2), min_size=1, max_size=2)


@every_source
@settings(max_examples=15, deadline=None)
@given(explorations=st.lists(rounds, min_size=1, max_size=5))
def test_no_task_comes_twice_in_one_exploration(name: str, explorations: list[list[int]]) -> None:
    source = open_source(name)
    for counts in explorations:
        tasks = explore(source, counts)
        assert len(tasks) == 3 * sum(counts)
        assert len({task.id for task in tasks}) == len(tasks)
        assert {(task.tag, task.split) for task in tasks} == {("frozen_lake", "train")}


@every_source
@settings(max_examples=15, deadline=None)
@given(before=st.lists(rounds, max_size=4), after=st.lists(rounds, min_size=1, max_size=4))
def test_a_restored_source_goes_on_where_it_was(name: str, before: list[list[int]], after: list[list[int]]) -> None:
    source = open_source(name)
    for counts in before:
        explore(source, counts)
    state = json.loads(json.dumps(source.state()))
    expected = [explore(source, counts) for counts in after]
    other = open_source(name)
    other.restore(state)
    assert [explore(other, counts) for counts in after] == expected


@every_source
def test_mixed_environments_have_their_shares(name: str) -> None:
    tasks = open_source(name, *MIXED).take(6)
    assert [task.tag for task in tasks].count("frozen_lake") == 4
    assert [task.tag for task in tasks].count("other") == 2
    assert len({task.id for task in tasks}) == 6


@every_source
def test_runs_of_different_seeds_share_no_task(name: str) -> None:
    one, other = (open_source(name, f"run.seed={seed}").take(6) for seed in (0, 1))
    assert not {task.id for task in one} & {task.id for task in other}
