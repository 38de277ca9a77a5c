"""Countdown: new puzzles, graded answers, hostile answers and exact solutions per second of one core."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from turnwise.envs.countdown import Countdown

HOSTILE = ("9**9**9", "1.5*2", "__import__('os')", "(" * 10_000, "9" * 10_000, "-" * 400)


def run(num_puzzles: int = 2000) -> dict[str, object]:
    env = Countdown()
    seeds = range(num_puzzles)
    levels_per_s = _rate(env.reset, seeds)
    solve_s = step_s = 0.0
    for seed in seeds:
        env.reset(seed)
        started = time.process_time()
        answer = env.oracle()
        solved = time.process_time()
        env.step(answer)
        solve_s += solved - started
        step_s += time.process_time() - solved
    env.reset(0)
    return {
        "benchmark": "envs_countdown",
        "levels_per_s": levels_per_s,
        "steps_per_s": num_puzzles / step_s,
        "solutions_per_s": num_puzzles / solve_s,
        "hostile_answers_per_s": {text[:10]: _rate(env.step, [text] * 500) for text in HOSTILE},
    }


def _rate(call: Callable[..., object], arguments: Sequence[object]) -> float:
    started = time.process_time()
    for argument in arguments:
        call(argument)
    return len(arguments) / (time.process_time() - started)


if __name__ == "__main__":
    print(run())
