"""MetaMathQA on one core: problems made and attempts graded per second, and how fast answers are compared."""

from __future__ import annotations

import time

from turnwise.envs.metamathqa import MetaMathQA
from turnwise.envs.metamathqa.grading import is_same_answer


def write_pairs(num_pairs: int) -> list[tuple[str, str]]:
    """Different answers each time, because equal ones are read once."""
    return [
        ((f"{n:,} marbles", str(n)), (rf"\frac{{{n}}}{{4}}", str(n / 4)), (rf"\frac{{\sqrt{{{n}}}}}3", f"sqrt({n})/3"))[
            n % 3
        ]
        for n in range(1_000, 1_000 + num_pairs)
    ]


def run(num_levels: int = 5_000, num_comparisons: int = 20_000) -> dict[str, object]:
    env = MetaMathQA(num_events=2)
    started = time.perf_counter()
    for seed in range(num_levels):
        env.reset(seed)
    reset_s = time.perf_counter() - started

    step_s, num_steps = 0.0, 0
    for seed in range(num_levels):
        env.reset(seed)
        answers = (f"-{seed}", f"{seed} apples", env.oracle())
        started = time.perf_counter()
        is_over = False
        for answer in answers:
            if not is_over:
                is_over = env.step(answer)[2]
                num_steps += 1
        step_s += time.perf_counter() - started

    pairs = write_pairs(num_comparisons)
    started = time.perf_counter()
    for left, right in pairs:
        is_same_answer(left, right)
    compare_s = time.perf_counter() - started
    return {
        "benchmark": "envs_metamathqa",
        "levels_per_s": num_levels / reset_s,
        "steps_per_s": num_steps / step_s,
        "comparisons_per_s": num_comparisons / compare_s,
    }


if __name__ == "__main__":
    print(run())
