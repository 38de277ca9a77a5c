"""The texts a tokenizer is made from: what is said and answered in a world, and no more than once."""

from __future__ import annotations

from turnwise.app.sample_texts import draw_sample_texts
from turnwise.config.load import load_settings
from turnwise.rollout.worlds import main_world


def test_where_any_text_is_an_answer_the_whole_game_of_the_oracle_is_heard() -> None:
    texts = draw_sample_texts(main_world(load_settings("alfworld")))
    assert any(text.startswith("<answer>take ") for text in texts)
    assert any(text.startswith("You pick up the ") for text in texts)
    assert any(text.startswith("\nYou open the ") for text in texts)


def test_a_single_prompt_is_heard_with_its_answer_alone() -> None:
    texts = draw_sample_texts(main_world(load_settings("single_turn_ppo")))
    assert len([text for text in texts if text]) == 400 * 5
