"""An ordinary agent, written with nothing but the openai client, and how it is trained.

`play` asks a chat model for its next move until the lake is crossed, and says what that was worth and whether it got
there. Where the model is
does not matter to it: `base_url` and `api_key` may be anybody's. Training gives it an endpoint of its own for every
episode, and learns from the tokens that were sampled there.

python examples/openai_agent.py --steps 20
"""

from __future__ import annotations

import argparse
import re

from openai import DefaultHttpxClient, OpenAI

import turnwise as tw

MAX_MOVES = 10
CONNECTIONS = DefaultHttpxClient()
"""Shared by all episodes: making one takes as long as playing."""


def play(*, base_url: str, api_key: str, task: tw.WorkflowTask) -> dict[str, object]:
    """Cross one lake; returns the reward, and whether the other side was reached."""
    env = task.make_env()
    text = env.reset(seed=task.seed, split=task.split, dynamics_seed=task.dynamics_seed)
    total, is_home = 0.0, False
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS)
    for _ in range(MAX_MOVES):
        reply = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}])
        text, reward, done, info = env.step(read_move(reply.choices[0].message.content or ""))
        total, is_home = total + reward, info["success"]
        if done:
            break
    return {"reward": total, "is_success": is_home}


def read_move(reply: str) -> str:
    """What stands in the answer tags, or all of it."""
    found = re.search(r"<answer>(.*?)</answer>", reply)
    return found[1].strip() if found else reply


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the agent of this file for a few steps.")
    parser.add_argument("--steps", type=int, default=20, help="updates of the policy (default: 20)")
    parser.add_argument("--groups", type=int, default=128, help="episodes per step (default: 128)")
    parser.add_argument("--episodes", type=int, default=100, help="held-out episodes (default: 100)")
    parser.add_argument("--root", default="runs", help="where run directories are made (default: runs)")
    options = parser.parse_args()

    overrides = {
        "rollout.workflow": "openai_program",
        "rollout.workflow_args.program": "openai_agent:play",
        "rollout.max_turns": MAX_MOVES,
        "rollout.groups": options.groups,
        "learn.steps": options.steps,
        "eval.episodes": options.episodes,
        "eval.every": 0,
        "run.root": options.root,
    }
    run = tw.train("frozenlake", overrides)
    print(f"openai_agent: success {run.summary.success_before:.1%} -> {run.summary.success_after:.1%}, see {run.path}")


if __name__ == "__main__":
    main()
