"""Texts of megabytes end an episode, and are never cut into tokens on the way."""

from __future__ import annotations

import pytest

from tests.unit.context.chat_families import template_of
from turnwise.context.recorder import Recorder
from turnwise.context.tokenizer import TokenizerAdapter
from turnwise.errors import ContextOverflow
from turnwise.types import Message

TEMPLATE = template_of("chatml")


def test_a_text_of_megabytes_overflows_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request of 7 MB held a server up for 50 s."""
    encoded: list[int] = []
    plain = TokenizerAdapter.encode

    def watched(self: TokenizerAdapter, text: str) -> list[int]:
        encoded.append(len(text))
        return plain(self, text)

    monkeypatch.setattr(TokenizerAdapter, "encode", watched)
    with pytest.raises(ContextOverflow, match=r"7,000,000 characters do not fit into context.max_tokens = 64"):
        Recorder(TEMPLATE, max_tokens=64).prompt([Message("user", "a" * 7_000_000)], max_new_tokens=8)
    assert encoded == []


def test_what_just_fits_is_not_refused_by_its_length() -> None:
    """The longest token as often as it fits: the bound is no tighter than the vocabulary."""
    longest = TEMPLATE.longest_token
    assert longest >= 1
    prompt = Recorder(TEMPLATE, max_tokens=4096).prompt([Message("user", "a" * longest)], max_new_tokens=8)
    assert len(prompt.ids) > 0
