"""WebShop: find and buy what an instruction asks for, over search, results, product pages and options.

In come seeds and actions, `search[words]` and `click[name]`; out come the pages as text, and the worth of the purchase
that ends the episode. It refuses to know how products are found and judged; `search.py` and `reward.py` do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

from turnwise.config.settings import Settings
from turnwise.envs.base import BaseEnv, check_split
from turnwise.envs.row_files import RowFile
from turnwise.envs.webshop.files import ATTRIBUTES, GOALS, PRODUCTS, load_catalogue
from turnwise.envs.webshop.goals import SPLITS, read_goal, split_goals
from turnwise.envs.webshop.oracle import next_action, plain_query
from turnwise.envs.webshop.pages import BUY_NOW, Page, Shop
from turnwise.envs.webshop.products import Catalogue, Goal
from turnwise.envs.webshop.reward import score_purchase
from turnwise.envs.webshop.settings import WebShopParams
from turnwise.envs.webshop.synthetic import NUM_PRODUCTS, make_catalogue
from turnwise.errors import TaskError
from turnwise.infra.seeds import draw_seed, make_rng


class WebShop(BaseEnv):
    """One errand in a shop; no time limit of its own. Success is a purchase that is all that was asked for."""

    name = "webshop"
    rewards = "0 to 1 for the purchase"
    data = "built in, or a file of products"
    Params: ClassVar[type[Settings]] = WebShopParams
    has_oracle = True

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
        self.goal = self._given_goal or self._draw_goal(draw_seed() if seed is None else seed, split)
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

    def snapshot(self) -> object:
        return self.goal, self._page, self._phase

    def restore(self, state: object) -> None:
        self.goal, self._page, self._phase = cast("tuple[Goal, Page, Any]", state)

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
