"""Files of products, attributes and goals: JSON, JSON lines or Parquet, as the original names its fields.

In come paths; out comes a catalogue, read once per process and state of the files. A row that cannot be used is one
error that names the file, the row and the setting to change. It refuses to know how the shop is played.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from turnwise.envs.row_files import Row, RowFile, RowFormat, read_object, read_rows
from turnwise.envs.webshop.goals import make_goals, read_goal, read_instructions
from turnwise.envs.webshop.products import NO_PRICE, Catalogue, Goal, Product, normal_value
from turnwise.errors import TaskError

T = TypeVar("T")

_PRICE = re.compile(r"\$\s*([\d,]*\.?\d+)")
_MAX_ASIN_LENGTH = 10


PRODUCTS = RowFormat(
    setting="env.products",
    file="a JSON, JSONL or Parquet file of products (.gz is fine), or null for the built-in ones",
    row="a product, an object with 'asin'",
)
ATTRIBUTES = RowFormat(
    setting="env.attributes",
    file="the original's items_ins_v2.json, or null",
    row="one object with the attributes of each asin",
)
GOALS = RowFormat(
    setting="env.goals",
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
    for row in islice(_rows_or_one(products, read_object(products)), num_products):
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
    return (read_goal(row.content, catalogue, row.place) for row in _rows_or_one(file, whole))


def _read_table(file: RowFile) -> Mapping[str, object]:
    whole = read_object(file)
    if whole is None:
        raise TaskError(
            f"{file.path}: found no single JSON object; expected {file.format.row}. Give {file.format.file}."
        )
    return whole


def _rows_or_one(file: RowFile, whole: dict[str, object] | None) -> Iterable[Row]:
    """A file that is one object is one row, over however many lines."""
    return read_rows(file) if whole is None else [Row(f"{file.path}, line 1", whole)]


# --- rows -----------------------------------------------------------------------------------------------------------


def _read_product(row: object, extra: Mapping[str, object], place: str) -> Product:
    fields = _mapping(row, place)
    asin = _pick(fields, str, place, "asin")
    if not asin:
        raise TaskError(f"{place}: found no 'asin'; expected the product's own short name.")
    # The original keeps attributes and instructions beside the products, under the same names.
    about = {**fields, **_mapping(extra.get(asin, {}), f"{place}, attributes")}
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
    """A list of texts; one text counts as a list of one."""
    given = _pick(fields, object, place, *keys)
    lines = [given] if isinstance(given, str) else given or []
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise TaskError(f"{place}: '{keys[0]}' is {given!r:.80}; expected a list of texts.")
    return tuple(lines)


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


def _mapping(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TaskError(f"{place}: found a {type(value).__name__}; expected an object.")
    return value
