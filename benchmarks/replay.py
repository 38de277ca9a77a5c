"""Steps of five recipes played and learnt once more: how many of them come out the same, bit for bit.

    python -m benchmarks.replay [--steps 20] [--seed 0] [--out docs/results/replay.md]

Each recipe is trained for a moment by the tiny model; then steps are drawn from what it has written down, and each is
replayed as `turnwise replay` does it. The exit code is 1 where one of them differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnwise.infra.atomic_files import atomic_write
from turnwise.run.api import train
from turnwise.run.replay import ReplayResult, replay

RECIPES: Mapping[str, str] = {
    "frozenlake": "bi-level GAE with a value head, one move per turn",
    "starpo_s": "groups filtered and refilled, GAE over whole conversations",
    "gigpo": "steps compared with those from the same state",
    "webshop_step_wise": "a training record per step, merged into rows",
    "single_turn_ppo": "a reward model, a critic of its own, KL in the reward",
}
"""And what each of them brings that the others do not have."""
MAX_STEPS = 40
"""Of each run; steps are drawn from them."""
_SMALL = (
    "model.tiny.hidden_size=16",
    "model.tiny.intermediate_size=32",
    "model.tiny.num_layers=1",
    "model.tiny.num_heads=2",
    "rollout.groups=3",
    "rollout.group_size=2",
    "warm_start.episodes=12",
    "warm_start.steps=4",
    "eval.episodes=0",
    "eval.every=0",
    # Some steps are replayed from the very start, some from a checkpoint, over one to seven updates.
    "report.checkpoint_every=7",
    "report.tokens=all",
    "report.tensorboard=false",
)


@dataclass
class Tally:
    """What came of the steps of one recipe."""

    tried: int = 0
    identical: int = 0
    unrecorded: set[str] = field(default_factory=set)
    """Parts that a step has no record of: nobody can say whether they are the same."""
    differing: list[str] = field(default_factory=list)


def run(steps: int = 20, seed: int = 0, recipes: Sequence[str] = tuple(RECIPES)) -> dict[str, Tally]:
    """Replay so many steps of each recipe."""
    dice = random.Random(seed)
    return {recipe: _try_recipe(recipe, steps, dice) for recipe in recipes}


def _try_recipe(recipe: str, steps: int, dice: random.Random) -> Tally:
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        num_trained = min(MAX_STEPS, 2 * steps)
        overrides = [*_SMALL, f"learn.steps={num_trained}", f"run.seed={dice.randrange(1000)}"]
        path = train(recipe, overrides, run_dir=f"{folder}/run").path
        for step in sorted(dice.sample(range(1, num_trained + 1), steps)):
            replayed: ReplayResult = replay(path, step)
            tally.tried += 1
            tally.identical += replayed.identical
            tally.unrecorded |= {name for name, same in replayed.parts.items() if same is None}
            if not replayed.identical:
                names = ", ".join(name for name, same in replayed.parts.items() if same is False)
                tally.differing.append(f"step {step}, from step {replayed.from_step}: {names}")
        # Some minutes are long without a word.
        sys.stderr.write(f"{recipe}: {tally}\n")
    return tally


def show(tallies: Mapping[str, Tally]) -> str:
    """The page: one row for each recipe, and what differs."""
    rows = [
        f"| `{recipe}` | {RECIPES[recipe]} | {tally.tried} | {tally.identical} |" for recipe, tally in tallies.items()
    ]
    tried, identical = (sum(getattr(tally, name) for tally in tallies.values()) for name in ("tried", "identical"))
    faults = [f"- `{recipe}`, {told}" for recipe, tally in tallies.items() for told in tally.differing]
    faults += [
        f"- `{recipe}`: no record of {', '.join(sorted(tally.unrecorded))}"
        for recipe, tally in tallies.items()
        if tally.unrecorded
    ]
    return "\n".join(
        [
            "# Steps replayed",
            "",
            "Written by `python -m benchmarks.replay`: steps drawn from short runs of the tiny model, each played and",
            "learnt once more. A step is identical where tokens, rewards, advantages, loss, gradient norm and new",
            "weights are, bit for bit.",
            "",
            "| recipe | what is special about it | steps | identical |",
            "|---|---|---|---|",
            *rows,
            f"| all | | {tried} | {identical} |",
            *(["", *faults] if faults else []),
            "",
        ]
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="of each recipe (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="which runs, and which steps of them (default: 0)")
    parser.add_argument("--recipes", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--out", type=Path, help="also write the page there")
    options = parser.parse_args(words)
    tallies = run(options.steps, options.seed, options.recipes)
    page = show(tallies)
    print(page)
    if options.out is not None:
        atomic_write(options.out, page)
    return 0 if all(tally.identical == tally.tried for tally in tallies.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
