"""Files of products, attributes and goals: JSON or JSON lines, plain or gzipped, as the original names its fields.

In come paths; out comes a catalogue, read once per process and state of the files. A row that cannot be used is one
error that names the file, the row and the setting to change. It refuses to know how the shop is played.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from turnwise.envs.webshop.goals import make_goals, read_goal, read_instructions
from turnwise.envs.webshop.products import NO_PRICE, Catalogue, Product, normal_value
from turnwise.errors import TaskError

T = TypeVar("T")

_GZIP_MAGIC = b"\x1f\x8b"
_PRICE = re.compile(r"\$\s*([\d,]*\.?\d+)")
_MAX_ASIN_LENGTH = 10


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as it is now; a changed file is another one."""

    path: Path
    mtime_ns: int
    size: int
    setting: str
    """Which setting names it, for messages."""

    @classmethod
    def of(cls, path: str, setting: str) -> FileState:
        file = Path(path).expanduser().absolute()
        try:
            state = file.stat()
        except OSError as error:
            raise TaskError(f"{setting}: '{path}' cannot be read: {error.strerror}. {_EXPECTED[setting]}") from error
        return cls(file, state.st_mtime_ns, state.st_size, setting)


_EXPECTED = {
    "env.products": "Give a JSON or JSONL file of products (.gz is fine), or null for the built-in ones.",
    "env.attributes": "Give the original's items_ins_v2.json, or null.",
    "env.goals": "Give a list of goals or the original's items_human_ins.json, or null.",
}


@lru_cache(maxsize=4)
def load_catalogue(
    products: FileState, attributes: FileState | None, goals: FileState | None, num_products: int | None
) -> Catalogue:
    extra = _as_table(_read(attributes), attributes) if attributes else {}
    rows = _as_rows(_read(products), products)[:num_products]
    sold: dict[str, Product] = {}
    for number, row in enumerate(rows, start=1):
        product = _read_product(row, extra, f"{products.path}, row {number}")
        # The original leaves the same rows out: long asins are no asins, and of equal ones the first counts.
        if len(product.asin) <= _MAX_ASIN_LENGTH and product.asin != "nan":
            sold.setdefault(product.asin, product)
    if not sold:
        raise TaskError(f"{products.path} holds no products. {_EXPECTED['env.products']}")
    catalogue = Catalogue(list(sold.values()), [], str(products.path))
    if goals is None:
        return Catalogue(catalogue.products, list(make_goals(catalogue.products)), catalogue.source)
    content, place = _read(goals), str(goals.path)
    if isinstance(content, dict) and "asin" not in content:
        found = list(read_instructions(content, catalogue, place))
    else:
        listed = enumerate(_as_rows(content, goals), start=1)
        found = [read_goal(row, catalogue, f"{place}, row {number}") for number, row in listed]
    return Catalogue(catalogue.products, found, catalogue.source)


# --- files ----------------------------------------------------------------------------------------------------------


def _read(file: FileState) -> object:
    """A list, an object, or a list of the objects of all lines."""
    try:
        data = file.path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TaskError(f"{file.setting}: '{file.path}' cannot be read: {error}. {_EXPECTED[file.setting]}") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise _not_json(file, error.lineno, error) from error
    return [_parse_line(line, number, file) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _parse_line(line: str, number: int, file: FileState) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise _not_json(file, number, error) from error


def _not_json(file: FileState, line: int, error: json.JSONDecodeError) -> TaskError:
    return TaskError(f"{file.path}, line {line}: found text that is not JSON ({error.msg}). {_EXPECTED[file.setting]}")


def _as_rows(content: object, file: FileState) -> list[object]:
    if isinstance(content, dict):
        return [content]
    if not isinstance(content, list):
        raise TaskError(f"{file.path}: found a {type(content).__name__}. {_EXPECTED[file.setting]}")
    return content


def _as_table(content: object, file: FileState) -> Mapping[str, object]:
    if not isinstance(content, dict):
        raise TaskError(f"{file.path}: found a {type(content).__name__}. {_EXPECTED[file.setting]}")
    return content


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
