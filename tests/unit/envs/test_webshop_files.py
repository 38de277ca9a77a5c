"""Files of products and goals: what is understood, what is refused, and that a file is read once."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from turnwise.envs.webshop import WebShop
from turnwise.errors import TaskError

from .shops import ABOUT, CHAIR, LAMP, lamp_goal, write_shop


def test_the_original_files_become_products(tmp_path: Path) -> None:
    lamp, chair = WebShop(**write_shop(tmp_path)).catalogue.products
    assert (lamp.title, lamp.query, lamp.prices, lamp.price_tag) == (
        "Arlo Brass Desk Lamp", "desk lamps", (19.99, 25.5), "$19.99 to $25.5",
    )  # fmt: skip
    assert lamp.options == {"color": ("navy | blue", "red"), "size": ("small", "x-small")}
    assert lamp.attributes == ("dimmable", "long lasting")
    assert 19.99 <= lamp.price <= 25.5
    assert lamp.price == lamp.price
    assert (chair.description, chair.bullets, chair.prices, chair.options) == ("", ("Solid wood.",), (100.0,), {})
    assert lamp.search_text == (
        "Arlo Brass Desk Lamp A lamp for long evenings. Dimmable in three steps. "
        "color: navy | blue, red, and size: small, x-small"
    )


def test_instructions_become_one_goal_for_each_combination(tmp_path: Path) -> None:
    goals = WebShop(**write_shop(tmp_path)).catalogue.goals
    lamps = [goal for goal in goals if goal.asin == "B000000001"]
    assert [[option.value for option in goal.options] for goal in lamps] == [
        ["navy | blue", "small"], ["navy | blue", "x-small"], ["red", "small"], ["red", "x-small"],
    ]  # fmt: skip
    caps = {goal.price_upper for goal in lamps}
    assert caps <= {30.0, 40.0, 50.0, 60.0}
    assert len(caps) == 1
    cap = caps.pop()
    assert lamps[0].instruction_text == (
        f"Find me a dimmable lamp with color: navy | blue, and size: small, and price lower than {cap:.2f} dollars"
    )
    assert goals[-1].instruction_text.startswith("Find me a chair, and price lower than 1")


def test_a_dear_product_has_no_cap(tmp_path: Path) -> None:
    dear = LAMP | {"pricing": "$1,985.00", "customization_options": None}
    (goal,) = WebShop(**write_shop(tmp_path, [dear])).catalogue.goals
    assert (goal.instruction_text, goal.price_upper) == ("Find me a dimmable lamp", 1_000_000)


@pytest.mark.parametrize("kind", ["list", "lines", "gzipped lines", "gzipped list", "byte order mark"])
def test_every_layout_of_a_file_is_read(tmp_path: Path, kind: str) -> None:
    rows = [LAMP | ABOUT["B000000001"], CHAIR]  # type: ignore[operator]
    text = "\n\n".join(map(json.dumps, rows)) if "lines" in kind else json.dumps(rows)
    data = text.encode("utf-8-sig" if "mark" in kind else "utf-8")
    file = tmp_path / "anything"
    file.write_bytes(gzip.compress(data) if "gzipped" in kind else data)
    env = WebShop(products=str(file))
    assert [product.asin for product in env.catalogue.products] == ["B000000001", "B000000002"]
    assert "dimmable" in env.reset(0)


def test_rows_that_the_original_leaves_out_are_left_out(tmp_path: Path) -> None:
    rows = [LAMP, LAMP | {"name": "again"}, CHAIR | {"asin": "nan"}, CHAIR | {"asin": "B0000000012"}, CHAIR]
    products = WebShop(**write_shop(tmp_path, rows)).catalogue.products
    assert [product.title for product in products] == ["Arlo Brass Desk Lamp", "Oak Chair"]
    assert len(WebShop(**write_shop(tmp_path, rows), num_products=4).catalogue.products) == 1


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    shop = write_shop(tmp_path)
    first = WebShop(**shop).catalogue
    assert WebShop(**shop, view="compact", compat=True).catalogue is first
    write_shop(tmp_path, [LAMP])
    os.utime(str(shop["products"]), ns=(1, 1))
    assert len(WebShop(**shop).catalogue.products) == 1


def test_goals_of_people_name_no_options(tmp_path: Path) -> None:
    human = {
        "B000000001": [
            {"instruction": "i want a lamp.", "instruction_attributes": ["dimmable"], "instruction_options": ["red"]},
            {"instruction": "no attributes", "instruction_attributes": [], "instruction_options": []},
        ],
        "B999999999": [{"instruction": "not sold", "instruction_attributes": ["x"], "instruction_options": []}],
    }
    (tmp_path / "human.json").write_text(json.dumps(human))
    env = WebShop(**write_shop(tmp_path), goals=str(tmp_path / "human.json"))
    (goal,) = env.catalogue.goals
    assert goal.instruction_text.startswith("i want a lamp, and price lower than ")
    assert goal.options == ((None, "red"),)
    env.reset(0)
    done, reward = False, 0.0
    while not done:
        _, reward, done, _ = env.step(env.oracle())
    assert reward == 1


def test_a_list_of_goals_is_drawn_from(tmp_path: Path) -> None:
    goals = [lamp_goal(), lamp_goal(asin="B000000002", instruction_text="buy a chair", goal_options=[])]
    (tmp_path / "goals.jsonl").write_text("\n".join(map(json.dumps, goals)))
    env = WebShop(**write_shop(tmp_path), goals=str(tmp_path / "goals.jsonl"))
    texts = {env.reset(seed, split=split) for seed in range(5) for split in ("train", "eval")}
    assert texts == {
        "WebShop [SEP] Instruction: [SEP] buy a chair [SEP] Search",
        "WebShop [SEP] Instruction: [SEP] Find me a dimmable lamp, and price lower than 40.00 dollars [SEP] Search",
    }


def test_a_goal_may_leave_the_product_to_the_catalogue(tmp_path: Path) -> None:
    goal = {"asin": "B000000001", "instruction_text": "a lamp", "attributes": ["dimmable"]}
    env = WebShop(**write_shop(tmp_path), goal=goal)
    env.reset(0)
    assert (env.goal.name, env.goal.query, env.goal.price_upper) == ("Arlo Brass Desk Lamp", "desk lamps", 1_000_000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"asin": "B9"}, "env.goal: asin 'B9' is not among the 2 products"),
        ({"asin": None}, "env.goal: found nothing under 'asin'"),
        ({"instruction_text": 3}, "env.goal: found a int under 'instruction_text'"),
        ({"attributes": "dimmable"}, "env.goal: 'attributes' is 'dimmable'; expected a list of texts"),
        ({"goal_options": [1]}, "env.goal: 'goal_options' is [1]"),
        ({"goal_options": {"color": None}}, "env.goal: 'goal_options' is [None]"),
        ({"price_upper": 0}, "env.goal: price_upper is 0; expected a number above 0"),
        ({"price_upper": "40"}, "env.goal: price_upper is '40'"),
    ],
)
def test_a_wrong_goal_is_explained(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        WebShop(**write_shop(tmp_path), goal=lamp_goal(**changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no products. Give a JSON, JSONL or Parquet file of products"),
        ("[{]", "line 1: found ']', which is not valid JSON in a list"),
        ('{"asin": "B1"}\n{"asin"', "line 2: found '{\"asin\"', which is not valid JSON"),
        ("3", "line 1: found a int; expected an object"),
        ("[]", "holds no products"),
        ("[3]", "row 1: found a int; expected an object"),
        ('[{"name": "x"}]', "row 1: found no 'asin'"),
        ('[{"asin": 3}]', "row 1: 'asin' is 3; expected a str"),
        ('[{"asin": "B1", "pricing": {}}]', "row 1: 'pricing' is {}"),
        ('[{"asin": "B1", "bullets": [1]}]', "row 1: 'small_description' is [1]"),
        ('[{"asin": "B1", "options": {"size": [4]}}]', "row 1: the option 'size' has the values [4]"),
        ('[{"asin": "B1", "options": {"size": 4}}]', "row 1: the option 'size' has the values 4"),
    ],
)
def test_a_wrong_product_file_is_one_clear_error(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(TaskError) as caught:
        WebShop(products=str(tmp_path / "p.json"))
    assert message in str(caught.value)


def test_missing_and_broken_files_name_their_setting(tmp_path: Path) -> None:
    shop = write_shop(tmp_path)
    with pytest.raises(TaskError, match=r"env\.products: 'nowhere\.json' cannot be read: No such file"):
        WebShop(products="nowhere.json")
    with pytest.raises(TaskError, match=r"env\.goals: 'nowhere\.json' cannot be read"):
        WebShop(**shop, goals="nowhere.json")
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"[]" * 500)[:-9])
    with pytest.raises(TaskError, match=r"env\.attributes: .*broken\.gz' cannot be read"):
        WebShop(products=str(shop["products"]), attributes=str(tmp_path / "broken.gz"))


def test_products_without_instructions_need_a_goal(tmp_path: Path) -> None:
    env = WebShop(products=write_shop(tmp_path)["products"])
    with pytest.raises(TaskError, match="has no goals: no product has an instruction"):
        env.reset(0)
