"""The contract of a priority: a number from a group's version, its uses and its dice, or nothing any more."""

from __future__ import annotations

import math

import pytest

from turnwise.config.kinds import GroupPriority

from .entries import names_of
from .setting import settings_with

every_priority = pytest.mark.parametrize("name", names_of("buffer.priority"))


def open_named(name: str) -> GroupPriority:
    return settings_with(f"buffer.priority.type={name}").buffer.priority


@every_priority
def test_equal_groups_have_equal_numbers_in_every_process(name: str) -> None:
    for version, uses, seed in [(0, 0, 0), (3, 1, 17), (8, 2, 5), (8, 50, 5)]:
        one, other = open_named(name)(version, uses, seed), open_named(name)(version, uses, seed)
        assert one == other
        assert one is None or math.isfinite(one)


@every_priority
def test_an_unused_group_may_be_taken(name: str) -> None:
    assert None not in [open_named(name)(version, 0, 1) for version in range(5)]
