"""Search and stems: the formula by brute force, where words end, ties, and known stems."""

from __future__ import annotations

import math
import random

import pytest

from turnwise.envs.webshop.search import SearchIndex, _one_byte_length, _terms, stem

WORDS = ["lamp", "red", "mug", "wood", "box", "sun", "cat", "dog", "pen", "cup"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("cats", "cat"), ("agreed", "agre"), ("feed", "feed"),
        ("plastered", "plaster"), ("motoring", "motor"), ("sing", "sing"), ("conflated", "conflat"), ("sized", "size"),
        ("hopping", "hop"), ("falling", "fall"), ("hissing", "hiss"), ("filing", "file"), ("failing", "fail"),
        ("happy", "happi"), ("sky", "sky"), ("relational", "relat"), ("conditional", "condit"), ("rational", "ration"),
        ("digitizer", "digit"), ("conformably", "conform"), ("vietnamization", "vietnam"), ("formaliti", "formal"),
        ("triplicate", "triplic"), ("hopeful", "hope"), ("goodness", "good"), ("adoption", "adopt"),
        ("opinion", "opinion"), ("replacement", "replac"), ("probate", "probat"), ("rate", "rate"), ("cease", "ceas"),
        ("controll", "control"),
        ("roll", "roll"), ("archaeology", "archaeolog"), ("possibly", "possibl"), ("is", "is"), ("as", "as"),
        ("women", "women"), ("yellow", "yellow"), ("3x", "3x"),
    ],
)  # fmt: skip
def test_known_stems(word: str, expected: str) -> None:
    assert stem(word) == expected


def score(query: list[str], document: list[str], documents: list[list[str]]) -> float:
    """BM25 term by term, in plain Python; texts this short have exact lengths."""
    average = sum(map(len, documents)) / len(documents)
    norm = 0.9 * (1 - 0.4 + 0.4 * len(document) / average)
    total = 0.0
    for word in query:
        num_with = sum(word in other for other in documents)
        if num_with:
            rarity = math.log(1 + (len(documents) - num_with + 0.5) / (num_with + 0.5))
            total += rarity * document.count(word) / (document.count(word) + norm)
    return total


def test_results_are_ranked_by_the_formula() -> None:
    rng = random.Random(0)
    for _ in range(40):
        documents = [rng.choices(WORDS[:8], k=rng.randint(1, 12)) for _ in range(25)]
        index = SearchIndex([f"{n:02}" for n in range(25)], [" ".join(document) for document in documents])
        query = rng.choices(WORDS, k=rng.randint(1, 5))
        scores = {n: score(query, document, documents) for n, document in enumerate(documents)}
        found = index.search(" ".join(query), 10)
        expected = sorted((n for n in scores if scores[n] > 0), key=lambda n: -scores[n])[:10]
        assert len(found) == len(expected)
        assert [scores[n] for n in found] == pytest.approx([scores[n] for n in expected], abs=1e-5)


def test_ties_go_by_name_and_not_by_place() -> None:
    index = SearchIndex(["c", "a", "b"], ["red mug", "red mug", "red mug"])
    assert index.search("mug", 10) == (1, 2, 0)
    assert index.search("mug", 2) == (1, 2)


def test_nothing_is_found_by_stop_words_or_unknown_words() -> None:
    index = SearchIndex(["a"], ["the red mug"])
    assert index.search("the of and", 10) == index.search("zebra", 10) == index.search("", 10) == ()
    assert index.search("Mugs", 10) == (0,)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Women's T-Shirt (2 Pack)", ["women", "t", "shirt", "2", "pack"]),
        ("Women\u2019s 3.5in, 1,000 pcs; size:m e.g. a", ["women", "3.5in", "1,000", "pc", "size:m", "e.g"]),
        ("_ snake_case __", ["snake_cas"]),
        ("m\u00b2 \u00bd \u2460", ["m"]),
        ("\u2605\u2605 \u273f \u2764\ufe0f", ["\u2605", "\u2605", "\u2764\ufe0f"]),
        ("\u65e5\u672c tea", ["\u65e5", "\u672c", "tea"]),
    ],
)
def test_where_words_end(text: str, terms: list[str]) -> None:
    assert list(_terms(text)) == terms


def test_long_texts_have_rounded_lengths() -> None:
    lengths = [_one_byte_length(n) for n in range(2000)]
    assert lengths[:40] == list(range(40))
    assert lengths == sorted(lengths)
    assert lengths == [_one_byte_length(length) for length in lengths]
    assert [lengths[n] for n in (40, 41, 55, 365, 423)] == [40, 40, 54, 344, 408]
