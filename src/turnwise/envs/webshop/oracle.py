"""What to do next to buy exactly what is wanted.

In come a shop, a goal and a page; out comes the next action: search, open the product, choose the options, buy. The
planner knows which product is meant and also searches by its title; the explorer takes the first one that will do. It
refuses to know about episodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

from turnwise.envs.webshop.pages import BUY_NOW, NEXT, PREV, Page, Shop, option_of
from turnwise.envs.webshop.products import Goal, Product
from turnwise.envs.webshop.reward import meets_option, score_purchase
from turnwise.errors import EnvError


class _Plan(NamedTuple):
    """What to search for, and the number of the product to buy."""

    query: str
    target: int


def next_action(
    shop: Shop,
    goal: Goal,
    page: Page,
    *,
    who: Literal["planner", "explorer"],
    compat: bool,
    is_sayable: Callable[[str], bool],
) -> str:
    """`is_sayable` tells whether a text can be clicked at all, as an action is written."""
    query, target = _plan(shop, goal) if who == "planner" else _explore(shop, goal, compat=compat)
    if page.kind == "results" and target in page.results:
        if target in shop.shown(page):
            return _click(shop.catalogue.products[target].asin)
        return _click(NEXT if page.results.index(target) >= page.number * shop.page_size else PREV)
    if page.product != target:
        return f"search[{query}]"
    if page.kind == "sub_page":
        return _click(PREV)
    wanted = _wanted_values(shop.catalogue.products[target], goal, compat=compat)
    missing = (v for name, v in wanted.items() if page.chosen.get(name) != v and is_sayable(v))
    return _click(next(missing, BUY_NOW))


def _click(name: str) -> str:
    return f"click[{name.lower()}]"


@lru_cache(maxsize=10_000)
def _explore(shop: Shop, goal: Goal, *, compat: bool) -> _Plan:
    """The first product that the words of the goal find and that is all it asks for; the planner's where none is."""
    query = _words_of(goal)
    for number in shop.find(query).results if query else ():
        product = shop.catalogue.products[number]
        chosen = _wanted_values(product, goal, compat=compat).values()
        if score_purchase(product, chosen, goal, compat=compat) == 1:
            return _Plan(query, number)
    return _plan(shop, goal)


@lru_cache(maxsize=10_000)
def _plan(shop: Shop, goal: Goal) -> _Plan:
    """The goal's own product, by the query that has it on the earliest page; in the goal's words where both do."""
    target = shop.catalogue.numbers[goal.asin]
    title = shop.catalogue.products[target].title
    queries = [_words_of(goal), plain_query(title)]
    pages = {}
    for query in queries:
        results = shop.find(query).results
        if query and target in results:
            pages[query] = results.index(target) // shop.page_size
    if not pages:
        raise EnvError(f"webshop: no search finds {goal.asin} '{title}', by its title or in the words of the goal.")
    return _Plan(min(pages, key=lambda query: pages[query]), target)


def _words_of(goal: Goal) -> str:
    return plain_query(" ".join([*goal.attributes, goal.query]))


def plain_query(text: str) -> str:
    """Without what would end the action too early."""
    return re.sub(r"[\[\]\s]+", " ", text).strip()


def _wanted_values(product: Product, goal: Goal, *, compat: bool) -> dict[str, str]:
    """For each option of the product the value to choose; where two are wanted under one name, the last one."""
    values = [value for values in product.options.values() for value in values]
    wanted: dict[str, str] = {}
    for option in goal.options:
        # The value itself comes first: compared loosely, another one may count as well, and the right one may not.
        alike = (value for value in values if meets_option(value, option, compat=compat))
        match = option.value if option.value in values else next(alike, None)
        if match is not None:
            wanted[option_of(product, match)] = match
    return wanted
