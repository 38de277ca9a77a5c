"""Worlds behind a server: OpenEnv's protocol word by word, its faults, and a real server where the package is there."""

from __future__ import annotations

import http
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.adapters.openenv_env import parse_address
from turnwise.envs.base import make_env
from turnwise.envs.check import check_env
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import ConfigError, EnvError, RewardError

from ...clock import HANG_S

pytest.importorskip("websockets.sync.server", reason="websockets is not installed")
from websockets.sync.server import serve

needs_openenv = pytest.mark.skipif(find_spec("openenv") is None, reason="openenv-core is not installed")
SCHEMA = {
    "action": {"properties": {"message": {}, "strength": {}, "metadata": {}}, "required": ["message"]},
    "observation": {"properties": {"hint": {}, "tries": {}, "done": {}, "reward": {}, "metadata": {}}},
}


def observe(hint: str = "?", reward: Any = None, *, done: Any = False) -> str:
    data = {"observation": {"hint": hint, "tries": 2, "note": None}, "reward": reward, "done": done}
    return json.dumps({"type": "observation", "data": data})


def fail(code: str, **further: object) -> str:
    return json.dumps({"type": "error", "data": {"message": "no", "code": code, **further}})


class Server:
    """Answers each message by the next reply of a script (None: never), and remembers what it was told."""

    def __init__(self, *replies: str | bytes | None, schema: object = SCHEMA) -> None:
        self.replies = list(replies)
        self.schema = schema
        self.heard: list[dict[str, Any]] = []
        self.url = ""
        self.hung_up = threading.Event()

    def talk(self, connection: Any) -> None:
        for text in connection:
            self.heard.append(json.loads(text))
            if self.heard[-1]["type"] == "close":
                break
            reply = self.replies.pop(0)
            if reply is not None:
                connection.send(reply)
        self.hung_up.set()

    def answer_http(self, connection: Any, request: Any) -> Any:
        if request.path == "/ws":
            return None
        text = self.schema if isinstance(self.schema, str) else json.dumps(self.schema)
        return connection.respond(http.HTTPStatus.OK if request.path == "/schema" else http.HTTPStatus.NOT_FOUND, text)


Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    running = []

    def begin(*replies: str | bytes | None, schema: object = SCHEMA) -> Server:
        server = Server(*replies, schema=schema)
        listening = serve(server.talk, "127.0.0.1", 0, process_request=server.answer_http)
        running.append(listening)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        server.url = f"http://127.0.0.1:{listening.socket.getsockname()[1]}"
        return server

    yield begin
    for listening in running:
        listening.shutdown()


# --- the protocol ----------------------------------------------------------------------------------------------------


def test_an_episode_is_one_session_of_json_messages(start: Start) -> None:
    server = start(observe("guess"), observe("higher", 0.25), observe("right", 1, done=True))
    env = make_env(f"openenv:{server.url}/", options={"low": 3}, action_constants={"strength": 2})
    assert env.is_slow
    assert env.reset(5, split="eval") == "hint: guess\ntries: 2"
    assert env.step("4")[:3] == ("hint: higher\ntries: 2", 0.25, False)
    text, reward, done, info = env.step("5")
    assert (text, reward, done, info["success"]) == ("hint: right\ntries: 2", 1, True, True)
    assert server.hung_up.wait(HANG_S)
    assert server.heard == [
        {"type": "reset", "data": {"low": 3, "seed": 11}},
        {"type": "step", "data": {"strength": 2, "message": "4"}},
        {"type": "step", "data": {"strength": 2, "message": "5"}},
        {"type": "close"},
    ]
    with pytest.raises(EnvError, match="the episode is over"):
        env.step("6")


def test_settings_have_their_effect(start: Start) -> None:
    replies = [observe("guess"), observe("right", 1, done=True)]
    told = make_env(f"openenv:{start(*replies).url}", observation_field="hint", rules="Guess.", success_above=1.0)
    assert told.reset(0) == "guess"
    assert told.instructions == "Guess."
    assert told.step("4")[3]["success"] is False
    other = start(*replies, schema={**SCHEMA, "action": {"properties": {"strength": {}}}})
    env = make_env(f"openenv:{other.url}", action_field="strength")
    env.reset(0)
    env.step("4")
    assert other.heard[1]["data"] == {"strength": "4"}


