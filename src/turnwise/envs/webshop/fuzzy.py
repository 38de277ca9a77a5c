"""Likeness of short texts, as the original shop measures it.

In come two texts, out comes a number from 0 to 100, or the basic colour of a text. It refuses to know who asks. The
measure is the token set ratio: words in common count fully, the others by their longest common subsequence.
"""

from __future__ import annotations

import re

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


def are_alike(first: str, second: str) -> bool:
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
