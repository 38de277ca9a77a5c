"""What to do next to buy exactly what is wanted.

In come a shop, a goal and a page; out comes the next action: search in the words of the goal, or of the product's title
where that is quicker, open the product, choose the options, buy. It refuses to know about episodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from turnwise.envs.webshop.pages import BUY_NOW, NEXT, PREV, Page, Shop, option_of
from turnwise.envs.webshop.products import Goal
from turnwise.envs.webshop.reward import meets_option
from turnwise.errors import EnvError


def next_action(shop: Shop, goal: Goal, page: Page, *, compat: bool, is_sayable: Callable[[str], bool]) -> str:
    """`is_sayable` tells whether a text can be clicked at all, as an action is written."""
    target = shop.catalogue.numbers[goal.asin]
    if page.kind == "results" and target in page.results:
        if target in shop.shown(page):
            return _click(goal.asin)
        return _click(NEXT if page.results.index(target) >= page.number * shop.page_size else PREV)
    if page.product != target:
        return f"search[{_best_query(shop, goal)}]"
    if page.kind == "sub_page":
        return _click(PREV)
    wanted = _wanted_values(shop, goal, compat=compat)
    missing = (v for name, v in wanted.items() if page.chosen.get(name) != v and is_sayable(v))
    return _click(next(missing, BUY_NOW))


def _click(name: str) -> str:
    return f"click[{name.lower()}]"


@lru_cache(maxsize=10_000)
def _best_query(shop: Shop, goal: Goal) -> str:
    """The query with the product on the earliest page; the words of the goal where both are as good."""
    target = shop.catalogue.numbers[goal.asin]
    title = shop.catalogue.products[target].title
    queries = [plain_query(" ".join([*goal.attributes, goal.query])), plain_query(title)]
    pages = {}
    for query in queries:
        results = shop.find(query).results
        if query and target in results:
            pages[query] = results.index(target) // shop.page_size
    if not pages:
        raise EnvError(f"webshop: no search finds {goal.asin} '{title}', by its title or in the words of the goal.")
    return min(pages, key=lambda query: pages[query])


def plain_query(text: str) -> str:
    """Without what would end the action too early."""
    return re.sub(r"[\[\]\s]+", " ", text).strip()


def _wanted_values(shop: Shop, goal: Goal, *, compat: bool) -> dict[str, str]:
    """For each option of the product the value to choose; where two are wanted under one name, the last one."""
    product = shop.catalogue.products[shop.catalogue.numbers[goal.asin]]
    values = [value for values in product.options.values() for value in values]
    wanted: dict[str, str] = {}
    for option in goal.options:
        # The value itself comes first: compared loosely, another one may count as well, and the right one may not.
        alike = (value for value in values if meets_option(value, option, compat=compat))
        match = option.value if option.value in values else next(alike, None)
        if match is not None:
            wanted[option_of(product, match)] = match
    return wanted
