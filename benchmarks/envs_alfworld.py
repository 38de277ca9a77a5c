"""The household game on one core: random play in generated rooms, new households, and plans."""

from __future__ import annotations

import random
import time

from turnwise.envs.alfworld import AlfWorld

NUM_HOUSEHOLDS = 500


def run(num_steps: int = 20_000, num_receptacles: int = 20, num_objects: int = 40) -> dict[str, object]:
    """Steps and new households per second of processor time; rooms are about as large as the original's."""
    env = AlfWorld(num_receptacles=num_receptacles, num_objects=num_objects)
    return {
        "benchmark": "envs_alfworld",
        "receptacles": num_receptacles,
        "objects": num_objects,
        "steps_per_s": _measure_steps(env, num_steps),
        "levels_per_s": _measure(lambda seed: env.reset(seed)),
        "plans_per_s": _measure(lambda seed: (env.reset(seed), env.oracle())),
    }


def _measure_steps(env: AlfWorld, num_steps: int) -> float:
    """Random commands; choosing them from the list is part of the time, new households are not."""
    rng, done, seed, seconds = random.Random(0), True, 0, 0.0
    for _ in range(num_steps):
        if done:
            env.reset(seed)
            commands, seed = env.admissible_commands, seed + 1
        started = time.process_time()
        _, _, done, info = env.step(rng.choice(commands))
        seconds += time.process_time() - started
        commands = info["admissible_commands"]
    return num_steps / seconds


def _measure(make) -> float:  # type: ignore[no-untyped-def]
    started = time.process_time()
    for seed in range(NUM_HOUSEHOLDS):
        make(seed)
    return NUM_HOUSEHOLDS / (time.process_time() - started)


if __name__ == "__main__":
    print(run())
