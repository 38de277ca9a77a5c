"""Oracles play through the same context as the policy."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.unit.context.chat_families import template_of, tokenizer_of
from turnwise.config.schema import AnswerFormat, ContextSettings
from turnwise.context.answer import render_answer
from turnwise.context.recorder import completion_from_text
from turnwise.envs.frozen_lake import FrozenLake
from turnwise.errors import EnvError
from turnwise.rollout.env_manager import EnvConfigs, EnvStateManager
from turnwise.rollout.episode import Limits
from turnwise.rollout.scripted_policies import DemonstrationWorkflow, NullEngine
from turnwise.types import FinishReason, StopReason, Task, Trajectory

from .worlds import WordWorld, make_proxy, make_states

TASKS = [Task(tag="lake", seed=seed) for seed in range(4)]


def play(family: str, settings: ContextSettings, *, group_size: int = 1, max_turns: int = 12) -> list[Trajectory]:
    states = make_states(
        lambda *_: FrozenLake(size=4, hole_rate=0.2),
        group_size=group_size,
        limits=Limits(max_turns=max_turns),
        env_configs=EnvConfigs(tags=("lake",), n_groups=(2,)),
    )
    return demonstrate(states, family, settings)


def demonstrate(states: EnvStateManager, family: str, settings: ContextSettings) -> list[Trajectory]:
    proxy = make_proxy(NullEngine(), template_of(family), states, workflow=DemonstrationWorkflow, context=settings)
    groups = asyncio.run(proxy.collect(TASKS, rollout=0))
    return [trajectory for group in groups for trajectory in group.trajectories]


@pytest.mark.parametrize("family", ["chatml", "headers", "drops_thinking"])
@pytest.mark.parametrize("window", ["full", "single_turn"])
@pytest.mark.parametrize(
    "answer",
    [
        AnswerFormat(),
        AnswerFormat(type="plain"),
        AnswerFormat(type="think_answer"),
        AnswerFormat(forced_prefix="<answer>"),
    ],
    ids=lambda a: f"{a.type}:{a.forced_prefix}",
)
def test_demonstrations_succeed_and_say_the_canonical_answers(family: str, window: str, answer: AnswerFormat) -> None:
    settings = ContextSettings(window=window, answer=answer)  # type: ignore[arg-type]
    template, tokenizer = template_of(family), tokenizer_of(family)
    for trajectory in play(family, settings):
        assert trajectory.is_success
        assert trajectory.stop_reason is StopReason.TERMINATED
        for turn in trajectory.turns:
            segment = trajectory.segments[turn.segment_index]
            said = segment.token_ids[segment.turn_ids == turn.index]
            expected = render_answer(turn.actions, answer)
            assert len(turn.actions) == 1
            assert turn.response_text == expected
            assert tokenizer.decode(said[:-1]) == expected.removeprefix(answer.forced_prefix)
            assert said[-1] == template.end_of_turn_id
            assert turn.penalty == 0
        trained = sum(s.num_action_tokens for s in trajectory.segments)
        alone = [render_answer(t.actions, answer).removeprefix(answer.forced_prefix) for t in trajectory.turns]
        assert trained == sum(len(template.encode_text(text)) + 1 for text in alone)


def test_siblings_are_demonstrated_too() -> None:
    trajectories = play("chatml", ContextSettings(), group_size=3)
    assert [(t.task.seed, t.id.sibling) for t in trajectories] == [(s, n) for s in range(4) for n in range(3)]


def test_a_context_that_is_too_short_truncates() -> None:
    whole = play("chatml", ContextSettings())
    limit = len(max((t.segments[0] for t in whole), key=len)) - 1
    cut = play("chatml", ContextSettings(max_tokens=limit, max_response_tokens=10))
    assert StopReason.CONTEXT_OVERFLOW in {t.stop_reason for t in cut}
    for before, after in zip(whole, cut, strict=True):
        assert len(after.turns) == len(before.turns) - (after.stop_reason is StopReason.CONTEXT_OVERFLOW)


def test_a_completion_is_closed_and_certain() -> None:
    template = template_of("chatml")
    completion = completion_from_text("Right", template)
    assert completion.token_ids.tolist() == [*template.encode_text("Right").tolist(), template.end_of_turn_id]
    assert completion.finish_reason is FinishReason.STOP
    assert not completion.behavior_logprobs.any()
    assert completion.token_ids.dtype == np.int32


def test_a_world_without_an_oracle_says_so() -> None:
    class NoOracle(WordWorld):
        def oracle(self) -> str:
            raise EnvError("no oracle here")

    configs = EnvConfigs(tags=("lake",), n_groups=(2,))
    trajectories = demonstrate(make_states(lambda *_: NoOracle(), env_configs=configs), "chatml", ContextSettings())
    assert {t.stop_reason for t in trajectories} == {StopReason.ENV_ERROR}
    assert all("no oracle here" in t.failure for t in trajectories)
