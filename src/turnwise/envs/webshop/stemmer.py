"""Porter's stemmer for English, with the two later rules of its author: -bli becomes -ble and -logi becomes -log.

In comes a lower-case word, out comes its stem. It refuses to know what the stems are for. Words of one or two letters
stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

Rules = tuple[tuple[str, str], ...]


def _by_length(rules: Iterable[tuple[str, str]]) -> Rules:
    """Longest ending first: only the longest that fits is looked at."""
    return tuple(sorted(rules, key=lambda rule: -len(rule[0])))


_STEP_2 = _by_length(
    [
        ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
        ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
        ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
        ("iviti", "ive"), ("biliti", "ble"), ("logi", "log"),
    ]
)  # fmt: skip
_STEP_3 = _by_length(
    [("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")]
)
_STEP_4_ENDINGS = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip
_STEP_4 = _by_length((ending, "") for ending in _STEP_4_ENDINGS)


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    if len(word) <= 2:
        return word
    word = _drop_past_and_progressive(_drop_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replace_ending(word, _STEP_2, above=0)
    word = _replace_ending(word, _STEP_3, above=0)
    word = _replace_ending(word, _STEP_4, above=1)
    return _drop_last_letter(word)


def _drop_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _drop_past_and_progressive(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    ending = next((ending for ending in ("ed", "ing") if word.endswith(ending)), None)
    if ending is None or not _has_vowel(word[: -len(ending)]):
        return word
    word = word[: -len(ending)]
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if word[-2:-1] == word[-1:] and _shape(word).endswith("c"):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_short(word) else word


def _replace_ending(word: str, rules: Rules, *, above: int) -> str:
    """Where the rest has more than `above` pairs of vowels and consonants."""
    for ending, replacement in rules:
        if word.endswith(ending):
            rest = word[: -len(ending)]
            is_allowed = ending != "ion" or rest.endswith(("s", "t"))
            return rest + replacement if is_allowed and _measure(rest) > above else word
    return word


def _drop_last_letter(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _ends_short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


@lru_cache(maxsize=200_000)
def _shape(word: str) -> str:
    """A `v` for each vowel and a `c` for each other letter; y is a vowel behind a consonant."""
    shape = ""
    for letter in word:
        is_vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if is_vowel else "c"
    return shape


def _measure(word: str) -> int:
    """How often a consonant follows a vowel."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _ends_short(word: str) -> bool:
    """Consonant, vowel, consonant, as in `hop`; the last one is none of w, x, y."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"
