"""Tasks that are nothing but seeds.

In come tags with their shares, a first seed and a split; out come tasks with consecutive seeds, none of them twice. It
refuses to know what an environment makes of a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.errors import TaskError
from turnwise.types import Group, Task


class SeedTasks:
    """An endless `TaskSource`, laid out tag by tag; its whole state is the next seed."""

    def __init__(self, tags: Sequence[str], num_groups: Sequence[int], first_seed: int, split: str = "train") -> None:
        check_tags(tags, num_groups)
        self.tags = tuple(tags)
        self.num_groups = tuple(num_groups)
        self.split = split
        self._next_seed = first_seed

    def take(self, num_tasks: int, *, besides: Sequence[Task] = ()) -> list[Task]:
        """The next tasks: all of the first tag, then all of the second, in proportion to their group counts."""
        shares = spread_over_tags(self.tags, self.num_groups, num_tasks)
        tags = [tag for tag, count in shares for _ in range(count)]
        tasks = [Task(tag=tag, seed=self._next_seed + offset, split=self.split) for offset, tag in enumerate(tags)]
        self._next_seed += num_tasks
        return tasks

    def feedback(self, groups: Sequence[Group]) -> None:
        """Nothing: no task comes a second time."""

    def state(self) -> Mapping[str, Any]:
        return {"next_seed": self._next_seed}

    def restore(self, state: Mapping[str, Any]) -> None:
        if "next_seed" not in state:
            raise TaskError(f"the state of a task source holds {sorted(state)}; expected 'next_seed'.")
        self._next_seed = state["next_seed"]


def check_tags(tags: Sequence[str], num_groups: Sequence[int]) -> None:
    """Every tag once, and at least one group of it."""
    if not tags or len(tags) != len(num_groups):
        raise TaskError(f"{len(tags)} tags and {len(num_groups)} group counts; expected one count for each tag.")
    if len(set(tags)) < len(tags):
        raise TaskError(f"the tags {', '.join(tags)} are not all different; add up the group counts of a tag.")
    if min(num_groups) < 1:
        raise TaskError(f"the group counts are {list(num_groups)}; expected at least 1 for each tag.")


def spread_over_tags(tags: Sequence[str], num_groups: Sequence[int], num_tasks: int) -> list[tuple[str, int]]:
    """How many tasks of each tag, in proportion to their group counts."""
    per_round = sum(num_groups)
    if num_tasks < 1 or num_tasks % per_round:
        raise TaskError(
            f"{num_tasks} tasks were asked for; expected a multiple of {per_round}, "
            f"the sum of the group counts {list(num_groups)}."
        )
    num_rounds = num_tasks // per_round
    return [(tag, count * num_rounds) for tag, count in zip(tags, num_groups, strict=True)]
