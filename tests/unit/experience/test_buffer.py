"""Between exploring and learning: whole groups, newest first, nothing lost."""

from __future__ import annotations

from collections import Counter

import pytest

from turnwise.experience.buffer import MemoryBuffer
from turnwise.experience.build import build_experiences
from turnwise.types import Experience, Group

from .records import make_group


def filled(*groups: Group) -> MemoryBuffer:
    buffer = MemoryBuffer()
    buffer.add(build_experiences(groups))
    return buffer


def groups_in(experiences: list[Experience]) -> list[str]:
    return list(dict.fromkeys(e.id.trajectory.group for e in experiences))


def test_everything_without_a_ceiling() -> None:
    buffer = filled(make_group(3, seed=0), make_group(2, seed=1))
    assert len(buffer) == 5
    assert len(buffer.take(None)) == 5
    assert len(buffer) == 0
    assert buffer.take(None) == []


@pytest.mark.parametrize("ceiling", range(1, 20))
def test_groups_stay_whole_below_the_ceiling_and_the_rest_is_kept(ceiling: int) -> None:
    sizes = {0: 3, 1: 5, 2: 4, 3: 3}
    buffer = filled(*(make_group(size, seed=seed) for seed, size in sizes.items()))
    seen: Counter[str] = Counter()
    while len(buffer):
        before = len(buffer)
        taken = buffer.take(ceiling)
        names = groups_in(taken)
        assert taken
        assert len(buffer) == before - len(taken)
        assert len(taken) <= ceiling or len(names) == 1
        for name in names:
            assert sum(e.id.trajectory.group == name for e in taken) == sizes[int(name.split("/")[-1])]
        seen.update(names)
    assert sorted(seen.values()) == [1, 1, 1, 1]


def test_a_group_larger_than_the_ceiling_is_taken_alone() -> None:
    buffer = filled(make_group(6, seed=0), make_group(1, seed=1))
    assert groups_in(buffer.take(4)) == ["0/words/train/0"]
    assert groups_in(buffer.take(4)) == ["0/words/train/1"]


def test_newest_first_and_then_in_the_order_of_arrival() -> None:
    buffer = filled(
        make_group(2, seed=0, rollout=1, version=0),
        make_group(2, seed=1, rollout=1, version=0),
        make_group(2, seed=2, rollout=2, version=1),
    )
    buffer.add(build_experiences([make_group(2, seed=3, rollout=2, version=1)]))
    order = [groups_in(buffer.take(2)) for _ in range(4)]
    assert order == [["2/words/train/2"], ["2/words/train/3"], ["1/words/train/0"], ["1/words/train/1"]]


def test_the_same_task_in_another_rollout_is_another_group() -> None:
    buffer = filled(make_group(2, seed=0, rollout=1), make_group(2, seed=0, rollout=2))
    assert len(buffer.take(2)) == 2
    assert len(buffer) == 2


def test_a_group_that_comes_in_pieces_is_one_group() -> None:
    experiences = build_experiences([make_group(4)])
    buffer = MemoryBuffer()
    buffer.add(experiences[:1])
    buffer.add(experiences[1:])
    assert len(buffer.take(1)) == 4
