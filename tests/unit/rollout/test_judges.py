"""A judge's scores become rewards: on the last turn, all in one go, and failures stay where they are."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.unit.context.chat_families import template_of
from turnwise.config.schema import ContextSettings
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import RewardError
from turnwise.rollout.agent_proxy import AgentProxy
from turnwise.rollout.episode import Limits
from turnwise.rollout.scoring import FunctionScorer, RewardScoring
from turnwise.rollout.workflow import EnvironmentWorkflow, Workflow
from turnwise.types import (
    Completion,
    GenerateRequest,
    Group,
    Message,
    StopReason,
    Task,
    Trajectory,
    TrajectoryId,
)

from .worlds import BrokenStart, WordWorld, make_states

TEMPLATE = template_of("chatml")
TASKS = [Task(tag="words", seed=0), Task(tag="words", seed=2)]


class CountingJudge:
    """The score of a conversation is the number it is given in; it remembers every call."""

    def __init__(self, *scores: float | RewardError) -> None:
        self.scores = scores
        self.calls: list[list[list[Message]]] = []

    def score(self, conversations: Sequence[Sequence[Message]]) -> list[float | RewardError]:
        self.calls.append([list(conversation) for conversation in conversations])
        return list(self.scores[: len(conversations)])


def say(words: Sequence[str], engine: type[ScriptedEngine] = ScriptedEngine) -> ScriptedEngine:
    """Environment n of the two tasks says `words[n]` in every turn."""

    def reply(request: GenerateRequest) -> list[int]:
        seed, sibling = str(request.cache_key).split("/")[-2:]
        word = words[[t.seed for t in TASKS].index(int(seed)) * 2 + int(sibling)]
        return [*TEMPLATE.encode_text(f"<answer>{word}</answer>").tolist(), TEMPLATE.end_of_turn_id]

    return engine(reply, stop_ids=TEMPLATE.stop_ids)


def collect(judge: CountingJudge | FunctionScorer, words: Sequence[str] = ("win",) * 4, **more: Any) -> list[Group]:
    return asyncio.run(play(judge, words, **more))


async def play(
    judge: CountingJudge | FunctionScorer,
    words: Sequence[str] = ("win",) * 4,
    *,
    tags: Sequence[str] = ("words",),
    success_above: float = 0.0,
    world: type[WordWorld] = WordWorld,
    tasks: Sequence[Task] = TASKS,
    workflow: type[Workflow] = EnvironmentWorkflow,
    engine: type[ScriptedEngine] = ScriptedEngine,
    known: Mapping[TrajectoryId, Trajectory] = MappingProxyType({}),
    **more: Any,
) -> list[Group]:
    states = make_states(lambda *_: world(), groups=2, group_size=2, limits=Limits(max_turns=3))
    judging = RewardScoring(judge=judge, tags=frozenset(tags), success_above=success_above, **more)
    contexts = dict.fromkeys({task.tag for task in tasks}, ContextSettings())
    proxy = AgentProxy(workflow, states, contexts, say(words, engine), TEMPLATE, judging=judging)
    return await proxy.collect(tasks, rollout=0, known=known)


def trajectories(groups: Sequence[Group]) -> list:  # type: ignore[type-arg]
    return [trajectory for group in groups for trajectory in group.trajectories]


def test_all_episodes_are_scored_in_one_call_in_their_order() -> None:
    # "stay" ends last, so the order of ending is another one.
    judge = CountingJudge(1.0, 2.0, 3.0, 4.0)
    played = trajectories(collect(judge, ("stay", "win", "stay", "win")))
    assert len(judge.calls) == 1
    assert [conversation[0].content for conversation in judge.calls[0]] == ["seed 0 at 0"] * 2 + ["seed 2 at 0"] * 2
    assert [len(conversation) for conversation in judge.calls[0]] == [6, 2, 6, 2]
    assert [t.episode_return for t in played] == [1.0, 2.0, 3.0, 4.0]
    assert [str(t.id) for t in played] == [f"0/words/train/{seed}/{n}" for seed in (0, 2) for n in (0, 1)]


def test_the_score_is_the_reward_of_the_last_turn() -> None:
    plain = trajectories(collect(CountingJudge(), ("stay",) * 4, tags=["others"]))
    judged = trajectories(collect(CountingJudge(1.5, -0.5, 0.0, 2.0), ("stay",) * 4))
    assert [[turn.reward for turn in t.turns] for t in judged] == [[0, 0, s] for s in (1.5, -0.5, 0.0, 2.0)]
    for before, after in zip(plain, judged, strict=True):
        assert before.turns[:-1] == after.turns[:-1]
        assert (before.id, before.stop_reason, before.failure) == (after.id, after.stop_reason, after.failure)
        assert np.array_equal(before.segments[0].token_ids, after.segments[0].token_ids)


def test_the_judge_reads_what_was_said() -> None:
    judge = CountingJudge(*[0.0] * 4)
    collect(judge, ("stay",) * 4)
    assert judge.calls[0][2] == [
        message
        for turn in range(3)
        for message in (Message("user", f"seed 2 at {turn}"), Message("assistant", "<answer>stay</answer>"))
    ]


@pytest.mark.parametrize(("above", "expected"), [(0.0, [False, False, True, True]), (1.0, [False, False, False, True])])
def test_success_is_a_score_above_the_border(above: float, expected: list[bool]) -> None:
    # The world itself calls "win" a success and pays 1 for it; the judge's word replaces both.
    played = trajectories(collect(CountingJudge(-1.0, 0.0, 1.0, 2.0), success_above=above))
    assert [t.is_success for t in played] == expected
    assert [t.episode_return for t in played] == [-1.0, 0.0, 1.0, 2.0]


def test_only_the_named_environments_are_judged() -> None:
    judge = CountingJudge()
    played = trajectories(collect(judge, tags=["others"]))
    assert judge.calls == []
    assert [t.episode_return for t in played] == [1.0] * 4


def test_failed_episodes_are_not_scored() -> None:
    judge = CountingJudge(5.0, 6.0)
    played = trajectories(collect(judge, ("crash", "win", "win", "crash")))
    assert len(judge.calls[0]) == 2
    assert [t.stop_reason.is_error for t in played] == [True, False, False, True]
    assert [t.episode_return for t in played] == [0.0, 5.0, 6.0, 0.0]
    assert "the world broke" in played[0].failure
    judge = CountingJudge()
    nothing = collect(judge, world=BrokenStart, tasks=[Task(tag="words", seed=1), Task(tag="words", seed=3)])
    assert judge.calls == []
    assert all(t.turns == () for t in trajectories(nothing))


@pytest.mark.parametrize(
    ("score", "words"),
    [(math.nan, "nan; expected a finite"), (math.inf, "inf; expected a finite"), (RewardError("no idea"), "no idea")],
)
def test_what_cannot_be_scored_is_a_failure_of_its_own_episode(score: float | RewardError, words: str) -> None:
    played = trajectories(collect(CountingJudge(1.0, score, 3.0, 4.0)))
    assert [t.stop_reason for t in played] == [
        StopReason.TERMINATED,
        StopReason.ENV_ERROR,
        StopReason.TERMINATED,
        StopReason.TERMINATED,
    ]
    assert played[1].failure.startswith("reward.judge: ")
    assert words in played[1].failure
    assert not played[1].is_success
    assert [t.episode_return for t in (played[0], *played[2:])] == [1.0, 3.0, 4.0]


# --- beside rewards of others -----------------------------------------------------------------------------------------


WORDS = ("win", "stay", "lose", "win")
"""The world pays 1 for a win, which is a success, and nothing for the others."""


@pytest.mark.parametrize(
    ("beside_env", "returns"),
    [("add", [2.0, 1.5, 2.0, 3.0]), ("fill", [1.0, 0.5, 1.0, 1.0]), ("leave", [1.0, 0.0, 0.0, 1.0])],
)
def test_beside_rewards_of_the_environment(beside_env: str, returns: list[float]) -> None:
    judge = CountingJudge(*((2.0, 3.0, 4.0, 4.0) if beside_env == "add" else (1.0, 2.0)))
    played = trajectories(collect(judge, WORDS, tags=(), beside_env=beside_env, weight=0.5))
    assert [t.episode_return for t in played] == returns
    # Who pays says what a success is.
    assert [t.is_success for t in played] == [True, False, False, True]
    assert [t.turns[-1].judged is not None for t in played] == [
        {"add": True, "fill": t.turns[-1].actions != ("win",), "leave": False}[beside_env] for t in played
    ]


def test_the_part_of_the_judge_is_kept_apart() -> None:
    played = trajectories(collect(CountingJudge(1.0, 2.0, 3.0, 4.0), WORDS, tags=(), beside_env="add", weight=2.0))
    assert [t.turns[-1].judged for t in played] == [2.0, 4.0, 6.0, 8.0]
    assert [t.episode_return - t.turns[-1].judged for t in played] == [1.0, 0.0, 0.0, 1.0]


def test_what_a_workflow_pays_itself_is_never_replaced() -> None:
    played = trajectories(collect(CountingJudge(5.0, 6.0, 7.0, -8.0), WORDS, is_beside_workflow=True))
    assert [t.episode_return for t in played] == [6.0, 6.0, 7.0, -7.0]
    # Nor what it says about its goal.
    assert [t.is_success for t in played] == [True, False, False, True]
    played = trajectories(collect(CountingJudge(6.0, -7.0), WORDS, is_beside_workflow=True, beside_env="fill"))
    assert [t.episode_return for t in played] == [1.0, 6.0, -7.0, 1.0]
    assert [t.is_success for t in played] == [True, False, False, True]


class Silent(EnvironmentWorkflow):
    """Pays itself, and says nothing about its goal."""

    pays_itself = True

    def is_success(self, total_reward: float) -> None:
        return None


@pytest.mark.parametrize(
    ("tags", "scores", "expected"),
    [(["words"], (5.0, 0.5, 7.0, -8.0), [True, False, True, False]), ([], (), [None] * 4)],
)
def test_a_judge_says_what_a_success_is_where_no_environment_and_no_workflow_does(
    tags: list[str], scores: tuple[float, ...], expected: list[bool | None]
) -> None:
    judge = CountingJudge(*scores)
    given = {"success_above": 1.0, "is_beside_workflow": True, "workflow": Silent}
    assert [t.is_success for t in trajectories(collect(judge, WORDS, tags=tags, **given))] == expected


def test_an_episode_that_cannot_be_scored_says_no_more_than_before() -> None:
    given = {"is_beside_workflow": True, "workflow": Silent, "tags": (), "beside_env": "add"}
    played = trajectories(collect(CountingJudge(1.0, math.nan, 3.0, 4.0), **given))
    assert [t.stop_reason.is_error for t in played] == [False, True, False, False]
    assert [t.is_success for t in played] == [None] * 4


# --- a user's function -----------------------------------------------------------------------------------------------


def talk(*words: str) -> list[Message]:
    return [Message("user" if number % 2 == 0 else "assistant", word) for number, word in enumerate(words)]


def test_a_function_gets_prompt_and_response() -> None:
    judge = FunctionScorer(lambda prompt, response: 10 * len(prompt) + len(response))
    assert judge.score([talk("ab", "c"), talk("", ""), talk("a", "", "again", "reply")]) == [21.0, 0.0, 15.0]


def test_numbers_of_other_libraries_are_numbers() -> None:
    for value in (np.float32(0.5), np.int64(2), True, np.array(3.0)):
        (score,) = FunctionScorer(lambda _p, _r, value=value: value).score([talk("a", "b")])
        assert (type(score), score) == (float, float(value))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0.5", "returned '0.5'; expected a finite number"),
        (None, "returned None; expected a finite number"),
        ([1], "expected a finite number"),
    ],
)
def test_what_is_no_number_is_an_error(value: object, words: str) -> None:
    def rate(_prompt: str, _response: str) -> object:
        return value

    (score,) = FunctionScorer(rate).score([talk("a", "b")])  # type: ignore[arg-type]
    assert isinstance(score, RewardError)
    assert f"rate {words}" in str(score) or words in str(score)


def test_an_exception_hurts_its_own_conversation_only() -> None:
    def rate(prompt: str, _response: str) -> float:
        return 1 / len(prompt)

    first, bad, last = FunctionScorer(rate).score([talk("ab", "x"), talk("", "reply"), talk("abcd", "y")])
    assert (first, last) == (0.5, 0.25)
    assert isinstance(bad, RewardError)
    assert str(bad) == "rate('', 'reply') failed: ZeroDivisionError: division by zero"


def test_a_failing_function_reaches_the_trajectory() -> None:
    def rate(prompt: str, _response: str) -> float:
        return float("nan") if "seed 2" in prompt else 1.0

    played = trajectories(collect(FunctionScorer(rate)))
    assert [t.stop_reason.is_error for t in played] == [False, False, True, True]


def test_an_async_function_scores() -> None:
    async def rate(prompt: str, response: str) -> float:
        await asyncio.sleep(0)
        return float(len(prompt) + len(response))

    assert FunctionScorer(rate).score([talk("ab", "c"), talk("", "")]) == [3.0, 0.0]
    assert [t.episode_return for t in trajectories(collect(FunctionScorer(rate)))] == [
        float(len("seed 0 at 0") + len("<answer>win</answer>"))
    ] * 4


def test_all_calls_of_an_async_function_share_one_event_loop() -> None:
    loops = set()

    async def rate(_prompt: str, _response: str) -> float:
        loops.add(asyncio.get_running_loop())
        return 1.0

    FunctionScorer(rate).score([talk("a", "b")] * 3)
    collect(FunctionScorer(rate))
    assert len(loops) == 1


def test_an_exception_of_an_async_function_hurts_its_own_conversation_only() -> None:
    async def rate(prompt: str, _response: str) -> float:
        return 1 / len(prompt)

    first, bad = FunctionScorer(rate).score([talk("ab", "x"), talk("", "reply")])
    assert first == 0.5
    assert str(bad) == "rate('', 'reply') failed: ZeroDivisionError: division by zero"


def test_episodes_are_scored_at_the_same_time_and_keep_their_order() -> None:
    all_four = threading.Barrier(4, timeout=20)

    def rate(prompt: str, _response: str) -> float:
        # Breaks unless four calls run at the same time.
        all_four.wait()
        return 2.0 if "seed 2" in prompt else 1.0

    played = trajectories(collect(FunctionScorer(rate)))
    assert [t.failure for t in played] == [""] * 4
    assert [t.episode_return for t in played] == [1.0, 1.0, 2.0, 2.0]


def test_an_episode_is_scored_while_others_are_still_sampled() -> None:
    is_scored = threading.Event()

    def rate(_prompt: str, _response: str) -> float:
        is_scored.set()
        return 1.0

    class LateEngine(ScriptedEngine):
        """The second task is answered only after an episode of the first one has its score."""

        async def generate(self, request: GenerateRequest) -> Completion:
            if "/2/" in str(request.cache_key):
                assert await asyncio.to_thread(is_scored.wait, 20)
            return await super().generate(request)

    played = trajectories(collect(FunctionScorer(rate), engine=LateEngine))
    assert [t.failure for t in played] == [""] * 4


def test_episodes_known_from_an_earlier_attempt_are_scored_with_the_others() -> None:
    unscored = collect(CountingJudge(), tags=["others"])
    known = {t.id: t for t in unscored[0].trajectories}
    played = trajectories(collect(FunctionScorer(lambda _prompt, _response: 3.0), known=known))
    assert [t.episode_return for t in played] == [3.0] * 4


def test_the_event_loop_runs_on_while_a_function_scores() -> None:
    async def score_beside_another_task() -> list[Group]:
        is_free = asyncio.Event()
        threads = asyncio.get_running_loop()

        def rate(_prompt: str, _response: str) -> float:
            threads.call_soon_threadsafe(is_free.set)
            return float(asyncio.run_coroutine_threadsafe(is_free.wait(), threads).result(20))

        return await play(FunctionScorer(rate))

    assert [t.failure for t in trajectories(asyncio.run(score_beside_another_task()))] == [""] * 4
