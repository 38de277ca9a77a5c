"""Search over texts: BM25 ranked as Lucene ranks it, so that results are those of the original shop.

In come named texts, then queries; out come the numbers of the best texts, best first. It refuses to know what a product
is. What must be as in Lucene to get its order: where words end, stop words, stems, text lengths rounded to one byte,
single precision, and ties by name.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from turnwise.envs.webshop.stemmer import stem

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
