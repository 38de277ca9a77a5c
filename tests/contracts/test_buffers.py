"""The contract of a buffer: whole groups in, whole groups out, each once, in batches that are a ceiling."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.unit.experience.records import make_group
from turnwise.experience.build import build_experiences
from turnwise.loop.build import open_buffer
from turnwise.protocols import Buffer
from turnwise.types import Experience

from .entries import names_of
from .setting import settings_with

every_buffer = pytest.mark.parametrize("name", names_of("buffer"))


def open_named(name: str, folder: Path, batch_size: int | None = None) -> Buffer:
    size = "null" if batch_size is None else batch_size
    return open_buffer(settings_with(f"buffer.type={name}", f"buffer.train_batch_size={size}"), folder)


def group(size: int = 1, *, seed: int = 0, rollout: int = 1, version: int = 0) -> list[Experience]:
    return build_experiences([make_group(size, seed=seed, rollout=rollout, version=version)])


def seeds(experiences: list[Experience]) -> Counter[int]:
    """How many experiences there are of each group, by the seed of its task."""
    return Counter(int(e.id.trajectory.task_id.rsplit("/", 1)[-1]) for e in experiences)


# --- taking ----------------------------------------------------------------------------------------------------------


@every_buffer
def test_everything_without_a_batch_size(name: str, tmp_path: Path) -> None:
    buffer = open_named(name, tmp_path)
    assert not buffer.is_ready(1)
    assert (len(buffer), buffer.take(1), buffer.num_dropped) == (0, [], 0)
    buffer.add([*group(3, seed=0), *group(2, seed=1)])
    assert buffer.is_ready(1)
    assert len(buffer) == 5
    assert seeds(buffer.take(1)) == {0: 3, 1: 2}
    assert len(buffer) == 0
    assert buffer.take(2) == []
    assert not buffer.is_ready(2)


@every_buffer
@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 12, 15, 99])
def test_groups_stay_whole_below_the_ceiling_and_the_rest_is_kept(name: str, tmp_path: Path, size: int) -> None:
    sizes = {0: 3, 1: 5, 2: 4, 3: 3}
    buffer = open_named(name, tmp_path, size)
    buffer.add([e for seed, num in sizes.items() for e in group(num, seed=seed)])
    seen: Counter[int] = Counter()
    step = 0
    while len(buffer):
        step += 1
        before = len(buffer)
        assert buffer.is_ready(step) == (before >= size)
        taken = buffer.take(step)
        assert len(buffer) == before - len(taken)
        counts = seeds(taken)
        assert 0 < len(taken) <= size or len(counts) == 1
        assert counts == {seed: sizes[seed] for seed in counts}
        seen.update(counts.keys())
    assert seen == dict.fromkeys(sizes, 1)


@every_buffer
def test_a_batch_does_not_depend_on_what_one_exploration_made(name: str, tmp_path: Path) -> None:
    """Explorations of 100, 37 and 120 in groups of one, batches of 64: four of them, and one experience left over."""
    buffer = open_named(name, tmp_path, 64)
    num_seen, batches = 0, []
    for rollout, count in enumerate((100, 37, 120), start=1):
        buffer.add([e for n in range(count) for e in group(1, seed=num_seen + n, rollout=rollout, version=rollout)])
        num_seen += count
        while buffer.is_ready(len(batches) + 1):
            batches.append(buffer.take(len(batches) + 1))
    assert [len(batch) for batch in batches] == [64] * 4
    assert len(buffer) == 1
    assert len({e.id for batch in batches for e in batch}) == 256


@every_buffer
def test_a_ceiling_is_not_a_requirement(name: str, tmp_path: Path) -> None:
    """16 tasks, 16 runs and at most 30 steps make 7680 at most; episodes that end earlier make fewer."""
    buffer = open_named(name, tmp_path, 7680)
    buffer.add([e for seed in range(4) for e in group(16, seed=seed)])
    assert not buffer.is_ready(1)
    assert len(buffer.take(1)) == 64


@every_buffer
def test_a_group_is_added_once_and_used_once(name: str, tmp_path: Path) -> None:
    buffer = open_named(name, tmp_path)
    buffer.add(group(4, seed=7))
    buffer.add(group(4, seed=7))
    assert len(buffer) == 4
    assert (buffer.has_group("1/words/train/7"), buffer.has_group("2/words/train/7")) == (True, False)
    buffer.take(1)
    buffer.add([*group(4, seed=7), *group(4, seed=7, rollout=2)])
    assert buffer.has_group("1/words/train/7")
    assert [e.id.trajectory.rollout for e in buffer.take(2)] == [2] * 4
    assert [buffer.take(step) for step in range(3, 20)] == [[]] * 17


@every_buffer
def test_no_token_and_no_number_is_changed(name: str, tmp_path: Path) -> None:
    buffer, given = open_named(name, tmp_path), group(3)
    buffer.add(given)
    found = {e.id: e for e in buffer.take(1)}
    for before in given:
        after = found[before.id]
        for field in ("turn_indices", "raw_rewards", "turn_rewards", "turn_states", "turn_steps"):
            np.testing.assert_array_equal(getattr(after, field), getattr(before, field), strict=True)
        for field in ("token_ids", "loss_mask", "behavior_logprobs", "turn_ids"):
            np.testing.assert_array_equal(getattr(after.segment, field), getattr(before.segment, field), strict=True)
        for field in ("policy_version", "is_last", "is_truncated", "greedy_return"):
            assert getattr(after, field) == getattr(before, field)


# --- going on --------------------------------------------------------------------------------------------------------


@every_buffer
def test_it_says_truly_whether_another_process_finds_the_same(name: str, tmp_path: Path) -> None:
    one = open_named(name, tmp_path, 2)
    one.add([*group(2, seed=0), *group(2, seed=1)])
    other = open_named(name, tmp_path, 2)
    if not one.is_shared:
        assert (len(other), other.has_group("1/words/train/0")) == (0, False)
        return
    assert other.has_group("1/words/train/0")
    assert len(other) == 4
    assert seeds([*one.take(1), *other.take(2)]) == {0: 2, 1: 2}
    assert (len(one), len(other)) == (0, 0)


@every_buffer
@pytest.mark.parametrize("plays_again", [True, False])
def test_a_run_that_goes_on_finds_what_was_there_after_its_step(name: str, tmp_path: Path, plays_again: bool) -> None:
    """Two updates were made, one is on record; what the first took is gone, what the second took is back."""
    before = open_named(name, tmp_path)
    for step in (1, 2):
        before.add(group(2, seed=step, rollout=step))
        before.take(step)
    before.add(group(2, seed=3, rollout=3))
    after = open_named(name, tmp_path)
    after.rewind(1, plays_again=plays_again)
    if not after.is_shared or plays_again:
        assert len(after) == 0
        for rollout in (2, 3):
            assert not after.has_group(f"{rollout}/words/train/{rollout}")
            after.add(group(2, seed=rollout, rollout=rollout))
    assert after.has_group("1/words/train/1") == after.is_shared
    if after.is_shared and not plays_again:
        # The update that is made again learns from what it learnt from before, whatever has come since.
        assert seeds(after.take(2)) == {2: 2}
        assert seeds(after.take(3)) == {3: 2}
        return
    assert seeds(after.take(2)) == {2: 2, 3: 2}
