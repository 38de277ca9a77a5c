"""An endpoint as an engine: what it is asked, what becomes of its replies, and what is told when it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openai", reason="the openai package is not installed; it is part of the extras openai and dev")

from tests.clock import HANG_S, LoopClock
from tests.endpoints import AT_ONCE, Answer, FakeEndpoint, refusal, said, serving
from tests.unit.context.chat_families import template_of
from tests.unit.context.tool_families import tool_template
from turnwise.config import settings as packages
from turnwise.config.load import load_settings
from turnwise.context.recorder import Recorder
from turnwise.engine import OpenAiEngineParams
from turnwise.engine.openai import OpenAiEngine
from turnwise.errors import ConfigError, ContextOverflow, EngineError, TurnwiseError
from turnwise.types import (
    NO_POLICY,
    Asked,
    Completion,
    FinishReason,
    GenerateRequest,
    ImagePart,
    Message,
    Sampling,
    TextPart,
    ToolCall,
    ToolSchema,
)

TEMPLATE = template_of("chatml")
HELLO = (Message("system", "be brief"), Message("user", "go Right"))


@pytest.fixture
def endpoints() -> Iterator[Any]:
    """Makes endpoints that are there until the test ends."""
    with ExitStack() as stack:

        def make(*answers: Answer, **about: Any) -> FakeEndpoint:
            """Gives the answers one after the other, and the last one for ever."""
            waiting = list(answers)
            endpoint = FakeEndpoint(lambda _: waiting.pop(0) if waiting[1:] else waiting[0], **about)
            return stack.enter_context(serving(endpoint))

        yield make


def open_engine(endpoint: FakeEndpoint, **settings: Any) -> OpenAiEngine:
    return OpenAiEngine(OpenAiEngineParams(**{"url": endpoint.url, "timeout_s": HANG_S, **settings}), TEMPLATE)


def request(*messages: Message, prefix: str = "", tools: tuple[ToolSchema, ...] = (), **how: Any) -> GenerateRequest:
    asked = Asked(messages=messages or HELLO, prefix=prefix, tools=tools)
    sampling = Sampling(**{"temperature": 0.5, "max_new_tokens": 7, **how})
    return GenerateRequest(prompt_ids=np.arange(3, dtype=np.int32), sampling=sampling, seed=2**40 + 5, asked=asked)


def ask(engine: OpenAiEngine, given: GenerateRequest | None = None) -> Completion:
    return asyncio.run(engine.generate(given or request()))


# --- asking ----------------------------------------------------------------------------------------------------------


def test_the_conversation_is_sent_as_it_was_said(endpoints: Any) -> None:
    endpoint = endpoints(said("Left"))
    ask(open_engine(endpoint))
    assert endpoint.chats == [
        {
            "model": "m",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go Right"}],
            "temperature": 0.5,
            "max_tokens": 7,
            "seed": 5,
        }
    ]


def test_images_calls_and_results_are_written_as_the_api_writes_them(endpoints: Any) -> None:
    endpoint = endpoints(said("ok"))
    said_before = (
        Message("user", (TextPart("look"), ImagePart("data:x"))),
        Message("assistant", "", (ToolCall("see", '{"far": true}', "c1"),)),
        Message("tool", "a lake", tool_call_id="c1", name="see"),
    )
    ask(open_engine(endpoint), request(*said_before, top_p=0.9))
    (chat,) = endpoint.chats
    assert chat["top_p"] == 0.9
    assert chat["messages"] == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "see", "arguments": '{"far": true}'}}],
        },
        {"role": "tool", "content": "a lake", "tool_call_id": "c1"},
    ]


def test_the_key_comes_from_the_named_variable_and_goes_nowhere_else(
    endpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    endpoint = endpoints(said("ok"))
    ask(open_engine(endpoint, api_key_env="MY_KEY"))
    assert set(endpoint.keys) == {"Bearer s3cret"}
    keys = {"engine.type": "openai", "engine.url": endpoint.url, "engine.api_key_env": "MY_KEY"}
    assert "s3cret" not in load_settings("frozenlake", keys).model_dump_json()


def test_a_parameter_that_an_endpoint_calls_otherwise_is_renamed_once_and_for_all(endpoints: Any) -> None:
    def answer(chat: dict[str, Any]) -> Answer:
        if "max_tokens" in chat:
            return refusal(400, "use the other one", param="max_tokens", code="unsupported_parameter")
        # As servers say it that check bodies by a schema.
        return refusal(422, "extra fields not permitted: body.seed") if "seed" in chat else said("ok")

    endpoint = endpoints(said(""))
    endpoint.answer = answer
    engine = open_engine(endpoint)
    assert [ask(engine).text, ask(engine).text] == ["ok", "ok"]
    assert len(endpoint.chats) == 4
    assert endpoint.chats[-1]["max_completion_tokens"] == 7


def test_no_more_requests_are_under_way_than_allowed(endpoints: Any) -> None:
    endpoint, lock = endpoints(said("ok")), threading.Lock()
    running, most, two_are_there = [], [], threading.Event()

    def answer(chat: dict[str, Any]) -> Answer:
        with lock:
            running.append(chat)
            most.append(len(running))
            if len(running) == 2:
                two_are_there.set()
        two_are_there.wait(HANG_S)
        with lock:
            running.pop()
        return said("ok")

    endpoint.answer = answer
    engine = open_engine(endpoint, max_concurrent=2)

    async def together() -> None:
        await asyncio.gather(*(engine.generate(request()) for _ in range(7)))

    asyncio.run(together())
    assert max(most) == 2
    assert engine.state() == {"running": 0.0, "waiting": 0.0}


def test_it_outlives_an_event_loop(endpoints: Any) -> None:
    engine = open_engine(endpoints(said("ok")))
    assert [ask(engine).text for _ in range(2)] == ["ok", "ok"]
    asyncio.run(engine.close())


# --- replies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish_reason", "ends"), [("stop", True), ("length", False), ("content_filter", True), (None, True)]
)
def test_a_reply_keeps_its_text_and_says_that_no_policy_of_ours_sampled_it(
    endpoints: Any, finish_reason: str, ends: bool
) -> None:
    completion = ask(open_engine(endpoints(said("go Right \N{SNOWMAN}", finish_reason))))
    assert completion.text == "go Right \N{SNOWMAN}"
    assert TEMPLATE.decode_reply(completion.token_ids) == completion.text
    assert completion.policy_version == NO_POLICY
    assert completion.finish_reason is (FinishReason.STOP if ends else FinishReason.LENGTH)
    assert (completion.token_ids[-1] == TEMPLATE.end_of_turn_id) == ends


@pytest.mark.parametrize(
    ("reply", "spelled"),
    [("<answer>Up</answer>", "Up</answer>"), ("I think. <answer>Up</answer>", "I think. <answer>Up</answer>")],
)
def test_a_prefix_that_the_reply_repeats_is_spelled_once_and_none_is_put_before_it(
    endpoints: Any, reply: str, spelled: str
) -> None:
    recorder = Recorder(TEMPLATE, max_tokens=400)
    prompt = recorder.prompt(HELLO, max_new_tokens=7, prefix="<answer> ")
    completion = ask(open_engine(endpoints(said(reply))), request(prefix="<answer> "))
    assert TEMPLATE.decode_reply(completion.token_ids) == spelled
    assert recorder.record(prompt, completion).response_text == reply


def test_a_reply_that_outgrows_the_context_is_an_overflow_of_the_episode(endpoints: Any) -> None:
    recorder = Recorder(TEMPLATE, max_tokens=60)
    prompt = recorder.prompt(HELLO, max_new_tokens=7)
    completion = ask(open_engine(endpoints(said("go Right " * 50))))
    with pytest.raises(ContextOverflow, match=r"context\.max_tokens = 60"):
        recorder.record(prompt, completion)
    assert recorder.calls == []


def test_half_a_character_does_not_break_the_tokenizer(endpoints: Any) -> None:
    assert ask(open_engine(endpoints(said("up \ud83d")))).text == "up ?"


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>busy</html>"),
        (200, b"{"),
        (200, {"choices": []}),
        (200, {"choices": [{"message": None}]}),
        (200, {}),
        (200, [1, 2]),
        said({"a": 1}),
        said("x" * 1_000_001),
    ],
    ids=["html", "cut", "no choice", "no message", "empty", "list", "object", "huge"],
)
def test_an_answer_without_a_reply_is_an_error_of_the_engine(endpoints: Any, answer: Answer) -> None:
    with pytest.raises(EngineError):
        ask(open_engine(endpoints(answer), max_retries=0))


def test_a_reply_of_nothing_is_an_empty_one(endpoints: Any) -> None:
    completion = ask(open_engine(endpoints(said(None))))
    assert (completion.text, completion.token_ids.tolist()) == ("", [TEMPLATE.end_of_turn_id])


# --- failures --------------------------------------------------------------------------------------------------------


def test_what_an_endpoint_was_too_busy_for_is_sent_again(endpoints: Any) -> None:
    endpoint = endpoints(refusal(503), refusal(429), said("ok"))
    assert ask(open_engine(endpoint, max_retries=2)).text == "ok"
    assert len(endpoint.chats) == 3


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (refusal(429, "slow down"), EngineError, r"engine\.max_concurrent: .*429.* after 1 further attempts: .*slow"),
        (refusal(500, "broken"), EngineError, r"engine\.url: .* answers 500: .*broken"),
        (refusal(401, "who?"), EngineError, r"engine\.api_key_env: .* wants a key, and NO_SUCH_KEY is not set \(401\)"),
        (refusal(403, "you?"), EngineError, r"engine\.api_key_env: .* \(403\)"),
        (refusal(404, "gone"), EngineError, r"engine\.model: .* knows no model 'm'"),
        (refusal(400, "odd"), EngineError, r"answers 400: .*odd"),
        (refusal(400, "long", code="context_length_exceeded"), ContextOverflow, "too long for its model"),
    ],
    ids=["429", "500", "401", "403", "404", "400", "overflow"],
)
def test_what_stays_refused_is_told_with_the_setting_to_change(
    endpoints: Any, answer: Answer, error: type[TurnwiseError], words: str
) -> None:
    engine = open_engine(endpoints(answer), max_retries=1, model="m", api_key_env="NO_SUCH_KEY")
    with pytest.raises(error, match=words):
        ask(engine)


def test_a_reply_that_does_not_come_is_not_waited_for(endpoints: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts count together: the deadline is that of the call."""
    endpoint, is_over, clock = endpoints(said("ok")), threading.Event(), LoopClock(monkeypatch)
    engine = open_engine(endpoint, timeout_s=50.0)

    def answer(_: dict[str, Any]) -> Answer:
        clock.put_forward(51.0)
        is_over.wait(HANG_S)
        return said("late")

    endpoint.answer = answer
    try:
        with pytest.raises(EngineError, match=r"engine\.timeout_s: .* within 50 seconds"):
            ask(engine)
    finally:
        is_over.set()
    assert engine.state() == {"running": 0.0, "waiting": 0.0}


