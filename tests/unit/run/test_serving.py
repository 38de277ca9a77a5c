"""`turnwise serve` with a real model: which policy answers, where its experience goes, and that it teaches."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest
from rich.console import Console

from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, ServeError
from turnwise.loop.build import open_buffer
from turnwise.loop.serial import update_policy
from turnwise.protocols import PolicyVersion
from turnwise.run import serving
from turnwise.run.api import Run, train
from turnwise.run.serving import TOKEN_VARIABLE, Served, load_served, open_endpoint, serve
from turnwise.sync.sync_schedule import Notifier
from turnwise.sync.weight_store import FileWeightStore
from turnwise.types import Experience

from ...clock import HANG_S
from ...small_run import SMALL_LAKE, SMALL_MODEL, build_components, without_plots

pytestmark = pytest.mark.slow

HELLO = {"messages": [{"role": "user", "content": "P _ O G"}]}


@pytest.fixture
def durable(finished: Run, tmp_path: Path) -> Path:
    """The finished run, as if its buffer had been on disk."""
    run = tmp_path / "durable"
    shutil.copytree(finished.path, run)
    config = run / "config.yaml"
    config.write_text(re.sub(r"(?m)^(buffer:\n(?:  .*\n)*?  type: )memory$", r"\1sqlite", config.read_text()))
    assert load_settings(str(config)).buffer.type == "sqlite"
    return run


def post(url: str, body: object, key: str) -> dict[str, object]:
    request = Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {key}"})
    with urlopen(request, timeout=HANG_S) as reply:
        return json.loads(reply.read())


def play(served: Served, episodes: int = 2) -> None:
    """Episodes of two calls each; the k-th earns k."""

    async def run() -> None:
        async with open_endpoint(served, token="key") as endpoint:
            for number in range(episodes):
                begun = await asyncio.to_thread(post, f"{endpoint.address}/v1/episodes", {}, "key")
                for _ in range(2):
                    await asyncio.to_thread(post, f"{begun['base_url']}/chat/completions", HELLO, "key")
                address = f"{endpoint.address}/episodes/{begun['id']}/reward"
                await asyncio.to_thread(post, address, {"reward": number}, "key")

    asyncio.run(run())


@contextmanager
def running_server(run: Path, token: str | None) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """`turnwise serve` as a process of its own, and what it says of itself."""
    env = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    command = [sys.executable, "-u", "-m", "turnwise", "serve", str(run)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**env, TOKEN_VARIABLE: token} if token else env
    ) as process:
        assert process.stdout is not None
        told: dict[str, str] = {}
        for line in process.stdout:
            name, _, value = line.partition("  ")
            told[name] = value.strip()
            if line.startswith("Ctrl-C"):
                break
        yield process, told


def read_experience(run: Path) -> list[Experience]:
    return open_buffer(load_settings(str(run / "config.yaml")), run).take(1)


def test_a_run_with_a_buffer_on_disk_is_served_as_it_is_and_goes_on_counting(durable: Path) -> None:
    newest = json.loads((Run(durable).policy.parent / "progress.json").read_text())["policy_version"]
    assert newest > 0
    for _ in range(2):
        served = load_served(str(durable))
        assert served.directory.path == durable
        play(served)
    experiences = read_experience(durable)
    assert {str(e.id.trajectory) for e in experiences} == {f"{newest}/frozen_lake/served/{n}/0" for n in range(4)}
    assert {e.policy_version for e in experiences} == {newest}
    assert [e.raw_rewards.tolist() for e in experiences] == [[0.0], [0.0], [0.0], [1.0]] * 2


@pytest.mark.parametrize("kind", ["run", "folder", "recipe"])
def test_what_has_no_buffer_on_disk_gets_a_run_that_starts_from_its_policy(
    kind: str, finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    match kind:
        case "run":
            served = load_served(str(finished.path))
        case "folder":
            served = load_served(str(finished.policy), recipe="frozenlake", overrides=["run.root=made"])
        case "recipe":
            served = load_served("frozenlake", overrides=[*SMALL_MODEL, "run.root=made"])
    assert served.directory.path != finished.path
    assert served.engine.policy_version == 0
    play(served)
    path = served.directory.path
    settings = load_settings(str(path / "config.yaml"))
    components = build_components(settings, run_path=path)
    # Whoever trains this run starts with exactly the weights that sampled what it learns from.
    assert (settings.buffer.type, settings.warm_start.type) == ("sqlite", "none")
    for name, weight in served.engine._model.state_dict().items():
        np.testing.assert_array_equal(weight.numpy(), components.trainer.learner.weights()[name].numpy())
    experiences = components.buffer.take(1)
    assert len(experiences) == 4
    report = update_policy(components.trainer, experiences, components.hooks).report
    assert report is not None
    assert report.policy_version == 1
    assert report.metrics["learn/approx_kl"] == pytest.approx(0.0, abs=1e-3)


def test_a_folder_without_a_recipe_is_served_as_it_is(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(finished.policy, tmp_path / "model")
    served = load_served(str(folder), overrides=["context.max_response_tokens=8"])
    assert served.settings.context.answer.forced_prefix == ""
    assert served.settings.context.max_tokens == served.engine.max_context_tokens

    async def ask() -> str:
        async with open_endpoint(served, token="key") as endpoint:
            reply = await asyncio.to_thread(post, f"{endpoint.address}/v1/chat/completions", HELLO, "key")
            return reply["choices"][0]["message"]["content"]

    said = asyncio.run(ask())
    assert not said.startswith("<answer>")
    # With the recipe whose setting it was trained in, every reply begins as that one wants it.
    lake = load_served(str(folder), recipe="frozenlake")
    assert lake.settings.context.answer.forced_prefix == "<answer>"


def test_training_a_model_served_without_a_recipe_evaluates_no_environment(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment is a placeholder: 400 episodes of it were played before and after."""
    monkeypatch.chdir(tmp_path)
    without_plots(monkeypatch)
    folder = shutil.copytree(finished.policy, tmp_path / "model")
    small = ["context.max_response_tokens=4", "learn.steps=3", "report.tensorboard=false", f"sync.timeout_s={HANG_S}"]
    served = load_served(str(folder), overrides=small)
    play(served)
    path = served.directory.path
    console = Console(record=True, width=200, file=io.StringIO())
    told = train(path / "config.yaml", ["run.mode=train"], run_dir=path, console=console).summary
    assert told.steps == 1
    assert (told.eval_episodes, told.baselines, told.envs) == (0, {}, {})
    assert (told.success_before, told.success_after, told.return_before, told.return_after) == (None,) * 4
    assert not list(path.glob("trajectories/eval/*"))
    said = console.export_text()
    assert said.count("the policy is not evaluated: eval.episodes is 0") == 1
    assert "evaluating on" not in said
    # There is no such folder either.
    assert "tensorboard" not in said
    # It may still be measured where the user names an environment.
    own = load_served(str(folder), overrides=["env.type=frozen_lake", "eval.episodes=5"])
    assert (own.settings.env.type, own.settings.eval.episodes) == ("frozen_lake", 5)


