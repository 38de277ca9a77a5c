"""Goals and catalogs of WebShop: from files in the original's formats, or generated.

The price cap of a product is drawn once, by its asin, so that it is the same in every process.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from itertools import product as combinations
from typing import Literal, TypeVar
from zlib import crc32

from turnwise.envs.rows import RowFile, RowFormat, keys_held_out, read_object, read_objects
from turnwise.envs.webshop.shop import LEVEL_MARK, NO_PRICE, Catalogue, Goal, GoalOption, Product, normal_value
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
        written = rows.get(product.asin, [])
        if not isinstance(written, list):
            raise TaskError(f"{place}, {product.asin}: found {_kind_of(written)}; expected a list of instructions.")
        for number, row in enumerate(written, start=1):
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
    held_out = keys_held_out(places, eval_share)
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
        values = _as_texts(list(given.values()), "goal_options", place)
        return tuple(GoalOption(str(name), value) for name, value in zip(given, values, strict=True))
    return tuple(GoalOption(None, value) for value in _as_texts(given, "goal_options", place))


def _text(fields: Mapping[str, object], key: str, place: str, *, default: str | None = None) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str):
        raise TaskError(f"{place}: found {_kind_of(value)} under '{key}'; expected a text.")
    return value


def _texts(fields: Mapping[str, object], key: str, place: str) -> tuple[str, ...]:
    return _as_texts(fields.get(key, []), key, place)


def _as_texts(values: object, key: str, place: str) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise TaskError(f"{place}: '{key}' is {values!r:.80}; expected a list of texts.")
    return tuple(values)


def _as_mapping(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TaskError(f"{place}: found {_kind_of(value)}; expected an object.")
    return value


def _kind_of(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


T = TypeVar("T")

_PRICE = re.compile(r"\$\s*([\d,]*\.?\d+)")
_MAX_ASIN_LENGTH = 10


PRODUCTS = RowFormat(
    setting="env.products",
    items="products",
    file="a JSON, JSONL or Parquet file of products (.gz is fine), or null for the built-in ones",
    row="a product, an object with 'asin'",
)
ATTRIBUTES = RowFormat(
    setting="env.attributes",
    items="attributes",
    file="the original's items_ins_v2.json, or null",
    row="one object with the attributes of each asin",
)
GOALS = RowFormat(
    setting="env.goals",
    items="goals",
    file="a list of goals or the original's items_human_ins.json, or null",
    row="a goal, an object with 'asin'",
)


@lru_cache(maxsize=4)
def load_catalogue(
    products: RowFile, attributes: RowFile | None, goals: RowFile | None, num_products: int | None
) -> Catalogue:
    """The same files in the same state are read once per process."""
    extra = _read_table(attributes) if attributes else {}
    sold: dict[str, Product] = {}
    for row in islice(read_objects(products), num_products):
        product = _read_product(row.content, extra, row.place)
        # The original leaves the same rows out: long asins are no asins, and of equal ones the first counts.
        if len(product.asin) <= _MAX_ASIN_LENGTH and product.asin != "nan":
            sold.setdefault(product.asin, product)
    if not sold:
        raise TaskError(f"{products.path} holds no products. Give {PRODUCTS.file}.")
    catalogue = Catalogue(list(sold.values()), [], str(products.path))
    found = make_goals(catalogue.products) if goals is None else _read_goals(goals, catalogue)
    return Catalogue(catalogue.products, list(found), catalogue.source)


def _read_goals(file: RowFile, catalogue: Catalogue) -> Iterable[Goal]:
    """From instructions by asin, or from goals one by one."""
    whole = read_object(file)
    if whole is not None and "asin" not in whole:
        return read_instructions(whole, catalogue, str(file.path))
    return (read_goal(row.content, catalogue, row.place) for row in read_objects(file))


def _read_table(file: RowFile) -> Mapping[str, object]:
    whole = read_object(file)
    if whole is None:
        raise TaskError(
            f"{file.path}: found no single JSON object; expected {file.format.row}. Give {file.format.file}."
        )
    return whole


# --- rows -----------------------------------------------------------------------------------------------------------


def _read_product(row: object, extra: Mapping[str, object], place: str) -> Product:
    fields = _as_mapping(row, place)
    asin = _pick(fields, str, place, "asin")
    if not asin:
        raise TaskError(f"{place}: found no 'asin'; expected the product's own short name.")
    # The original keeps attributes and instructions beside the products, under the same names.
    about = {**fields, **_as_mapping(extra.get(asin, {}), f"{place}, attributes")}
    instruction = _pick(about, str, place, "instruction", "instruction_text")
    return Product(
        asin=asin,
        title=_pick(fields, str, place, "name", "Title") or "",
        description=_pick(fields, str, place, "full_description", "description", "Description") or "",
        bullets=_lines(fields, place, "small_description", "bullets", "BulletPoints"),
        prices=_prices(fields.get("pricing"), place),
        category=_pick(fields, str, place, "category") or "",
        product_category=_pick(fields, str, place, "product_category") or "",
        query=(_pick(fields, str, place, "query") or "").lower().strip(),
        options=_options(fields, place),
        attributes=_lines(about, place, "attributes", "Attributes"),
        instruction=instruction or None,
        instruction_attributes=_lines(about, place, "instruction_attributes"),
    )


def _prices(pricing: object, place: str) -> tuple[float, ...]:
    """From `$9.50$12.00` or `[9.5, 12.0]`; further ones are left out."""
    if isinstance(pricing, str):
        found = [float(number.replace(",", "")) for number in _PRICE.findall(pricing)]
    elif pricing is None:
        found = []
    elif isinstance(pricing, list) and all(isinstance(price, int | float) for price in pricing):
        found = [float(price) for price in pricing]
    else:
        raise TaskError(f"{place}: 'pricing' is {pricing!r:.80}; expected a text such as '$9.50' or a list of numbers.")
    return tuple(found[:2]) or (NO_PRICE,)


def _options(fields: Mapping[str, object], place: str) -> dict[str, tuple[str, ...]]:
    """From lists of texts, or of objects with a `value`."""
    given = _pick(fields, dict, place, "customization_options", "options") or {}
    options: dict[str, tuple[str, ...]] = {}
    for name, values in given.items():
        if values is None:
            continue
        listed = values if isinstance(values, list) else [None]
        texts = [value.get("value") if isinstance(value, dict) else value for value in listed]
        if not all(isinstance(text, str) for text in texts):
            raise TaskError(f"{place}: the option '{name}' has the values {values!r:.80}; expected texts.")
        options[str(name).lower()] = tuple(normal_value(str(text)) for text in texts)
    return options


def _lines(fields: Mapping[str, object], place: str, *keys: str) -> tuple[str, ...]:
    """Read a list of texts; one text counts as a list of one."""
    given = _pick(fields, object, place, *keys)
    return _as_texts([given] if isinstance(given, str) else given or [], keys[0], place)


def _pick(fields: Mapping[str, object], kind: type[T], place: str, *keys: str) -> T | None:
    """What stands under the first of the keys that is there; null counts as not there, and so does an empty text."""
    for key in keys:
        value = fields.get(key)
        if value is None or value == "":
            continue
        if not isinstance(value, kind):
            raise TaskError(f"{place}: '{key}' is {value!r:.80}; expected a {kind.__name__}.")
        return value
    return None


NUM_PRODUCTS = 1000
"""How many are made, unless a user wants another number."""

BRANDS = (
    "Arlo", "Brix", "Calder", "Dune", "Elm", "Fjord", "Gable", "Harrow", "Inlet", "Juno", "Kestrel", "Linden",
    "Marlow", "Norde", "Orchard", "Pike", "Quarry", "Rowan", "Sable", "Tarn", "Umber", "Vale", "Wren", "Yarrow",
    "Zephyr", "Alder", "Birch", "Cove", "Drift", "Ember",
)  # fmt: skip
COLOURS = ("black", "white", "red", "blue", "green", "grey", "pink", "yellow", "brown", "orange", "purple", "silver")
SIZES = ("small", "medium", "large", "x-large")
_NUM_ATTRIBUTES, _NUM_IN_TITLE, _NUM_WANTED = 4, 3, 2
"""Of a product, of those its title names, and of those somebody asks for."""
_RANGE_RATE = 0.2
"""The share of products with a lowest and a highest price."""


@dataclass(frozen=True, slots=True)
class _Shelf:
    """Products that have the same kinds of attributes and options."""

    category: str
    path: tuple[str, str]
    kinds: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    prices: tuple[int, int]
    """The cheapest and the dearest, in whole dollars."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