def test_a_cancelled_request_makes_room_for_the_next(endpoints: Any) -> None:
    endpoint, is_asked, may_answer = endpoints(said("ok")), threading.Event(), threading.Event()

    def answer(_: dict[str, Any]) -> Answer:
        is_asked.set()
        may_answer.wait(HANG_S)
        return said("ok")

    endpoint.answer = answer
    engine = open_engine(endpoint, max_concurrent=1)

    async def run() -> str | None:
        first = asyncio.create_task(engine.generate(request()))
        await asyncio.to_thread(is_asked.wait, HANG_S)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        may_answer.set()
        return (await engine.generate(request())).text

    assert asyncio.run(run()) == "ok"


def calling(*calls: tuple[object, object], text: str | None = None) -> Answer:
    """A reply that calls tools."""
    status, body, *_ = said(text, "tool_calls")
    body["choices"][0]["message"]["tool_calls"] = [  # type: ignore[index]
        {"id": str(place), "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]
    return status, body


@pytest.mark.parametrize("text", [None, "I look."])
def test_calls_are_spelled_as_the_local_model_would(endpoints: Any, text: str | None) -> None:
    template = tool_template("hermes")
    endpoint = endpoints(calling(("see", '{"at":"door"}'), ("wait", "{}"), text=text))
    engine = OpenAiEngine(OpenAiEngineParams(url=endpoint.url, timeout_s=HANG_S), template)
    tool = ToolSchema("see", "Sees.", '{"type": "object"}')
    completion = ask(engine, request(tools=(tool,)))
    assert endpoint.chats[0]["tools"] == [tool.to_mapping()]
    read = template.parse_reply(template.decode_reply(completion.token_ids))
    assert [(call.name, call.arguments) for call in read.tool_calls] == [("see", '{"at": "door"}'), ("wait", "{}")]
    assert read.text == (text or "")
    assert template.decode_reply(completion.token_ids) == completion.text
    assert completion.finish_reason is FinishReason.STOP
    assert completion.token_ids[-1] == template.end_of_turn_id


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("see", "[1]"), ("see", "{"), ("see", '{"a": NaN}'), ("see", r'{"a": "\ud800"}'), ("", "{}")],
)
def test_a_call_that_is_none_is_refused(endpoints: Any, name: str, arguments: str) -> None:
    engine = open_engine(endpoints(calling((name, arguments))))
    with pytest.raises(EngineError, match="expected the name of a tool and a JSON object"):
        ask(engine, request(tools=(ToolSchema("see", "", "{}"),)))


