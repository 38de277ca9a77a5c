"""Goals: made from the instructions of products, or read as the original shop writes them.

In come products, and mappings from files or settings; out come goals and their two splits. It refuses to know how files
are read and how a purchase is judged. A price cap is drawn once per product, by its asin, so that it is the same in
every process and whatever stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product as combinations
from typing import Literal
from zlib import crc32

from turnwise.envs.webshop.products import Catalogue, Goal, GoalOption, Product
from turnwise.errors import TaskError
from turnwise.infra.seeds import make_rng

SPLITS = ("train", "eval")
NO_CAP = 1_000_000.0
_CAPS = tuple(10.0 * tens for tens in range(1, 100))


def make_goals(products: Sequence[Product]) -> Iterator[Goal]:
    """One goal for every combination of options of every product that has an instruction."""
    for product in products:
        if product.instruction is None:
            continue
        names = sorted(product.options)
        for values in combinations(*(product.options[name] for name in names)):
            options = tuple(GoalOption(name, value) for name, value in zip(names, values, strict=True))
            listed = ", and ".join(f"{option.name}: {option.value}" for option in options)
            text = f"{product.instruction} with {listed}" if listed else product.instruction
            yield _goal_for(product, text, product.instruction_attributes, options)


def read_instructions(rows: Mapping[str, object], catalogue: Catalogue, place: str) -> Iterator[Goal]:
    """Goals from what people wrote, by asin; those about products that are not there are left out."""
    for product in catalogue.products:
        for number, row in enumerate(_as_list(rows.get(product.asin, []), place, product.asin), start=1):
            where = f"{place}, {product.asin}, instruction {number}"
            fields = _as_mapping(row, where)
            attributes = _texts(fields, "instruction_attributes", where)
            if attributes:
                options = tuple(GoalOption(None, value) for value in _texts(fields, "instruction_options", where))
                text = _text(fields, "instruction", where).strip(".")
                yield _goal_for(product, text, attributes, options)


def read_goal(row: object, catalogue: Catalogue, place: str) -> Goal:
    """A goal as the original writes it; what is said of the product itself may be left to the catalogue."""
    fields = _as_mapping(row, place)
    asin = _text(fields, "asin", place)
    if asin not in catalogue.numbers:
        raise TaskError(
            f"{place}: asin '{asin}' is not among the {len(catalogue.products)} products of {catalogue.source}. "
            "Give the asin of one of them, or other products (env.products, env.num_products)."
        )
    product = catalogue.products[catalogue.numbers[asin]]
    price_upper = fields.get("price_upper", NO_CAP)
    if isinstance(price_upper, bool) or not isinstance(price_upper, int | float) or not price_upper > 0:
        raise TaskError(f"{place}: price_upper is {price_upper!r}; expected a number above 0.")
    return Goal(
        asin=asin,
        name=_text(fields, "name", place, default=product.title),
        category=_text(fields, "category", place, default=product.category),
        query=_text(fields, "query", place, default=product.query),
        product_category=_text(fields, "product_category", place, default=product.product_category),
        instruction_text=_text(fields, "instruction_text", place),
        attributes=_texts(fields, "attributes", place),
        price_upper=float(price_upper),
        options=_read_options(fields, place),
    )


@lru_cache(maxsize=32)
def split_goals(
    catalogue: Catalogue, eval_share: float, split_by: Literal["products", "goals"]
) -> Mapping[str, tuple[Goal, ...]]:
    """What is asked for in evaluation is never asked for in training: no such product, or no such wish for it."""
    keys = {goal: goal.asin if split_by == "products" else repr(goal) for goal in catalogue.goals}
    places = {key: crc32(key.encode()) / 2**32 for key in keys.values()}
    if not places:
        raise TaskError(
            f"webshop: {catalogue.source} has no goals: no product has an instruction. Give a file with instructions "
            "(env.attributes or env.goals), or a goal (env.goal)."
        )
    # A share may give everything of a small catalogue to one split; the one nearest to the border changes sides.
    lowest, highest = min(places.values()), max(places.values())
    border = min(max(eval_share, lowest), highest)
    held_out = {key for key, place in places.items() if place < border or (place == lowest and len(places) > 1)}
    return {
        "train": tuple(goal for goal in catalogue.goals if keys[goal] not in held_out),
        "eval": tuple(goal for goal in catalogue.goals if keys[goal] in held_out),
    }


def _goal_for(product: Product, text: str, attributes: tuple[str, ...], options: tuple[GoalOption, ...]) -> Goal:
    cap = _draw_cap(product)
    return Goal(
        asin=product.asin,
        name=product.title,
        category=product.category,
        query=product.query,
        product_category=product.product_category,
        instruction_text=text if cap is None else f"{text}, and price lower than {cap:.2f} dollars",
        attributes=attributes,
        price_upper=NO_CAP if cap is None else cap,
        options=options,
    )


def _draw_cap(product: Product) -> float | None:
    """The larger of two of the next four multiples of ten above the price; none where there are not two below 1,000."""
    price = product.price
    near = [cap for cap in _CAPS if cap > price][:4]
    return max(make_rng("cap", product.asin).sample(near, 2)) if len(near) >= 2 else None


def _read_options(fields: Mapping[str, object], place: str) -> tuple[GoalOption, ...]:
    given = fields.get("goal_options", {})
    if isinstance(given, Mapping):
        values = _texts({"goal_options": list(given.values())}, "goal_options", place)
        return tuple(GoalOption(str(name), value) for name, value in zip(given, values, strict=True))
    return tuple(GoalOption(None, value) for value in _texts(fields, "goal_options", place))


def _as_mapping(row: object, place: str) -> Mapping[str, object]:
    if not isinstance(row, Mapping):
        raise TaskError(f"{place}: found a {type(row).__name__}; expected an object with the fields of a goal.")
    return row


def _as_list(rows: object, place: str, asin: str) -> list[object]:
    if not isinstance(rows, list):
        raise TaskError(f"{place}, {asin}: found a {type(rows).__name__}; expected a list of instructions.")
    return rows


def _text(fields: Mapping[str, object], key: str, place: str, *, default: str | None = None) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise TaskError(f"{place}: found {found} under '{key}'; expected a text.")
    return value


def _texts(fields: Mapping[str, object], key: str, place: str) -> tuple[str, ...]:
    value = fields.get(key, [])
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise TaskError(f"{place}: '{key}' is {value!r:.80}; expected a list of texts.")
    return tuple(value)