_COLOUR, _SIZE = ("color", COLOURS), ("size", SIZES)
SHELVES = (
    _Shelf(
        "kitchen",
        ("Home", "Kitchen"),
        _words("tea mug, frying pan, water bottle, lunch box, cutting board, soup bowl"),
        _words(
            "dishwasher safe, leak proof, non stick, easy clean, heat resistant, double walled, stain free, hand made"
        ),
        (_COLOUR, ("size", _words("8 ounce, 12 ounce, 20 ounce"))),
        (4, 60),
    ),
    _Shelf(
        "bedding",
        ("Home", "Bedroom"),
        _words("throw pillow, bed sheet, wool blanket, quilt cover, mattress pad"),
        _words("machine washable, super soft, double sided, fade resistant, hypo allergenic, wrinkle free, extra warm"),
        (_COLOUR, ("size", _words("twin, full, queen, king"))),
        (12, 140),
    ),
    _Shelf(
        "furniture",
        ("Home", "Living Room"),
        _words("coffee table, book shelf, arm chair, foot stool, side board"),
        _words("space saving, easy assemble, solid wood, water resistant, foldable frame, steel legs, long lasting"),
        (("color", _words("oak, walnut, white, black")), ("style", _words("modern, rustic, classic"))),
        (40, 900),
    ),
    _Shelf(
        "shoes",
        ("Clothing", "Shoes"),
        _words("running shoe, leather boot, beach sandal, house slipper, hiking boot"),
        _words("non slip, rubber sole, arch support, light weight, memory foam, water proof, steel toe"),
        (_COLOUR, ("size", _words("6, 7, 8, 9, 10, 11"))),
        (15, 180),
    ),
    _Shelf(
        "clothes",
        ("Clothing", "Everyday"),
        _words("rain jacket, knit sweater, polo shirt, denim skirt, sleep shirt, winter vest"),
        _words("long sleeve, slim fit, relaxed fit, quick drying, button closure, elastic waist, wind tight"),
        (_COLOUR, _SIZE),
        (9, 120),
    ),
    _Shelf(
        "electronics",
        ("Electronics", "Accessories"),
        _words("desk lamp, phone charger, wall speaker, travel adapter, game headset, key board"),
        _words("fast charging, noise reducing, dual band, hands free, high speed, plug and play, energy saving"),
        (("color", _words("black, white, silver")), ("style", _words("basic, plus, pro"))),
        (8, 250),
    ),
    _Shelf(
        "garden",
        ("Outdoor", "Garden"),
        _words("flower pot, garden hose, bird feeder, patio umbrella, watering can"),
        _words("weather proof, rust free, frost hardy, hand painted, self watering, easy mount, uv resistant"),
        (_COLOUR, _SIZE),
        (6, 200),
    ),
    _Shelf(
        "food",
        ("Grocery", "Pantry"),
        _words("oat cookie, green tea, tomato soup, nut mix, fruit bar, maple syrup"),
        _words("gluten free, sugar free, low sodium, plant based, dairy free, high protein, old fashioned"),
        (("flavor", _words("plain, honey, lemon, ginger")), ("pack", _words("single, pack of 6, pack of 12"))),
        (3, 50),
    ),
)
_CLAIMS = (
    "{Attribute}: we tried it for a year before we sold it.",
    "{Attribute}, and it stays that way.",
    "{Attribute}, as one expects of a {kind}.",
    "{Attribute} from the first day on.",
)
_CLOSINGS = (
    "A good present for anyone who has just moved.",
    "Comes in a plain box without plastic.",
    "Two years to bring it back, no questions asked.",
    "Designed in a small workshop by the sea.",
)