@pytest.mark.slow
def test_a_trainer_learns_from_what_clients_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    served = load_served("frozenlake", overrides=[*SMALL_LAKE, "learn.steps=3", f"sync.timeout_s={HANG_S}"])
    play(served)
    path = served.directory.path
    run = train(path / "config.yaml", ["run.mode=train"], run_dir=path)
    # The clients have gone, so it learns from what they left and waits for nobody.
    assert run.summary.steps == 1
    assert run.summary.tokens_trained > 0


def test_what_a_trainer_publishes_is_served_from_then_on(durable: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = load_served(str(durable))
    first, versions = served.engine.policy_version, []
    weights = served.engine._model.state_dict()
    mailbox = FileWeightStore(durable / "weights", Notifier().ring)

    async def ask(address: str) -> object:
        return (await asyncio.to_thread(post, f"{address}/v1/chat/completions", HELLO, "key"))["system_fingerprint"]

    async def run() -> list[object]:
        async with open_endpoint(served, token="key", on_policy=versions.append) as endpoint:
            answered = [await ask(endpoint.address)]
            mailbox.post(PolicyVersion(7, first + 1), {"wrong": next(iter(weights.values()))})
            while "the policy stays at version" not in caplog.text:
                await asyncio.sleep(0.01)
            answered.append(await ask(endpoint.address))
            mailbox.post(PolicyVersion(8, first + 2), {name: 0 * tensor for name, tensor in weights.items()})
            while not versions:
                await asyncio.sleep(0.01)
            return [*answered, await ask(endpoint.address)]

    answered = asyncio.run(asyncio.wait_for(run(), HANG_S))
    assert answered == [f"policy-{version}" for version in (first, first, first + 2)]
    assert versions == [first + 2]
    assert caplog.text.count("the policy stays at version") == 1
    assert all(not tensor.any() for tensor in served.engine._model.state_dict().values())


def test_mistakes_are_told_before_anything_is_loaded(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="its own settings"):
        load_served(str(finished.path), overrides=["run.seed=1"])
    with pytest.raises(ConfigError, match="--recipe goes with a model folder"):
        load_served("frozenlake", recipe="bandit")
    with pytest.raises(ConfigError, match="no recipe named 'frozenlik'"):
        load_served("frozenlik")
    for token in ("", "two words", "é"):
        monkeypatch.setenv(TOKEN_VARIABLE, token)
        with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
            serve("frozenlake", Console(quiet=True))
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    with pytest.raises(ConfigError, match="lets other machines try tokens"):
        serve("frozenlake", Console(quiet=True), host="0.0.0.0")


def test_a_port_that_is_none_is_refused(durable: Path) -> None:
    async def run() -> None:
        async with open_endpoint(load_served(str(durable)), token="key", port=99_999):
            pass

    with pytest.raises(ServeError, match="--port"):
        asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("token", ["of-my-own", None])
def test_the_command_says_where_it_is_and_ends_cleanly(durable: Path, token: str | None) -> None:
    with running_server(durable, token) as (process, told):
        assert process.stdout is not None
        key = token or told["token"]
        reply = post(f"{told['base URL']}/chat/completions", HELLO, key)
        post(f"{told['base URL'].removesuffix('/v1')}/episodes/default/reward", {"reward": 1}, key)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=HANG_S) == 0
    assert reply["object"] == "chat.completion"
    assert (token is None) is (TOKEN_VARIABLE not in told["token"])
    assert token is None or token not in str(told)
    assert "1 experiences wait" in rest
    assert len(read_experience(durable)) == 1


