"""`workflow: mcp_tools` against real servers: tools are called, budgets hold, and a hostile server does no harm."""

from __future__ import annotations

import asyncio
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra mcp: pip install 'turnwise[mcp]'")

from tests.contracts.setting import template
from tests.contracts.test_workflows import assert_exact
from tests.mcp.house import shared_address
from tests.small_run import SMALL_LAKE, without_plots
from tests.unit.rollout.worlds import make_proxy, make_states
from turnwise.config.schema import ContextSettings
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import ConfigError
from turnwise.rollout.episode import Limits, RolloutLimits
from turnwise.rollout.mcp import McpToolsWorkflow
from turnwise.run.api import train
from turnwise.types import StopReason, Task, Trajectory

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = ContextSettings(max_response_tokens=200, max_tokens=60_000)
WIN = "<answer>win</answer>"


def program(module: str, *args: str) -> str:
    """A module of the tests as a server program; it gets no environment of ours, so it is told where it lies."""
    code = f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); runpy.run_module({module!r}, run_name='__main__')"
    return shlex.join([sys.executable, "-c", code, *args])


HOUSE = program("tests.mcp.house")
PATIENT_S = 120
"""Importing the package can take long on a busy machine."""
CHOSEN: dict[str, Any] = {"allow": ["look", "add", "explode"], "open_timeout_s": PATIENT_S, "tool_timeout_s": PATIENT_S}


def hostile(mode: str) -> str:
    return program("tests.mcp.hostile", mode)


@pytest.fixture(scope="module")
def address() -> str:
    return shared_address()


@pytest.fixture
def giant_address() -> Iterator[str]:
    """Answers every request with a body that has no end in sight."""

    class Giant(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            with suppress(OSError):
                for _ in range(1000):
                    self.wfile.write(b"x" * 100_000)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Giant)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    server.shutdown()
    server.server_close()


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def say(*replies: str) -> ScriptedEngine:
    """To every episode the same, from the start."""
    end = int(template().end_of_turn_id or 0)
    said: dict[str | None, int] = {}

    def reply(request: Any) -> list[int]:
        number = said[request.cache_key] = said.get(request.cache_key, -1) + 1
        return [*template().encode_text(replies[number]), end]

    return ScriptedEngine(reply, stop_ids=template().stop_ids)


def play_group(engine: ScriptedEngine, args: dict[str, Any], size: int = 1, **limits: Any) -> list[Trajectory]:
    McpToolsWorkflow.check_args(args)
    states = make_states(group_size=size, limits=Limits(max_turns=5))
    rules = {"workflow_args": args, "limits": RolloutLimits(**limits)}
    proxy = make_proxy(engine, template(), states, workflow=McpToolsWorkflow, context=CONTEXT, **rules)
    (group,) = asyncio.run(proxy.collect([Task(tag="words", seed=0)], rollout=0))
    return list(group.trajectories)


def play(engine: ScriptedEngine, *servers: str, **args: Any) -> Trajectory:
    return play_group(engine, {"servers": list(servers), **args})[0]


def results(engine: ScriptedEngine) -> list[str]:
    """What tools answered, in order."""
    asked = engine.requests[-1].asked
    return [message.text for message in asked.messages if message.role == "tool"] if asked else []


@pytest.mark.parametrize("way", ["program", "address"])
def test_the_model_calls_tools_and_every_token_is_exact(way: str, address: str) -> None:
    engine = say(call("add", '{"a": 2, "b": 3}') + call("look"), call("look"), call("explode"), WIN)
    trajectory = play(engine, HOUSE if way == "program" else address, **CHOSEN)
    assert trajectory.failure == ""
    asked = engine.requests[0].asked
    assert asked is not None
    assert [(tool.name, tool.description) for tool in asked.tools][1] == ("add", "The sum of two numbers.")
    summed, first, second, exploded = results(engine)
    assert summed == "5"
    assert int(first.split()[-1]) + 1 == int(second.split()[-1])
    assert exploded == "error: Error executing tool explode"
    assert trajectory.is_success
    assert_exact(trajectory, list(zip(engine.requests, engine.completions, strict=True)))


def test_each_episode_has_a_server_of_its_own() -> None:
    engine = say(call("look"), WIN)
    played = play_group(engine, {"servers": [HOUSE], "open_timeout_s": PATIENT_S}, size=2)
    assert [t.failure for t in played] == ["", ""]
    told = [m.text for r in engine.requests if r.asked for m in r.asked.messages if m.role == "tool"]
    assert told == ["look number 1"] * 2


def test_tools_that_are_not_allowed_are_neither_shown_nor_run(address: str) -> None:
    engine = say(call("die"), WIN)
    trajectory = play(engine, address, allow=["look"])
    asked = engine.requests[0].asked
    assert asked is not None
    assert [tool.name for tool in asked.tools] == ["look"]
    assert results(engine) == ["error: no such tool. Tools: look"]
    assert trajectory.is_success


def test_a_tool_that_is_allowed_and_does_not_exist_is_named(address: str) -> None:
    trajectory = play(say(WIN), address, allow=["look", "fly"])
    assert "rollout.workflow_args.allow: no server has a tool named fly; there are add, look" in trajectory.failure


