"""The web shop as it is played: pages, clicks, options, rewards, splits, settings, the oracle."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.envs.base import make_env
from turnwise.envs.check import check_env
from turnwise.envs.webshop import WebShop
from turnwise.errors import ConfigError, EnvError, TaskError

from .shops import lamp_goal, play, write_shop

SEARCH_LAMP = "search[brass lamp]"
OPEN_LAMP = "click[b000000001]"
ITEM_BUTTONS = ["back to search", "< prev", "description", "features", "reviews", "buy now"]
LAMP_VALUES = ["navy | blue", "red", "small", "x-small"]


@pytest.fixture
def shop(tmp_path: Path) -> dict[str, object]:
    return write_shop(tmp_path)


@pytest.fixture
def env(shop: dict[str, object]) -> WebShop:
    env = WebShop(**shop, goal=lamp_goal())
    env.reset(0)
    return env


def random_action(env: WebShop, rng: random.Random) -> str:
    words = env.goal.instruction_text.split()
    if rng.random() < 0.15:
        return f"search[{' '.join(rng.choices(words, k=rng.randint(1, 4)))}]"
    return f"click[{rng.choice([*env.clickables, 'nonsense'])}]"


# --- the contract ---------------------------------------------------------------------------------------------------


def test_keeps_the_contract() -> None:
    report = check_env("webshop", num_episodes=6)
    assert report.ok, report.failures
    details = {check.name: check.detail for check in report.checks}
    assert details["oracle"] == "succeeds in 6 of 6 (deterministic)"
    assert details["after_done"] == "a step after the end is refused"


def test_an_environment_is_copied_without_its_catalogue(shop: dict[str, object]) -> None:
    env = WebShop(**shop, goal=lamp_goal())
    report = check_env(env, num_episodes=2)
    assert report.ok, report.failures


@pytest.mark.parametrize("params", [{}, {"compat": True, "view": "compact", "page_size": 3}])
def test_ten_thousand_random_steps_play_on(params: dict[str, object]) -> None:
    env, rng, num_purchases = WebShop(num_products=60, **params), random.Random(0), 0
    env.reset(0)
    for step in range(10_000):
        text, reward, done, info = env.step(random_action(env, rng))
        assert text == env.render()
        assert info["clickables"] == env.clickables
        assert 0 <= reward <= 1
        assert info["success"] == (done and reward == 1)
        if done:
            num_purchases += 1
            env.reset(step, split=rng.choice(["train", "eval"]))
    assert num_purchases > 50


@settings(max_examples=60, deadline=None)
@given(st.text(), st.booleans())
def test_garbage_is_invalid_and_changes_nothing(text: str, is_compat: bool) -> None:
    env = WebShop(num_products=20, compat=is_compat)
    before = env.reset(0)
    for action in (text, f"click[{text}]", f"click[{text}", f"buy[{text}]"):
        assert env.step(action)[:3] == (before, 0.0, False)
        assert env.step(action)[3]["action_is_valid"] is False


@pytest.mark.parametrize("is_compat", [False, True])
def test_an_answer_of_brackets_alone_is_read_in_no_time(is_compat: bool) -> None:
    env = WebShop(num_products=20, compat=is_compat)
    env.reset(0)
    for action in ("[" * 200_000, "]" + "[" * 200_000, "click" + "[]" * 100_000):
        assert env.step(action)[3]["action_is_valid"] is False


def test_equal_seeds_give_equal_errands_and_others_differ() -> None:
    first, second = WebShop(num_products=50), WebShop(num_products=50)
    texts = [first.reset(seed) for seed in range(40)]
    assert texts == [second.reset(seed, dynamics_seed=9) for seed in range(40)]
    assert len(set(texts)) > 30


def test_an_episode_goes_on_from_a_snapshot(env: WebShop, shop: dict[str, object]) -> None:
    play(env, SEARCH_LAMP, OPEN_LAMP, "click[red]")
    state = env.snapshot()
    bought = env.step("click[buy now]")
    other = WebShop(**shop)
    other.restore(state)
    assert other.step("click[buy now]") == bought


# --- pages ----------------------------------------------------------------------------------------------------------


def test_every_page_has_the_original_text(env: WebShop) -> None:
    instruction = "Instruction: [SEP] Find me a dimmable lamp, and price lower than 40.00 dollars [SEP] "
    item = (
        f"{instruction}Back to Search [SEP] < Prev [SEP] color [SEP] navy | blue [SEP] red [SEP] size [SEP] small "
        "[SEP] x-small [SEP] Arlo Brass Desk Lamp [SEP] Price: $19.99 to $25.5 [SEP] Rating: N.A. [SEP] "
        "Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert env.render() == f"WebShop [SEP] {instruction}Search"
    assert env.step(SEARCH_LAMP)[0] == (
        f"{instruction}Back to Search [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] B000000001 [SEP] "
        "Arlo Brass Desk Lamp [SEP] $19.99 to $25.5"
    )
    assert env.step(OPEN_LAMP)[0] == item
    assert (
        env.step("click[description]")[0] == f"{instruction}Back to Search [SEP] < Prev [SEP] A lamp for long evenings."
    )
    assert env.step("click[< prev]")[0] == item
    assert env.step("click[features]")[0] == (
        f"{instruction}Back to Search [SEP] < Prev [SEP] Dimmable in three steps. [SEP] Long lasting bulb."
    )
    assert play(env, "click[< prev]", "click[reviews]")[0] == f"{instruction}Back to Search [SEP] < Prev"
    assert play(env, "click[< prev]", "click[red]")[0] == item
    text = env.step("click[buy now]")[0]
    assert text.startswith("Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in")
    assert ' [SEP] Purchased [SEP] asin [SEP] B000000001 [SEP] options [SEP] {"color": "red"} [SEP] attrs' in text
    assert text.endswith(" [SEP] Your score (min 0.0, max 1.0) [SEP] 0.6 [SEP] Reward Details [SEP] None")


def test_each_page_has_its_own_clickables(env: WebShop) -> None:
    assert env.clickables == ["search"]
    assert env.step(SEARCH_LAMP)[3]["clickables"] == ["back to search", "next >", "b000000001"]
    assert env.step("click[next >]")[3]["clickables"] == ["back to search", "< prev", "next >"]
    assert play(env, "click[< prev]", OPEN_LAMP)[3]["clickables"] == [*ITEM_BUTTONS, *LAMP_VALUES]
    assert env.step("click[reviews]")[3]["clickables"] == ["back to search", "< prev"]
    assert play(env, "click[< prev]", "click[buy now]")[3]["clickables"] == []


def test_results_go_on_behind_the_last_page(env: WebShop) -> None:
    text, reward, done, info = play(env, SEARCH_LAMP, "click[next >]", "click[next >]")
    assert "Page 3 (Total results: 1) [SEP] < Prev [SEP] Next >" in text
    assert text.endswith("Next >")
    assert (reward, done, info["action_is_valid"], info["action_is_effective"]) == (0.0, False, True, True)


def test_search_works_from_any_page_and_forgets_the_options(env: WebShop) -> None:
    play(env, SEARCH_LAMP, OPEN_LAMP, "click[red]", "click[small]", SEARCH_LAMP, OPEN_LAMP)
    assert '"options"' not in env.render()
    assert "options [SEP] {} [SEP]" in env.step("click[buy now]")[0]


def test_options_are_kept_by_sub_pages_and_lost_on_the_way_back_to_results(env: WebShop) -> None:
    play(env, SEARCH_LAMP, OPEN_LAMP, "click[red]", "click[features]", "click[< prev]")
    state = env.snapshot()
    assert '{"color": "red"}' in env.step("click[buy now]")[0]
    env.restore(state)
    assert "options [SEP] {} [SEP]" in play(env, "click[< prev]", OPEN_LAMP, "click[buy now]")[0]


def test_a_second_value_of_an_option_replaces_the_first(env: WebShop) -> None:
    text = play(env, SEARCH_LAMP, OPEN_LAMP, "click[small]", "click[red]", "click[x-small]", "click[buy now]")[0]
    assert '{"color": "red", "size": "x-small"}' in text


def test_choosing_is_effective_although_the_text_stays_and_choosing_again_is_not(env: WebShop) -> None:
    before = play(env, SEARCH_LAMP, OPEN_LAMP)[0]
    first, again = env.step("click[red]"), env.step("click[red]")
    assert first[0] == again[0] == before
    assert (first[3]["action_is_effective"], again[3]["action_is_effective"]) == (True, False)
    assert again[3]["action_is_valid"] is True


def test_what_is_chosen_is_written_safely_into_the_last_page(tmp_path: Path) -> None:
    product = {"asin": "B1", "name": "Rope", "options": {"length": ['5\' <long> & "thin"']}}
    env = WebShop(**write_shop(tmp_path, [product], {}), goal=lamp_goal(asin="B1"))
    env.reset(0)
    text = play(env, "search[rope]", "click[b1]", 'click[5\' <long> & "thin"]', "click[buy now]")[0]
    assert r'{"length": "5\u0027 \u003clong\u003e \u0026 \"thin\""}' in text


def test_a_value_of_two_options_counts_for_the_last(tmp_path: Path) -> None:
    product = {"asin": "B1", "name": "Rope", "options": {"width": ["one", "two"], "length": ["one", "two"]}}
    env = WebShop(**write_shop(tmp_path, [product], {}), goal=lamp_goal(asin="B1"))
    env.reset(0)
    assert (
        '{"length": "two"}' in play(env, "search[rope]", "click[b1]", "click[one]", "click[two]", "click[buy now]")[0]
    )


@pytest.mark.parametrize(
    "action", ["click[search]", "click[]", "search[]", "click[buy now]", "Click[red]", "red", "click red", "click[red"]
)
def test_what_is_not_on_the_page_cannot_be_clicked(env: WebShop, action: str) -> None:
    before = env.render()
    text, reward, done, info = env.step(action)
    assert (text, reward, done) == (before, 0.0, False)
    assert (info["action_is_valid"], info["action_is_effective"]) == (False, False)


def test_capitals_and_text_around_an_action_do_no_harm(env: WebShop) -> None:
    play(env, " search[Brass LAMP] please", "click[B000000001]")
    assert env.step("click[RED]")[3]["action_is_effective"] is True


# --- rewards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "reward"),
    [
        (["navy | blue", "small"], 1.0),
        (["navy | blue"], 4 / 5),
        (["red", "x-small"], 3 / 5),
        ([], 3 / 5),
    ],
)
def test_the_reward_is_the_share_of_what_was_asked_for(env: WebShop, choices: list[str], reward: float) -> None:
    play(env, SEARCH_LAMP, OPEN_LAMP, *[f"click[{choice}]" for choice in choices])
    _, given, done, info = env.step("click[buy now]")
    assert (given, done, info["success"]) == (reward, True, reward == 1)


def test_compat_lets_a_close_option_count(shop: dict[str, object]) -> None:
    goal = lamp_goal(goal_options=["small"])
    for is_compat, reward in ((False, 3 / 4), (True, 1.0)):
        env = WebShop(**shop, goal=goal, compat=is_compat)
        env.reset(0)
        assert play(env, SEARCH_LAMP, OPEN_LAMP, "click[x-small]", "click[buy now]")[1] == reward


def test_compat_reads_a_second_bracket_as_the_original_does(tmp_path: Path) -> None:
    product = {"asin": "B1", "name": "Rope", "options": {"length": ["5 [long]"]}}
    shop = write_shop(tmp_path, [product], {})
    goal = lamp_goal(asin="B1", goal_options={"length": "5 [long]"})
    for is_compat in (False, True):
        env = WebShop(**shop, goal=goal, compat=is_compat)
        env.reset(0)
        assert play(env, "search[rope]", "click[b1]", "click[5 [long]]")[3]["action_is_valid"] is not is_compat
        # The oracle does not try for ever to say what cannot be said.
        assert env.oracle() == "click[buy now]"


# --- the oracle -----------------------------------------------------------------------------------------------------


def test_the_oracle_buys_everything_that_can_be_asked_for_in_the_fewest_steps() -> None:
    env = WebShop(num_products=150)
    assert len(env.catalogue.goals) > 1000
    for goal in env.catalogue.goals[::3]:
        env.reset(0)
        env.goal = goal
        actions, done, reward = [], False, 0.0
        while not done:
            actions.append(env.oracle())
            _, reward, done, info = env.step(actions[-1])
            assert info["action_is_effective"]
        assert reward == 1
        num_pages = sum(action == "click[next >]" for action in actions)
        # One search, the product, each option once, the purchase; products of this shop are found on the first page.
        assert (num_pages, len(actions)) == (0, 3 + len(goal.options))


def test_the_oracle_finds_its_way_from_anywhere() -> None:
    rng = random.Random(1)
    for page_size, who in ((1, "planner"), (4, "planner"), (10, "planner"), (4, "explorer")):
        env = WebShop(num_products=80, page_size=page_size, oracle=who)
        for seed in range(40):
            env.reset(seed)
            for _ in range(rng.randint(0, 12)):
                action = random_action(env, rng)
                if action != "click[buy now]":
                    env.step(action)
            reward, done = 0.0, False
            for _ in range(60):
                _, reward, done, _ = env.step(env.oracle())
                if done:
                    break
            assert (done, reward) == (True, 1.0)


def test_the_oracle_turns_pages_both_ways(tmp_path: Path) -> None:
    products = [{"asin": f"B{n:02}", "name": "grey wool sock"} for n in range(30)]
    env = WebShop(**write_shop(tmp_path, products, {}), goal=lamp_goal(asin="B17", goal_options=[]))
    env.reset(0)
    actions = []
    for _ in range(3):
        actions.append(env.oracle())
        env.step(actions[-1])
    assert actions == ["search[grey wool sock]", "click[next >]", "click[b17]"]
    play(env, "click[< prev]", "click[next >]")
    assert env.oracle() == "click[< prev]"


def test_the_explorer_keeps_to_the_words_of_the_errand() -> None:
    """The planner's titles name brands that nobody was told; who imitates them can only learn them by heart."""
    searches: dict[str, list[bool]] = {"planner": [], "explorer": []}
    for who, told in searches.items():
        env = WebShop(num_products=400, page_size=2, oracle=who)
        for seed in range(60):
            env.reset(seed)
            reward, done = 0.0, False
            while not done:
                action = env.oracle()
                if action.startswith("search"):
                    told.append(set(action[7:-1].split()) <= set(re.findall(r"\w+", env.goal.instruction_text.lower())))
                _, reward, done, _ = env.step(action)
            assert reward == 1
    assert all(searches["explorer"])
    assert not all(searches["planner"])


