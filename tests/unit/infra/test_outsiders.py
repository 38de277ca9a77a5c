"""What strangers hand over is kept, told or refused, and never raises anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.errors import RewardError
from turnwise.infra.untrusted import MAX_REWARD, format_error, parse_reward, sanitize_text, show


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@given(st.text(st.characters()) | st.text(st.sampled_from("a\ud800\udfff\ud83d\ude00")))
def test_any_text_can_be_encoded(text: str) -> None:
    assert sanitize_text(text).encode() is not None


def test_a_lone_surrogate_is_replaced_and_a_pair_is_joined() -> None:
    assert sanitize_text("a\ud800b") == "a\ufffdb"
    assert sanitize_text("\ud83d\ude00") == "\U0001f600"
    assert sanitize_text("plain") == "plain"


def test_an_exception_without_words_is_told() -> None:
    assert format_error(SpeechlessError()) == "SpeechlessError: an exception whose text cannot be read"
    assert "SpeechlessError" in show(SpeechlessError())
    assert len(format_error(ValueError("x" * 100_000))) < 3000


def test_a_number_of_thousands_of_digits_is_shown() -> None:
    assert "int" in show(10**5000)
    with pytest.raises(RewardError, match="finite"):
        parse_reward(10**5000, "it is")


@pytest.mark.parametrize("given_", [1e39, -1e300, MAX_REWARD * 2, 10**400, float("nan"), "1", None, [1.0]])
def test_rewards_that_float32_cannot_hold_are_refused(given_: Any) -> None:
    with pytest.raises(RewardError, match="it is"):
        parse_reward(given_, "it is")


@pytest.mark.parametrize("given_", [1, True, np.float32(2), np.bool_(False), MAX_REWARD])
def test_rewards_that_are_numbers_are_floats(given_: Any) -> None:
    assert parse_reward(given_, "it is") == float(given_)
    assert type(parse_reward(given_, "it is")) is float
