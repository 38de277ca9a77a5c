"""Task families of reasoning-gym and games of textarena, where the packages are installed."""

from __future__ import annotations

import random

import pytest

from turnwise.envs.adapters import textarena_game
from turnwise.envs.boundary import reset_env, step_env
from turnwise.envs.check import check_env
from turnwise.envs.make import make_env
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
        with pytest.raises(TaskError, match="expected a game for one or two players; the game says"):
            make_env("textarena:ThreePlayerTicTacToe-v0").reset(0)
        with pytest.raises(ConfigError, match="'scripted' needs its opponent_moves"):
            make_env("textarena:TicTacToe-v0", opponent="scripted")


def test_a_complaint_in_the_place_of_a_reward_is_an_invalid_move_worth_nothing() -> None:
    pytest.importorskip("textarena", reason="needs the extra textarena")
    env = make_env("textarena:Slitherlink-v0")
    reset_env(env, 0)
    results = []
    while not results or not results[-1].done:
        results.append(step_env(env, "no move"))
        assert len(results) < 100
    assert (results[-1].reward, results[-1].is_valid) == (0.0, False)