def test_a_call_that_the_local_model_cannot_write_is_refused(endpoints: Any) -> None:
    with pytest.raises(EngineError, match=r"engine\.url: the reply calls a tool.*cannot use tools"):
        ask(open_engine(endpoints(calling(("see", "{}")))))


def test_token_prompts_and_new_weights_are_refused(endpoints: Any) -> None:
    engine = open_engine(endpoints(said("ok")))
    with pytest.raises(EngineError, match="ids alone"):
        ask(engine, GenerateRequest(prompt_ids=np.arange(3, dtype=np.int32), sampling=Sampling(), seed=0))
    with pytest.raises(EngineError, match="top_k = 3"):
        ask(engine, request(top_k=3))
    with pytest.raises(EngineError, match="cannot be replaced"):
        asyncio.run(engine.update_weights({}, 1))


# --- before anything is asked ----------------------------------------------------------------------------------------


def test_the_only_model_is_taken_and_of_several_one_must_be_named(endpoints: Any) -> None:
    ask(open_engine(one := endpoints(said("ok"), models=["only"])))
    assert one.chats[0]["model"] == "only"
    several = endpoints(said("ok"), models=["small", "large"])
    with pytest.raises(ConfigError, match=r"engine\.model: nothing given, and at .* it has small, large"):
        open_engine(several)
    with pytest.raises(ConfigError, match=r"engine\.model: there is no 'lage' .* Did you mean 'large'"):
        open_engine(several, model="lage")
    ask(open_engine(several, model="large"))
    assert several.chats[0]["model"] == "large"


