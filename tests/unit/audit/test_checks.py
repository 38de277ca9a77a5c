"""Whatever is changed between engine and batch is found, and sound batches pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.audit.played import TASK, play, played_group
from turnwise.audit.records import (
    check_digests,
    check_finite,
    check_gap,
    check_members,
    check_seals,
    check_staleness,
    describe,
    measure_gaps,
)
from turnwise.experience.build import build_experiences
from turnwise.experience.codec import decode_group, encode_group
from turnwise.infra.digests import seal_turns
from turnwise.types import Experience, Group, Segment

Rows = list[Experience]


def all_breaches(rows: Rows) -> list[str]:
    found = [
        *check_members(rows, group_size=2),
        *check_finite(rows),
        *check_digests(rows),
        *check_seals(rows),
        *check_staleness(rows, policy_version=0, max_staleness=0),
    ]
    return [breach.kind for breach in found]


def with_segment(row: Experience, **changes: np.ndarray) -> Experience:
    fields = {name: getattr(row.segment, name) for name in ("token_ids", "loss_mask", "behavior_logprobs", "turn_ids")}
    return replace(row, segment=Segment(**{**fields, **changes}))


def change_id(rows: Rows) -> Rows:
    ids = rows[0].segment.token_ids.copy()
    ids[3] += 1
    return [with_segment(rows[0], token_ids=ids), *rows[1:]]


def change_prompt(rows: Rows) -> Rows:
    ids = rows[0].segment.token_ids.copy()
    ids[0] += 1
    return [with_segment(rows[0], token_ids=ids), *rows[1:]]


def shift_logprobs(rows: Rows) -> Rows:
    logprobs = rows[0].segment.behavior_logprobs.copy()
    mask = rows[0].segment.loss_mask
    logprobs[mask] = np.roll(logprobs[mask], 1)
    return [with_segment(rows[0], behavior_logprobs=logprobs), *rows[1:]]


def shift_mask(rows: Rows) -> Rows:
    turn_ids = np.roll(rows[0].segment.turn_ids, -1)
    return [with_segment(rows[0], turn_ids=turn_ids, loss_mask=turn_ids >= 0), *rows[1:]]


def swap_rewards(rows: Rows) -> Rows:
    first, second = rows
    return [
        replace(first, raw_rewards=second.raw_rewards, turn_rewards=second.turn_rewards),
        replace(second, raw_rewards=first.raw_rewards, turn_rewards=first.turn_rewards),
    ]


def move_reward(rows: Rows) -> Rows:
    return [replace(row, raw_rewards=row.raw_rewards[::-1], turn_rewards=row.turn_rewards[::-1]) for row in rows]


def flip_sign(rows: Rows) -> Rows:
    return [replace(row, turn_rewards=-row.turn_rewards) for row in rows]


def swap_members(rows: Rows) -> Rows:
    return [replace(rows[0], id=rows[1].id), replace(rows[1], id=rows[0].id)]


def double(rows: Rows) -> Rows:
    return [*rows, rows[0]]


def reverse(rows: Rows) -> Rows:
    return rows[::-1]


def claim_truncated(rows: Rows) -> Rows:
    return [replace(rows[0], is_truncated=True), *rows[1:]]


def claim_fresh(rows: Rows) -> Rows:
    return [replace(rows[0], policy_version=1), *rows[1:]]


def lose_end(rows: Rows) -> Rows:
    return [replace(rows[0], is_last=False), *rows[1:]]


def make_nan(rows: Rows) -> Rows:
    logprobs = rows[0].segment.behavior_logprobs.copy()
    logprobs[3] = np.nan
    return [with_segment(rows[0], behavior_logprobs=logprobs), *rows[1:]]


def test_what_was_sampled_passes() -> None:
    assert all_breaches(played_group()) == []


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (change_id, "digest"),
        (change_prompt, "digest"),
        (shift_logprobs, "digest"),
        (shift_mask, "digest"),
        (swap_rewards, "seal"),
        (move_reward, "seal"),
        (flip_sign, "seal"),
        (swap_members, "order"),
        (double, "twice"),
        (reverse, "order"),
        (claim_truncated, "seal"),
        (claim_fresh, "version"),
        (lose_end, "turns"),
        (make_nan, "finite"),
    ],
)
def test_a_change_is_found(change: Callable[[Rows], Rows], check: str) -> None:
    assert check in all_breaches(change(played_group()))


def test_swapped_members_are_found_in_any_order() -> None:
    rows = swap_members(played_group())
    assert {breach.kind for breach in check_seals(rows[::-1])} == {"seal"}


def test_a_dropped_last_turn_is_found() -> None:
    whole = play(0, (0.0, 0.0, 1.0))
    segment = whole.segments[0]
    end = int(np.flatnonzero(segment.turn_ids == 1)[-1]) + 1
    names = ("token_ids", "loss_mask", "behavior_logprobs", "turn_ids")
    shorter = Segment(**{name: getattr(segment, name)[:end] for name in names})
    cut = replace(whole, segments=(shorter,), turns=whole.turns[:2])
    rows = build_experiences([Group(task=TASK, trajectories=(cut,))])
    assert {breach.kind for breach in check_seals(rows)} == {"seal"}


def test_a_reward_that_its_stage_changes_is_sealed_anew() -> None:
    played = play(0)
    paid = replace(played, turns=tuple(replace(turn, reward=5.0) for turn in played.turns))
    broken = build_experiences([Group(task=TASK, trajectories=(paid,))])
    sealed = build_experiences([Group(task=TASK, trajectories=(seal_turns(paid),))])
    assert check_seals(broken) != []
    assert check_seals(sealed) == []


def test_a_reward_beyond_float32_is_found_as_such() -> None:
    played = play(0)
    paid = seal_turns(replace(played, turns=tuple(replace(turn, reward=1e300) for turn in played.turns)))
    with np.errstate(over="ignore"):
        rows = build_experiences([Group(task=TASK, trajectories=(paid,))])
    assert {breach.kind for breach in check_finite(rows)} == {"finite"}


def test_provenance_survives_the_store() -> None:
    rows = decode_group(encode_group(played_group()))
    assert all_breaches(rows) == []
    assert rows[0].provenance is not None
    assert rows[0].provenance.engines == ("toy", "toy")


def test_a_group_of_which_one_is_unsealed_survives_the_store() -> None:
    first, second = played_group()
    rows = decode_group(encode_group([replace(first, provenance=None), second]))
    assert rows[0].provenance is None
    assert all_breaches(rows) == []


def test_a_block_from_before_there_were_digests_is_read() -> None:
    rows = [replace(row, provenance=None) for row in played_group()]
    data = encode_group(rows)
    # Version 2 is the same without the four bytes that count the letters of no engine, and without a checksum.
    start = data.index(b"TWSG")
    old = data[:4] + b"\x02\x00" + data[6 : start - 4] + data[start:-4]
    assert [row.id for row in decode_group(old)] == [row.id for row in rows]


def test_stale_rows_and_rows_of_the_future_are_found() -> None:
    rows = played_group()
    assert check_staleness(rows, policy_version=3, max_staleness=3) == []
    assert [b.kind for b in check_staleness(rows, policy_version=3, max_staleness=2)] == ["staleness"] * 2
    assert check_staleness(rows, policy_version=3, max_staleness=None) == []
    assert check_staleness([replace(rows[0], policy_version=4)], policy_version=3, max_staleness=None) != []


def test_the_worst_token_is_named() -> None:
    rows = played_group()
    scored = [row.segment.behavior_logprobs.copy() for row in rows]
    scored[1][7] -= 0.5
    (gap,) = measure_gaps(rows, scored)
    (breach,) = check_gap(gap, max_gap=1e-4)
    assert (breach.details["where"], breach.details["turn"], breach.details["token"]) == (str(rows[1].id), 1, 7)
    assert "engine toy, request 101, version 0" in describe(breach)


def test_a_recorded_nan_is_no_small_gap() -> None:
    rows = make_nan(played_group())
    (gap,) = measure_gaps(rows, [np.zeros(len(row.segment), dtype=np.float32) for row in rows])
    assert check_gap(gap, max_gap=100.0) != []
