"""What is sold and what is asked for.

In come facts from a file or a generator; out come products and goals, the nouns of the shop. It refuses to know where
they were written and how a purchase is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from turnwise.envs.webshop.search import SearchIndex
from turnwise.infra.seeds import make_rng

LEVEL_MARK = "\u203a"
"""Stands between the levels of a product category."""
NO_PRICE = 100.0
"""What a product without a price costs."""


def normal_value(value: str) -> str:
    """An option's value as it stands on a page."""
    return value.strip().replace("/", " | ").lower()


class GoalOption(NamedTuple):
    """One value that is asked for; people who wrote instructions did not say of which option."""

    name: str | None
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One thing on sale. Example: asin `P7`, title `Arlo Mug`, options `{"color": ("red", "blue")}`, prices `(9.5,)`"""

    asin: str
    title: str
    description: str = ""
    bullets: tuple[str, ...] = ()
    prices: tuple[float, ...] = (NO_PRICE,)
    """One price, or the lowest and the highest."""
    category: str = ""
    product_category: str = ""
    """A path of categories, from wide to narrow."""
    query: str = ""
    """What the product was found by: its kind."""
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...] = ()
    instruction: str | None = None
    """How somebody asks for it; null: nobody does."""
    instruction_attributes: tuple[str, ...] = ()

    @property
    def price(self) -> float:
        """What is paid; of a range, a price drawn once for good."""
        if len(self.prices) == 1:
            return self.prices[0]
        return make_rng("price", self.asin).uniform(*self.prices)

    @property
    def price_tag(self) -> str:
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def search_text(self) -> str:
        """What search reads: of the features the first one only, as in the original."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, *self.bullets[:1], options])


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a shopper wants. Example: instruction `i need a mug …`, attributes `("leak proof",)`, at most 20 dollars."""

    asin: str
    """A product that is all of it."""
    name: str
    category: str
    query: str
    product_category: str
    instruction_text: str
    attributes: tuple[str, ...]
    price_upper: float
    options: tuple[GoalOption, ...]


class Catalogue:
    """Products with their search index, and goals about them. Never changed, so that all environments share one."""

    def __init__(self, products: Sequence[Product], goals: Sequence[Goal], source: str) -> None:
        self.products = tuple(products)
        self.goals = tuple(goals)
        self.source = source
        """Where it comes from, for messages."""
        self.numbers = {product.asin: number for number, product in enumerate(products)}
        """Of the products, by asin."""

    @cached_property
    def index(self) -> SearchIndex:
        return SearchIndex(list(self.numbers), [product.search_text for product in self.products])

    def __deepcopy__(self, _memo: object) -> Catalogue:
        return self
