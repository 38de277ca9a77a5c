"""The shops that several tests share: small ones written here, and the real products where they are at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turnwise.envs.webshop import WebShop

SHARED = Path(__file__).parents[4] / "shared"
REAL_PRODUCTS = SHARED / "data" / "webshop" / "products_1000.jsonl.gz"
GOLDEN_TRACES = SHARED / "golden" / "webshop_traces.json.gz"
needs_real_products = pytest.mark.skipif(
    not (REAL_PRODUCTS.is_file() and GOLDEN_TRACES.is_file()),
    reason="the real products and traces are not in ../shared beside the repository",
)

LAMP: dict[str, object] = {
    "asin": "B000000001",
    "name": "Arlo Brass Desk Lamp",
    "full_description": "A lamp for long evenings.",
    "small_description": ["Dimmable in three steps.", "Long lasting bulb."],
    "pricing": "$19.99$25.50",
    "category": "electronics",
    "query": "Desk Lamps ",
    "product_category": "Home \u203a Lighting \u203a Desk Lamps",
    "customization_options": {
        "Color": [{"value": "Navy/Blue ", "image": None}, {"value": "Red"}],
        "Size": [{"value": "Small"}, {"value": "X-Small"}],
        "Style": None,
    },
}
CHAIR: dict[str, object] = {
    "asin": "B000000002",
    "name": "Oak Chair",
    "full_description": None,
    "small_description": "Solid wood.",
    "pricing": "",
    "category": "garden",
    "query": "chairs",
    "product_category": "Home \u203a Furniture \u203a Chairs",
    "customization_options": "",
}
ABOUT: dict[str, object] = {
    "B000000001": {
        "attributes": ["dimmable", "long lasting"],
        "instruction": "Find me a dimmable lamp",
        "instruction_attributes": ["dimmable", "long lasting"],
    },
    "B000000002": {
        "attributes": ["solid wood"],
        "instruction": "Find me a chair",
        "instruction_attributes": ["solid wood"],
    },
}


def write_shop(folder: Path, products: object = None, about: object = None) -> dict[str, object]:
    """Two products in the original's two files; the settings that name them."""
    (folder / "items.json").write_text(json.dumps([LAMP, CHAIR] if products is None else products))
    (folder / "attributes.json").write_text(json.dumps(ABOUT if about is None else about))
    return {"products": str(folder / "items.json"), "attributes": str(folder / "attributes.json")}


def lamp_goal(**changes: object) -> dict[str, object]:
    """A goal about the lamp, as the original writes it."""
    goal: dict[str, object] = {
        "asin": "B000000001",
        "category": "electronics",
        "query": "desk lamps",
        "name": "Arlo Brass Desk Lamp",
        "product_category": "Home \u203a Lighting \u203a Desk Lamps",
        "instruction_text": "Find me a dimmable lamp, and price lower than 40.00 dollars",
        "attributes": ["dimmable", "long lasting"],
        "price_upper": 40.0,
        "goal_options": {"color": "navy | blue", "size": "small"},
        "weight": 1,
    }
    return goal | changes


def play(env: WebShop, *actions: str) -> tuple[str, float, bool, dict[str, object]]:
    """The last answer of several steps."""
    answers = [env.step(action) for action in actions]
    return answers[-1]