@pytest.mark.parametrize("listing", [refusal(404), refusal(501), (200, b"<html>"), (200, {"data": 3}), (200, [])])
def test_an_endpoint_that_lists_no_models_is_asked_for_the_named_one(endpoints: Any, listing: Answer) -> None:
    endpoint = endpoints(said("ok"), listing=listing)
    assert ask(open_engine(endpoint, model="mine")).text == "ok"
    with pytest.raises(ConfigError, match=r"engine\.model: nothing given"):
        open_engine(endpoint)


def test_a_refused_key_and_an_absent_server_are_told_at_once(endpoints: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    endpoint = endpoints(said("ok"), listing=(401, {"error": {"message": "no"}}, AT_ONCE))
    with pytest.raises(ConfigError, match=r"engine\.api_key_env: .* refuses the key in MY_KEY \(401\)") as told:
        open_engine(endpoint, api_key_env="MY_KEY")
    assert "s3cret" not in str(told.value)
    nobody = FakeEndpoint(lambda _: said(""))
    with serving(nobody):
        pass
    with pytest.raises(ConfigError, match=r"engine\.url: nobody answers at http://127\.0\.0\.1:\d+/v1"):
        open_engine(nobody)


def test_without_the_package_it_is_said_how_to_get_it(endpoints: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(packages.importlib, "import_module", fail)
    with pytest.raises(ConfigError, match=r"engine\.url needs the package 'openai'.*turnwise\[openai\]"):
        open_engine(endpoints(said("ok")))


@pytest.mark.parametrize(
    ("key", "given", "words"),
    [
        ("url", "localhost:8000", "expected a base URL"),
        ("url", "ftp://here/v1", "expected a base URL"),
        ("url", "http://", "expected a base URL"),
        ("url", "http://[::1", "expected a base URL"),
        ("url", "http://me:s3cret@here/v1", "belongs into the environment"),
        ("url", "http://here/v1?key=s3cret", "belongs into the environment"),
        ("url", "http://here/v1/chat/completions", "what stands before"),
        ("api_key_env", "sk-s3cret", "no name of an environment variable"),
    ],
)
def test_an_address_is_an_address_and_holds_no_key(key: str, given: str, words: str) -> None:
    keys = {"engine.type": "openai", "engine.url": "http://here/v1", f"engine.{key}": given}
    with pytest.raises(ConfigError, match=rf"engine\.{key}: .*{words}") as told:
        load_settings("frozenlake", keys)
    assert "s3cret" not in str(told.value)
