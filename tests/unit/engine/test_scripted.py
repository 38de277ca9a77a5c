"""The test engine itself: replies, stops, cuts and what it records."""

from __future__ import annotations

import asyncio

import numpy as np

from turnwise.engine.scripted import ScriptedEngine
from turnwise.types import FinishReason, GenerateRequest, Sampling

END = 9


def ask(engine: ScriptedEngine, prompt: list[int], max_new_tokens: int = 8):
    request = GenerateRequest(
        prompt_ids=np.array(prompt, dtype=np.int32), sampling=Sampling(max_new_tokens=max_new_tokens), seed=0
    )
    return asyncio.run(engine.generate(request))


def test_reply_ends_behind_the_first_stop_token() -> None:
    completion = ask(ScriptedEngine(lambda _: [1, END, 2, END], stop_ids=frozenset({END})), [5])
    assert completion.token_ids.tolist() == [1, END]
    assert completion.finish_reason is FinishReason.STOP


def test_reply_is_cut_at_the_limit() -> None:
    engine = ScriptedEngine(lambda _: [1, 2, 3, END], stop_ids=frozenset({END}))
    cut = ask(engine, [5], max_new_tokens=3)
    assert (cut.token_ids.tolist(), cut.finish_reason) == ([1, 2, 3], FinishReason.LENGTH)
    whole = ask(engine, [5], max_new_tokens=4)
    assert (whole.token_ids.tolist(), whole.finish_reason) == ([1, 2, 3, END], FinishReason.STOP)


def test_script_sees_the_request_and_everything_is_recorded() -> None:
    engine = ScriptedEngine(lambda request: [int(request.prompt_ids[-1]) + 1, END], stop_ids=frozenset({END}))
    first, second = ask(engine, [5]), ask(engine, [5, 6])
    assert [c.token_ids.tolist() for c in (first, second)] == [[6, END], [7, END]]
    assert [r.prompt_ids.tolist() for r in engine.requests] == [[5], [5, 6]]
    assert engine.completions == [first, second]
    engine.release("a")
    assert engine.released == ["a"]


def test_logprobs_are_stable_and_negative_and_versions_follow_the_weights() -> None:
    engine = ScriptedEngine(lambda _: [1, 2, END], stop_ids=frozenset({END}), policy_version=3)
    before = ask(engine, [5])
    engine.load_weights({}, 4)
    after = ask(engine, [5])
    assert np.array_equal(before.behavior_logprobs, after.behavior_logprobs)
    assert (before.behavior_logprobs < 0).all()
    assert (before.policy_version, after.policy_version, engine.policy_version) == (3, 4, 4)