@lru_cache(maxsize=8)
def make_catalogue(num_products: int, seed: int) -> Catalogue:
    products = [_make_product(number, make_rng(f"product/{seed}", number)) for number in range(1, num_products + 1)]
    return Catalogue(products, list(make_goals(products)), "the built-in catalogue")


def _make_product(number: int, rng: random.Random) -> Product:
    shelf = rng.choice(SHELVES)
    kind, brand = rng.choice(shelf.kinds), rng.choice(BRANDS)
    attributes = rng.sample(shelf.attributes, _NUM_ATTRIBUTES)
    wanted = tuple(rng.sample(attributes[:_NUM_IN_TITLE], _NUM_WANTED))
    claims = [
        claim.format(Attribute=attribute.capitalize(), kind=kind)
        for attribute, claim in zip(attributes, _CLAIMS, strict=True)
    ]
    listed = f"{', '.join(attributes[:-1])} and {attributes[-1]}"
    return Product(
        asin=f"P{number}",
        title=", ".join([f"{brand} {kind}", *attributes[:_NUM_IN_TITLE]]).title(),
        description=f"The {brand} {kind}: {listed}. {rng.choice(_CLOSINGS)}",
        bullets=tuple(rng.sample(claims, len(claims))),
        prices=_draw_prices(shelf, rng),
        category=shelf.category,
        product_category=f" {LEVEL_MARK} ".join([*shelf.path, kind.title()]),
        query=kind,
        options={name: _draw_values(values, rng) for name, values in shelf.options},
        attributes=tuple(attributes),
        instruction=f"I need a {kind}, {' and '.join(wanted)}",
        instruction_attributes=wanted,
    )


def _draw_prices(shelf: _Shelf, rng: random.Random) -> tuple[float, ...]:
    """Whole dollars but one cent."""
    lowest = rng.randint(*shelf.prices)
    highest = lowest + rng.randint(1, 20)
    dollars = (lowest, highest) if rng.random() < _RANGE_RATE else (lowest,)
    return tuple(round(price - 0.01, 2) for price in dollars)


def _draw_values(values: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    """Two to four of the values, in the order of the list."""
    kept = rng.sample(range(len(values)), rng.randint(2, min(4, len(values))))
    return tuple(values[index] for index in sorted(kept))