def test_blank_and_refused_actions_are_invalid_and_change_nothing(start: Start) -> None:
    refused = fail("VALIDATION_ERROR", errors=[{"loc": ["message"], "msg": "too long"}])
    server = start(observe("guess"), refused, observe("right", 1, done=True))
    env = make_env(f"openenv:{server.url}")
    first = env.reset(0)
    for action in (" ", "x" * 50):
        text, reward, done, info = env.step(action)
        assert (text, reward, done, info["action_is_valid"]) == (first, 0.0, False, False)
    assert env.step("5")[2] is True


def test_a_session_ends_with_whoever_threw_its_environment_away(start: Start) -> None:
    server = start(observe())
    env = make_env(f"openenv:{server.url}")
    env.reset(0)
    assert not server.hung_up.is_set()
    del env
    assert server.hung_up.wait(HANG_S)


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        ("nonsense", EnvError, "answered 'step' with 'nonsense'; expected an observation"),
        ("[" * 100_000, EnvError, "expected an observation"),
        (b"\xff", EnvError, "expected an observation"),
        ("{}", EnvError, "expected an observation"),
        (observe(done="yes"), EnvError, "expected an observation"),
        ('{"type": "state", "data": {"observation": {}, "done": false}}', EnvError, "expected an observation"),
        (observe(reward="lots"), RewardError, "the reward 'lots'; expected a finite number"),
        (observe(reward=float("nan")), RewardError, "expected a finite number"),
        (fail("EXECUTION_ERROR"), EnvError, r"failed in 'step' \(EXECUTION_ERROR\): no"),
        (fail("VALIDATION_ERROR", errors=[{"loc": ["strength"], "msg": "no int"}]), EnvError, "strength: no int"),
    ],
)
def test_a_wrong_reply_ends_the_episode_with_its_cause(
    start: Start, reply: str, error: type[Exception], message: str
) -> None:
    env = make_env(f"openenv:{start(observe(), reply, observe('again')).url}")
    reset_env(env, 0)
    with pytest.raises(error, match=message):
        step_env(env, "5")
    assert "again" in reset_env(env, 1)


def test_a_silent_server_costs_the_time_limit_and_no_more(start: Start) -> None:
    server = start(observe(), None, observe("late"), observe("again"))
    env = make_env(f"openenv:{server.url}", time_limit_s=HANG_S)
    reset_env(env, 0)
    assert env._session._time_limit_s == HANG_S  # type: ignore[attr-defined]
    env._session._time_limit_s = 0.3  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match=r"no answer to 'step' within env.time_limit_s = 0.3"):
        step_env(env, "5")
    with pytest.raises(EnvError, match="the episode is over"):
        step_env(env, "5")


def test_a_session_that_breaks_is_an_error_and_the_next_reset_begins_anew(start: Start) -> None:
    server = start(observe("first"))
    env = make_env(f"openenv:{server.url}")
    reset_env(env, 0)
    with pytest.raises(EnvError, match="the connection broke in 'step'"):
        step_env(env, "5")
    server.replies = [observe("anew")]
    assert "anew" in reset_env(env, 1)


def test_an_episode_without_a_beginning_is_an_error(start: Start) -> None:
    env = make_env(f"openenv:{start(observe(done=True)).url}")
    with pytest.raises(EnvError, match="over before the first action"):
        reset_env(env, 0)


# --- mistakes in the settings ----------------------------------------------------------------------------------------


def test_nobody_there_is_a_mistake_in_the_settings() -> None:
    # Held and not listened to, so that nobody else can come by it.
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        name = f"openenv:localhost:{held.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"env.type: '{name}': no OpenEnv server answers at http"):
            make_env(name)


