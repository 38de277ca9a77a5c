"""What a purchase is worth: how much of what was asked for the product and its chosen options are.

In come a product, the chosen options and a goal; out comes a number from 0 to 1. It refuses to know how the product was
found. The formula is the original's; options are compared exactly, or loosely as the original does it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from turnwise.envs.webshop.fuzzy import COLOURS, are_alike, basic_colour
from turnwise.envs.webshop.products import LEVEL_MARK, Goal, GoalOption, Product, normal_value

_TITLE_WORD = re.compile(r"[a-z]{3,}")
# A title is compared by the names of things in it; these never are.
_NO_NAMES = frozenset({"and", "for", "from", "the", "with", "your"})


def score_purchase(product: Product, chosen: Collection[str], goal: Goal, *, compat: bool) -> float:
    """The share of attributes, options and price that is met, times how well the kind of product fits."""
    num_met = sum(_has_attribute(product, attribute) for attribute in goal.attributes)
    num_met += sum(any(meets_option(value, wanted, compat=compat) for value in chosen) for wanted in goal.options)
    num_met += product.price <= goal.price_upper
    return _fit_of_kind(product, goal) * num_met / (len(goal.attributes) + len(goal.options) + 1)


def meets_option(value: str, wanted: GoalOption, *, compat: bool) -> bool:
    """Whether a chosen value is a wanted one. Names do not count: no value can be chosen under two of them."""
    if not compat:
        return value == normal_value(wanted.value)
    if wanted.name is None:
        return are_alike(basic_colour(value), basic_colour(wanted.value))
    # The original compares with the pair as it is printed, and only a whole value can be a basic colour there.
    text = wanted.value if wanted.value in COLOURS else str((wanted.name, wanted.value))
    return are_alike(basic_colour(value), text)


def _has_attribute(product: Product, attribute: str) -> bool:
    if any(are_alike(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def _fit_of_kind(product: Product, goal: Goal) -> float:
    likeness = _likeness_of_titles(product.title, goal.name)
    if likeness == 0:
        return 0.0
    if likeness < 0.1:
        return 0.1
    shared = _levels(product.product_category) & _levels(goal.product_category)
    return 1.0 if product.query == goal.query or len(shared) >= 2 or likeness > 0.2 else 0.5


def _likeness_of_titles(title: str, wanted: str) -> float:
    """The share of the wanted words that a title has; the original looks at nouns only, and asks a tagger for them."""
    names = _names_in(wanted)
    return len(names & _names_in(title)) / len(names) if names else 0.2


def _names_in(title: str) -> set[str]:
    return set(_TITLE_WORD.findall(title.lower())) - _NO_NAMES


def _levels(product_category: str) -> set[str]:
    return {level.strip() for level in product_category.split(LEVEL_MARK)}
