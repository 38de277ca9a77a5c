"""BM25 search over products with the ranking of Lucene, so that results are those of the original shop.

The order depends on Lucene's word boundaries, stop words, stemmer, text lengths rounded to one byte, single precision,
and ties by name.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import log

import numpy as np
from numpy.typing import NDArray

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


_K1, _B = 0.9, 0.4
_STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
))  # fmt: skip
# Where words end, after Unicode's rules: letters and digits belong together, with a full stop, an apostrophe or a colon
# between two letters, and a full stop, an apostrophe or a comma between two digits. Each Chinese character or hiragana
# is a word, each pictograph is one, and a number in a circle, a fraction or a raised digit is none.
_SINGLE = "\u3041-\u309f\u3400-\u9fff\uf900-\ufaff"
_NONE = (
    "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070\u2074-\u2079\u2080-\u2089\u2150-\u215f\u2460-\u249b\u2776-\u2793\uff9e\uff9f"
)
_PICTOGRAPHS = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa"
    "\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716"
    "\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf"
    "\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_LETTER, _DIGIT, _SIGN = r"[^\W\d_]", r"\d", rf"[^\W{_SINGLE}{_NONE}]"
_WORD = re.compile(
    rf"[{_SINGLE}]|[{_PICTOGRAPHS}]\ufe0f?"
    rf"|(?=_*[^\W_])(?:{_SIGN}|(?<={_LETTER})['.:·](?={_LETTER})|(?<={_DIGIT})[.,'](?={_DIGIT}))+"
)


class SearchIndex:
    """Built once, then only read."""

    def __init__(self, names: Sequence[str], texts: Sequence[str]) -> None:
        self._num_texts = len(texts)
        self._ranks = np.argsort(np.argsort(np.array(names)))
        counts = [Counter(_terms(text)) for text in texts]
        lengths = np.array([count.total() for count in counts], dtype=np.float64)
        average = np.float32(lengths.mean() or 1)
        rounded = np.array([_one_byte_length(int(length)) for length in lengths], dtype=np.float32)
        inverse_norms = np.float32(1) / (np.float32(_K1) * (np.float32(1 - _B) + np.float32(_B) * rounded / average))
        places: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, count in enumerate(counts):
            for term, frequency in count.items():
                places[term].append((number, frequency))
        self._postings = {term: self._weigh(found, inverse_norms) for term, found in places.items()}

    def search(self, query: str, limit: int) -> tuple[int, ...]:
        """The numbers of at most `limit` texts that share a term with the query, best first."""
        scores = np.zeros(self._num_texts)
        for term, count in Counter(_terms(query)).items():
            if term in self._postings:
                numbers, weights = self._postings[term]
                scores[numbers] += count * weights
        found = np.flatnonzero(scores)
        order = np.lexsort((self._ranks[found], -scores[found].astype(np.float32)))
        return tuple(found[order[:limit]].tolist())

    def _weigh(
        self, found: list[tuple[int, int]], inverse_norms: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """In which texts a term is, and what it adds to the score of each."""
        numbers, frequencies = np.array(found, dtype=np.int32).T
        rarity = np.float32(log(1 + (self._num_texts - len(found) + 0.5) / (len(found) + 0.5)))
        weights = rarity - rarity / (np.float32(1) + frequencies.astype(np.float32) * inverse_norms[numbers])
        return numbers, weights


def _terms(text: str) -> Iterator[str]:
    for word in _WORD.findall(text.lower().replace("\u2019", "'")):
        word = word.removesuffix("'s")
        if word and word not in _STOP_WORDS:
            yield stem(word)


def _one_byte_length(length: int) -> int:
    """Exact up to 39; above, the four highest bits of what exceeds 24 are kept."""
    if length < 40:
        return length
    rest = length - 24
    shift = rest.bit_length() - 4
    return 24 + (rest >> shift << shift)


COLOURS = (
    "alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black", "blue", "blush",
    "bordeaux", "bronze", "brown", "burgundy", "camel", "camo", "caramel", "champagne", "charcoal", "cheetah",
    "chestnut", "chocolate", "christmas", "coffee", "cognac", "copper", "coral", "cranberry", "cream", "crystal",
    "dark", "denim", "eggplant", "elephant", "espresso", "fuchsia", "gold", "granite", "grape", "graphite", "grass",
    "gray", "green", "grey", "heather", "indigo", "ivory", "ivy", "khaki", "lavender", "lemon", "leopard", "light",
    "lilac", "lime", "magenta", "maroon", "mauve", "merlot", "midnight", "mint", "mocha", "multicolor", "mushroom",
    "mustard", "natural", "navy", "nude", "olive", "orange", "peach", "pewter", "pink", "plum", "purple", "rainbow",
    "red", "rose", "royal", "rust", "sand", "sapphire", "seashell", "silver", "skull", "slate", "steel", "stone",
    "stonewash", "sunflower", "tan", "taupe", "teal", "tiger", "turquoise", "violet", "walnut", "wheat", "white",
    "wine", "yellow",
)  # fmt: skip
"""What counts as a basic colour, in the order in which they are looked for."""

_NOT_A_WORD = re.compile(r"[\W_]")


def is_similar(first: str, second: str) -> bool:
    """Whether two texts count as the same: a rounded ratio above 85."""
    return round(token_set_ratio(first, second)) > 85


def token_set_ratio(first: str, second: str) -> float:
    """100 where all words of one text are in the other; 0 where one has no words."""
    one, other = _words(first), _words(second)
    if not one or not other:
        return 0.0
    shared = " ".join(sorted(one & other))
    rest_one, rest_other = " ".join(sorted(one - other)), " ".join(sorted(other - one))
    if shared and not (rest_one and rest_other):
        return 100.0
    space = bool(shared)
    whole_one, whole_other = (len(shared) + space + len(rest) for rest in (rest_one, rest_other))
    distance = len(rest_one) + len(rest_other) - 2 * _common_length(rest_one, rest_other)
    ratios = [_ratio(distance, whole_one + whole_other)]
    if shared:
        ratios += [_ratio(whole - len(shared), len(shared) + whole) for whole in (whole_one, whole_other)]
    return max(ratios)


def basic_colour(text: str) -> str:
    """The first basic colour inside a text; the text itself where there is none."""
    return next((colour for colour in COLOURS if colour in text), text)


def _words(text: str) -> set[str]:
    plain = text.encode("ascii", "ignore").decode()
    return set(_NOT_A_WORD.sub(" ", plain).lower().split())


def _ratio(distance: int, length: int) -> float:
    return 100 - 100 * distance / length


def _common_length(first: str, second: str) -> int:
    """The length of the longest common subsequence; each bit of `row` stands for a letter of `first`."""
    places: dict[str, int] = {}
    for index, letter in enumerate(first):
        places[letter] = places.get(letter, 0) | 1 << index
    row = everything = (1 << len(first)) - 1
    for letter in second:
        matches = row & places.get(letter, 0)
        row = (row + matches | row - matches) & everything
    return len(first) - row.bit_count()
