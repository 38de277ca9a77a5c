"""What can be chosen about the web shop.

In come plain values, out come checked, frozen settings. It refuses to know what is in the files that are named.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from turnwise.config.settings import Settings, WholeSettings


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
