"""The buffers: experiences per second and core, and many processes on one file.

Experiences have 500 tokens and come in groups of eight. Speeds are per second of CPU time, so that other work on the
machine does not count; two readers that take and four writers that add for a minute must neither lose nor double any.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.experience.buffer import BufferRules, MemoryBuffer
from turnwise.experience.store import SqliteBuffer
from turnwise.types import Experience, ExperienceId, Segment, TrajectoryId

NUM_TOKENS, GROUP_SIZE, BATCH = 500, 8, 512
NUM_WRITERS, NUM_READERS = 4, 2
_RULES = BufferRules(train_batch_size=BATCH)


def run(num_experiences: int = 20_480, seconds: float = 60.0) -> dict[str, object]:
    data = make_experiences(num_experiences)
    with tempfile.TemporaryDirectory() as folder:
        memory = _measure(MemoryBuffer(_RULES), data)
        sqlite = _measure(SqliteBuffer(Path(folder) / "speed.db", _RULES), data)
        counts = count_in_processes(Path(folder) / "processes.db", seconds=seconds)
    return {
        "benchmark": "buffer",
        "experiences": num_experiences,
        "tokens": NUM_TOKENS,
        "group_size": GROUP_SIZE,
        "memory": memory,
        "sqlite": sqlite,
        "processes": {"writers": NUM_WRITERS, "readers": NUM_READERS, "seconds": seconds, **counts},
    }


def _measure(buffer: Any, data: list[Experience]) -> dict[str, int]:
    def add() -> None:
        for start in range(0, len(data), BATCH):
            buffer.add(data[start : start + BATCH])

    def take() -> None:
        steps = range(1, len(data) // BATCH + 1)
        assert sum(len(buffer.take(step)) for step in steps) == len(data)

    return {"written_per_s": _rate(len(data), add), "sampled_per_s": _rate(len(data), take)}


def _rate(count: int, work: Callable[[], None]) -> int:
    started = time.process_time()
    work()
    return int(count / (time.process_time() - started))


def make_experiences(count: int, *, rollout: int = 1) -> list[Experience]:
    """Three turns of sampled tokens each."""
    rng = np.random.default_rng(rollout)
    turn_ids = np.full(NUM_TOKENS, -1, dtype=np.int32)
    for turn, start in enumerate((100, 250, 400)):
        turn_ids[start : start + 80] = turn
    mask, turns = turn_ids >= 0, np.arange(3, dtype=np.int32)
    return [
        Experience(
            id=ExperienceId(TrajectoryId(rollout, f"words/train/{number // GROUP_SIZE}", number % GROUP_SIZE), 0),
            segment=Segment(
                token_ids=rng.integers(0, 50_000, size=NUM_TOKENS, dtype=np.int32),
                loss_mask=mask,
                behavior_logprobs=np.where(mask, rng.normal(-2, 0.3, size=NUM_TOKENS), 0).astype(np.float32),
                turn_ids=turn_ids,
            ),
            turn_indices=turns,
            raw_rewards=turns.astype(np.float32),
            turn_rewards=turns.astype(np.float32),
            turn_states=turns.astype(np.uint64),
            turn_steps=turns,
            policy_version=rollout,
            is_last=True,
            is_truncated=False,
        )
        for number in range(count)
    ]


def count_in_processes(path: Path, *, seconds: float) -> dict[str, int]:
    """What four writers wrote, two readers read and the file still holds: every experience exactly once."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(NUM_WRITERS + NUM_READERS) as pool:
        writers = [pool.apply_async(_write, (path, number, seconds)) for number in range(NUM_WRITERS)]
        readers = [pool.apply_async(_read, (path, number, seconds)) for number in range(NUM_READERS)]
        written = Counter(name for writer in writers for name in writer.get())
        read = Counter(name for reader in readers for name in reader.get())
    rest = SqliteBuffer(path)
    left = Counter(str(e.id) for e in rest.take(10**9))
    rest.close()
    found = read + left
    return {
        "written": written.total(),
        "read": read.total(),
        "left": left.total(),
        "doubled": sum(count - 1 for count in found.values()),
        "lost": sum((written - found).values()),
    }


def _write(path: Path, number: int, seconds: float) -> list[str]:
    store, names, rollout = SqliteBuffer(path, _RULES), [], 0
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        rollout += 1
        batch = make_experiences(2 * GROUP_SIZE, rollout=number + NUM_WRITERS * rollout)
        store.add(batch)
        names += [str(e.id) for e in batch]
    store.close()
    return names


def _read(path: Path, number: int, seconds: float) -> list[str]:
    store, names, step = SqliteBuffer(path, BufferRules(train_batch_size=64)), [], number
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        if taken := store.take(step):
            names += [str(e.id) for e in taken]
            step += NUM_READERS
        else:
            time.sleep(0.01)
    store.close()
    return names


if __name__ == "__main__":
    print(run())
