"""Two policies at one game: whose tokens, turns and payoffs are whose, and what a failure costs."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.setting import template
from tests.contracts.test_workflows import assert_exact, episode_of, spelled
from tests.small_run import SMALL, without_plots
from turnwise.config.load import load_settings
from turnwise.config.schema import ContextSettings
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.base import BaseEnv, make_env
from turnwise.envs.check import check_env
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import ConfigError, EngineError
from turnwise.experience.build import build_experiences
from turnwise.report.trajectories import read_trajectories
from turnwise.rollout.env_specs import find_workflow
from turnwise.rollout.episode import Limits, RolloutLimits
from turnwise.rollout.self_play import SelfPlayWorkflow
from turnwise.run.api import train
from turnwise.types import Completion, GenerateRequest, Group, StopReason, Task, Trajectory, TrajectoryId

from .worlds import make_proxy, make_states

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples" / "self_play"))
Nim: Any = importlib.import_module("nim").Nim

CONTEXT = ContextSettings(max_response_tokens=40, max_tokens=4000)
TASK = Task(tag="words", seed=0)
RUN = {"env": {"type": "nim:Nim"}, "rollout": {"workflow": "self_play"}, "credit": {"type": "grpo"}}


def heap_of(size: int) -> Callable[[str, str], BaseEnv]:
    return lambda _tag, _split: Nim(smallest=size, largest=size)


class Players(ScriptedEngine):
    """Each sibling says its own replies, one after the other; a reply of None is an engine that fails."""

    def __init__(self, *replies: Sequence[str | None]) -> None:
        super().__init__(lambda request: self._say(request), stop_ids=template().stop_ids)
        self._left: list[Iterator[str | None]] = [iter(own) for own in replies]

    def _say(self, request: GenerateRequest) -> list[int]:
        sibling = int(episode_of(request).partition("~")[0].rpartition("/")[2])
        reply = next(self._left[sibling])
        if reply is None:
            raise EngineError("the engine refused")
        return spelled(f"<answer>{reply}</answer>")

    def calls_of(self, trajectory: Trajectory) -> list[tuple[GenerateRequest, Completion]]:
        pairs = zip(self.requests, self.completions, strict=True)
        return [(asked, said) for asked, said in pairs if episode_of(asked) == str(trajectory.id)]


def play(
    engine: ScriptedEngine,
    make: Callable[[str, str], BaseEnv] | None = None,
    *,
    group_size: int = 2,
    max_turns: int = 5,
    actions_per_turn: int = 1,
    known: dict[TrajectoryId, Trajectory] | None = None,
    **limits: Any,
) -> tuple[Trajectory, ...]:
    budget, seats = Limits(max_turns=max_turns), SelfPlayWorkflow.seats
    states = make_states(make or heap_of(7), groups=1, group_size=group_size, limits=budget, invalid_penalty=-0.1)
    rules = {"workflow": SelfPlayWorkflow, "seats": seats, "limits": RolloutLimits(**limits)}
    answer = CONTEXT.answer.model_copy(update={"max_actions_per_turn": actions_per_turn})
    context = CONTEXT.model_copy(update={"answer": answer})
    proxy = make_proxy(engine, template(), states, context=context, **rules)
    (group,) = asyncio.run(proxy.collect([TASK], rollout=3, known=known or {}))
    return group.trajectories


def test_each_player_has_its_own_tokens_turns_and_payoff() -> None:
    engine = Players(["3", "2"], ["1", "1"])
    first, second = play(engine)
    assert [turn.observation for turn in first.turns] == ["heap 7", "heap 3"]
    assert [turn.observation for turn in second.turns] == ["heap 4", "heap 1"]
    assert [turn.actions for turn in second.turns] == [("1",), ("1",)]
    assert ([turn.reward for turn in first.turns], first.is_success) == ([0.0, -1.0], False)
    assert ([turn.reward for turn in second.turns], second.is_success) == ([0.0, 1.0], True)
    for trajectory in (first, second):
        assert trajectory.stop_reason is StopReason.TERMINATED
        assert trajectory.final_observation == "heap 0"
        assert_exact(trajectory, engine.calls_of(trajectory))
    assert len(engine.requests) == 4
    assert len(set(engine.released)) == 2
    records = build_experiences([Group(task=TASK, trajectories=(first, second))])
    assert [float(record.raw_rewards.sum()) for record in records] == [-1.0, 1.0]


def test_siblings_sit_in_pairs_and_no_pair_sees_the_other() -> None:
    played = play(Players(["3", "3"], ["1"], ["1", "2"], ["3", "1"]), group_size=4)
    assert [[turn.observation for turn in player.turns] for player in played] == [
        ["heap 7", "heap 3"],
        ["heap 4"],
        ["heap 7", "heap 3"],
        ["heap 6", "heap 1"],
    ]
    assert [player.episode_return for player in played] == [1.0, -1.0, -1.0, 1.0]


def test_a_reply_that_is_no_move_costs_a_penalty_and_the_turn_stays() -> None:
    first, second = play(Players(["nine", "3", "3"], ["1"]))
    assert [(turn.is_valid, turn.penalty) for turn in first.turns] == [(False, -0.1), (True, 0.0), (True, 0.0)]
    assert (first.episode_return, second.episode_return, len(second.turns)) == (1.0, -1.0, 1)


def test_nobody_moves_for_the_other_player() -> None:
    first, second = play(Players(["3 || 1", "3"], ["1"]), actions_per_turn=2)
    assert [turn.actions for turn in first.turns] == [("3",), ("3",)]
    assert [turn.observation for turn in second.turns] == ["heap 4"]


def test_a_budget_of_one_player_ends_the_game_for_both_without_a_payoff() -> None:
    first, second = play(Players(["1", "1"], ["1", "1"]), max_turns=2)
    assert {first.stop_reason, second.stop_reason} == {StopReason.MAX_TURNS}
    assert (first.episode_return, second.episode_return, first.is_success) == (0.0, 0.0, False)


def test_an_engine_that_fails_costs_both_players_and_leaves_what_was_sampled() -> None:
    engine = Players(["3"], [None])
    first, second = play(engine)
    for trajectory in (first, second):
        assert trajectory.stop_reason is StopReason.ENGINE_ERROR
        assert "the engine refused" in trajectory.failure
        assert_exact(trajectory, engine.calls_of(trajectory))
    assert (len(first.turns), len(second.turns)) == (1, 0)


def test_both_players_of_a_game_that_failed_are_played_again() -> None:
    engine = Players(["3", "3", "3"], [None, "1"])
    first, second = play(engine, max_retries=1)
    assert (first.episode_return, second.episode_return) == (1.0, -1.0)


def test_a_game_that_breaks_costs_its_own_two_players() -> None:
    class Broken(Nim):
        def move(self, action: str) -> bool:
            raise OSError("the table fell over")

    for trajectory in play(Players(["3"], ["1"]), lambda _tag, _split: Broken()):
        assert trajectory.stop_reason is StopReason.ENV_ERROR
        assert "Broken.move() failed: OSError: the table fell over" in trajectory.failure


@pytest.mark.parametrize(
    ("method", "answer", "words"),
    [("whose_turn", 2, "whose_turn returned 2"), ("payoffs", (1.0,), "payoffs"), ("payoffs", ("x", 1.0), "payoffs")],
)
def test_a_game_that_answers_nonsense_is_named(method: str, answer: object, words: str) -> None:
    broken = type("Broken", (Nim,), {method: lambda _self: answer})
    first, _ = play(Players(["3", "3"], ["1"]), lambda _tag, _split: broken(smallest=7, largest=7))
    assert first.stop_reason is StopReason.ENV_ERROR
    assert words in first.failure


def test_one_seat_at_a_time_is_enough() -> None:
    """A limit of concurrent episodes must not let one player wait for ever for the other."""
    engine = Players(["3", "3"], ["1"], ["3", "3"], ["1"])
    played = play(engine, group_size=4, max_concurrent=1)
    assert [t.episode_return for t in played] == [1.0, -1.0, 1.0, -1.0]


def test_half_a_game_that_is_known_is_played_again_and_a_whole_one_is_not() -> None:
    first, second = play(Players(["3", "3"], ["1"]))
    engine = Players(["3", "3"], ["1"])
    assert play(engine, known={first.id: first, second.id: second}) == (first, second)
    assert engine.requests == []
    again = play(engine, known={first.id: first})
    assert len(engine.requests) == 3
    assert [t.episode_return for t in again] == [1.0, -1.0]


def test_a_group_that_cannot_be_paired_is_refused() -> None:
    with pytest.raises(ConfigError, match="group_size: 3 given; 2 siblings play together"):
        play(Players(), group_size=3)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("rollout.group_size=3", r"rollout\.group_size: 3 given; .*even number, such as 4"),
        ("credit.type=remax", r"credit\.type: 'remax' given; it measures against a greedy play"),
        ("rollout.isolation.type=process", r"rollout\.isolation\.type: 'process' given"),
        ("env.type=frozen_lake", r"env\.type: 'frozen_lake' given; .*has no deal, whose_turn"),
    ],
)
@pytest.mark.parametrize("workflow", ["self_play", "league"])
def test_settings_that_do_not_go_with_two_players_are_refused(choice: str, words: str, workflow: str) -> None:
    args = ["rollout.workflow_args.opponents=[here]"] if workflow == "league" else []
    chosen = [f"rollout.workflow={workflow}", *args, "rollout.group_size=4"]
    find_workflow(load_settings(RUN, chosen))
    with pytest.raises(ConfigError, match=words) as refused:
        find_workflow(load_settings(RUN, [*chosen, choice]))
    # The workflow that was chosen, and no other.
    assert f"rollout.workflow '{workflow}'" in str(refused.value)


def test_the_game_keeps_the_contract_and_its_other_player_is_random_by_seed() -> None:
    report = check_env("nim:Nim", num_episodes=4)
    assert report.ok, report.failures
    env = Nim(smallest=12, largest=12)

    def told(dynamics_seed: int) -> str:
        reset_env(env, seed=1, dynamics_seed=dynamics_seed)
        return step_env(env, "1").text

    assert told(5) == told(5)
    assert len({told(seed) for seed in range(20)}) == 3


def seen_by(env: Any, *moves: str) -> list[str]:
    """What each mover is told, move by move."""
    texts = []
    for move in moves:
        texts.append(env.tell(env.whose_turn()))
        assert env.move(move)
    return texts


class TestTextarena:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("textarena", reason="textarena is not installed")

    def test_both_players_of_a_game_are_episodes(self) -> None:
        engine = Players(["[0]", "[1]", "[2]"], ["[3]", "[4]"])
        first, second = play(engine, lambda _tag, _split: make_env("textarena:TicTacToe-v0"))
        assert (first.episode_return, second.episode_return) == (1.0, -1.0)
        assert (len(first.turns), len(second.turns)) == (3, 2)
        assert "You are Player 0" in first.turns[0].observation
        assert "You are Player 1" in second.turns[0].observation
        for trajectory in (first, second):
            assert_exact(trajectory, engine.calls_of(trajectory))

    def test_a_move_that_is_none_is_the_movers_fault_alone(self) -> None:
        played = play(Players(["[0]", "[0]", "[0]"], ["[3]"]), lambda _tag, _split: make_env("textarena:TicTacToe-v0"))
        assert [[turn.is_valid for turn in player.turns] for player in played] == [[True, False, False], [True]]
        assert [player.is_success for player in played] == [False, True]

    def test_a_deal_is_the_same_by_seed(self) -> None:
        hands = []
        for seed in (3, 3, *range(20, 30)):
            env: Any = make_env("textarena:KuhnPoker-v0")
            env.deal(seed, "train", 1)
            hands.append(seen_by(env, "[check]", "[check]"))
        assert hands[0] == hands[1]
        assert len({tuple(hand) for hand in hands}) > 1

    def test_chance_comes_from_the_seed_of_the_game(self) -> None:
        def rolls(luck: int) -> list[str]:
            env: Any = make_env("textarena:PigDice-v0")
            env.deal(3, "train", luck)
            return seen_by(env, "[roll]", "[roll]", "[roll]")

        assert rolls(1) == rolls(1)
        assert len({tuple(rolls(luck)) for luck in range(8)}) > 1

    def test_a_game_for_one_is_refused(self) -> None:
        first, second = play(Players(["[1]"], ["[1]"]), lambda _tag, _split: make_env("textarena:GuessTheNumber-v0"))
        assert "is a game for one; two policies need a game for two" in first.failure
        assert second.stop_reason is StopReason.ENV_ERROR


TRAIN = [
    *[choice for choice in SMALL if "max_turns" not in choice and "group_size" not in choice],
    "rollout.group_size=4",
    "rollout.max_turns=8",
    "report.trajectories_per_step=12",
    "context.window=single_turn",
    "context.instructions=none",
    "context.answer.type=plain",
    "context.max_response_tokens=1",
    "warm_start.type=oracle",
    "warm_start.episodes=40",
    "warm_start.steps=60",
]


def records_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Trajectory]:
    without_plots(monkeypatch)
    run = train(RUN, TRAIN, run_dir=folder)
    return [t for file in sorted((run.path / "trajectories").glob("step-*.jsonl")) for t in read_trajectories(file)]


@pytest.mark.slow
def test_a_run_trains_both_players_and_repeats_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (records_of(tmp_path / name, monkeypatch) for name in ("one", "two"))
    assert [t.turns for t in one] == [t.turns for t in two]
    trained = [t for t in one if t.task.split == "train"]
    pairs = list(zip(trained[::2], trained[1::2], strict=True))
    ended = [pair for pair in pairs if pair[0].stop_reason is StopReason.TERMINATED]
    assert ended
    for first, second in pairs:
        assert (first.id.sibling + 1, first.stop_reason) == (second.id.sibling, second.stop_reason)
        assert first.episode_return == -second.episode_return
    assert {first.episode_return for first, _ in ended} <= {1.0, -1.0}
