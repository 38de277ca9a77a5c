"""Agents that own their world, models that call tools, and models that try again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.context.chat_families import tokenizer_of
from turnwise.config.schema import ContextSettings
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import WorkflowError
from turnwise.experience.build import build_experiences, merge_prefixes
from turnwise.rollout.agents import ActorRollout, AgentWorkflow, BaseAgent, SyncMultiTurnRollout
from turnwise.rollout.episode import Limits
from turnwise.rollout.model_handle import ChatMessage
from turnwise.rollout.prompt_workflows import ReflectAndRetryWorkflow
from turnwise.rollout.workflow import StepWiseEnvironmentWorkflow
from turnwise.types import StepResult, StopReason, Task

from .test_step_wise import TEMPLATE, play, play_one, rewards, scripted
from .worlds import make_proxy, make_states

HERE = "tests.unit.rollout.test_agents"


class Counter(BaseAgent):
    """Counts to three in its own words."""

    def reset(self) -> StepResult:
        self.count = 0
        return self._state()

    def get_llm_prompts(self, env_out: StepResult) -> Sequence[ChatMessage]:
        return [{"role": "user", "content": env_out.text}]

    def get_env_outputs(self, llm_response: str) -> StepResult:
        self.count += 1
        return self._state()

    def _state(self) -> StepResult:
        return StepResult(
            text=f"at {self.count}",
            reward=float(self.count),
            terminated=self.count == 3 and not self.task.workflow_args.get("has_clock"),
            truncated=self.count == 3,
            is_success=self.task.workflow_args.get("says", {}).get(str(self.count)),
            info={},
        )


class Broken(Counter):
    def get_env_outputs(self, llm_response: str) -> StepResult:
        return "done"  # type: ignore[return-value]


NOT_AN_AGENT = 3


def test_an_agent_is_reset_asked_and_rewarded_in_turns() -> None:
    engine = scripted(["a", "b", "c"])
    trajectory = play_one(AgentWorkflow, engine, agent_cls=f"{HERE}:Counter")
    assert [turn.observation for turn in trajectory.turns] == ["at 0", "at 1", "at 2"]
    assert rewards(trajectory) == [1.0, 2.0, 3.0]
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.is_success is None  # it earned 6, and said nothing about its goal


@pytest.mark.parametrize(("says", "expected"), [({"3": True}, True), ({"1": False}, False), ({"2": True}, True)])
def test_an_agent_has_reached_its_goal_where_it_said_so_last(says: dict[str, bool], expected: bool) -> None:
    trajectory = play_one(AgentWorkflow, scripted(["a", "b", "c"]), agent_cls=f"{HERE}:Counter", says=says)
    assert trajectory.is_success is expected


def test_an_agents_own_time_limit_truncates() -> None:
    trajectory = play_one(AgentWorkflow, scripted(["a"] * 3), agent_cls=f"{HERE}:Counter", has_clock=True)
    assert trajectory.stop_reason is StopReason.ENV_TRUNCATED


@pytest.mark.parametrize("tell_invalid", [False, True])
def test_the_built_in_agent_plays_like_the_built_in_workflow(tell_invalid: bool) -> None:
    words = ["stay", "nonsense", "go", "win"]
    options: dict[str, Any] = {"context": ContextSettings(tell_invalid=tell_invalid)}
    (by_agent,) = play(AgentWorkflow, scripted(words), agent_cls="turnwise.rollout.agents:EnvironmentAgent", **options)
    (by_workflow,) = play(StepWiseEnvironmentWorkflow, scripted(words), **options)
    agent, workflow = by_agent.trajectories[0], by_workflow.trajectories[0]
    assert [s.token_ids.tolist() for s in agent.segments] == [s.token_ids.tolist() for s in workflow.segments]
    assert [(t.reward, t.penalty) for t in agent.turns] == [(t.reward, t.penalty) for t in workflow.turns]
    assert agent.is_success
    assert agent.turns[2].observation.startswith("'nonsense' is no action here.") == tell_invalid
    assert len(merge_prefixes(build_experiences([by_agent]))) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "expected 'package.module:Class'"),
        ("Counter", "expected 'package.module:Class'"),
        (f"{HERE}:Missing", "has no 'Missing'"),
        (f"{HERE}:NOT_AN_AGENT", "is no class of agents"),
    ],
)
def test_a_wrong_agent_class_is_named(given: object, message: str) -> None:
    trajectory = play_one(AgentWorkflow, agent_cls=given)
    assert trajectory.stop_reason is StopReason.WORKFLOW_ERROR
    assert message in trajectory.failure


def test_an_agent_that_answers_in_the_wrong_type_fails_alone() -> None:
    trajectory = play_one(AgentWorkflow, scripted(["a"]), agent_cls=f"{HERE}:Broken")
    assert "get_env_outputs returned str; expected a StepResult" in trajectory.failure


def make_rollout(engine: ScriptedEngine) -> SyncMultiTurnRollout:
    states = make_states(group_size=2, limits=Limits(max_turns=5))
    args = {"agent_cls": f"{HERE}:Counter"}
    proxy = make_proxy(engine, TEMPLATE, states, workflow=AgentWorkflow, workflow_args=args)
    seeds = iter(range(100))
    next_tasks = lambda: [Task(tag="words", seed=next(seeds)) for _ in range(2)]  # noqa: E731
    return SyncMultiTurnRollout(ActorRollout(proxy=proxy, next_tasks=next_tasks, build=build_experiences))


def test_a_batch_of_agents_is_reset_played_and_made_into_records() -> None:
    rollout = make_rollout(scripted(["a", "b", "c"]))
    with pytest.raises(WorkflowError, match="call rollout"):
        rollout.build_update_batch()
    rollout.reset()
    groups = rollout.rollout()
    assert [len(group.trajectories) for group in groups] == [2, 2]
    assert len(rollout.build_update_batch()) == 2 * 2 * 3
    rollout.reset()
    assert {group.task.seed for group in rollout.rollout()} == {2, 3}


def test_a_batch_of_agents_can_be_played_under_a_running_loop() -> None:
    async def inside() -> None:
        assert len(make_rollout(scripted(["a", "b", "c"])).rollout()) == 2

    asyncio.run(inside())


# --- trying again -----------------------------------------------------------------------------------------------------


def raw(*replies: str) -> ScriptedEngine:
    left = iter(replies)
    return ScriptedEngine(
        lambda _: [*TEMPLATE.encode_text(next(left)).tolist(), TEMPLATE.end_of_turn_id], stop_ids=TEMPLATE.stop_ids
    )


def prompt_text(engine: ScriptedEngine, number: int) -> str:
    return tokenizer_of("chatml").decode(engine.requests[number].prompt_ids)


def test_after_a_failure_the_model_says_what_it_will_do_and_plays_again() -> None:
    engine = raw("<answer>go</answer>", "<answer>lose</answer>", "I will win.", "<answer>win</answer>")
    trajectory = play_one(ReflectAndRetryWorkflow, engine)
    assert [turn.step for turn in trajectory.turns] == [0, 1, 2, 3]
    assert rewards(trajectory) == [0.0, 0.0, 0.0, 1.0]
    assert "what you will do differently" in trajectory.turns[2].observation
    assert "Earlier you failed and said: I will win." in prompt_text(engine, 3)
    assert trajectory.is_success


def test_a_success_needs_no_second_attempt_and_the_last_attempt_ends_the_run() -> None:
    assert len(play_one(ReflectAndRetryWorkflow, raw("<answer>win</answer>")).turns) == 1
    lost = play_one(ReflectAndRetryWorkflow, raw(*["<answer>lose</answer>"] * 5), max_attempts=3)
    assert len(lost.turns) == 5
    assert not lost.is_success
