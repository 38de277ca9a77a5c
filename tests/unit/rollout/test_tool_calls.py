"""Models that call tools before they answer: calls are run, results come back, and every token is exact."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from turnwise.config.schema import ContextSettings, TinySettings
from turnwise.context.template import HFChatTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import ConfigError
from turnwise.models.tiny import tiny_model_folder
from turnwise.rollout.episode import Limits
from turnwise.rollout.tool_calling import Tool, Toolbox, ToolCallingWorkflow
from turnwise.types import StopReason, Task, ToolCall, Trajectory

from .worlds import make_proxy, make_states

HERE = "tests.unit.rollout.test_tool_calls"
CONTEXT = ContextSettings(max_response_tokens=300, max_tokens=4000)


def add(a: int, b: int = 1) -> int:
    """The sum of two numbers."""
    return a + b


def explode() -> None:
    raise RuntimeError("boom")


NOT_A_FUNCTION = 3
TOOLS = [f"{HERE}:add", f"{HERE}:explode"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> HFChatTemplate:
    sizes = TinySettings(hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8)
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny"), settings=sizes, seed=0, sample_texts=["a"])
    return HFChatTemplate(load_tokenizer(str(folder)))


def play(template: HFChatTemplate, *replies: str, **args: Any) -> tuple[Trajectory, ScriptedEngine]:
    left = iter(replies)

    def reply(_: object) -> list[int]:
        return [*template.encode_text(next(left)).tolist(), template.end_of_turn_id]  # type: ignore[list-item]

    engine = ScriptedEngine(reply, stop_ids=template.stop_ids)
    states = make_states(group_size=1, limits=Limits(max_turns=args.pop("max_turns", 10)))
    args = {"tools": TOOLS, **args}
    proxy = make_proxy(engine, template, states, workflow=ToolCallingWorkflow, context=CONTEXT, workflow_args=args)
    (group,) = asyncio.run(proxy.collect([Task(tag="words", seed=0)], rollout=0))
    return group.trajectories[0], engine


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (call("add", '{"a": 2, "b": 3}'), "<tool_response>5</tool_response>"),
        (call("add", '{"a": 2}'), "<tool_response>3</tool_response>"),
        (call("explode", "{}"), "RuntimeError: boom"),
        (call("os.system", '{"command": "ls"}'), "no such tool. Tools: add, explode"),
        (call("add", '{"b": 2}'), "error: a: Field required"),
        (call("add", '{"a": "x"}'), "error: a: Input should be a valid integer"),
        (call("add", '{"a": 1, "c": 2}'), "error: c: Extra inputs are not permitted"),
    ],
)
def test_a_tool_call_is_answered_and_the_answer_after_it_is_played(
    template: HFChatTemplate, said: str, answer: str
) -> None:
    trajectory, _ = play(template, said, "<answer>win</answer>")
    assert [turn.step for turn in trajectory.turns] == [0, 0]
    assert answer in template.decode_reply(trajectory.segments[1].token_ids)
    assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0]
    assert trajectory.is_success


def test_parallel_calls_are_answered_in_order_and_every_token_is_exact(template: HFChatTemplate) -> None:
    said = call("add", '{"a": 2, "b": 3}') + call("add", '{"a": 10, "b": 20}')
    trajectory, engine = play(template, said, "<answer>go</answer>", said, "<answer>win</answer>")
    whole = template.decode_reply(trajectory.segments[-1].token_ids)
    assert whole.index("<tool_response>5<") < whole.index("<tool_response>30<")
    for segment, request, completion in zip(trajectory.segments, engine.requests, engine.completions, strict=True):
        np.testing.assert_array_equal(segment.token_ids[~segment.loss_mask], request.prompt_ids)
        np.testing.assert_array_equal(segment.token_ids[segment.loss_mask], completion.token_ids)
    first, second = engine.requests[:2]
    seen = np.concatenate([first.prompt_ids, engine.completions[0].token_ids])
    np.testing.assert_array_equal(second.prompt_ids[: len(seen)], seen)


def test_the_model_reads_what_tools_there_are(template: HFChatTemplate) -> None:
    _, engine = play(template, "<answer>win</answer>")
    prompt = template.decode_reply(engine.requests[0].prompt_ids)
    assert '"name": "add"' in prompt
    assert "The sum of two numbers." in prompt
    assert '"required": ["a"]' in prompt


def test_a_model_that_only_calls_tools_runs_out_of_calls(template: HFChatTemplate) -> None:
    trajectory, _ = play(template, *[call("add", '{"a": 1}')] * 6, max_tool_calls=2, max_turns=2)
    assert [turn.step for turn in trajectory.turns] == [0, 0, 0, 1, 1, 1]
    assert trajectory.stop_reason is StopReason.MAX_TURNS


@pytest.mark.parametrize("tools", [None, [], [f"{HERE}:NOT_A_FUNCTION"], [f"{HERE}:nothing"]])
def test_tools_that_are_none_are_refused(tools: object) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.workflow_args\.tools"):
        ToolCallingWorkflow.check_args({"tools": tools})


def test_a_long_result_is_cut_before_it_fills_the_context() -> None:
    def chatter() -> str:
        return "x" * 10_000

    assert len(Toolbox([Tool.of(chatter)]).answer(ToolCall("chatter", "{}")).text) == 2000