def test_the_explorer_takes_the_first_product_that_will_do(tmp_path: Path) -> None:
    products = [{"asin": f"B{n:02}", "name": "grey wool sock"} for n in range(30)]
    shop = write_shop(tmp_path, products, {})
    sock = {"query": "wool sock", "name": "grey wool sock", "attributes": ["grey"], "price_upper": 1000.0}
    goal = lamp_goal(asin="B17", goal_options=[], **sock)
    clicks = {}
    for who in ("planner", "explorer"):
        env = WebShop(**shop, goal=goal, oracle=who)
        env.reset(0)
        env.step("search[grey wool sock]")
        clicks[who] = env.oracle()
    assert clicks == {"planner": "click[next >]", "explorer": "click[b00]"}


def test_the_oracle_says_so_where_no_search_helps(tmp_path: Path) -> None:
    env = WebShop(**write_shop(tmp_path, [{"asin": "B1", "name": ""}], {}), goal=lamp_goal(asin="B1"))
    env.reset(0)
    with pytest.raises(EnvError, match="no search finds B1"):
        env.oracle()


# --- splits and settings --------------------------------------------------------------------------------------------


def test_what_evaluation_asks_for_is_never_asked_for_in_training() -> None:
    env = WebShop(num_products=40)
    asked: dict[str, set[str]] = {"train": set(), "eval": set()}
    for split, asins in asked.items():
        for seed in range(300):
            env.reset(seed, split=split)
            asins.add(env.goal.asin)
    assert asked["train"].isdisjoint(asked["eval"])
    assert asked["train"]
    assert asked["eval"]
    with pytest.raises(TaskError, match="no split 'test'"):
        env.reset(0, split="test")


