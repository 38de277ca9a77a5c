"""An environment of ours behind OpenEnv's protocol: for our own client, the official one, and clients that err."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rich.console import Console

from turnwise.commands.serve import ServedEnv, run_env_server
from turnwise.envs.base import make_env
from turnwise.envs.check import check_env
from turnwise.envs.safe_calls import describe_env, reset_env, step_env
from turnwise.errors import ConfigError, EnvError

from ...clock import HANG_S

pytest.importorskip("uvicorn", reason="needs the extra serve")
websockets = pytest.importorskip("websockets.sync.client", reason="needs the extra openenv")
FAULTY = "tests.unit.envs.faulty:FaultyEnv"
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def serving(name: str, *, max_sessions: int = 64, **params: object) -> Iterator[str]:
    told: dict[str, Any] = {}
    is_up = threading.Event()

    def started(address: str, server: Any) -> None:
        told.update(address=address, server=server)
        is_up.set()

    served = ServedEnv(name=name, params=params, max_sessions=max_sessions)
    thread = threading.Thread(target=run_env_server, args=(served, Console(quiet=True)), kwargs={"started": started})
    thread.start()
    assert is_up.wait(HANG_S)
    try:
        yield told["address"]
    finally:
        told["server"].should_exit = True
        thread.join(HANG_S)
        assert not thread.is_alive()


@contextmanager
def talking(url: str) -> Iterator[Any]:
    with websockets.connect(url.replace("http", "ws") + "/ws", proxy=None) as line:

        def ask(message: object) -> Any:
            line.send(message if isinstance(message, str) else json.dumps(message))
            return json.loads(line.recv(timeout=HANG_S))

        yield ask


@pytest.fixture(scope="module")
def lake() -> Iterator[str]:
    with serving("frozen_lake", size=3) as url:
        yield url


def test_our_client_plays_what_is_played_here(lake: str) -> None:
    away, home = make_env(f"openenv:{lake}"), make_env("frozen_lake", size=3)
    for seed in range(3):
        # The client's seeds are apart for each split.
        assert reset_env(away, seed) == reset_env(home, 2 * seed)
        done = False
        while not done:
            action = home.oracle()
            ours, theirs = step_env(away, action), step_env(home, action)
            assert (ours.text, ours.reward, ours.done) == (theirs.text, theirs.reward, theirs.done)
            done = ours.done
        assert ours.is_success
    away.close()


def test_success_is_the_word_of_the_world_that_is_served() -> None:
    """The wrong arm of a bandit pays as well."""
    with serving("bandit") as url:
        away, home = make_env(f"openenv:{url}"), make_env("bandit")
        found = set()
        for seed in range(12):
            reset_env(away, seed)
            reset_env(home, 2 * seed)
            arm = describe_env(home).action_names[seed % 2]
            ours, theirs = step_env(away, arm), step_env(home, arm)
            assert (ours.reward, ours.is_success) == (theirs.reward, theirs.is_success)
            found.add((ours.reward > 0, ours.is_success))
        away.close()
    assert (True, False) in found


@pytest.mark.slow
def test_our_client_finds_the_contract_kept(lake: str) -> None:
    report = check_env(f"openenv:{lake}", num_episodes=2)
    assert report.ok, report.failures


@pytest.mark.slow
def test_the_official_client_plays_it(lake: str) -> None:
    openenv = pytest.importorskip("openenv.core.generic_client", reason="needs openenv-core")
    home = make_env("frozen_lake", size=3)
    with openenv.GenericEnvClient(base_url=lake).sync() as client:
        result = client.reset(seed=7, episode_id="mine")
        assert result.observation["text"] == home.reset(7)
        action = home.oracle()
        result = client.step({"message": action})
        text, reward, done, _ = home.step(action)
        assert (result.observation["text"], result.reward, result.done) == (text, reward, done)
        assert client.state() == {"episode_id": "mine", "step_count": 1}


def test_its_pages_say_what_it_takes(lake: str) -> None:
    assert json.load(LOCAL.open(f"{lake}/health"))["status"] == "healthy"
    assert json.load(LOCAL.open(f"{lake}/metadata"))["name"] == "frozen_lake"
    assert json.load(LOCAL.open(f"{lake}/schema"))["action"]["required"] == ["message"]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        LOCAL.open(f"{lake}/reset", data=b"{}")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ([], "VALIDATION_ERROR"),
        ({"type": "dance"}, "UNKNOWN_TYPE"),
        ({"type": "reset", "data": 1}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"split": "tests"}}, "EXECUTION_ERROR"),
        ({"type": "step", "data": {}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"message": "Up"}}, "EXECUTION_ERROR"),
    ],
)
def test_what_is_sent_wrongly_is_told_and_the_session_goes_on(lake: str, message: object, code: str) -> None:
    with talking(lake) as ask:
        answer = ask(message)
        assert (answer["type"], answer["data"]["code"]) == ("error", code)
        assert ask({"type": "reset", "data": {"seed": 1}})["type"] == "observation"


def test_a_page_of_somebody_else_cannot_play(lake: str) -> None:
    with pytest.raises(Exception, match="403"):
        websockets.connect(lake.replace("http", "ws") + "/ws", origin="http://example.org", proxy=None)


def test_a_full_server_says_so_and_a_fault_ends_one_episode() -> None:
    with serving(FAULTY, max_sessions=1) as url:
        env, late = make_env(f"openenv:{url}"), make_env(f"openenv:{url}")
        reset_env(env, 1)
        with pytest.raises(EnvError, match="CAPACITY_REACHED"):
            reset_env(late, 1)
        with pytest.raises(EnvError, match="a fault of its own"):
            step_env(env, "raise")
        assert reset_env(env, 2) == "seed 4"
        env.close()
        assert reset_env(late, 1) == "seed 2"
        late.close()


def test_what_cannot_be_served_is_told_at_once() -> None:
    console = Console(quiet=True)
    for served, cause in (
        (ServedEnv(name="frozen_lak", params={}), "frozen_lake"),
        (ServedEnv(name="frozen_lake", params={"size": 1}), "size"),
        (ServedEnv(name="bandit", params={}, max_sessions=0), "--max-sessions"),
        (ServedEnv(name="bandit", params={}, port=70_000), "--port 70000"),
    ):
        with pytest.raises(ConfigError, match=cause):
            run_env_server(served, console)
