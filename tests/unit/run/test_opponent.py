"""Games against a frozen policy: it really plays, from its own weights, and stays what it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest
import torch

from turnwise.config.load import load_settings
from turnwise.context.answer import render_answer, write_preamble
from turnwise.context.template import LearnedTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.envs.base import make_env
from turnwise.envs.safe_calls import describe_env, reset_env, step_env
from turnwise.errors import ConfigError, EnvError, TaskError
from turnwise.experience.build import split_trajectory
from turnwise.infra.atomic_files import write_checksums
from turnwise.learn.policy import PolicyModel
from turnwise.learn.trainer import imitate
from turnwise.loop import policies as opponent
from turnwise.models.load import load_model
from turnwise.protocols import Imitation
from turnwise.rollout.scripted_policies import recite
from turnwise.run.api import Run, train
from turnwise.types import StepResult

from ...small_run import SMALL, without_plots

pytest.importorskip("textarena", reason="textarena is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("opponent")]

GAME = "textarena:TicTacToe-v0"
RECIPE = {"env": {"type": GAME}, "credit": {"type": "grpo"}}
FEW_TOKENS = [*SMALL, "rollout.max_turns=4", "context.max_response_tokens=12"]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The run whose policy is the opponent."""
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        yield train(RECIPE, FEW_TOKENS, run_dir=tmp_path_factory.mktemp("runs") / "earlier")


