"""The pages of the shop: what is on them, what can be clicked, and where a click leads.

In come a page, a catalogue and what was clicked; out come texts, clickable names and the next page. A page is a value:
going somewhere makes a new one. It refuses to know what a purchase is worth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from turnwise.envs.webshop.products import Catalogue, Goal, Product

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
