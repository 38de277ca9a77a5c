"""Programs that use the real openai client, played over an engine: tokens are exact, episodes apart, failures data."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openai", reason="the openai package is not installed; it is part of the dev extra")

from tests.unit.rollout.worlds import make_proxy, make_states
from turnwise.config.component import WORKFLOWS
from turnwise.errors import ConfigError, EngineError
from turnwise.experience.build import build_experiences, merge_prefixes
from turnwise.rollout.episode import Limits, RolloutLimits
from turnwise.serve import openai_program
from turnwise.serve.openai_program import OpenAiProgramWorkflow
from turnwise.types import Completion, GenerateRequest, Group, Sampling, StopReason, Task, Trajectory

from . import programs
from .episodes import CONTEXT, TEMPLATE, EchoEngine


def play(
    program: str, engine: EchoEngine | None = None, *, tasks: int = 1, group_size: int = 1, **limits: Any
) -> list[Group]:
    proxy = make_proxy(
        engine or EchoEngine(),
        TEMPLATE,
        make_states(group_size=group_size, limits=Limits(max_turns=5)),
        workflow=OpenAiProgramWorkflow,
        context=CONTEXT,
        sampling=Sampling(temperature=0.7),
        workflow_args={"program": f"tests.unit.serve.programs:{program}"},
        limits=RolloutLimits(**limits),
    )
    groups = asyncio.run(proxy.collect([Task(tag="words", seed=n) for n in range(tasks)], rollout=0))
    assert openai_program._HOSTS == {}, "the endpoint outlived its programs"
    return groups


def play_one(program: str, engine: EchoEngine | None = None, **limits: Any) -> Trajectory:
    (group,) = play(program, engine, **limits)
    return group.trajectories[0]


def sampled_tokens(trajectory: Trajectory) -> list[tuple[int, ...]]:
    return [tuple(segment.token_ids[segment.loss_mask].tolist()) for segment in trajectory.segments]


def test_it_is_registered() -> None:
    assert WORKFLOWS.get_target("openai_program") is OpenAiProgramWorkflow


def episode_of(request: GenerateRequest) -> str:
    return str(request.cache_key).partition(":")[2]


@pytest.mark.parametrize("program", ["play_plain", "play_async"])
def test_what_the_engine_sampled_is_what_is_recorded_and_episodes_do_not_mix(program: str) -> None:
    # Nobody gets an answer before all episodes have asked: they share the engine.
    engine = EchoEngine(at_once=8)
    groups = play(program, engine, tasks=4, group_size=2)
    sampled = {episode_of(r): [] for r in engine.requests}
    for request, completion in zip(engine.requests, engine.completions, strict=True):
        sampled[episode_of(request)].append((request, completion))
    for group in groups:
        for trajectory in group.trajectories:
            assert trajectory.stop_reason is StopReason.TERMINATED
            asked = sampled[str(trajectory.id)]
            assert len(trajectory.turns) == len(asked) == programs.TURNS
            for turn, segment, (request, completion) in zip(trajectory.turns, trajectory.segments, asked, strict=True):
                mask = segment.loss_mask
                np.testing.assert_array_equal(segment.token_ids[~mask], request.prompt_ids)
                np.testing.assert_array_equal(segment.token_ids[mask], completion.token_ids)
                np.testing.assert_array_equal(segment.behavior_logprobs[mask], completion.behavior_logprobs)
                assert turn.observation == f"task {group.task.seed} turn {turn.index}"
                assert turn.step == turn.index


def test_a_conversation_of_one_program_becomes_one_training_row() -> None:
    experiences = build_experiences(play("play_plain"))
    (row,) = merge_prefixes(experiences)
    assert len(experiences) == programs.TURNS
    assert row.segment.num_action_tokens == sum(e.segment.num_action_tokens for e in experiences)


def test_one_reward_is_for_the_end_and_a_list_for_every_call() -> None:
    last = play("play_plain", tasks=3)[2].trajectories[0]
    assert [turn.reward for turn in last.turns] == [0.0, 0.0, 2.0]
    assert [turn.reward for turn in play_one("play_async").turns] == [0.0, 1.0, 2.0]


def test_a_program_says_whether_it_reached_its_goal() -> None:
    trajectory = play_one("play_unsuccessful")
    assert (trajectory.episode_return, trajectory.is_success) == (0.01, False)


def test_calls_and_agents_are_rewarded_on_the_way_and_at_the_end() -> None:
    trajectory = play_one("play_two_agents")
    assert trajectory.failure == ""
    assert [turn.reward for turn in trajectory.turns] == [0.5, 0.25, 1.0, -1.0]
    assert trajectory.is_success is True


def test_what_a_program_earned_does_not_say_that_it_reached_its_goal() -> None:
    assert [t.is_success for g in play("play_plain", tasks=3) for t in g.trajectories] == [None] * 3
    assert play_one("play_endless").is_success is None  # a budget ended it before it could say


def test_the_run_says_at_which_temperature_its_programs_play() -> None:
    engine = EchoEngine()
    play("play_plain", engine)
    assert {request.sampling.temperature for request in engine.requests} == {0.7}


def test_the_same_seed_gives_the_same_tokens_whoever_plays_beside() -> None:
    together = play("play_plain", tasks=4)
    one_by_one = play("play_plain", tasks=4, max_concurrent=1)
    for a, b in zip(together, one_by_one, strict=True):
        assert sampled_tokens(a.trajectories[0]) == sampled_tokens(b.trajectories[0])


def test_a_program_without_an_end_is_cut_by_max_turns() -> None:
    trajectory = play_one("play_endless")
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert len(trajectory.turns) == 5
    assert len(build_experiences([Group(task=trajectory.task, trajectories=(trajectory,))])) == 5


def test_a_full_context_ends_an_episode_unless_the_program_goes_on() -> None:
    trajectory = play_one("play_too_much")
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.CONTEXT_OVERFLOW, 1)
    careful = play_one("play_careful")
    assert (careful.stop_reason, careful.episode_return) == (StopReason.TERMINATED, 2.0)


class Broken(EchoEngine):
    async def generate(self, request: GenerateRequest) -> Completion:
        raise EngineError("out of memory")


def test_a_broken_engine_is_told_as_such_and_not_as_the_programs_fault() -> None:
    trajectory = play_one("play_plain", Broken())
    assert trajectory.stop_reason is StopReason.ENGINE_ERROR
    assert trajectory.failure == "out of memory"


def test_a_reply_that_the_program_never_got_is_not_learnt_from() -> None:
    # The first request is answered together with the second, and by then its client has gone.
    trajectory = play_one("play_impatient", EchoEngine(at_once=2))
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert [turn.observation for turn in trajectory.turns] == ["again"]


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("play_wrong", "ZeroDivisionError: a bug of its own"),
        ("play_for_nothing", "reward None"),
        # A budget that it was refused excuses what it raises, and not what it returns.
        ("play_beyond_the_end", "reward 'much'"),
    ],
)
def test_a_program_that_fails_is_data(program: str, why: str) -> None:
    trajectory = play_one(program)
    assert trajectory.stop_reason is StopReason.WORKFLOW_ERROR
    assert why in trajectory.failure


def test_a_program_that_takes_too_long_is_ended_and_not_heard_any_more() -> None:
    # Its first request waits for a second, which never comes.
    trajectory = play_one("play_plain", EchoEngine(at_once=2), timeout_s=0.2)
    assert trajectory.stop_reason is StopReason.TIMEOUT
    assert trajectory.turns == ()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (None, "None given; expected 'package.module:function'"),
        ("play", "'play' given; expected 'package.module:function'"),
        ("tests.unit.serve.programs:play_nothing", "has no 'play_nothing'"),
        ("tests.unit.serve.no_programs:play", "cannot be imported"),
        ("tests.unit.serve.programs:NOT_A_FUNCTION", "cannot be called"),
        ("tests.unit.serve.programs:play_other_words", "base_url"),
    ],
)
def test_a_program_that_cannot_be_called_is_refused_before_the_run(program: str | None, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        OpenAiProgramWorkflow.check_args({} if program is None else {"program": program})
    assert "rollout.workflow_args.program" in str(refused.value)
