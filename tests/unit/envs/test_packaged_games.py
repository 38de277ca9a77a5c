"""Task families of reasoning-gym and games of textarena, where the packages are installed."""

from __future__ import annotations

import random
import re
import sys
from types import ModuleType

import pytest

from turnwise.envs.adapters import (
    reasoning_gym_env as reasoning_gym_task,
)
from turnwise.envs.adapters import (
    textarena_env as textarena_game,
)
from turnwise.envs.adapters import (
    textarena_env as textarena_words,
)
from turnwise.envs.adapters.function_env import SingleTurnTask
from turnwise.envs.base import make_env
from turnwise.envs.check import check_env
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import ConfigError, EnvError, TaskError


class TestReasoningGym:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")

    def test_keeps_the_contract(self) -> None:
        report = check_env("reasoning_gym:leg_counting", num_episodes=4)
        assert report.ok, report.failures

    def test_the_package_scores_and_its_answer_is_right(self) -> None:
        env = make_env("reasoning_gym:chain_sum")
        assert env.has_oracle
        for seed in range(10):
            env.reset(seed)
            answer = env.oracle()
            assert env.step(answer)[1:3] == (1.0, True)
            env.reset(seed)
            _, score, _, info = env.step(f"{answer} or so")
            assert 0 < score < 1
            assert info["success"] is False

    def test_settings_have_their_effect(self) -> None:
        texts = [
            make_env("reasoning_gym:leg_counting", options={"min_animals": n, "max_animals": n}).reset(0).count(",")
            for n in (2, 5)
        ]
        assert texts[0] < texts[1]
        env = make_env("reasoning_gym:chain_sum", success_above=0.0)
        env.reset(0)
        assert env.step(f"{env.oracle()} or so")[3]["success"] is True

    def test_an_answer_that_a_scorer_stumbles_over_is_invalid(self) -> None:
        env = make_env("reasoning_gym:prime_factorization")
        question = env.reset(0)
        text, reward, done, info = env.step("nonsense")
        assert (text, reward, done, info["action_is_valid"]) == (question, 0.0, False, False)
        assert env.step(env.oracle())[1] == 1.0

    def test_every_question_has_an_answer_that_can_be_given(self) -> None:
        """In the family `ab`, everything may cancel out: of these questions some have nothing as their answer."""
        env = make_env("reasoning_gym:ab")
        for seed in range(60):
            env.reset(seed)
            assert env.step(env.oracle())[3]["success"] is True

    def test_families_without_an_answer_have_no_oracle(self) -> None:
        env = make_env("reasoning_gym:graph_color")
        env.reset(0)
        assert not env.has_oracle
        with pytest.raises(EnvError, match="no oracle"):
            env.oracle()

    def test_wrong_names_and_options_are_explained(self) -> None:
        with pytest.raises(ConfigError, match=r"no such family. Did you mean 'leg_counting'\?"):
            make_env("reasoning_gym:leg_countin")
        with pytest.raises(ConfigError, match=r"cannot be made with the options .*TypeError"):
            make_env("reasoning_gym:leg_counting", options={"legs": 3})
        with pytest.raises(ConfigError, match="options sets size, which the task decides"):
            make_env("reasoning_gym:leg_counting", options={"size": 3})


