"""Sokoban: new levels and steps per second of one core, in small and in larger rooms."""

from __future__ import annotations

import random
import time

from turnwise.envs.sokoban import Sokoban

ROOMS = {"6x6, 1 box": (6, 6, 1, 3000), "8x8, 2 boxes": (8, 8, 2, 500), "10x10, 3 boxes": (10, 10, 3, 60)}
NUM_STEPS = 100_000


def run() -> dict[str, object]:
    rooms = {}
    for name, (rows, columns, num_boxes, num_levels) in ROOMS.items():
        env = Sokoban(rows=rows, columns=columns, num_boxes=num_boxes)
        rooms[name] = {"levels_per_s": _measure_resets(env, num_levels), "steps_per_s": _measure_steps(env)}
    return {"benchmark": "envs_sokoban", "rooms": rooms}


def _measure_resets(env: Sokoban, num_levels: int) -> float:
    started = time.process_time()
    for seed in range(num_levels):
        env.reset(seed)
    return num_levels / (time.process_time() - started)


def _measure_steps(env: Sokoban) -> float:
    """Random moves; only the steps are timed, the search for dead states included."""
    moves = random.Random(0).choices(env.action_names, k=NUM_STEPS)
    num_episodes = NUM_STEPS // 200
    seconds = 0.0
    num_steps = 0
    for seed in range(num_episodes):
        env.reset(seed)
        started = time.process_time()
        for move in moves[seed * 200 : seed * 200 + 200]:
            num_steps += 1
            if env.step(move)[2]:
                break
        seconds += time.process_time() - started
    return num_steps / seconds


if __name__ == "__main__":
    print(run())
