"""The contract of a workflow: what is recorded is what the engine saw and sampled, and whatever fails is data."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.unit.rollout.worlds import WordWorld, make_proxy, make_states
from turnwise.config.component import WORKFLOWS
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import ConfigError, EngineError
from turnwise.experience.build import build_experiences
from turnwise.rollout.episode import Limits
from turnwise.types import Completion, GenerateRequest, Group, StopReason, Task, Trajectory

from .entries import names_of
from .setting import template

every_workflow = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "mcp_tools" else ()) for n in names_of("rollout")]
)
"""Alone, as in evaluation; where siblings meet in one world, tests/unit/rollout/test_self_play.py holds them to it."""
ARGS: dict[str, dict[str, Any]] = {
    "tool_calling": {"tools": ["tests.contracts.programs:add"]},
    "react": {"tools": ["tests.contracts.programs:add"]},
    "plan_and_act": {"replan_every": 2},
    "best_of_n": {"n": 2},
    "league": {"past_selves": 2},
    "summarized_memory": {"compact_above_tokens": 200},
    "agent": {"agent_cls": "turnwise.rollout.agents:EnvironmentAgent"},
    "openai_program": {"program": "tests.contracts.programs:converse"},
}
"""Of workflows that cannot do without; a new one is played with none until it says so here."""


def args_of(name: str) -> dict[str, Any]:
    if name != "mcp_tools":
        return ARGS.get(name, {})
    pytest.importorskip("mcp", reason="needs the extra mcp: pip install 'turnwise[mcp]'")
    from tests.mcp.house import shared_address  # noqa: PLC0415 - it needs the extra

    return {"servers": [shared_address()]}


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
SCRIPT = ("hm", CALL, "<answer>go</answer>", "<answer>lose</answer>", "well", "<answer>win</answer>")
"""Replies that mean nothing, that call a tool, that go on and that end an episode."""


def episode_of(request: GenerateRequest) -> str:
    return str(request.cache_key).partition(":")[2]


def spelled(text: str) -> list[int]:
    """Letter by letter: ids that no tokenizer would make of the text, so that re-tokenising would show."""
    return [*(int(i) for letter in text for i in template().encode_text(letter)), int(template().end_of_turn_id or 0)]


class EpisodeEngine(ScriptedEngine):
    """Says the script to every episode from its start; refuses one of them from its call number `fails_at` on."""

    def __init__(self, script: tuple[str, ...] = SCRIPT, *, fails_at: int | None = None, episode: str = "") -> None:
        super().__init__(lambda request: self._say(request), stop_ids=template().stop_ids)
        self._lines = script
        self._fails_at = fails_at
        self._episode = episode
        self.num_refused = 0

    def calls_of(self, episode: str) -> list[tuple[GenerateRequest, Completion]]:
        pairs = zip(self.requests, self.completions, strict=True)
        return [(request, completion) for request, completion in pairs if episode_of(request) == episode]

    def _say(self, request: GenerateRequest) -> list[int]:
        number = len(self.calls_of(episode_of(request)))
        if episode_of(request) == self._episode and self._fails_at is not None and number >= self._fails_at:
            self.num_refused += 1
            raise EngineError("the engine refused")
        return spelled(self._lines[number % len(self._lines)])


class Fragile(WordWorld):
    """Remembers that it broke."""

    num_broken = 0

    def step(self, action: str) -> tuple[Any, ...]:
        Fragile.num_broken += action == "crash"
        return super().step(action)


def play(name: str, engine: EpisodeEngine) -> list[Group]:
    """Two tasks with two siblings each, all at the same time."""
    target: Any = WORKFLOWS.get_target(name)
    args = args_of(name)
    target.check_args(args)
    states = make_states(lambda _tag, _split: Fragile(), limits=Limits(max_turns=4), invalid_penalty=-0.1)
    proxy = make_proxy(engine, template(), states, workflow=target, workflow_args=args)
    return asyncio.run(proxy.collect([Task(tag="words", seed=seed) for seed in (0, 1)], rollout=3))


def assert_exact(trajectory: Trajectory, calls: list[tuple[GenerateRequest, Completion]]) -> None:
    """Each turn is one call: before it stands its prompt, on it its tokens, and nothing else is trained."""
    assert len(trajectory.turns) == len(calls)
    for turn, (request, completion) in zip(trajectory.turns, calls, strict=True):
        segment = trajectory.segments[turn.segment_index]
        own = np.flatnonzero(segment.turn_ids == turn.index)
        assert segment.token_ids[: own[0]].tolist() == request.prompt_ids.tolist()
        assert own.tolist() == list(range(own[0], own[0] + len(completion.token_ids)))
        assert segment.token_ids[own].tolist() == completion.token_ids.tolist()
        assert segment.behavior_logprobs[own].tolist() == completion.behavior_logprobs.tolist()
        assert turn.policy_version == completion.policy_version
    num_trained = sum(segment.num_action_tokens for segment in trajectory.segments)
    assert num_trained == sum(len(completion.token_ids) for _, completion in calls)
    # Behind the last sampled token of a segment nothing stands: the engine has seen no more.
    assert all(segment.loss_mask[-1] for segment in trajectory.segments)


@every_workflow
def test_what_is_recorded_is_what_went_through_the_engine(name: str) -> None:
    engine = EpisodeEngine()
    groups = play(name, engine)
    assert [[t.id.sibling for t in group.trajectories] for group in groups] == [[0, 1], [0, 1]]
    for trajectory in (t for group in groups for t in group.trajectories):
        assert trajectory.failure == ""
        assert trajectory.turns
        assert_exact(trajectory, engine.calls_of(str(trajectory.id)))
    assert len(engine.requests) == sum(len(t.turns) for group in groups for t in group.trajectories)
    assert len(set(engine.released)) == 4


@every_workflow
def test_records_hold_the_rewards_of_the_whole_play(name: str) -> None:
    for group in play(name, EpisodeEngine()):
        experiences = build_experiences([group])
        for trajectory in group.trajectories:
            own = [e for e in experiences if e.id.trajectory == trajectory.id]
            assert sum(float(e.raw_rewards.sum()) for e in own) == pytest.approx(trajectory.episode_return)
            assert [e.is_last for e in own] == [False] * (len(own) - 1) + [True]


@every_workflow
@pytest.mark.parametrize("fails_at", [0, 1])
def test_an_engine_that_fails_costs_its_own_episode_and_leaves_what_was_sampled(name: str, fails_at: int) -> None:
    engine = EpisodeEngine(fails_at=fails_at, episode="3/words/train/1/0")
    for trajectory in (t for group in play(name, engine) for t in group.trajectories):
        assert_exact(trajectory, engine.calls_of(str(trajectory.id)))
        if str(trajectory.id) == "3/words/train/1/0" and engine.num_refused:
            assert trajectory.stop_reason is StopReason.ENGINE_ERROR
            assert "the engine refused" in trajectory.failure
            assert (len(trajectory.turns), bool(trajectory.is_success)) == (fails_at, False)
        else:
            assert not trajectory.stop_reason.is_error
    assert engine.num_refused or fails_at


@every_workflow
def test_a_world_that_breaks_costs_its_own_episode_and_leaves_what_was_sampled(name: str) -> None:
    before, engine = Fragile.num_broken, EpisodeEngine(("<answer>crash</answer>",))
    trajectories = [t for group in play(name, engine) for t in group.trajectories]
    for trajectory in trajectories:
        assert_exact(trajectory, engine.calls_of(str(trajectory.id)))
        assert trajectory.turns
    # A program may play in no world of ours.
    if Fragile.num_broken > before:
        assert {t.stop_reason for t in trajectories} == {StopReason.ENV_ERROR}
        assert all("the world broke" in t.failure and not t.is_success for t in trajectories)


@every_workflow
def test_arguments_that_mean_nothing_are_refused_where_the_workflow_says_which_do(name: str) -> None:
    target: Any = WORKFLOWS.get_target(name)
    if target.arg_names is None:
        pytest.skip("it takes any argument")
    with pytest.raises(ConfigError, match=r"rollout\.workflow_args\.no_such_thing"):
        target.check_args({**args_of(name), "no_such_thing": 1})
