"""Tasks that are nothing but seeds.

In come tags with their shares, a first seed and a split; out come tasks with consecutive seeds, none of them twice. It
refuses to know what an environment makes of a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.errors import TaskError
from turnwise.types import Task


class SeedTasks:
    """An endless `TaskSource`, laid out tag by tag; its whole state is the next seed."""

    def __init__(self, tags: Sequence[str], num_groups: Sequence[int], first_seed: int, split: str = "train") -> None:
        if not tags or len(tags) != len(num_groups):
            raise TaskError(f"{len(tags)} tags and {len(num_groups)} group counts; expected one count for each tag.")
        if len(set(tags)) < len(tags):
            raise TaskError(f"the tags {', '.join(tags)} are not all different; add up the group counts of a tag.")
        if min(num_groups) < 1:
            raise TaskError(f"the group counts are {list(num_groups)}; expected at least 1 for each tag.")
        self.tags = tuple(tags)
        self.num_groups = tuple(num_groups)
        self.split = split
        self._next_seed = first_seed

    def take(self, num_tasks: int) -> list[Task]:
        """The next tasks: all of the first tag, then all of the second, in proportion to their group counts."""
        per_round = sum(self.num_groups)
        if num_tasks < 1 or num_tasks % per_round:
            raise TaskError(
                f"{num_tasks} tasks were asked for; expected a multiple of {per_round}, "
                f"the sum of the group counts {list(self.num_groups)}."
            )
        num_rounds = num_tasks // per_round
        tags = [tag for tag, count in zip(self.tags, self.num_groups, strict=True) for _ in range(count * num_rounds)]
        tasks = [Task(tag=tag, seed=self._next_seed + offset, split=self.split) for offset, tag in enumerate(tags)]
        self._next_seed += num_tasks
        return tasks

    def state(self) -> Mapping[str, int]:
        return {"next_seed": self._next_seed}

    def restore(self, state: Mapping[str, int]) -> None:
        if "next_seed" not in state:
            raise TaskError(f"the state of a task source holds {sorted(state)}; expected 'next_seed'.")
        self._next_seed = state["next_seed"]
