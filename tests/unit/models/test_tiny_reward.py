"""The built-in reward model: made once, and right about letters it has never read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from turnwise.config.load import load_settings
from turnwise.envs.prompts.sources import EVAL_SHARE, Preference, draw_preferences, letter_prompts
from turnwise.loop.build import build_scorer
from turnwise.models import reward_model as tiny_reward
from turnwise.models.reward_model import load_reward_model, preference_loss, tiny_reward_folder

PROMPTS = letter_prompts(EVAL_SHARE)


def pairs_of(num_pairs: int, seed: int = 0) -> list[Preference]:
    return draw_preferences(PROMPTS, split="train", num_pairs=num_pairs, seed=seed)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_reward, "_STEPS", 2)
    monkeypatch.setattr(tiny_reward, "_WARMUP_STEPS", 1)


@pytest.mark.slow
def test_it_ranks_held_out_pairs() -> None:
    judging = build_scorer(load_settings("single_turn_ppo"))
    assert judging is not None
    pairs = draw_preferences(PROMPTS, split="eval", num_pairs=400, seed=7)
    chosen, rejected = (np.array(judging.judge.score([pair[side] for pair in pairs]), float) for side in (0, 1))
    assert (chosen > rejected).mean() >= 0.9
    # The pull towards 0 puts the border between good and bad there.
    assert abs(np.concatenate([chosen, rejected]).mean()) < 1.5


@pytest.mark.usefixtures("few_steps")
def test_it_is_made_once_for_the_same_ingredients(tmp_path: Path) -> None:
    folder = tiny_reward_folder(tmp_path, pairs=pairs_of(8), seed=0)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert tiny_reward_folder(tmp_path, pairs=pairs_of(8), seed=0) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    others = [
        tiny_reward_folder(tmp_path, pairs=pairs_of(8), seed=1),
        tiny_reward_folder(tmp_path, pairs=pairs_of(9), seed=0),
    ]
    assert len({folder, *others}) == 3


@pytest.mark.usefixtures("few_steps")
def test_training_repeats_itself_and_does_not_disturb_torch(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    folders = [tiny_reward_folder(tmp_path / str(n), pairs=pairs_of(8), seed=s) for n, s in enumerate((0, 0, 1))]
    assert torch.equal(torch.rand(1), expected)
    talks = [chosen for chosen, _ in pairs_of(4, seed=3)]
    first, again, other = (load_reward_model(folder, batch_rows=8, max_tokens=64).score(talks) for folder in folders)
    assert first == again != other


def test_the_loss_is_bradley_terry_with_a_pull_to_zero() -> None:
    chosen, rejected = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    expected = [
        -math.log(1 / (1 + math.exp(-(a - b)))) + 0.02 * (a * a + b * b) / 2
        for a, b in zip(chosen.tolist(), rejected.tolist(), strict=True)
    ]
    assert float(preference_loss(chosen, rejected)) == pytest.approx(sum(expected) / 2, rel=1e-5)