@pytest.fixture(scope="module")
def centre(earlier: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same policy after a lesson: its first move is always the centre."""
    asked: list[str] = []

    class Listener(opponent.FrozenPolicy):
        def choose_move(self, text: str, offered: object) -> str:
            asked.append(write_preamble(self._about, earlier.settings.context) + text)
            return "[4]"

    env = make_env(GAME, opponent="policy", opponent_path=str(earlier.path))
    env._opponents[1] = Listener(env.params, GAME)  # type: ignore[attr-defined]
    env.reset(0)
    env.step("[0]")
    run = tmp_path_factory.mktemp("runs") / "centre"
    shutil.copytree(earlier.path, run)
    folder = Run(run).policy
    model, template = load_model(folder), LearnedTemplate(load_tokenizer(str(folder)))
    answer = render_answer(["[4]"], earlier.settings.context.answer)
    lesson = [e for t in recite([(asked[0], answer)], template, max_tokens=1000) for e in split_trajectory(t)]
    actor = PolicyModel(model.eval(), 1.0)
    how = Imitation(steps=150, batch_rows=1, lr=1e-2)
    loss = imitate(actor, lesson, how, seed=0, micro_batch_tokens=4096)
    assert loss < 0.01
    model.save_pretrained(folder)
    write_checksums(folder.parent)
    return run


def play(env_seed: int, path: Path, luck: int = 0) -> list[StepResult]:
    env = make_env(GAME, opponent="policy", opponent_path=str(path))
    reset_env(env, env_seed, dynamics_seed=luck)
    results = []
    for move in ("[0]", "[1]", "[2]"):
        results.append(step_env(env, move))
        if results[-1].done:
            break
    return results


def replies_of(path: Path, luck: int) -> list[str]:
    """What the policy says to the same two texts."""
    env = make_env(GAME, opponent="policy", opponent_path=str(path))
    player = env._opponents[1]  # type: ignore[attr-defined]
    env.reset(0)
    player.begin(describe_env(env), luck)
    return [player.choose_move(text, ()) for text in ("Begin.", "And now?")]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_model(Run(run).policy).state_dict()


def files_of(run: Path) -> dict[str, str]:
    return {str(file): blake2b(file.read_bytes()).hexdigest() for file in sorted(run.rglob("*")) if file.is_file()}


def test_the_policy_plays_the_move_that_its_weights_know(centre: Path) -> None:
    (first, *_) = play(0, centre)
    assert not first.done
    board = first.text.split("Current Board:")[-1].split("Available")[0]
    assert " 4 " not in board
    assert sum(f" {cell} " in board for cell in range(9)) == 7


def test_the_same_path_with_other_weights_is_another_player(earlier: Run, centre: Path) -> None:
    (untaught, *_) = play(0, earlier.path)
    assert untaught.text != play(0, centre)[0].text


def test_chance_comes_from_the_seed_of_the_episode_alone(earlier: Run) -> None:
    first = [replies_of(earlier.path, luck) for luck in range(4)]
    torch.manual_seed(123)
    opponent._load_once.cache_clear()
    assert [replies_of(earlier.path, luck) for luck in range(4)] == first
    assert len({replies[0] for replies in first}) > 1
    again = [play(1, earlier.path, luck=7) for _ in range(2)]
    assert again[0] == again[1]


def test_games_against_the_same_policy_do_not_mix_their_conversations(earlier: Run) -> None:
    alone = replies_of(earlier.path, 3)
    envs = [make_env(GAME, opponent="policy", opponent_path=str(earlier.path)) for _ in range(2)]
    players = [env._opponents[1] for env in envs]  # type: ignore[attr-defined]
    for env, player, luck in zip(envs, players, (3, 4), strict=True):
        env.reset(0)
        player.begin(describe_env(env), luck)
    together = [[player.choose_move(text, ()) for player in players] for text in ("Begin.", "And now?")]
    assert [replies[0] for replies in together] == alone
    assert players[0]._policy is players[1]._policy


def test_it_stays_frozen_while_another_policy_learns_from_it(
    earlier: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plots(monkeypatch)
    before, spoken = files_of(earlier.path), replies_of(earlier.path, 5)
    env = {"type": GAME, "opponent": "policy", "opponent_path": str(earlier.path)}
    recipe = RECIPE | {"env": env, "model": {"path": str(earlier.policy)}}
    # Games that all end alike teach nothing; entropy always has a gradient.
    run = train(recipe, [*FEW_TOKENS, "learn.entropy_coef=0.1"], run_dir=tmp_path / "later")
    assert run.summary.failures == {}
    assert files_of(earlier.path) == before
    assert replies_of(earlier.path, 5) == spoken
    learned, frozen = weights_of(run.path), weights_of(earlier.path)
    assert any(not torch.equal(learned[name], frozen[name]) for name in frozen)


def test_a_checkpoint_of_a_run_brings_the_format_of_its_run(earlier: Run) -> None:
    by_run, by_checkpoint = (
        opponent._load_once(*opponent._find(str(path), GAME)) for path in (earlier.path, earlier.policy)
    )
    assert by_checkpoint is by_run
    assert by_run.context == earlier.settings.context


def test_a_model_without_a_run_plays_in_the_default_format(earlier: Run, tmp_path: Path) -> None:
    shutil.copytree(earlier.policy, tmp_path / "model")
    policy = opponent._load_once(*opponent._find(str(tmp_path / "model"), GAME))
    assert policy.context == load_settings({"env": {"type": GAME}}).context
    assert policy.context != earlier.settings.context


def test_a_league_draws_one_of_its_members_by_the_seed_of_the_task(earlier: Run, centre: Path, tmp_path: Path) -> None:
    for name, policy in (("a", earlier.policy), ("b", Run(centre).policy)):
        shutil.copytree(policy, tmp_path / name / "policy")
    members = [opponent._load_once(*opponent._find(str(tmp_path / name / "policy"), GAME)) for name in "ab"]
    env = make_env(GAME, opponent="league", opponent_path=str(tmp_path))
    drawn = []
    for seed in range(12):
        pair = []
        for luck in (0, 1):
            reset_env(env, seed, dynamics_seed=luck)
            pair.append(members.index(env._opponents[1]._policy))  # type: ignore[attr-defined]
        assert pair[0] == pair[1]
        drawn.append(pair[0])
    assert set(drawn) == {0, 1}


def test_the_checkpoints_of_a_run_are_a_league(earlier: Run) -> None:
    (member,) = opponent._find_members(str(earlier.path))
    assert member == str(earlier.path / "checkpoints" / "step-000002" / "policy")


def test_a_conversation_that_is_too_long_ends_the_episode_as_data(earlier: Run) -> None:
    env = make_env(GAME, opponent="policy", opponent_path=str(earlier.path))
    env.reset(0)
    player = env._opponents[1]  # type: ignore[attr-defined]
    choose = player.choose_move
    player.choose_move = lambda text, offered: choose("word " * 3000, offered)
    with pytest.raises(EnvError, match=r"ContextOverflow.*context.max_tokens"):
        step_env(env, "[0]")


def test_wrong_settings_are_explained(earlier: Run, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(earlier.path, unfinished)
    (unfinished / "summary.json").unlink()
    for params, message in (
        ({"opponent": "policy"}, "opponent 'policy' needs its opponent_path"),
        ({"opponent_path": str(earlier.path)}, "opponent_path would have no effect on the opponent 'random'"),
        (
            {"opponent": "policy", "opponent_path": "x", "opponent_moves": ["[1]"]},
            "opponent_moves would have no effect",
        ),
        ({"opponent": "policy", "opponent_path": str(unfinished)}, "env.opponent_path: .*The run is not finished"),
        ({"opponent": "policy", "opponent_path": str(tmp_path / "no")}, "env.opponent_path: .*cannot play"),
        ({"opponent": "league"}, "opponent 'league' needs its opponent_path"),
        ({"opponent": "league", "opponent_path": str(unfinished)}, "env.opponent_path: .*The run is not finished"),
        ({"opponent": "league", "opponent_path": str(tmp_path / "no")}, "env.opponent_path: .*It holds no models"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_env(GAME, **params)
    single = make_env("textarena:GuessTheNumber-v0", opponent="policy", opponent_path=str(earlier.path))
    with pytest.raises(TaskError, match=r"a game for one; env.opponent 'policy' would have no effect"):
        reset_env(single, 0)