@pytest.mark.slow
def test_a_server_that_is_killed_loses_no_finished_episode(durable: Path) -> None:
    with running_server(durable, "key") as (process, told):
        address = told["base URL"].removesuffix("/v1")
        first, second = [post(f"{address}/v1/episodes", {"group": "lake", "group_size": 2}, "key") for _ in range(2)]
        for episode in (first, second):
            post(f"{episode['base_url']}/chat/completions", HELLO, "key")
        post(f"{address}/episodes/{second['id']}/reward", {"reward": 5}, "key")
        process.kill()
        process.wait()
    assert read_experience(durable) == []
    play(load_served(str(durable)), episodes=0)
    (experience,) = read_experience(durable)
    assert (experience.id.trajectory.sibling, experience.raw_rewards.tolist()) == (1, [5.0])
    # Once is enough.
    play(load_served(str(durable)), episodes=0)
    assert not list((durable / "unfinished" / "served").iterdir())


def test_a_program_that_cannot_be_called_ends_a_run_before_it_starts() -> None:
    settings = load_settings("frozenlake", [*SMALL_LAKE, "rollout.workflow=openai_program"])
    with pytest.raises(ConfigError, match=r"rollout\.workflow_args\.program: None given"):
        build_components(settings)


def test_experience_served_into_a_run_is_trained_with_the_documented_command(
    durable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run had `sync.method: memory`, which no process of its own can have; it has made its two updates, too."""
    without_plots(monkeypatch)
    config = durable / "config.yaml"
    config.write_text(config.read_text().replace("\n  steps: 2\n", "\n  steps: 3\n"))
    settings = load_settings(str(config))
    assert (settings.sync.method, settings.learn.steps) == ("memory", 3)
    play(load_served(str(durable)))
    run = train(config, ["run.mode=train"], run_dir=durable)
    assert run.summary.steps == 3
    assert [row["step"] for row in run.metrics()] == [0, 1, 2, 3]
    assert run.metrics()[-1]["learn/unmerged_rows"] == 4


@pytest.mark.parametrize("error", [OSError("no such file"), RuntimeError("shapes differ"), ValueError("odd")])
def test_a_server_goes_on_following_whatever_one_version_does(
    error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the mailbox and the engine may fail in ways of their own."""
    monkeypatch.setattr(serving, "_FOLLOW_S", 0.0)

    class Engine:
        policy_version = 0

        async def update_weights(self, weights: object, version: int) -> None:
            if version == 1:
                raise error
            self.policy_version = version

    class Mailbox:
        mark = PolicyVersion(1, 1)

        def newest(self) -> PolicyVersion:
            return self.mark

        def fetch(self) -> tuple[PolicyVersion, dict[str, object]]:
            return self.mark, {}

    engine, mailbox, versions = Engine(), Mailbox(), []

    async def follow() -> None:
        following = asyncio.create_task(serving._follow(engine, mailbox, versions.append))  # type: ignore[arg-type]
        while "stays at version 0" not in caplog.text:
            await asyncio.sleep(0)
        mailbox.mark = PolicyVersion(2, 2)
        while not versions:
            await asyncio.sleep(0)
        following.cancel()

    asyncio.run(asyncio.wait_for(follow(), HANG_S))
    assert versions == [2]
    assert type(error).__name__ in caplog.text
