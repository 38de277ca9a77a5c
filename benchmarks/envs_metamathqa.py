"""MetaMathQA on one core: problems made and attempts graded per second, and how fast answers are compared."""

from __future__ import annotations

import time

from turnwise.envs.metamathqa import MetaMathQA
from turnwise.envs.metamathqa.exact import is_same_answer

PAIRS = (("1,234", "1234"), (r"\frac{3}{4}", "0.75"), ("85 feet", "85"), (r"\frac{\sqrt6}3", r"\frac{\sqrt{6}}{3}"))


def run(num_levels: int = 5_000, num_comparisons: int = 20_000) -> dict[str, object]:
    env = MetaMathQA(num_events=2)
    started = time.perf_counter()
    for seed in range(num_levels):
        env.reset(seed)
    reset_s = time.perf_counter() - started

    step_s, num_steps = 0.0, 0
    for seed in range(num_levels):
        env.reset(seed)
        answers = ("-1", "-2", env.oracle())
        started = time.perf_counter()
        for answer in answers:
            env.step(answer)
        step_s += time.perf_counter() - started
        num_steps += len(answers)

    started = time.perf_counter()
    for number in range(num_comparisons):
        is_same_answer(*PAIRS[number % len(PAIRS)])
    compare_s = time.perf_counter() - started
    return {
        "benchmark": "envs_metamathqa",
        "levels_per_s": num_levels / reset_s,
        "steps_per_s": num_steps / step_s,
        "comparisons_per_s": num_comparisons / compare_s,
    }


if __name__ == "__main__":
    print(run())
