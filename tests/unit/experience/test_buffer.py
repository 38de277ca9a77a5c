"""Between exploring and learning: one contract, held by the buffer in memory and the one on disk."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise.config.kinds import PRIORITIES
from turnwise.experience.buffer import (
    BufferRules,
    DecayLimitRandomization,
    LinearDecay,
    MemoryBuffer,
)
from turnwise.experience.build import build_experiences
from turnwise.experience.codec import decode_group
from turnwise.experience.store import SqliteBuffer
from turnwise.protocols import Buffer
from turnwise.types import Experience

from .records import make_group

Make = Callable[..., Buffer]


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A buffer with the given rules."""
    numbers = itertools.count()

    def build(**rules: Any) -> Buffer:
        if request.param == "memory":
            return MemoryBuffer(BufferRules(**rules))
        return SqliteBuffer(tmp_path / f"{next(numbers)}.db", BufferRules(**rules))

    return build


def group(size: int = 1, *, seed: int = 0, rollout: int = 1, version: int = 0) -> list[Experience]:
    return build_experiences([make_group(size, seed=seed, rollout=rollout, version=version)])


def names(experiences: list[Experience]) -> list[str]:
    """Seeds of the groups, in order: enough to tell them apart here."""
    return list(dict.fromkeys(e.id.trajectory.group.rsplit("/", 1)[-1] for e in experiences))


@pytest.mark.parametrize(
    ("unit", "size", "expected"),
    [("experiences", 5, ["0", "1"]), ("groups", 3, ["0", "1", "2"]), ("tokens", 4, ["0"]), ("tokens", 16, ["0", "1"])],
)
def test_units(make: Make, unit: str, size: int, expected: list[str]) -> None:
    """Groups of two; every experience has four tokens."""
    buffer = make(train_batch_size=size, unit=unit)
    buffer.add([e for seed in range(4) for e in group(2, seed=seed)])
    assert buffer.is_ready(1)
    assert names(buffer.take(1)) == expected


@pytest.mark.parametrize(("unit", "enough"), [("experiences", 6), ("groups", 3), ("tokens", 24)])
def test_ready_means_a_full_batch(make: Make, unit: str, enough: int) -> None:
    for size, is_ready in ((enough, True), (enough + 1, False)):
        buffer = make(train_batch_size=size, unit=unit)
        buffer.add([e for seed in range(3) for e in group(2, seed=seed)])
        assert buffer.is_ready(1) is is_ready


def test_newest_first_and_then_in_the_order_of_arrival(make: Make) -> None:
    buffer = make(train_batch_size=2)
    buffer.add([*group(2, seed=0, version=0), *group(2, seed=1, version=0), *group(2, seed=2, rollout=2, version=1)])
    buffer.add(group(2, seed=3, rollout=2, version=1))
    assert [names(buffer.take(step)) for step in (1, 2, 3, 4)] == [["2"], ["3"], ["0"], ["1"]]


def test_a_group_is_as_old_as_its_oldest_tokens(make: Make) -> None:
    mixed = [*group(1, seed=0, version=5), *group(1, seed=0, version=1)]
    buffer = make(train_batch_size=2)
    buffer.add([*mixed, *group(2, seed=1, version=2)])
    assert names(buffer.take(1)) == ["1"]


# --- using again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cooldown", [1, 3])
def test_a_used_group_comes_back_after_its_cooldown(make: Make, cooldown: int) -> None:
    buffer = make(reuse_cooldown=cooldown)
    buffer.add(group(2))
    taken = [step for step in range(1, 11) if buffer.take(step)]
    assert taken == list(range(1, 11, cooldown))


def test_use_counts_grow_on_delivery_only(make: Make) -> None:
    """Asking does not wear a group out, and neither does staying behind."""
    buffer = make(train_batch_size=1, reuse_cooldown=1, priority=LinearDecay(decay=1.0))
    buffer.add([*group(1, seed=0, version=1), *group(1, seed=1, version=0)])
    for _ in range(5):
        assert buffer.is_ready(1)
        assert len(buffer) == 2
    # 0: 1, then 0, -1, ...; 1: 0, -1, ...; of equal ones the first that came.
    assert [names(buffer.take(step)) for step in range(1, 7)] == [["0"], ["0"], ["1"], ["0"], ["1"], ["0"]]


def test_a_limit_on_uses(make: Make) -> None:
    rule = DecayLimitRandomization(use_count_limit=3)
    buffer = make(reuse_cooldown=1, priority=rule)
    buffer.add(group(2))
    assert [len(buffer.take(step)) for step in range(1, 6)] == [2, 2, 2, 0, 0]
    endless = make(reuse_cooldown=1, priority=DecayLimitRandomization(use_count_limit=0))
    endless.add(group(2))
    assert [len(endless.take(step)) for step in range(1, 9)] == [2] * 8


