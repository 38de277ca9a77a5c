"""Pages of WebShop, what can be clicked on them, and the reward of a purchase.

`Shop` maps a page and a click or a query to the next page. Pages are immutable values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from turnwise.envs.webshop.search import COLOURS, SearchIndex, basic_colour, is_similar
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


MAX_RESULTS = 50
BACK_TO_SEARCH, PREV, NEXT, BUY_NOW = "Back to Search", "< Prev", "Next >", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
_SUB_PAGES_BY_CLICK = {name.lower(): name for name in SUB_PAGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Where the shopper is. Products are numbers in the catalogue."""

    kind: Literal["search", "results", "item", "sub_page", "done"] = "search"
    results: tuple[int, ...] = ()
    number: int = 1
    """Which page of the results, from 1."""
    product: int = -1
    chosen: Mapping[str, str] = field(default_factory=dict)
    """The value chosen for each option so far, by the option's name."""
    sub_page: str = ""
    score: float = 0.0
    """Of the purchase, when it is done."""


@dataclass(frozen=True, slots=True)
class Shop:
    """A catalogue as a set of pages."""

    catalogue: Catalogue
    page_size: int

    def find(self, query: str) -> Page:
        return Page(kind="results", results=self.catalogue.index.search(query, MAX_RESULTS))

    def shown(self, page: Page) -> tuple[int, ...]:
        """The products on a page of results; none behind the last page."""
        return page.results[(page.number - 1) * self.page_size : page.number * self.page_size]

    def product_on(self, page: Page) -> Product:
        return self.catalogue.products[page.product]

    def clickables(self, page: Page) -> list[str]:
        """What can be clicked, in lower case; each name once."""
        match page.kind:
            case "search":
                names = ["search"]
            case "results":
                asins = [self.catalogue.products[number].asin for number in self.shown(page)]
                names = [BACK_TO_SEARCH, *([PREV] if page.number > 1 else []), NEXT, *asins]
            case "item":
                values = [value for values in self.product_on(page).options.values() for value in values]
                names = [BACK_TO_SEARCH, PREV, *SUB_PAGES, BUY_NOW, *values]
            case "sub_page":
                names = [BACK_TO_SEARCH, PREV]
            case "done":
                names = []
        return list(dict.fromkeys(name.lower() for name in names))

    def click(self, page: Page, name: str) -> Page:
        """Where one of the clickables leads; buying and the button of the search form lead nowhere by themselves."""
        if name == BACK_TO_SEARCH.lower():
            return Page()
        match page.kind:
            case "results" if name in (NEXT.lower(), PREV.lower()):
                return replace(page, number=page.number + (1 if name == NEXT.lower() else -1))
            case "results":
                number = next(n for n in self.shown(page) if self.catalogue.products[n].asin.lower() == name)
                return replace(page, kind="item", product=number)
            case "item" if name == PREV.lower():
                return replace(page, kind="results", product=-1, chosen={})
            case "item" if name in _SUB_PAGES_BY_CLICK:
                return replace(page, kind="sub_page", sub_page=_SUB_PAGES_BY_CLICK[name])
            case "item":
                option = option_of(self.product_on(page), name)
                return replace(page, chosen={**page.chosen, option: name})
            case "sub_page":
                return replace(page, kind="item", sub_page="")
            case _:
                return page

    # --- texts ------------------------------------------------------------------------------------------------------

    def full_text(self, page: Page, goal: Goal) -> str:
        """The page as the original tells it: its visible texts, one after the other."""
        instruction = ["Instruction:", goal.instruction_text]
        match page.kind:
            case "search":
                texts = ["WebShop", *instruction, "Search"]
            case "results":
                texts = [*instruction, BACK_TO_SEARCH, *self._results_texts(page)]
            case "item":
                texts = [*instruction, BACK_TO_SEARCH, PREV, *_item_texts(self.product_on(page))]
            case "sub_page":
                texts = [*instruction, BACK_TO_SEARCH, PREV, *_sub_page_texts(self.product_on(page), page.sub_page)]
            case "done":
                texts = _done_texts(self.product_on(page), page)
        # An empty element has no text, and one with nothing but a line break is taken for layout.
        return " [SEP] ".join(text.strip() for text in texts if text not in ("", "\n"))

    def compact_text(self, page: Page, goal: Goal) -> str:
        """The same in few lower-case words, without buttons; it says what was chosen, which the original does not."""
        if page.kind == "done":
            return f"score {page.score:g}"
        lines = [goal.instruction_text]
        match page.kind:
            case "search":
                lines.append("search")
            case "results":
                lines.append(f"page {page.number} of {-(-len(page.results) // self.page_size)}")
                products = (self.catalogue.products[number] for number in self.shown(page))
                lines += [f"{product.asin} {product.title} {product.price_tag}" for product in products]
            case "item":
                product = self.product_on(page)
                lines.append(f"{product.title} {product.price_tag}")
                lines += [f"{name}: {', '.join(values)}" for name, values in product.options.items()]
                lines.append(f"chosen: {', '.join(page.chosen.values()) or 'nothing'}")
            case "sub_page":
                lines += [page.sub_page, *_sub_page_texts(self.product_on(page), page.sub_page)]
        return "\n".join(lines).lower()

    def _results_texts(self, page: Page) -> list[str]:
        texts = [f"Page {page.number} (Total results: {len(page.results)})"]
        texts += [PREV, NEXT] if page.number > 1 else [NEXT]
        for product in (self.catalogue.products[number] for number in self.shown(page)):
            texts += [product.asin, product.title, product.price_tag]
        return texts


def option_of(product: Product, value: str) -> str:
    """The name of the option that a value is chosen for; where two have it, the last one."""
    return [name for name, values in product.options.items() if value in values][-1]


def _item_texts(product: Product) -> list[str]:
    options = [text for name, values in product.options.items() for text in (name, *values)]
    return [*options, product.title, f"Price: {product.price_tag}", "Rating: N.A.", *SUB_PAGES, BUY_NOW]


def _sub_page_texts(product: Product, name: str) -> list[str]:
    texts = {"Description": [product.description], "Features": list(product.bullets), "Reviews": []}
    return texts[name]


def _done_texts(product: Product, page: Page) -> list[str]:
    """The page of a finished purchase, which the original leaves half filled in."""
    purchased = {"asin": product.asin, "options": _html_json(page.chosen)}
    purchased |= dict.fromkeys(("attrs", "category", "query", "product category"), "None")
    target = ["asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query"]
    texts = [
        "Thank you for shopping with us!",
        "Your code:",
        "None",
        "(Paste it in your MTurk interface.)",
        "Purchased",
    ]
    texts += [text for pair in purchased.items() for text in pair]
    texts += ["Target", *target, "Goal", "None", "Reward", "Your score (min 0.0, max 1.0)", str(page.score)]
    return [*texts, "Reward Details", "None"]


def _html_json(chosen: Mapping[str, str]) -> str:
    """JSON that is safe inside a page: sorted keys, and no character that means something to HTML."""
    text = json.dumps(dict(chosen), sort_keys=True)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


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
        return is_similar(basic_colour(value), basic_colour(wanted.value))
    # The original compares with the pair as it is printed, and only a whole value can be a basic colour there.
    text = wanted.value if wanted.value in COLOURS else str((wanted.name, wanted.value))
    return is_similar(basic_colour(value), text)


def _has_attribute(product: Product, attribute: str) -> bool:
    if any(is_similar(own, attribute) for own in product.attributes):
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