class TestTextArena:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("textarena", reason="textarena is not installed")

    @pytest.mark.parametrize("name", ["GuessTheNumber-v0", "TicTacToe-v0", "KuhnPoker-v0"])
    def test_keeps_the_contract(self, name: str) -> None:
        report = check_env(f"textarena:{name}", num_episodes=4)
        assert report.ok, report.failures

    def test_halving_finds_the_number(self) -> None:
        env = make_env("textarena:GuessTheNumber-v0")
        for seed in range(5):
            assert "between 1 and 20" in env.reset(seed)
            low, high, done, reward, info = 1, 20, False, 0.0, {}
            while not done:
                guess = (low + high) // 2
                text, reward, done, info = env.step(str(guess))
                low, high = (guess + 1, high) if "higher" in text else (low, guess - 1)
            assert (reward, info["success"]) == (1, True)

    def test_a_senseless_move_is_invalid_and_what_is_told_is_new(self) -> None:
        env = make_env("textarena:GuessTheNumber-v0")
        first = env.reset(0)
        text, reward, done, info = env.step("99")
        assert (reward, done, info["action_is_valid"]) == (0.0, False, False)
        assert first not in text

    def test_a_row_of_three_wins_against_a_script(self) -> None:
        env = make_env("textarena:TicTacToe-v0", opponent="scripted", opponent_moves=["[3]", "[4]", "[8]"])
        text = env.reset(0)
        assert "You are Player 0" in text
        assert env.step("[0]")[2] is False
        text, *_ = env.step("1")
        assert " 3 " not in text.split("Current Board:")[-1].split("Available")[0]
        _, reward, done, info = env.step("[2]")
        assert (reward, done, info["success"]) == (1, True, True)

    def test_a_random_player_takes_what_is_offered_and_differs_between_siblings(self) -> None:
        env = make_env("textarena:TicTacToe-v0")
        answers = set()
        for luck in range(12):
            env.reset(0, dynamics_seed=luck)
            text, _, done, _ = env.step("[4]")
            assert not done
            assert "invalid" not in text
            answers.add(text)
        assert len(answers) > 3

    def test_games_offer_moves_in_their_newest_text(self) -> None:
        messages = [(-1, "use '[a]'", 0), (0, "[b]", 1), (-1, "now '[c]' or '[d]'", 2), (-1, "no moves", 3)]
        assert textarena_game._offers(messages) == ["[c]", "[d]"]
        assert textarena_game._tell(messages) == "use '[a]'\nnow '[c]' or '[d]'\nno moves"

    def test_in_a_game_for_three_both_others_move_by_chances_of_their_own(self) -> None:
        env = make_env("textarena:ThreePlayerTicTacToe-v0")
        moves = []
        for luck in range(6):
            reset_env(env, 0, dynamics_seed=luck)
            told = step_env(env, "[12]").text
            moves.append(re.findall(r"Player ([12]) places .* field \((\d), (\d)\)", told))
        assert {tuple(player for player, *_ in made) for made in moves} == {("1", "2")}
        # Equal dice would take neighbouring cells, for the second has one cell less to choose from.
        cells = [[5 * int(row) + int(column) for _, row, column in made] for made in moves]
        assert any(abs(one - other) > 1 for one, other in cells)
        assert len({one for one, _ in cells}) > 1

    def test_a_deal_that_the_others_end_at_once_is_replaced(self) -> None:
        """Of these deals, the random opponent folds some before the policy's first move."""
        env = make_env("textarena:IndianPoker-v0", options={"max_rounds": 1})
        opened = []
        play = textarena_game.TextArenaEnv._open_game
        env._open_game = lambda layout: opened.append(layout) or play(env, layout)  # type: ignore[attr-defined]
        texts = [env.reset(seed) for seed in range(12)]
        assert len(opened) > len(texts)
        assert [make_env("textarena:IndianPoker-v0", options={"max_rounds": 1}).reset(n) for n in range(12)] == texts

    def test_the_global_generator_is_left_alone(self) -> None:
        random.seed(4)
        expected = random.random()
        random.seed(4)
        env = make_env("textarena:GuessTheNumber-v0")
        env.reset(0)
        env.step("5")
        assert random.random() == expected

    def test_settings_have_their_effect(self) -> None:
        assert "between 1 and 7" in make_env("textarena:GuessTheNumber-v0", options={"max_number": 7}).reset(0)
        env = make_env(
            "textarena:TicTacToe-v0", opponent="scripted", opponent_moves=["[3]", "[4]", "[8]"], success_above=1.0
        )
        env.reset(0)
        assert [env.step(move)[3]["success"] for move in ("[0]", "[1]", "[2]")] == [False, False, False]

    def test_wrong_settings_are_explained(self) -> None:
        with pytest.raises(ConfigError, match=r"no such game. Did you mean 'TicTacToe-v0'\?"):
            make_env("textarena:TicTacTo-v0")
        with pytest.raises(TaskError, match=r"is a game for 3; two policies need a game for two"):
            make_env("textarena:ThreePlayerTicTacToe-v0").deal(0, "train", 0)  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="'scripted' needs its opponent_moves"):
            make_env("textarena:TicTacToe-v0", opponent="scripted")
        for params in ({"opponent": "policy", "opponent_path": "runs/a"}, {"opponent": "league"}):
            with pytest.raises(ConfigError, match=r"Use `rollout.workflow: league`"):
                make_env("textarena:TicTacToe-v0", **params)

    @pytest.mark.parametrize("params", [{}, {"opponent": "scripted", "opponent_moves": ["[4]", "[2]", "[5]"]}])
    def test_equal_seeds_give_equal_opponent_moves(self, params: dict[str, object]) -> None:
        games = [make_env("textarena:TicTacToe-v0", **params) for _ in range(2)]
        played = [[reset_env(game, 3, dynamics_seed=7), *(step_env(game, m) for m in ("[0]", "[1]"))] for game in games]
        assert played[0] == played[1]


