"""The texts a tokenizer is made from: what is said and answered in a world, and no more than once."""

from __future__ import annotations

from typing import Any

from turnwise.config.load import load_settings
from turnwise.envs.frozen_lake import FrozenLake
from turnwise.rollout.env_specs import main_env, sample_tokenizer_corpus


def test_where_any_text_is_an_answer_the_whole_game_of_the_oracle_is_heard() -> None:
    texts = sample_tokenizer_corpus(main_env(load_settings("alfworld")))
    assert any(text.startswith("<answer>take ") for text in texts)
    assert any(text.startswith("You pick up the ") for text in texts)
    assert any(text.startswith("\nYou open the ") for text in texts)


def test_a_single_prompt_is_heard_with_its_answer_alone() -> None:
    texts = sample_tokenizer_corpus(main_env(load_settings("single_turn_ppo")))
    assert len([text for text in texts if text]) == 400 * 5


class SlowLake(FrozenLake):
    is_slow = True
    num_resets = num_open = 0

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        SlowLake.num_open += 1

    def reset(self, seed: int | None = None, **rest: Any) -> str:
        SlowLake.num_resets += 1
        return super().reset(seed, **rest)

    def close(self) -> None:
        SlowLake.num_open -= 1


def test_a_world_whose_resets_may_wait_is_heard_a_few_times_and_closed() -> None:
    sample_tokenizer_corpus(
        main_env(load_settings("frozenlake", ["env.type=tests.unit.rollout.test_sample_texts:SlowLake"]))
    )
    assert SlowLake.num_resets == 16
    assert SlowLake.num_open == 0
