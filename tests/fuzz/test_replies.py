"""What models and environments say: an answer, a failed step, and nothing else."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.config.component import CALL_PARSERS
from turnwise.config.schema import AnswerFormat
from turnwise.context.answer import parse_answer
from turnwise.envs.base import BaseEnv
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import EnvError, RewardError, TaskError
from turnwise.report.trajectories import _plain

from .damage import texts, values

_PIECES = ("<think>", "</think>", "<answer>", "</answer>", "||", "<", "Up", "\n", "<tool_call>", "</tool_call>",
           '{"name": "go", "arguments": {"x": 1}}', '{"name":', "[TOOL_CALLS]", "<|python_tag|>", "{", "}", "[", "]",
           '"', "\\ud800", "\ud800", "NaN", "9" * 5000)  # fmt: skip
replies = st.lists(st.sampled_from(_PIECES) | texts, max_size=12).map("".join)


@given(replies, st.sampled_from(["plain", "answer", "think_answer"]), st.booleans())
def test_any_reply_gives_an_answer(reply: str, kind: str, is_strict: bool) -> None:
    parsed = parse_answer(reply, AnswerFormat(type=kind, is_strict=is_strict))  # type: ignore[arg-type]
    assert all(isinstance(action, str) for action in parsed.actions)


@pytest.mark.parametrize("name", sorted(CALL_PARSERS))
@given(reply=replies)
def test_any_reply_is_read_for_tool_calls(name: str, reply: str) -> None:
    parser: Any = CALL_PARSERS.get_target(name)()
    said, calls = parser.read(reply)
    assert isinstance(said, str)
    assert isinstance(calls, tuple)


class Answering(BaseEnv):
    answer: Any = None

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        return self._give()

    def step(self, action: str) -> tuple[Any, ...]:
        return self._give()

    def _give(self) -> Any:
        if isinstance(self.answer, type) and issubclass(self.answer, BaseException):
            raise self.answer(self.answer)
        return self.answer


infos = st.dictionaries(
    st.sampled_from(["success", "action_is_valid", "action_is_effective", "truncated", "metrics", "n"]) | texts,
    values,
    max_size=4,
)
raised = st.sampled_from([ValueError, SystemExit, GeneratorExit, StopIteration, OSError, RecursionError, MemoryError])
answers = (
    values
    | raised
    | st.tuples(values, values, values, values)
    | st.tuples(texts, values, st.booleans(), infos)
    | st.tuples(texts, st.floats(), st.booleans(), st.booleans(), infos)
)


@given(answers)
def test_whatever_an_environment_returns_is_a_step_or_a_failure(answer: Any) -> None:
    env = Answering()
    env.answer = answer
    with suppress(EnvError, TaskError):
        assert reset_env(env, 0).encode() is not None
    with suppress(EnvError, RewardError):
        result = step_env(env, "go")
        assert result.text.encode() is not None
        json.dumps(_plain(result.info), allow_nan=False)
