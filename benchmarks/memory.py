"""Peak memory of a training run with all four models of traditional PPO, and without those that are not needed.

Each mode is the shipped single-turn recipe with a larger model, in a process of its own, which reports the largest
resident set the kernel saw. The batch is the same in all modes; only the models differ.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

REPEATS = 3
_SIZES = {"hidden_size": 768, "intermediate_size": 3072, "num_layers": 6, "num_heads": 12}
_RUN = [
    "single_turn_ppo",
    *(f"model.tiny.{name}={size}" for name, size in _SIZES.items()),
    "warm_start.type=none",
    "rollout.groups=4",
    "eval.episodes=4",
    "eval.every=0",
    "learn.steps=1",
    "learn.epochs=1",
    "learn.minibatches=1",
    "learn.micro_batch_tokens=256",
    "report.tensorboard=false",
]
_NO_JUDGE = ["reward.judge.type=function", "reward.judge.target=benchmarks.memory:score"]
_NO_CRITIC = ["learn.critic.type=none", "credit.type=dr_grpo"]
MODES = {
    "actor, reference, critic, reward model": [],
    "actor, reference": [*_NO_JUDGE, *_NO_CRITIC],
    "actor": [*_NO_JUDGE, *_NO_CRITIC, "learn.kl.type=none"],
}
_CHILD = """
import resource, sys
from turnwise.cli import main
code = main(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
sys.exit(code)
"""


def score(prompt: str, response: str) -> float:
    """A judge that is no model."""
    return float(len(set(response.split()) & set(prompt.split())))


def run() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        reward_model = _make_reward_model(Path(folder))
        judged = [f"reward.judge.path={reward_model}"]
        peaks: dict[str, list[float]] = {mode: [] for mode in MODES}
        for repeat in range(REPEATS):
            for number, (mode, words) in enumerate(MODES.items()):
                more = words or judged
                peaks[mode].append(_peak_mb([*_RUN, *more, "--run-dir", f"{folder}/{repeat}-{number}"]))
    full, *fewer = (median(values) for values in peaks.values())
    return {
        "benchmark": "memory",
        "peak_mb": {mode: round(median(values)) for mode, values in peaks.items()},
        "saved_without_reward_model_and_critic": round(1 - fewer[0] / full, 3),
        "saved_with_the_actor_alone": round(1 - fewer[1] / full, 3),
    }


def _peak_mb(words: list[str]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, "train", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    return float(done.stdout.rsplit("peak", 1)[1])


def _make_reward_model(folder: Path) -> Path:
    """Untrained and as large as the actor: only its size matters here."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415

    from turnwise.config.load import load_settings  # noqa: PLC0415
    from turnwise.loop.policies import resolve_model  # noqa: PLC0415

    actor = resolve_model(load_settings(_RUN[0], _RUN[1:]))
    model = AutoModelForSequenceClassification.from_pretrained(actor, num_labels=1)
    path = folder / "reward"
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(actor).save_pretrained(path)
    return path


if __name__ == "__main__":
    print(run())