def test_a_complaint_in_the_place_of_a_reward_is_an_invalid_move_worth_nothing() -> None:
    pytest.importorskip("textarena", reason="needs the extra textarena")
    env = make_env("textarena:Slitherlink-v0")
    reset_env(env, 0)
    results = []
    while not results or not results[-1].done:
        results.append(step_env(env, "no move"))
        assert len(results) < 100
    assert (results[-1].reward, results[-1].is_valid) == (0.0, False)


def test_a_family_that_is_kept_gives_what_a_new_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")

    def texts(costly_s: float) -> list[str]:
        monkeypatch.setattr(reasoning_gym_task, "_COSTLY_S", costly_s)
        reasoning_gym_task._load_family.cache_clear()
        return [make_env(f"reasoning_gym:{name}").reset(seed) for name in FAMILIES for seed in range(5)]

    FAMILIES = ("leg_counting", "rectangle_count", "sentence_reordering", "codeio")
    kept, new = texts(-1.0), texts(1e9)
    assert kept == new
    assert len(set(kept)) > 15
    reasoning_gym_task._load_family.cache_clear()


def test_worlds_of_one_family_look_at_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")
    reasoning_gym_task._load_family.cache_clear()
    made: list[object] = []
    create = package.create_dataset
    monkeypatch.setattr(package, "create_dataset", lambda *args, **rest: made.append(args) or create(*args, **rest))
    first = make_env("reasoning_gym:leg_counting")
    num_made = len(made)
    second = make_env("reasoning_gym:leg_counting")
    assert len(made) == num_made
    assert first.reset(3) == second.reset(3) != second.reset(4)
    make_env("reasoning_gym:leg_counting", options={"max_animals": 4})
    assert len(made) > num_made + 3
    reasoning_gym_task._load_family.cache_clear()


def test_siblings_share_a_question_that_takes_long_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")
    made: list[int] = []
    make_question = reasoning_gym_task._Family._make_question

    def count(self: reasoning_gym_task._Family, seed: int) -> SingleTurnTask:
        made.append(seed)
        return make_question(self, seed)

    monkeypatch.setattr(reasoning_gym_task._Family, "_make_question", count)
    for costly_s, times in ((-1.0, 1), (1e9, 2)):
        monkeypatch.setattr(reasoning_gym_task, "_COSTLY_S", costly_s)
        reasoning_gym_task._load_family.cache_clear()
        siblings = [make_env("reasoning_gym:leg_counting") for _ in range(2)]
        made.clear()
        assert siblings[0].reset(3) == siblings[1].reset(3)
        assert len(made) == times
    reasoning_gym_task._load_family.cache_clear()


def test_a_message_without_a_type_is_the_games() -> None:
    """The package itself refuses it, so that this game could not be played."""
    pytest.importorskip("textarena", reason="needs the extra textarena")
    env = make_env("textarena:CharacterConclave-v0", opponent_moves=["[good morning]"])
    reset_env(env, 0)
    assert "good morning" in step_env(env, "good day").text


def test_a_dictionary_is_built_once_for_all_games(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[object] = []

    class EnglishDictionary:
        def __init__(self, keep_proper_nouns: bool = False) -> None:
            built.append(keep_proper_nouns)
            self.words = {"Ann"} if keep_proper_nouns else {"an"}

    fake = ModuleType(textarena_words._MODULE)
    vars(fake)["EnglishDictionary"] = EnglishDictionary
    monkeypatch.setitem(sys.modules, textarena_words._MODULE, fake)
    for _ in range(2):
        textarena_words.cache_dictionaries()
        assert EnglishDictionary().words == {"an"}
        assert EnglishDictionary(keep_proper_nouns=True).words == {"Ann"}
    assert built == [False, True]


def test_a_game_in_which_everybody_is_out_is_over() -> None:
    """The package itself would look for the next player for ever."""
    pytest.importorskip("textarena", reason="needs the extra textarena")
    env = make_env("textarena:PublicGoodsGame-v0", opponent="scripted", opponent_moves=["no number"])
    reset_env(env, 0)
    results = []
    while not results or not results[-1].done:
        results.append(step_env(env, "no number"))
        assert len(results) < 60
    assert results[-1].reward == 0.0
