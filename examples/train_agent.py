"""An agent class of your own, trained: it owns its environment and its history, and the library does the rest.

The agent below crosses a frozen lake. It shows the model the current state and nothing else, and takes any reply that
names one move.

    python examples/train_agent.py --steps 20
"""

from __future__ import annotations

import argparse

import turnwise as tw
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.types import StepResult

MOVES = ("Left", "Down", "Right", "Up")


class LakeAgent(tw.BaseAgent):
    """What the model sees, and what its words do, is decided here."""

    def __init__(self, task: tw.WorkflowTask) -> None:
        super().__init__(task)
        self.env = task.make_env()

    def reset(self) -> StepResult:
        text = reset_env(self.env, seed=self.task.seed, split=self.task.split)
        return StepResult(text=text, reward=0.0, terminated=False, truncated=False)

    def get_llm_prompts(self, env_out: StepResult) -> list[dict[str, str]]:
        return [{"role": "user", "content": env_out.text}]

    def get_env_outputs(self, llm_response: str) -> StepResult:
        said = [move for move in MOVES if move in llm_response]
        if len(said) != 1:
            return StepResult(
                text=self.env.render(),
                reward=0.0,
                terminated=False,
                truncated=False,
                is_valid=False,
                is_effective=False,
                is_success=False,
            )
        return step_env(self.env, said[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an agent class for a few steps.")
    parser.add_argument("--steps", type=int, default=20, help="updates of the policy (default: 20)")
    parser.add_argument("--groups", type=int, default=32, help="tasks per step (default: 32)")
    parser.add_argument("--episodes", type=int, default=100, help="held-out episodes (default: 100)")
    parser.add_argument("--root", default="runs", help="where run directories are made (default: runs)")
    options = parser.parse_args()
    overrides = {
        "context.window": "single_turn",
        "learn.steps": options.steps,
        "rollout.groups": options.groups,
        "eval.episodes": options.episodes,
        "run.root": options.root,
    }
    trainer = tw.AgentTrainer("agent_class", overrides, agent_cls=LakeAgent)
    trainer.init_workers()
    trainer.multi_turn_rollout.reset()
    groups = trainer.multi_turn_rollout.rollout()
    batch = trainer.multi_turn_rollout.build_update_batch()
    print(f"tried: {sum(len(group.trajectories) for group in groups)} episodes, {len(batch)} training records")
    run = trainer.fit()
    print(f"agent: success {run.summary.success_before:.1%} -> {run.summary.success_after:.1%}, see {run.path}")


if __name__ == "__main__":
    main()
