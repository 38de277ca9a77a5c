"""The buffer between exploring and learning: whole groups in, whole groups out, by priority.

`MemoryBuffer` is the plain form of the contract that `store.py` fulfils on disk. A batch is a ceiling: what does not
fit stays for the next update.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from turnwise.config.kinds import GroupPriority
from turnwise.config.schema import BufferSettings, BufferUnit
from turnwise.config.settings import WholeSettings
from turnwise.deps import BufferSite
from turnwise.errors import StoreError
from turnwise.experience.codec import decode_group, encode_group
from turnwise.infra.parsing import parse_json
from turnwise.infra.seeds import hash64
from turnwise.types import Experience


class Newest(GroupPriority, name="newest"):
    """The newest policy's groups first, however often they were used."""

    def __call__(self, policy_version: int, use_count: int, seed: int) -> float | None:
        return float(policy_version)


class LinearDecay(GroupPriority, name="linear_decay"):
    """Policy version - decay * uses."""

    decay: float = Field(default=2.0, ge=0)
    """Versions that a group falls behind with each use."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return self._unused_without_reuse(run, "decay")

    def _unused_without_reuse(self, run: WholeSettings, *names: str) -> dict[str, str]:
        if run.buffer.reuse_cooldown is not None:
            return {}
        return self.idle(*names, why="without buffer.reuse_cooldown: no group is used twice")

    def __call__(self, policy_version: int, use_count: int, seed: int) -> float | None:
        return policy_version - self.decay * use_count


class DecayLimitRandomization(LinearDecay, name="decay_limit_randomization"):
    """Policy version - decay * uses + noise, up to a number of uses."""

    use_count_limit: int = Field(default=3, ge=0)
    """Most uses of a group; 0: no limit."""
    sigma: float = Field(default=0.0, ge=0)
    """Spread of the noise that is added, so that neighbors change places."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return self._unused_without_reuse(run, "decay", "use_count_limit")

    def __call__(self, policy_version: int, use_count: int, seed: int) -> float | None:
        if 0 < self.use_count_limit <= use_count:
            return None
        noise = np.random.default_rng(seed).normal(scale=self.sigma) if self.sigma else 0.0
        return float(policy_version - self.decay * use_count + noise)


def priority_seed(group_id: str, use_count: int) -> int:
    """The random numbers of one group between two uses: the same in every process, and after a resume."""
    return hash64(f"{group_id}|{use_count}")


def group_version(experiences: Sequence[Experience]) -> int:
    """A group is as old as its oldest tokens."""
    return min(experience.policy_version for experience in experiences)


