"""Order of a finite task set: sequential, shuffled, or by difficulty.

No task is drawn twice in one rollout. The state of a selector is plain numbers, so that a resumed run continues with
the same tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from turnwise.envs.base import check_tags, spread_over_tags
from turnwise.errors import TaskError
from turnwise.infra.untrusted import success_flags
from turnwise.types import Group, Task

log = logging.getLogger(__name__)

_MEMORY = 0.8
"""What earlier plays of a task still count when it is played again: the policy has changed since."""


class Selector(Protocol):
    """Chooses among tasks that are numbered from 0."""

    def take(self, count: int, excluded: set[int]) -> list[int]:
        """As many different ones, none of them excluded."""
        ...

    def learn(self, number: int, num_successes: int, num_plays: int) -> None:
        """How the plays of a task went; no plays where nobody says whether they succeeded."""
        ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Sequential:
    """`tasks: {selector: sequential}`: one after another, and from the start again."""

    def __init__(self, num_tasks: int, seed: int) -> None:
        self._num_tasks = num_tasks
        self._position = 0

    def take(self, count: int, excluded: set[int]) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            number = self._position % self._num_tasks
            self._position += 1
            if number not in excluded:
                taken.append(number)
        return taken

    def learn(self, number: int, num_successes: int, num_plays: int) -> None:
        """Nothing: the order is fixed."""

    def state(self) -> dict[str, Any]:
        return {"position": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._position = state["position"]


class Shuffled:
    """`tasks: {selector: random}`: every task once in each epoch, in an order of its own."""

    def __init__(self, num_tasks: int, seed: int) -> None:
        self._num_tasks = num_tasks
        self._seed = seed
        self._epoch = 0
        self._waiting: list[int] = []

    def take(self, count: int, excluded: set[int]) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            # One that is out in this very exploration waits for the next.
            free = [number for number in self._waiting if number not in excluded and number not in taken]
            if not free:
                order = np.random.default_rng((self._seed, self._epoch)).permutation(self._num_tasks)
                self._waiting += order.tolist()
                self._epoch += 1
                continue
            self._waiting.remove(free[0])
            taken.append(free[0])
        return taken

    def learn(self, number: int, num_successes: int, num_plays: int) -> None:
        """Nothing: chance decides."""

    def state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "waiting": list(self._waiting)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._epoch, self._waiting = state["epoch"], list(state["waiting"])


class ByDifficulty:
    """`tasks: {selector: difficulty}`: those whose success is likely to be near a target.

    For each task a Beta distribution of its success. Every time one number is drawn from each, and the tasks whose
    number is nearest to the target are taken: what is little known is tried, what is known to be too easy or too hard
    comes up rarely.
    """

    def __init__(self, num_tasks: int, seed: int, *, target: float) -> None:
        self._seed = seed
        self._target = target
        self._num_takes = 0
        self._successes = np.zeros(num_tasks)
        self._failures = np.zeros(num_tasks)
        self._is_blindness_told = False

    @property
    def estimates(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[tasks] the expected success of each; one half where nothing is known."""
        return (self._successes + 1) / (self._successes + self._failures + 2)

    def take(self, count: int, excluded: set[int]) -> list[int]:
        rng = np.random.default_rng((self._seed, self._num_takes))
        self._num_takes += 1
        distances = np.abs(rng.beta(self._successes + 1, self._failures + 1) - self._target)
        distances[sorted(excluded)] = np.inf
        return np.argsort(distances, kind="stable")[:count].tolist()

    def learn(self, number: int, num_successes: int, num_plays: int) -> None:
        if num_plays == 0:
            self._tell_blindness()
            return
        self._successes[number] = _MEMORY * self._successes[number] + num_successes
        self._failures[number] = _MEMORY * self._failures[number] + num_plays - num_successes

    def _tell_blindness(self) -> None:
        if self._is_blindness_told or self._successes.any() or self._failures.any():
            return
        self._is_blindness_told = True
        log.warning(
            "tasks.selector 'difficulty' has nothing to go by: the workflow does not say whether its episodes succeed "
            "(is_success), so every task is as likely as any other."
        )

    def state(self) -> dict[str, Any]:
        counts = {"successes": self._successes.tolist(), "failures": self._failures.tolist()}
        return {"num_takes": self._num_takes, **counts}

    def restore(self, state: Mapping[str, Any]) -> None:
        if len(state["successes"]) != len(self._successes):
            raise TaskError(
                f"the state of the task source is about {len(state['successes'])} tasks; expected "
                f"tasks.num_tasks = {len(self._successes)}."
            )
        self._num_takes = state["num_takes"]
        self._successes, self._failures = np.array(state["successes"]), np.array(state["failures"])


class FiniteTasks:
    """A `TaskSource` over `num_tasks` seeds for each tag, laid out tag by tag."""

    def __init__(
        self,
        tags: Sequence[str],
        num_groups: Sequence[int],
        first_seed: int,
        split: str = "train",
        *,
        num_tasks: int,
        make_selector: Callable[[int, int], Selector],
    ) -> None:
        check_tags(tags, num_groups)
        self.tags = tuple(tags)
        self.num_groups = tuple(num_groups)
        self.split = split
        self._num_tasks = num_tasks
        self._first_seeds = {tag: first_seed + place * num_tasks for place, tag in enumerate(tags)}
        self._selectors = {tag: make_selector(num_tasks, seed) for tag, seed in self._first_seeds.items()}

    def take(self, num_tasks: int, *, besides: Sequence[Task] = ()) -> list[Task]:
        """The next tasks: all of the first tag, then all of the second, in proportion to their group counts."""
        tasks: list[Task] = []
        for tag, count in spread_over_tags(self.tags, self.num_groups, num_tasks):
            # A second time in one exploration they would be the same group.
            excluded = {task.seed - self._first_seeds[tag] for task in besides if task.tag == tag}
            if len(excluded) + count > self._num_tasks:
                raise TaskError(
                    f"{len(excluded) + count} different tasks of '{tag}' were asked for in one exploration; "
                    f"tasks.num_tasks is {self._num_tasks}. Raise it, or lower rollout.groups."
                )
            numbers = self._selectors[tag].take(count, excluded)
            tasks += [Task(tag=tag, seed=self._first_seeds[tag] + n, split=self.split) for n in numbers]
        return tasks

    def feedback(self, groups: Sequence[Group]) -> None:
        """An exploration has ended: how its tasks went. Plays that failed say nothing about a task, nor do those of
        which nobody says whether they succeeded.
        """
        whole = [[t for t in group.trajectories if not t.stop_reason.is_error] for group in groups]
        said = iter(success_flags([t for plays in whole for t in plays]))
        for group, plays in zip(groups, whole, strict=True):
            known = [one for one in (next(said) for _ in plays) if one is not None]
            if plays:
                number = group.task.seed - self._first_seeds[group.task.tag]
                self._selectors[group.task.tag].learn(number, sum(known), len(known))

    def state(self) -> Mapping[str, Any]:
        return {tag: selector.state() for tag, selector in self._selectors.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.keys() != self._selectors.keys():
            raise TaskError(f"the state of a task source holds {sorted(state)}; expected {sorted(self._selectors)}.")
        for tag, selector in self._selectors.items():
            selector.restore(state[tag])