@pytest.mark.parametrize("schema", ["<html>", "[]", '{"action": 3, "observation": {}}'])
def test_another_kind_of_server_is_refused(start: Start, schema: str) -> None:
    with pytest.raises(ConfigError, match="answers, and not as an OpenEnv server does"):
        make_env(f"openenv:{start(schema=schema).url}")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"action_field": "text"}, "env.action_field: text given; an action of .* has message, metadata, strength"),
        ({"action_constants": {"speed": 1}}, "env.action_constants: speed given"),
        ({"action_field": "strength"}, "env.action_constants: strength given; .* also needs message"),
        ({"observation_field": "reward"}, "env.observation_field: 'reward' given; an observation .* has hint, tries"),
        ({"time_limit_s": 0.0}, "time_limit_s"),
    ],
)
def test_fields_that_the_server_does_not_have_are_refused(start: Start, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(f"openenv:{start().url}", **params)


@pytest.mark.parametrize("url", ["ftp://localhost", "http://", "http://[::1", "localhost:port", "http://host:0"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"env.type: .* is no address of an OpenEnv server"):
        make_env(f"openenv:{url}")


@given(st.sampled_from(["", "http://", "https://", "ws://", "wss://"]), st.text(max_size=12))
def test_addresses_are_understood_or_refused(scheme: str, rest: str) -> None:
    try:
        address = parse_address(scheme + rest)
    except ConfigError:
        return
    secure = scheme in ("https://", "wss://")
    if "://" not in rest:
        assert address.schema.startswith("https://" if secure else "http://")
        assert address.session.startswith("wss://" if secure else "ws://")
    assert address.schema.endswith("/schema")
    assert address.session.endswith("/ws")


def test_only_this_machine_is_local() -> None:
    assert [
        parse_address(host).is_local for host in ("localhost:1", "127.0.0.2", "http://[::1]:80", "example.org")
    ] == [
        True,
        True,
        True,
        False,
    ]


# --- a real server ---------------------------------------------------------------------------------------------------


@contextmanager
def real_server() -> Iterator[str]:
    program = [sys.executable, str(Path(__file__).with_name("openenv_server.py"))]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            port = server.stdout.readline().strip()
            assert port, "the server ended"
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    with real_server() as url:
        yield url


@needs_openenv
@pytest.mark.slow
@pytest.mark.xdist_group("openenv")
class TestRealServer:
    def test_keeps_the_contract(self, real: str) -> None:
        report = check_env(f"openenv:{real}", num_episodes=4)
        assert report.ok, report.failures

    def test_a_world_is_played_to_its_end(self, real: str) -> None:
        env = make_env(
            f"openenv:{real}", observation_field="hint", options={"low": 1}, action_constants={"strength": 3}
        )
        assert env.reset(3) == "a number from 1 to 9"
        assert env.step("1")[:3] == ("higher", 0, False)
        assert env.step("9" * 30)[3]["action_is_valid"] is False
        text, reward, done, info = env.step("2")
        assert (text, reward, done, info["success"]) == ("right", 3.0, True, True)

    def test_its_faults_are_data(self, real: str) -> None:
        env = make_env(f"openenv:{real}")
        reset_env(env, 0)
        with pytest.raises(EnvError, match=r"\(EXECUTION_ERROR\): the world broke"):
            step_env(env, "fail")
        wrong = make_env(f"openenv:{real}", action_constants={"strength": 10})
        reset_env(wrong, 0)
        with pytest.raises(EnvError, match="refuses 'step': strength: Input should be less than or equal to 9"):
            step_env(wrong, "1")

    def test_a_full_server_says_so_and_a_place_is_free_again_after_the_episode(self, real: str) -> None:
        playing = [make_env(f"openenv:{real}") for _ in range(4)]
        for env in playing:
            env.reset(0)
        late = make_env(f"openenv:{real}")
        with pytest.raises(EnvError, match=r"CAPACITY_REACHED.*Raise the server's max_concurrent_envs"):
            reset_env(late, 0)
        assert playing[0].step("0")[2] is True
        assert reset_env(late, 0)
        for env in (*playing, late):
            env.close()