def test_eval_share_moves_products_from_one_split_to_the_other() -> None:
    def num_held_out(share: float) -> int:
        env = WebShop(num_products=40, eval_share=share)
        asins = set()
        for seed in range(1000):
            env.reset(seed, split="eval")
            asins.add(env.goal.asin)
        return len(asins)

    assert num_held_out(0.0001) == 1
    assert 1 < num_held_out(0.2) < num_held_out(0.6) < num_held_out(0.9999) == 39


def test_one_product_has_no_evaluation(tmp_path: Path) -> None:
    env = WebShop(**write_shop(tmp_path), num_products=1)
    assert "dimmable" in env.reset(0)
    with pytest.raises(TaskError, match="the split 'eval' is empty"):
        env.reset(0, split="eval")


def test_num_products_and_catalogue_seed_choose_what_is_sold() -> None:
    large, small, other = WebShop(), WebShop(num_products=30), WebShop(num_products=30, catalogue_seed=1)
    assert len(large.catalogue.products) == 1000
    assert large.catalogue.products[:30] == small.catalogue.products != other.catalogue.products
    assert WebShop(num_products=30).catalogue is small.catalogue


def test_page_size_is_the_number_of_products_on_a_page() -> None:
    for size in (2, 10):
        env = WebShop(num_products=100, page_size=size)
        env.reset(0)
        clickables = env.step("search[tea mug frying pan desk lamp]")[3]["clickables"]
        assert sum(str(name).startswith("p") for name in clickables) == size  # type: ignore[attr-defined]


