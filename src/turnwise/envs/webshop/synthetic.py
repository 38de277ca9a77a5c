"""The built-in catalogue: products made from word lists, for use without any download.

In come a number of products and a seed; out comes a catalogue with an instruction for every product. A product depends
on the seed and its own number alone, so that a small catalogue is the beginning of a large one. It refuses to know how
the shop is played.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from turnwise.envs.webshop.goals import make_goals
from turnwise.envs.webshop.products import LEVEL_MARK, Catalogue, Product
from turnwise.infra.seeds import make_rng

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