@pytest.mark.parametrize(("decay", "expected"), [(0.0, ["1", "1", "1"]), (3.0, ["1", "0", "1"])])
def test_decay_decides_between_new_and_unused(make: Make, decay: float, expected: list[str]) -> None:
    rule = LinearDecay(decay=decay)
    buffer = make(train_batch_size=1, reuse_cooldown=1, priority=rule)
    buffer.add([*group(1, seed=0, version=0), *group(1, seed=1, version=2)])
    assert [names(buffer.take(step))[0] for step in (1, 2, 3)] == expected


def test_noise_changes_the_order_and_is_the_same_every_time(make: Make) -> None:
    def order(sigma: float) -> list[str]:
        rule = DecayLimitRandomization(sigma=sigma)
        buffer = make(priority=rule)
        buffer.add([e for seed in range(12) for e in group(1, seed=seed, version=seed // 4)])
        return names(buffer.take(1))

    assert order(0.0) == ["8", "9", "10", "11", "4", "5", "6", "7", "0", "1", "2", "3"]
    assert order(5.0) != order(0.0)
    assert order(5.0) == order(5.0)


def test_every_priority_of_the_registry_ranks_the_newest_first(make: Make) -> None:
    for name in PRIORITIES:
        target: Any = PRIORITIES.find(name)
        buffer = make(priority=target())
        buffer.add([*group(1, seed=0, version=3), *group(1, seed=1, version=8)])
        assert names(buffer.take(1)) == ["1", "0"]


# --- a full buffer ---------------------------------------------------------------------------------------------------


def test_a_full_buffer_drops_the_lowest_priority(make: Make) -> None:
    buffer = make(capacity=6)
    buffer.add([*group(2, seed=0, version=1), *group(2, seed=1, version=0), *group(2, seed=2, version=1)])
    assert buffer.num_dropped == 0
    buffer.add(group(2, seed=3, version=2))
    assert (buffer.num_dropped, len(buffer)) == (2, 6)
    assert buffer.has_group("1/words/train/1")
    assert names(buffer.take(1)) == ["3", "0", "2"]


def test_the_new_one_is_dropped_where_it_is_the_lowest(make: Make) -> None:
    buffer = make(capacity=4)
    buffer.add([*group(2, seed=0, version=5), *group(2, seed=1, version=5)])
    buffer.add(group(2, seed=2, version=4))
    assert names(buffer.take(1)) == ["0", "1"]
    assert buffer.num_dropped == 2


def test_of_equal_ones_the_oldest_is_dropped(make: Make) -> None:
    buffer = make(capacity=4)
    for seed in range(4):
        buffer.add(group(2, seed=seed))
    assert names(buffer.take(1)) == ["2", "3"]
    assert buffer.num_dropped == 4


def test_what_was_used_up_takes_no_room_and_what_may_be_used_again_does(make: Make) -> None:
    for cooldown, num_dropped in ((None, 0), (1, 2)):
        buffer = make(capacity=4, reuse_cooldown=cooldown)
        buffer.add([*group(2, seed=0), *group(2, seed=1)])
        buffer.take(1)
        buffer.add(group(2, seed=2, rollout=2))
        assert buffer.num_dropped == num_dropped


# --- both are the same -----------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Groups come in and updates take them, in any order."""
    events: list[tuple[str, Any]] = []
    step = 0
    for seed in range(draw(st.integers(1, 14))):
        if draw(st.booleans()):
            step += draw(st.integers(1, 2))
            events.append(("take", step))
        size, version = draw(st.integers(1, 3)), draw(st.integers(0, 4))
        events.append(("add", group(size, seed=seed, rollout=seed, version=version)))
    return [*events, *(("take", step + n) for n in (1, 2, 3))]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    history=histories(),
    size=st.sampled_from([None, 1, 4, 20]),
    unit=st.sampled_from(["experiences", "groups", "tokens"]),
    capacity=st.sampled_from([None, 3, 8]),
    cooldown=st.sampled_from([None, 1, 2]),
    sigma=st.sampled_from([0.0, 2.0]),
)
def test_memory_and_disk_give_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[str, Any]],
    size: int | None,
    unit: Any,
    capacity: int | None,
    cooldown: int | None,
    sigma: float,
) -> None:
    rules = BufferRules(
        train_batch_size=size,
        unit=unit,
        capacity=capacity,
        reuse_cooldown=cooldown,
        priority=DecayLimitRandomization(sigma=sigma),
    )
    memory, disk = MemoryBuffer(rules), SqliteBuffer(tmp_path_factory.mktemp("buffer") / "e.db", rules)
    for kind, given_ in history:
        if kind == "add":
            memory.add(given_)
            disk.add(given_)
        else:
            assert memory.is_ready(given_) == disk.is_ready(given_)
            assert [e.id for e in memory.take(given_)] == [e.id for e in disk.take(given_)]
        assert len(memory) == len(disk)
        assert memory.num_dropped == disk.num_dropped
    disk.close()


