"""A shop on the web: products and goals, search, pages, the reward of a purchase, and the game itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from turnwise.config.settings import Settings, WholeSettings
from turnwise.envs.base import BaseEnv, check_split
from turnwise.envs.rows import RowFile
from turnwise.envs.webshop.goals import (
    ATTRIBUTES,
    GOALS,
    NUM_PRODUCTS,
    PRODUCTS,
    SPLITS,
    load_catalogue,
    make_catalogue,
    read_goal,
    split_goals,
)
from turnwise.envs.webshop.shop import (
    BUY_NOW,
    NEXT,
    PREV,
    Catalogue,
    Goal,
    Page,
    Product,
    Shop,
    meets_option,
    option_of,
    score_purchase,
)
from turnwise.errors import EnvError, TaskError
from turnwise.infra.seeds import make_rng, random_seed

__all__ = ["WebShop"]


class WebShopParams(Settings):
    """The settings of WebShop."""

    products: str | None = None
    """A file of products: JSON or JSON lines, plain or gzipped; null: products made from word lists."""
    num_products: int | None = Field(default=None, ge=1)
    """How many: the first ones of the file, or as many made ones; null: the whole file, or 1,000."""
    catalogue_seed: int = 0
    """Which products are made, where there is no file."""
    attributes: str | None = None
    """The original's items_ins_v2.json, where the products' attributes and instructions are in a file of their own."""
    goals: str | None = None
    """A file of goals: a list as the original writes them, or its items_human_ins.json; null: from instructions."""
    goal: dict[str, Any] | None = None
    """One goal for every episode, as the original writes it; null: drawn by the seed."""
    compat: bool = False
    """Compare options loosely and read actions as the original does; otherwise options must be exactly the wanted."""
    view: Literal["full", "compact"] = "full"
    """The text of the original, or a short one in lower case that also says which options are chosen."""
    page_size: int = Field(default=10, ge=1, le=50)
    """Products on one page of results."""
    oracle: Literal["planner", "explorer"] = "planner"
    """Who demonstrates: one who knows which product is meant and also searches by its title, or one who searches in the
    words of the instruction and takes the first product that is all it asks for."""
    eval_share: float = Field(default=0.1, gt=0, lt=1)
    """The share of the products, or of the goals, that is never asked for in training."""
    split_by: Literal["products", "goals"] = "products"
    """What is held out: whole products, or single goals, as in the original, whose products are known from training."""

    @model_validator(mode="after")
    def _files_need_products(self) -> WebShopParams:
        if self.products is None and (self.attributes or self.goals) is not None:
            raise ValueError("attributes and goals are files about the products of a file; set products as well.")
        if self.products is not None and self.catalogue_seed != 0:
            raise ValueError("catalogue_seed is for made products and does nothing with a file; leave one of them out.")
        if self.goal is not None and self.goals is not None:
            raise ValueError("goal and goals both say what is asked for; leave one of them out.")
        return self

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return {} if self.goal is None else self.idle("eval_share", "split_by", why=f"while {path}.goal is set")


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


class WebShop(BaseEnv):
    """One errand in a shop; no time limit of its own. Success is a purchase that is all that was asked for."""

    name = "webshop"
    rewards = "0 to 1 for the purchase"
    data = "built in, or a file of products"
    Params: ClassVar[type[Settings]] = WebShopParams
    has_oracle = True
    state_fields = ("goal", "_page")

    params: WebShopParams
    goal: Goal
    """Of the current episode."""

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self.catalogue = _load(self.params)
        self._shop = Shop(self.catalogue, self.params.page_size)
        given = self.params.goal
        self._given_goal = None if given is None else read_goal(given, self.catalogue, "env.goal")
        self._page = Page()

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, SPLITS, self.name)
        self.goal = self._given_goal or self._draw_goal(random_seed() if seed is None else seed, split)
        self._page = Page()
        self._phase = "playing"
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        before = self._page
        verb, argument = self._parse(action)
        is_valid = verb == "search" or (verb == "click" and argument != "search" and argument in self.clickables)
        if verb == "search":
            self._page = self._shop.find(argument)
        elif is_valid and before.kind == "item" and argument == BUY_NOW.lower():
            self._page = self._buy()
            self._phase = "over"
        elif is_valid:
            self._page = self._shop.click(before, argument)
        is_over, reward = self._page.kind == "done", self._page.score
        info: dict[str, object] = {
            "success": is_over and reward == 1,
            "action_is_valid": is_valid,
            "action_is_effective": self._page != before,
            "clickables": self.clickables,
        }
        return self.render(), reward, is_over, info

    def render(self) -> str:
        tell = self._shop.full_text if self.params.view == "full" else self._shop.compact_text
        return tell(self._page, self.goal)

    @property
    def clickables(self) -> list[str]:
        """What can be clicked now."""
        return self._shop.clickables(self._page)

    def admissible_actions(self) -> list[str]:
        """Everything that can be clicked; where there is nothing but the form, a search in the instruction's words."""
        if self._page.kind == "search":
            return [f"search[{plain_query(self.goal.instruction_text)}]"]
        return [f"click[{name}]" for name in self.clickables if self._is_sayable(name)]

    @property
    def example(self) -> str:
        return "search[red shoes]"

    @property
    def instructions(self) -> str:
        return "You are in a web shop. Find the product that the instruction asks for, choose its options and buy it."

    @property
    def legend(self) -> str:
        return (
            "search[words] searches for products, from any page. click[name] clicks what is on the page: the code of "
            "a product, an option, Back to Search, < Prev, Next >, Description, Features, Reviews, or Buy Now, which "
            "ends the errand."
        )

    def oracle(self) -> str:
        self._require_playing()
        who, compat = self.params.oracle, self.params.compat
        return next_action(self._shop, self.goal, self._page, who=who, compat=compat, is_sayable=self._is_sayable)

    def _draw_goal(self, seed: int, split: str) -> Goal:
        goals = split_goals(self.catalogue, self.params.eval_share, self.params.split_by)[split]
        if not goals:
            raise TaskError(
                f"webshop: all goals of {self.catalogue.source} are about one product, which is for training; the "
                f"split '{split}' is empty. Give more products with instructions."
            )
        return goals[make_rng("goal", seed).randrange(len(goals))]

    def _parse(self, action: str) -> tuple[str, str]:
        """The verb and its argument in lower case; empty where the action is neither a search nor a click."""
        verb, argument = (_split_loosely if self.params.compat else _split)(action)
        return (verb, argument.lower()) if verb in ("search", "click") and argument else ("", "")

    def _is_sayable(self, name: str) -> bool:
        return self._parse(f"click[{name}]") == ("click", name)

    def _buy(self) -> Page:
        page, compat = self._page, self.params.compat
        score = score_purchase(self._shop.product_on(page), page.chosen.values(), self.goal, compat=compat)
        return replace(page, kind="done", score=score)


def _load(params: WebShopParams) -> Catalogue:
    if params.products is None:
        return make_catalogue(params.num_products or NUM_PRODUCTS, params.catalogue_seed)
    attributes = RowFile.find(params.attributes, ATTRIBUTES) if params.attributes else None
    goals = RowFile.find(params.goals, GOALS) if params.goals else None
    return load_catalogue(RowFile.find(params.products, PRODUCTS), attributes, goals, params.num_products)


def _split(action: str) -> tuple[str, str]:
    """At the first bracket; what stands behind the last one is ignored."""
    verb, _, rest = action.strip().partition("[")
    return verb, rest.rpartition("]")[0]


def _split_loosely(action: str) -> tuple[str, str]:
    """As the original does: the first line only, at the last bracket that leaves an argument."""
    line = action.split("\n", 1)[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return (line[:start], line[start + 1 : end]) if start > 0 else ("", "")