def test_the_compact_view_is_short_and_says_what_is_chosen(shop: dict[str, object]) -> None:
    env = WebShop(**shop, goal=lamp_goal(), view="compact")
    errand = "find me a dimmable lamp, and price lower than 40.00 dollars\n"
    assert env.reset(0) == f"{errand}search"
    assert env.step(SEARCH_LAMP)[0] == f"{errand}page 1 of 1\nb000000001 arlo brass desk lamp $19.99 to $25.5"
    item = f"{errand}arlo brass desk lamp $19.99 to $25.5\ncolor: navy | blue, red\nsize: small, x-small\nchosen: "
    assert env.step(OPEN_LAMP)[0] == f"{item}nothing"
    assert env.step("click[red]")[0] == f"{item}red"
    assert env.step("click[description]")[0] == f"{errand}description\na lamp for long evenings."
    assert play(env, "click[< prev]", "click[buy now]")[0] == "score 0.6"


def test_the_built_in_texts_explain_the_actions() -> None:
    env = make_env("webshop", num_products=20)
    assert env.action_names is None
    for word in ("search[", "click[", "Buy Now", "< Prev", "Next >", "Back to Search"):
        assert word in env.legend


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"attributes": "a.json"}, "set products as well"),
        ({"goals": "g.json"}, "set products as well"),
        ({"products": "p.json", "catalogue_seed": 1}, "does nothing with a file"),
        ({"products": "p.json", "goal": {}, "goals": "g.json"}, "leave one of them out"),
        ({"num_products": 0}, "num_products: 0 given"),
        ({"page_size": 51}, "page_size: 51 given"),
        ({"view": "short"}, "view: 'short' given"),
        ({"product": "p.json"}, "Did you mean 'products'?"),
    ],
)
def test_wrong_settings_are_explained(params: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WebShop(**params)
    assert message in str(caught.value)


def test_goals_can_be_held_out_instead_of_products() -> None:
    def asked(split_by: str, split: str) -> tuple[set[str], set[str]]:
        env = WebShop(num_products=20, eval_share=0.3, split_by=split_by)
        products, texts = set(), set()
        for seed in range(300):
            env.reset(seed=seed, split=split)
            products.add(env.goal.asin)
            texts.add(repr(env.goal))
        return products, texts

    train_products, train_goals = asked("products", "train")
    eval_products, eval_goals = asked("products", "eval")
    assert not train_products & eval_products
    train_products, train_goals = asked("goals", "train")
    eval_products, eval_goals = asked("goals", "eval")
    assert not train_goals & eval_goals
    assert eval_products <= train_products