def test_budget_deadline_and_length_hold(address: str) -> None:
    calls = [call("sleep", '{"seconds": 3}'), call("chatter", '{"length": 5000}'), call("look"), WIN]
    engine = say(*calls)
    limits: dict[str, Any] = {"max_calls_per_episode": 2, "max_result_characters": 100, "tool_timeouts": ["sleep=0.2"]}
    trajectory = play(engine, address, **limits)
    slow, long, late = results(engine)
    assert slow == "error: the tool took longer than 0.2 s"
    assert long == "x" * 100
    assert late == "error: no tool calls are left in this episode"
    assert trajectory.is_success


@pytest.mark.parametrize("arguments", ["[1, 2]", '"a"', '{"a": "x"}', '{"a": 1, "b": 2, "c": {}}', "3"])
def test_wrong_arguments_are_told_to_the_model(arguments: str, address: str) -> None:
    engine = say(call("add", arguments), WIN)
    assert play(engine, address).is_success
    assert all(told.startswith("error: ") or told == "3" for told in results(engine))


def test_a_server_that_dies_costs_its_episode_and_no_other() -> None:
    end = int(template().end_of_turn_id or 0)

    def reply(request: Any) -> list[int]:
        dies = str(request.cache_key).endswith("/1")
        return [*template().encode_text(call("die") if dies else WIN), end]

    args = {"servers": [HOUSE], "open_timeout_s": PATIENT_S}
    played = play_group(ScriptedEngine(reply, stop_ids=template().stop_ids), args, size=2)
    assert [t.stop_reason for t in played] == [StopReason.TERMINATED, StopReason.ENV_ERROR]
    assert "is gone" in played[1].failure
    assert len(played[1].turns) == 1


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (hostile("schemaless"), "it answers what no server may answer (tools.0.inputSchema.type"),
        (hostile("broken"), "Its last words: the house has no door"),
        ("no-such-program-anywhere", "cannot be reached"),
        ("http://127.0.0.1:9/mcp", "cannot be reached"),
    ],
)
def test_a_server_that_cannot_be_reached_is_a_failure_with_a_reason(server: str, told: str) -> None:
    trajectory = play(say(WIN), server)
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert told in trajectory.failure
    assert not trajectory.turns


def test_a_server_that_says_nothing_is_given_up() -> None:
    trajectory = play(say(WIN), hostile("silent"), open_timeout_s=1)
    assert "did not say what tools it has within 1 s" in trajectory.failure


@pytest.mark.parametrize("mode", ["large", "hang", "malformed", "garbage", "nested"])
def test_what_a_hostile_server_answers_is_bounded_and_the_episode_goes_on(mode: str) -> None:
    engine = say(call("plain"), WIN)
    trajectory = play(engine, hostile(mode), tool_timeout_s=2, max_result_characters=50)
    assert trajectory.failure == ""
    (told,) = results(engine)
    assert len(told) <= 50
    assert trajectory.is_success


@pytest.mark.parametrize(
    ("mode", "told"), [("giant", "a message of more than 1048576 bytes"), ("flood", "more than 67108864 bytes")]
)
def test_a_server_that_writes_without_end_is_cut_off_and_costs_its_episode(mode: str, told: str) -> None:
    trajectory = play(say(call("plain"), WIN), hostile(mode), tool_timeout_s=60)
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert told in trajectory.failure


def test_a_body_without_end_is_not_read_to_its_end(giant_address: str) -> None:
    trajectory = play(say(WIN), giant_address)
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert "a reply of more than 1048576 bytes" in trajectory.failure


def test_tools_with_odd_names_and_monstrous_schemas_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    engine = say(WIN)
    play(engine, hostile("odd"))
    asked = engine.requests[0].asked
    assert asked is not None
    assert [tool.name for tool in asked.tools] == ["long", "plain"]
    assert len(asked.tools[0].description) == 1000
    assert caplog.text.count("is left out") == 8


def test_a_list_of_tools_without_end_ends() -> None:
    assert play(say(call("plain"), WIN), hostile("endless")).is_success


def test_nothing_that_a_server_started_outlives_its_episode(tmp_path: Path) -> None:
    command = f"{hostile('orphan')} 2>{tmp_path}/said"
    trajectory = play(say(call("plain"), WIN), shlex.join(["sh", "-c", command]))
    assert trajectory.is_success
    child = int((tmp_path / "said").read_text().split()[1])
    status = Path(f"/proc/{child}/stat")
    # Dead, and perhaps still waiting for whoever reaps it.
    assert not status.exists() or status.read_text().split()[2] == "Z"


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"servers": []},
        {"servers": "python a.py"},
        {"servers": ["'"]},
        {"servers": [" "]},
        {"servers": ["a"], "allow": "b"},
        {"servers": ["a"], "tool_timeout_s": 0},
        {"servers": ["a"], "tool_timeouts": ["search"]},
        {"servers": ["a"], "open_timeout_s": "soon"},
        {"servers": ["a"], "max_calls_per_episode": 0},
        {"servers": ["a"], "max_result_characters": -1},
    ],
)
def test_arguments_that_cannot_work_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.workflow_args\.(servers|allow|tool_|open_|max_)"):
        McpToolsWorkflow.check_args(args)


def test_it_trains(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    args = [f"rollout.workflow_args.servers=['{address}']", "context.max_tokens=2048"]
    run = train("frozenlake", [*SMALL_LAKE, "rollout.workflow=mcp_tools", *args], run_dir=tmp_path / "run")
    assert run.summary.tokens_trained > 0