_REMEMBERED_ROLLOUTS = 8
"""Loops add one rollout after the other; so many of the newest are distinguished by their groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRules:
    """What both buffers go by; see `BufferSettings`."""

    train_batch_size: int | None = None
    unit: BufferUnit = "experiences"
    capacity: int | None = None
    reuse_cooldown: int | None = None
    priority: GroupPriority = field(default_factory=Newest)

    def rank(self, group_id: str, policy_version: int, use_count: int) -> float | None:
        """The priority of a group; None where it will never be taken again."""
        if use_count and self.reuse_cooldown is None:
            return None
        return self.priority(policy_version, use_count, priority_seed(group_id, use_count))

    def next_step(self, step: int) -> int:
        """The first update that may take a group again after update `step` did."""
        return step + (self.reuse_cooldown or 0)


def list_policies(settings: BufferSettings, site: BufferSite) -> BufferRules:
    return BufferRules(
        train_batch_size=settings.train_batch_size,
        unit=settings.unit,
        capacity=settings.capacity,
        reuse_cooldown=settings.reuse_cooldown,
        priority=site.priority,
    )


def split_groups(experiences: Sequence[Experience]) -> dict[str, list[Experience]]:
    """By group, in the order of arrival."""
    groups: dict[str, list[Experience]] = {}
    for experience in experiences:
        groups.setdefault(experience.id.trajectory.group, []).append(experience)
    return groups


def count_tokens(experiences: Sequence[Experience]) -> int:
    return sum(len(experience.segment) for experience in experiences)


def _rollout_of(group_id: str) -> int:
    """Ids are those of `TrajectoryId.group`."""
    return int(group_id.partition("/")[0])


@dataclass(slots=True)
class _Waiting:
    """A group that may be taken, now or later."""

    experiences: list[Experience]
    number: int
    """Order of arrival."""
    rank: tuple[float, int]
    """Sorts the most urgent first."""
    use_count: int = 0
    ready_at: int = 0
    """The first update that may take it."""


class MemoryBuffer:
    """`buffer.type: memory`: groups in memory, most urgent first."""

    is_shared: ClassVar[bool] = False

    @classmethod
    def open(cls, settings: BufferSettings, site: BufferSite) -> MemoryBuffer:
        return cls(list_policies(settings, site))

    def __init__(self, rules: BufferRules = BufferRules()) -> None:  # noqa: B008 - frozen
        self._rules = rules
        self._known: dict[int, set[str]] = {}
        """By rollout: the ids of groups that were added, of the newest rollouts."""
        self._num_added = 0
        self._groups: dict[str, _Waiting] = {}
        self._order: list[tuple[tuple[float, int], str]] = []
        self._next_step = 1
        self._num_dropped = 0

    def add(self, experiences: Sequence[Experience]) -> None:
        for group_id, group in split_groups(experiences).items():
            if self.has_group(group_id):
                continue
            number = self._num_added
            self._num_added += 1
            self._known.setdefault(_rollout_of(group_id), set()).add(group_id)
            priority = self._rules.rank(group_id, group_version(group), 0)
            if priority is not None:
                self._insert(group_id, _Waiting(group, number, (-priority, number)))
        self._forget_old_rollouts()
        self._drop_beyond_capacity()

    def take(self, step: int) -> list[Experience]:
        chosen: list[str] = []
        filled = 0
        for group_id, waiting in self._ready(step):
            filled += self._size(waiting)
            if chosen and self._rules.train_batch_size is not None and filled > self._rules.train_batch_size:
                break
            chosen.append(group_id)
        if chosen:
            self._next_step = step + 1
        return [experience for group_id in chosen for experience in self._use(group_id, step)]

    def is_ready(self, step: int) -> bool:
        return sum(self._size(w) for _, w in self._ready(step)) >= (self._rules.train_batch_size or 1)

    def has_group(self, group_id: str) -> bool:
        rollout = _rollout_of(group_id)
        return group_id in self._known.get(rollout, ()) or rollout <= self._last_forgotten()

    @property
    def num_dropped(self) -> int:
        return self._num_dropped

    def __len__(self) -> int:
        return sum(len(waiting.experiences) for _, waiting in self._ready(self._next_step))

    def rewind(self, step: int, *, plays_again: bool) -> None:
        """A new process has what `load_state` gave it: there is nothing to take back."""

    def save_state(self, file: Path) -> None:
        """What waits, for a process after this one: a line of JSON, then one block after another."""
        blocks = {group_id: encode_group(waiting.experiences) for group_id, waiting in self._groups.items()}
        rows = [
            [group_id, waiting.number, waiting.use_count, waiting.ready_at, len(blocks[group_id])]
            for group_id, waiting in self._groups.items()
        ]
        about = {
            "known": sorted(group_id for ids in self._known.values() for group_id in ids),
            "num_added": self._num_added,
            "next_step": self._next_step,
            "num_dropped": self._num_dropped,
            "waiting": rows,
        }
        file.write_bytes(b"\n".join([json.dumps(about).encode(), b"".join(blocks.values())]))

    def load_state(self, file: Path) -> None:
        """Be as the buffer that wrote the file was."""
        try:
            self._load(file.read_bytes())
        except (StoreError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{file} is damaged: expected what a buffer has saved ({type(error).__name__}: {error}). Remove the "
                "checkpoint that it is in, and the run continues from the one before."
            ) from error

    def _load(self, content: bytes) -> None:
        start = content.index(b"\n") + 1
        about = parse_json(content[:start])
        # Files of earlier versions hold the ids of all groups, and no count.
        self._num_added = about.get("num_added", len(about["known"]))
        self._known = {}
        for group_id in about["known"]:
            self._known.setdefault(_rollout_of(group_id), set()).add(group_id)
        self._forget_old_rollouts()
        self._next_step, self._num_dropped = about["next_step"], about["num_dropped"]
        self._groups, self._order = {}, []
        for group_id, number, use_count, ready_at, length in about["waiting"]:
            experiences = decode_group(content[start : start + length])
            start += length
            priority = self._rules.rank(group_id, group_version(experiences), use_count)
            if priority is not None:
                self._insert(group_id, _Waiting(experiences, number, (-priority, number), use_count, ready_at))

    def _last_forgotten(self) -> int:
        """Up to this rollout ids are not kept: all of its groups were added long ago."""
        return max(self._known, default=0) - _REMEMBERED_ROLLOUTS

    def _forget_old_rollouts(self) -> None:
        last = self._last_forgotten()
        self._known = {rollout: ids for rollout, ids in self._known.items() if rollout > last}

    def _ready(self, step: int) -> Iterator[tuple[str, _Waiting]]:
        for _, group_id in self._order:
            waiting = self._groups[group_id]
            if waiting.ready_at <= step:
                yield group_id, waiting

    def _size(self, waiting: _Waiting) -> int:
        match self._rules.unit:
            case "experiences":
                return len(waiting.experiences)
            case "groups":
                return 1
            case "tokens":
                return count_tokens(waiting.experiences)

    def _insert(self, group_id: str, waiting: _Waiting) -> None:
        self._groups[group_id] = waiting
        insort(self._order, (waiting.rank, group_id))

    def _remove(self, group_id: str) -> _Waiting:
        waiting = self._groups.pop(group_id)
        del self._order[bisect_left(self._order, (waiting.rank, group_id))]
        return waiting

    def _use(self, group_id: str, step: int) -> list[Experience]:
        """Hand a group out; it waits for its next use, where there is one."""
        waiting = self._remove(group_id)
        waiting.use_count += 1
        priority = self._rules.rank(group_id, group_version(waiting.experiences), waiting.use_count)
        if priority is not None:
            waiting.rank = (-priority, waiting.number)
            waiting.ready_at = self._rules.next_step(step)
            self._insert(group_id, waiting)
        return waiting.experiences

    def _drop_beyond_capacity(self) -> None:
        if self._rules.capacity is None:
            return
        excess = sum(len(waiting.experiences) for waiting in self._groups.values()) - self._rules.capacity
        while excess > 0 and len(self._groups) > 1:
            (lowest, _), _ = self._order[-1]
            # Of equal ones the oldest goes: the new one stays.
            _, group_id = self._order[bisect_left(self._order, ((lowest, -1), ""))]
            size = len(self._remove(group_id).experiences)
            excess -= size
            self._num_dropped += size
