"""On disk: exact blocks, going on after a crash, and many processes at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.buffer import count_in_processes
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.errors import StoreError
from turnwise.experience import store as store_module
from turnwise.experience.buffer import BufferRules, LinearDecay
from turnwise.experience.build import build_experiences
from turnwise.experience.codec import decode_group, encode_group
from turnwise.experience.store import SqliteBuffer, inspect_store
from turnwise.infra.wait_tracking import list_waits
from turnwise.types import Experience, Segment

from .records import make_group
from .step_wise import Call, make_calls

CALLS = [Call(None, 3, 2, 0, 0.5), Call(0, 0, 1, 0, -1.0), Call(None, 1, 3, 1, 2.0)]


def group(size: int = 1, *, seed: int = 0, rollout: int = 1, version: int = 0) -> list[Experience]:
    return build_experiences([make_group(size, seed=seed, rollout=rollout, version=version)])


def assert_same(a: Experience, b: Experience) -> None:
    for name in Experience.__slots__:
        one, other = getattr(a, name), getattr(b, name)
        if isinstance(one, Segment):
            for part in Segment.__slots__:
                x, y = getattr(one, part), getattr(other, part)
                assert x.dtype == y.dtype
                np.testing.assert_array_equal(x, y)
        elif isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        else:
            assert (one, type(one)) == (other, type(other))


def seeds(experiences: list[Experience]) -> list[int]:
    return list(dict.fromkeys(int(e.id.trajectory.task_id.rsplit("/", 1)[-1]) for e in experiences))


# --- blocks ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(siblings=st.integers(1, 4), is_truncated=st.booleans(), largest=st.sampled_from([5, 65_535, 65_536, 200_000]))
def test_a_block_holds_exactly_what_was_given(siblings: int, is_truncated: bool, largest: int) -> None:
    rows = [e for n in range(siblings) for e in make_calls(CALLS, sibling=n, is_truncated=is_truncated)]
    rows[-1].segment.token_ids[0] = largest
    for before, after in zip(rows, decode_group(encode_group(rows)), strict=True):
        assert_same(before, after)


def test_values_at_the_edges_survive() -> None:
    (row,) = group(1)
    fields: dict[str, Any] = {name: getattr(row, name) for name in Experience.__slots__}
    fields |= {"turn_states": np.array([2**64 - 1], np.uint64), "raw_rewards": np.array([np.nan], np.float32)}
    fields |= {"greedy_return": None, "policy_version": 2**40}
    before = Experience(**fields)
    assert_same(before, decode_group(encode_group([before]))[0])


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"NOPE" + b[4:], lambda b: b[:7]])
def test_damaged_blocks_are_refused(damage: Any) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        decode_group(damage(encode_group(group(2))))


def test_a_block_that_names_other_turns_than_were_sampled_is_refused() -> None:
    rows = group(2)
    rows[1].turn_indices[-1] += 1
    with pytest.raises(StoreError, match="other turns than were sampled"):
        decode_group(encode_group(rows))


def test_a_turn_that_goes_on_where_another_experience_ended_is_told_apart() -> None:
    """Nothing but sampled tokens of turn 0, twice: end to end they look like one turn."""
    rows = [without_prompt(row) for row in group(2)]
    for before, after in zip(rows, decode_group(encode_group(rows)), strict=True):
        assert_same(before, after)


def without_prompt(row: Experience) -> Experience:
    is_first = row.segment.turn_ids == 0
    parts = {name: getattr(row.segment, name)[is_first] for name in Segment.__slots__}
    per_turn = ("turn_indices", "raw_rewards", "turn_rewards", "turn_states", "turn_steps")
    fields: dict[str, Any] = {name: getattr(row, name)[:1] for name in per_turn}
    return replace(row, **fields, segment=Segment(**parts))


# --- the file --------------------------------------------------------------------------------------------------------


def test_what_was_added_is_there_after_closing(tmp_path: Path) -> None:
    store = SqliteBuffer(tmp_path / "e.db", BufferRules(train_batch_size=2))
    store.add([*group(2, seed=0), *group(2, seed=1)])
    store.take(1)
    store.close()
    again = SqliteBuffer(tmp_path / "e.db", BufferRules(train_batch_size=2))
    assert len(again) == 2
    assert again.has_group("1/words/train/0")
    assert seeds(again.take(2)) == [1]
    assert [len(g) for g in again.read_groups()] == [2, 2]


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, and long enough to be told from one" * 40)
    with pytest.raises(StoreError, match=r"text\.db cannot be opened"):
        SqliteBuffer(tmp_path / "text.db")
    sqlite3.connect(tmp_path / "later.db").execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="has format 99"):
        SqliteBuffer(tmp_path / "later.db")


# --- going on after a crash ------------------------------------------------------------------------------------------


def test_groups_taken_after_a_checkpoint_are_given_again(tmp_path: Path) -> None:
    store = SqliteBuffer(tmp_path / "e.db", BufferRules(train_batch_size=1))
    store.add([e for seed in range(4) for e in group(1, seed=seed)])
    taken = [seeds(store.take(step)) for step in (1, 2, 3)]
    store.restore(1)
    assert len(store) == 3
    assert [seeds(store.take(step)) for step in (2, 3)] == taken[1:]
    store.restore(3)
    assert len(store) == 1


def test_use_counts_are_put_back(tmp_path: Path) -> None:
    rules = BufferRules(train_batch_size=1, reuse_cooldown=1, priority=LinearDecay(decay=1.5))
    store = SqliteBuffer(tmp_path / "e.db", rules)
    store.add([e for seed in range(3) for e in group(1, seed=seed, version=seed)])
    taken = [seeds(store.take(step)) for step in range(1, 9)]
    assert len({s for step in taken for s in step}) == 3  # the decay makes every one of them come up
    for step in (5, 2, 0):
        store.restore(step)
        assert [seeds(store.take(later)) for later in range(step + 1, 9)] == taken[step:]


def test_forgotten_rollouts_leave_no_trace(tmp_path: Path) -> None:
    """What they pushed out of a full buffer is there again."""
    store = SqliteBuffer(tmp_path / "e.db", BufferRules(capacity=2))
    store.add([*group(1, seed=0, rollout=1, version=1), *group(1, seed=1, rollout=1, version=0)])
    store.add([*group(1, seed=2, rollout=2, version=2), *group(1, seed=3, rollout=3, version=3)])
    assert store.num_dropped == 2
    store.delete_rollouts(after=1)
    assert (store.num_dropped, len(store)) == (0, 2)
    assert not store.has_group("2/words/train/2")
    assert seeds(store.take(1)) == [0, 1]
    store.add(group(1, seed=2, rollout=2, version=2))
    assert seeds(store.take(2)) == [2]


def _take_and_die(path: Path) -> None:
    store = SqliteBuffer(path, BufferRules(train_batch_size=2))
    store.take(1)
    store._db.execute("BEGIN IMMEDIATE")
    store._db.execute("DELETE FROM groups")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_nothing_half_done(tmp_path: Path) -> None:
    """It dies in the middle of a transaction, after a batch was taken."""
    store = SqliteBuffer(tmp_path / "e.db", BufferRules(train_batch_size=2))
    store.add([e for seed in range(4) for e in group(1, seed=seed)])
    process = multiprocessing.get_context("spawn").Process(target=_take_and_die, args=(tmp_path / "e.db",))
    process.start()
    process.join(60)
    assert process.exitcode == -9
    assert len(store) == 2
    store.restore(0)
    assert seeds(store.take(1)) == [0, 1]
    assert seeds(store.take(2)) == [2, 3]


@pytest.mark.slow
def test_four_writers_and_two_readers_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    counts = count_in_processes(tmp_path / "e.db", seconds=2.0)
    assert counts["written"] == counts["read"] + counts["left"] > 0
    assert counts["read"] > 0
    assert counts["doubled"] == counts["lost"] == 0


def test_an_update_that_is_made_again_learns_from_what_it_learnt_from_before(tmp_path: Path) -> None:
    """Also where more urgent groups have come meanwhile, and where it is killed once more on the way."""
    store = SqliteBuffer(tmp_path / "e.db", BufferRules(train_batch_size=2))
    store.add([e for seed in range(6) for e in group(1, seed=seed)])
    taken = [seeds(store.take(step)) for step in (1, 2, 3)]
    store.add([e for seed in range(6, 10) for e in group(1, seed=seed, version=5)])
    store.rewind(1, plays_again=False)
    assert seeds(store.take(2)) == taken[1]
    store.rewind(0, plays_again=False)
    assert [seeds(store.take(step)) for step in (1, 2, 3)] == taken
    assert seeds(store.take(4)) == [6, 7]


def test_a_planned_update_is_ready_whatever_the_size_of_its_batch(tmp_path: Path) -> None:
    store = SqliteBuffer(tmp_path / "e.db", BufferRules(train_batch_size=2))
    store.add(group(1))
    store.take(1)
    store.rewind(0, plays_again=False)
    assert store.is_ready(1)
    assert not store.is_ready(2)


# --- damage, full disks, locks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(8))
def test_flipped_bytes_in_experience_are_noticed(place: int) -> None:
    data = bytearray(encode_group(group(2)))
    data[len(data) * place // 8] ^= 4
    with pytest.raises(StoreError, match="cannot be read"):
        decode_group(bytes(data))


def test_a_damaged_file_of_which_sqlite_speaks_in_no_text_is_told(tmp_path: Path) -> None:
    """Its messages quote the file, which need not be UTF-8."""
    file = tmp_path / "e.db"
    store = SqliteBuffer(file)
    store.add(group(1))
    store.close()
    file.write_bytes(file.read_bytes().replace(b"NOT NULL DEFAULT", b"NOT \xffULL DEFAULT"))
    told = [fault for stored in inspect_store(file) for fault in stored.faults]
    assert any("cannot be read" in fault for fault in told)
    with pytest.raises(StoreError, match=r"e\.db cannot be"):
        SqliteBuffer(file).add(group(2))


def test_a_damaged_group_is_left_out_with_a_word_and_the_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteBuffer(tmp_path / "e.db")
    store.add([*group(1, seed=0), *group(1, seed=1)])
    (data,) = store._db.execute("SELECT data FROM blocks WHERE number = 1").fetchone()
    store._db.execute("UPDATE blocks SET data = ? WHERE number = 1", (data[:-20] + b"?" + data[-19:],))
    assert seeds(store.take(1)) == [1]
    assert "group 1/words/train/0" in caplog.text
    assert "damaged" in caplog.text
    store.restore(0)
    assert seeds(store.take(1)) == [1]


def test_a_full_disk_is_one_message_and_what_was_stored_stays(tmp_path: Path) -> None:
    store = SqliteBuffer(tmp_path / "e.db")
    store.add(group(1, seed=0))
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match=r"e\.db cannot be written: database or disk is full.*Check disk space"):
        store.add([e for seed in range(1, 400) for e in group(2, seed=seed)])
    assert [len(g) for g in store.read_groups()] == [1]


def test_a_locked_database_is_waited_for_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_module, "_TOLD_AFTER_S", 0.01)
    monkeypatch.setattr(store_module, "_BUSY_TIMEOUT_S", 0.05)
    store = SqliteBuffer(tmp_path / "e.db")
    other = sqlite3.connect(tmp_path / "e.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    seen: list[str] = []
    monkeypatch.setattr(store_module.time, "sleep", lambda _: seen.extend(wait.reason for wait in list_waits()))
    with pytest.raises(StoreError, match="has been locked by another process"):
        store.add(group(1))
    assert set(seen) == {"another process that writes to e.db"}
    assert "waiting for" in caplog.text
    other.execute("ROLLBACK")
    store.add(group(1))
    assert len(store) == 1
