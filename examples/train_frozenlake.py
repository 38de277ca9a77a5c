"""The library in use: train a recipe, evaluate the run, look at one trajectory, and train on a world of your own.

python examples/train_frozenlake.py --steps 20
"""

from __future__ import annotations

import argparse
from typing import ClassVar

from pydantic import Field
from rich.console import Console

import turnwise as tw
from turnwise.config.registry import ENVS
from turnwise.config.settings import Settings
from turnwise.report.console import print_trajectory


class EchoParams(Settings):
    words: list[str] = Field(default=["ping", "pong"])
    """What may be asked for."""


class Echo(tw.BaseEnv):
    """One turn: say the word that is shown."""

    name = "echo"
    Params: ClassVar[type[Settings]] = EchoParams
    has_oracle = True

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        self._word = self.params.words[(seed or 0) % len(self.params.words)]
        self._phase = "playing"
        return f"Say {self._word}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        self._phase = "over"
        is_right = action == self._word
        info = {"success": is_right, "action_is_valid": action in self.action_names, "action_is_effective": True}
        return "Done.", float(is_right), True, info

    @property
    def action_names(self) -> tuple[str, ...]:
        return tuple(self.params.words)

    def oracle(self) -> str:
        return self._word


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the default recipe for a few steps and look at the result.")
    parser.add_argument("--steps", type=int, default=20, help="updates of the policy (default: 20)")
    parser.add_argument("--groups", type=int, default=128, help="tasks per step (default: 128)")
    parser.add_argument("--episodes", type=int, default=100, help="held-out episodes (default: 100)")
    parser.add_argument("--root", default="runs", help="where run directories are made (default: runs)")
    options = parser.parse_args()
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

    ENVS.register("echo", Echo)
    own = {
        "recipe": "echo",
        "env": {"type": "echo"},
        "context": {"instructions": "none", "max_response_tokens": 8},
        "rollout": {"max_turns": 1},
        "credit": {"type": "grpo"},
        "learn": {"optim": {"lr": 1e-3}},
        "warm_start": {"type": "oracle", "episodes": 50, "steps": 10},
    }
    echo = tw.train(own, overrides | {"rollout.groups": 8})
    print(f"echo: success {echo.summary.success_before:.1%} -> {echo.summary.success_after:.1%}, see {echo.path}")


if __name__ == "__main__":
    main()
