"""Collectors and buffers that hand on something else than they were given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np

from turnwise.audit.faults.fault import Fault, Stand
from turnwise.types import Experience, Group, Segment, Trajectory

Rows = list[Experience]


class _AlteredBuffer(Stand):
    def __init__(self, inner: Any, alter: Callable[[Rows], Rows]) -> None:
        super().__init__(inner)
        self._alter = alter

    def take(self, step: int) -> Rows:
        return self._alter(self.inner.take(step))


class _Repeating(Stand):
    """Gives the batch before once more."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._before: Rows = []

    def take(self, step: int) -> Rows:
        given, self._before = self._before, self.inner.take(step)
        return given or self._before


class _AlteredCollector(Stand):
    def __init__(self, inner: Any, alter: Callable[[Trajectory], Trajectory]) -> None:
        super().__init__(inner)
        self._alter = alter

    async def collect(self, tasks: Sequence[Any], **given: Any) -> list[Group]:
        groups = await self.inner.collect(tasks, **given)
        return [replace(group, trajectories=tuple(map(self._alter, group.trajectories))) for group in groups]


def _in_buffer(name: str, room: str, alter: Callable[[Rows], Rows], *overrides: str) -> Fault:
    return Fault(name=name, room=room, overrides=overrides, buffer=lambda b: _AlteredBuffer(b, alter))


def _each(alter: Callable[[Experience], Experience]) -> Callable[[Rows], Rows]:
    return lambda rows: [alter(row) for row in rows]


def _swap_rewards(rows: Rows) -> Rows:
    """Each row gets the rewards of one behind it with as many turns."""
    other = {len(row.turn_rewards): row for row in rows}
    swapped = []
    for row in rows:
        given = other[len(row.turn_rewards)]
        other[len(row.turn_rewards)] = row
        swapped.append(replace(row, raw_rewards=given.raw_rewards, turn_rewards=given.turn_rewards))
    return swapped


def _swap_members(rows: Rows) -> Rows:
    """The records of two siblings stand under each other's name, in sound order."""
    first, *rest = rows
    for place, other in enumerate(rest):
        if other.id.trajectory.group == first.id.trajectory.group and other.id.trajectory != first.id.trajectory:
            rest[place] = replace(first, id=replace(other.id, segment_index=other.id.segment_index))
            return [replace(other, id=first.id), *rest]
    return rows


def _shift_mask(row: Experience) -> Experience:
    segment = row.segment
    turn_ids = np.roll(segment.turn_ids, -1)
    return replace(row, segment=replace(segment, turn_ids=turn_ids, loss_mask=turn_ids >= 0))


def _drop_last_turn(played: Trajectory) -> Trajectory:
    if len(played.turns) < 2:
        return played
    *turns, last = played.turns
    segments = list(played.segments)
    if any(turn.segment_index == last.segment_index for turn in turns):
        segment = segments[last.segment_index]
        end = int(np.flatnonzero(segment.turn_ids == turns[-1].index)[-1]) + 1
        names = ("token_ids", "loss_mask", "behavior_logprobs", "turn_ids")
        segments[last.segment_index] = Segment(**{name: getattr(segment, name)[:end] for name in names})
    else:
        segments.pop()
    return replace(played, segments=tuple(segments), turns=tuple(turns))


def _pay_late(played: Trajectory) -> Trajectory:
    paid = [(turn.reward, turn.shaping) for turn in played.turns]
    shifted = zip(played.turns, [*paid[-1:], *paid[:-1]], strict=True)
    return replace(
        played, turns=tuple(replace(turn, reward=reward, shaping=shaping) for turn, (reward, shaping) in shifted)
    )


def earn_by_words(turn: Any) -> float:
    """`reward.shaping` of all these runs: hardly two turns earn the same, so that none can stand for another unseen."""
    return turn.reward + crc32(f"{turn.number} {turn.response}".encode("utf-8", "surrogatepass")) % 97 / 97


FAULTS = (
    _in_buffer("rewards_swapped_between_trajectories", "experience", _swap_rewards),
    Fault(
        name="reward_on_the_wrong_turn",
        room="rollout",
        collector=lambda c: _AlteredCollector(c, _pay_late),
    ),
    _in_buffer(
        "reward_sign_flipped",
        "experience",
        _each(lambda r: replace(r, raw_rewards=-r.raw_rewards, turn_rewards=-r.turn_rewards)),
    ),
    Fault(name="dropped_turn", room="rollout", collector=lambda c: _AlteredCollector(c, _drop_last_turn)),
    _in_buffer("lost_record", "experience", lambda rows: rows[1:]),
    _in_buffer("swapped_group_members", "experience", _swap_members),
    _in_buffer("record_twice_in_a_batch", "experience", lambda rows: [*rows, rows[0]]),
    _in_buffer("buffer_order_changed", "experience", lambda rows: rows[::-1]),
    _in_buffer("mask_shifted_by_a_token", "context", _each(_shift_mask)),
    _in_buffer(
        "double_shaping",
        "rollout",
        _each(lambda r: replace(r, turn_rewards=2 * r.turn_rewards - r.raw_rewards)),
    ),
    _in_buffer(
        "reward_infinite_in_float32",
        "envs",
        _each(lambda r: replace(r, turn_rewards=(r.turn_rewards + np.float32(np.inf)))),
    ),
    _in_buffer("budget_taken_for_the_end", "rollout", _each(lambda r: replace(r, is_truncated=not r.is_truncated))),
    _in_buffer("states_mixed_up", "experience", _each(lambda r: replace(r, turn_states=r.turn_states + np.uint64(1)))),
    _in_buffer("version_mislabelled", "sync", _each(lambda r: replace(r, policy_version=r.policy_version + 1))),
    Fault(name="batch_of_an_older_update", room="experience", buffer=_Repeating),
)
