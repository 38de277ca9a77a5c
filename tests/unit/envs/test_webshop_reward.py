"""What a purchase is worth, and the likeness of texts that it is measured by."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.webshop.search import _common_length, basic_colour, is_similar, token_set_ratio
from turnwise.envs.webshop.shop import Goal, GoalOption, Product, meets_option, score_purchase

LAMP = Product(
    asin="B1",
    title="Arlo Brass Desk Lamp",
    description="Stands on Any Table.",
    bullets=("Quiet switch.", "Long cable."),
    prices=(20.0,),
    query="desk lamps",
    product_category="Home \u203a Lighting \u203a Lamps",
    options={"color": ("red", "blue")},
    attributes=("energy saving", "long lasting"),
)
GOAL = Goal(
    asin="B1",
    name=LAMP.title,
    category="",
    query="desk lamps",
    product_category=LAMP.product_category,
    instruction_text="",
    attributes=("energy saving", "quiet switch"),
    price_upper=20.0,
    options=(GoalOption("color", "red"),),
)


def worth(product: Product = LAMP, goal: Goal = GOAL, chosen: tuple[str, ...] = ("red",)) -> float:
    return score_purchase(product, chosen, goal, compat=False)


def test_each_part_counts_the_same() -> None:
    assert worth() == 1.0
    assert worth(chosen=()) == 3 / 4
    assert worth(goal=replace(GOAL, price_upper=19.99)) == 3 / 4
    assert worth(goal=replace(GOAL, attributes=("energy saving", "water proof"))) == 3 / 4
    assert worth(goal=replace(GOAL, attributes=(), options=())) == 1.0


@pytest.mark.parametrize("attribute", ["savings energy", "brass desk", "switch. long", "any table"])
def test_attributes_are_alike_or_said_in_the_texts(attribute: str) -> None:
    assert worth(goal=replace(GOAL, attributes=(attribute,))) == 1.0


@pytest.mark.parametrize(
    ("title", "category", "query", "factor"),
    [
        ("Other Thing", "Home \u203a Lighting", "desk lamps", 0.0),
        ("Lamp", "Garden", "shades", 1.0),
        ("Lamp", "Home \u203a Lighting", "shades", 1.0),
    ],
)
def test_the_kind_of_product_scales_the_worth(title: str, category: str, query: str, factor: float) -> None:
    other = replace(LAMP, title=title, product_category=category, query=query)
    assert worth(other) == factor


def test_a_title_that_hardly_fits_costs_half_unless_the_kind_is_the_same() -> None:
    goal = replace(
        GOAL, name="brass lamp desk grey oval tall wide thin warm bright", query="lamps", product_category=""
    )
    twin = replace(LAMP, title="Brass Shoe Desk", query="shoes", product_category="Clothes")
    assert worth(twin, goal) == 0.5
    assert worth(replace(twin, query="lamps"), goal) == 1.0
    assert worth(replace(twin, title="Brass Shoe"), replace(goal, name=goal.name + " low round")) == 0.1


def test_only_exact_values_count_and_their_names_do_not() -> None:
    assert meets_option("navy | blue", GoalOption(None, " Navy/Blue"), compat=False)
    assert meets_option("red", GoalOption("length", "red"), compat=False)
    assert not meets_option("x-small", GoalOption("size", "small"), compat=False)


@pytest.mark.parametrize(
    ("value", "wanted", "expected"),
    [
        ("x-small", GoalOption(None, "small"), True),
        ("navy blue", GoalOption(None, "sky blue"), True),
        ("x-small", GoalOption("size", "small"), False),
        ("small", GoalOption("size", "x-small"), True),
        ("b3-wine", GoalOption("color", "b3-wine"), True),
        ("navy blue", GoalOption("color", "blue"), True),
        ("green2", GoalOption("color", "green2"), False),
        ("red", GoalOption("color", "blue"), False),
    ],
)
def test_compat_compares_as_loosely_and_as_oddly_as_the_original(
    value: str, wanted: GoalOption, expected: bool
) -> None:
    assert meets_option(value, wanted, compat=True) is expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("x-small", "('size', 'small')", 83.3333),
        ("navy blue", "color blue", 61.5385),
        ("red", "Red!", 100.0),
        ("red mug", "mug", 100.0),
        ("", "red", 0.0),
        ("日本", "red", 0.0),
        ("snake_case", "case snake", 100.0),
        ("machine wash", "machine washable", 85.7143),
    ],
)
def test_known_ratios(first: str, second: str, expected: float) -> None:
    assert token_set_ratio(first, second) == pytest.approx(expected, abs=1e-4)
    assert token_set_ratio(second, first) == pytest.approx(expected, abs=1e-4)


def test_alike_is_a_rounded_ratio_above_85() -> None:
    assert is_similar("machine wash", "machine washable")
    assert not is_similar("x-small", "size small")


@given(st.text(alphabet="abc ", max_size=12), st.text(alphabet="abc ", max_size=12))
def test_the_longest_common_subsequence_by_recursion(first: str, second: str) -> None:
    @cache
    def longest(i: int, j: int) -> int:
        if i == len(first) or j == len(second):
            return 0
        if first[i] == second[j]:
            return 1 + longest(i + 1, j + 1)
        return max(longest(i + 1, j), longest(i, j + 1))

    assert _common_length(first, second) == longest(0, 0)


def test_the_first_basic_colour_is_the_first_of_the_list() -> None:
    assert basic_colour("navy blue") == "blue"
    assert basic_colour("b3-wine") == "wine"
    assert basic_colour("28 inch") == "28 inch"