# --- checkpoints of the buffer in memory ------------------------------------------------------------------------------


def play_steps(buffer: MemoryBuffer, first: int, last: int, num_groups: int = 4) -> None:
    for step in range(first, last + 1):
        buffer.add([e for seed in range(num_groups) for e in group(2, seed=step * num_groups + seed, rollout=step)])
        buffer.take(step)


def test_a_checkpoint_of_the_buffer_does_not_grow_with_the_number_of_steps(tmp_path: Path) -> None:
    buffer, sizes = MemoryBuffer(BufferRules()), []
    for last in (100, 200, 900):
        play_steps(buffer, last - 80, last)
        buffer.save_state(tmp_path / "buffer.bin")
        sizes.append((tmp_path / "buffer.bin").stat().st_size)
    # Eight hundred steps more: the same number of ids, some with one more digit.
    assert max(sizes) - min(sizes) < 100


def test_a_resumed_buffer_takes_no_group_a_second_time(tmp_path: Path) -> None:
    buffer = MemoryBuffer(BufferRules(train_batch_size=6))
    play_steps(buffer, 1, 30)
    assert len(buffer) == 2 * 30 * 4 - 6 * 30
    buffer.save_state(tmp_path / "buffer.bin")
    resumed = MemoryBuffer(BufferRules(train_batch_size=6))
    resumed.load_state(tmp_path / "buffer.bin")
    assert len(resumed) == len(buffer)
    for step in (1, 15, 29, 30):
        assert resumed.has_group(f"{step}/words/train/{step * 4}")
        resumed.add(group(2, seed=step * 4, rollout=step))
    assert len(resumed) == len(buffer)
    assert not resumed.has_group("31/words/train/124")
    play_steps(buffer, 31, 40)
    play_steps(resumed, 31, 40)
    left = [[e.id for e in one.take(41)] for one in (buffer, resumed)]
    assert left[0] == left[1]


def test_a_buffer_file_with_the_ids_of_all_groups_is_read_too(tmp_path: Path) -> None:
    """Earlier versions kept them all, and numbered arrivals by them."""
    buffer = MemoryBuffer(BufferRules(train_batch_size=6))
    play_steps(buffer, 1, 30)
    file = tmp_path / "buffer.bin"
    buffer.save_state(file)
    head, _, blocks = file.read_bytes().partition(b"\n")
    about = json.loads(head)
    known = [f"{step}/words/train/{step * 4 + seed}" for step in range(1, 31) for seed in range(4)]
    earlier = {key: about[key] for key in ("next_step", "num_dropped", "waiting")} | {"known": sorted(known)}
    file.write_bytes(json.dumps(earlier).encode() + b"\n" + blocks)
    resumed = MemoryBuffer(BufferRules(train_batch_size=6))
    resumed.load_state(file)
    assert all(resumed.has_group(name) for name in known)
    play_steps(buffer, 31, 32)
    play_steps(resumed, 31, 32)
    buffer.save_state(tmp_path / "one.bin")
    resumed.save_state(tmp_path / "other.bin")
    assert (tmp_path / "one.bin").read_bytes() == (tmp_path / "other.bin").read_bytes()


class CountedBytes(bytes):
    """Counts the bytes that are copied out of it."""

    num_copied = 0

    def __getitem__(self, part: Any) -> Any:
        piece = CountedBytes(super().__getitem__(part))
        CountedBytes.num_copied += len(piece)
        return piece

    def partition(self, mark: Any) -> Any:
        return tuple(map(CountedBytes, super().partition(mark)))


def test_reading_a_buffer_copies_each_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = MemoryBuffer(BufferRules())
    buffer.add([e for seed in range(64) for e in group(2, seed=seed)])
    file = tmp_path / "buffer.bin"
    buffer.save_state(file)
    content = CountedBytes(file.read_bytes())
    monkeypatch.setattr(Path, "read_bytes", lambda _: content)
    monkeypatch.setattr("turnwise.experience.buffer.decode_group", lambda block: decode_group(bytes(block)))
    resumed = MemoryBuffer(BufferRules())
    resumed.load_state(file)
    assert len(resumed) == 128
    assert CountedBytes.num_copied < 2 * len(content)
