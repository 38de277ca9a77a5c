"""The library in use: look at a world, train a recipe, evaluate the run, read one trajectory.

python examples/train_frozenlake.py --steps 20
"""

from __future__ import annotations

import argparse

from rich.console import Console

import turnwise as tw
from turnwise.report.console import print_trajectory


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the default recipe for a few steps and look at the result.")
    parser.add_argument("--steps", type=int, default=20, help="updates of the policy (default: 20)")
    parser.add_argument("--groups", type=int, default=128, help="tasks per step (default: 128)")
    parser.add_argument("--episodes", type=int, default=100, help="held-out episodes (default: 100)")
    parser.add_argument("--root", default="runs", help="where run directories are made (default: runs)")
    options = parser.parse_args()

    env = tw.make_env("frozen_lake", size=4)
    print(env.reset(seed=7), f"the oracle goes {env.oracle()}", sep="\n")

    overrides = {
        "learn.steps": options.steps,
        "rollout.groups": options.groups,
        "eval.episodes": options.episodes,
        "run.root": options.root,
    }
    run = tw.train("frozenlake", overrides)
    print(f"frozenlake: success {run.summary.success_before:.1%} -> {run.summary.success_after:.1%}, see {run.path}")

    report = tw.evaluate(run, episodes=options.episodes)
    print(f"evaluated again: success {report.success:.1%} on {report.episodes} held-out episodes")
    print_trajectory(Console(), report.trajectories[0])


if __name__ == "__main__":
    main()
