"""Endpoints as players and as teachers: evaluated like a policy, imitated like an oracle, never learnt from."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("openai", reason="the openai package is not installed; it is part of the extras openai and dev")

from turnwise.checks.setup import find_errors
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, LearnError
from turnwise.experience.build import build_experiences
from turnwise.loop.build import load_words, open_trainer
from turnwise.loop.evaluate import evaluate_once
from turnwise.loop.policies import find_policy, open_policy, resolve_model
from turnwise.loop.warm_start import warm_start
from turnwise.protocols import SFTConfig
from turnwise.run.api import Run, train
from turnwise.run.evaluation import evaluate_policy
from turnwise.run.play import play_in_terminal
from turnwise.run.serving import load_served, open_endpoint
from turnwise.types import Experience, Group

from ...clock import HANG_S
from ...endpoints import Answer, FakeEndpoint, refusal, said, serving
from ...small_run import SMALL_LAKE, without_plots

pytestmark = pytest.mark.slow

QUIET = Console(quiet=True)
RIGHT = "<answer>Right</answer>"


def towards_the_goal(chat: dict[str, Any]) -> Answer:
    """A player who sees `Pb3 Gd2 …` and walks straight, also into holes."""
    player, goal = re.findall(r"[PG]([a-d][1-4])", chat["messages"][-1]["content"])[:2]
    if player[0] != goal[0]:
        return said(f"<answer>{'Right' if player[0] < goal[0] else 'Left'}</answer>")
    return said(f"<answer>{'Down' if player[1] < goal[1] else 'Up'}</answer>")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")


@contextmanager
def served(run: Run) -> Iterator[str]:
    """A run behind its own endpoint, in an event loop of its own; its base URL."""
    policy, url = load_served(str(run.path)), ""
    is_ready, is_over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        nonlocal url
        async with open_endpoint(policy, token="key") as endpoint:
            url = endpoint.base_url()
            is_ready.set()
            await is_over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert is_ready.wait(HANG_S)
        yield url
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(HANG_S)
        loop.close()


def lessons(url: str, *more: str) -> Any:
    """Parts that learn from an endpoint, and the settings that say so."""
    chosen = ["warm_start.type=endpoint", f"warm_start.url={url}", "warm_start.episodes=12", "warm_start.steps=2"]
    small = [word for word in SMALL_LAKE if not word.startswith("warm_start")]
    return load_settings("frozenlake", [*small, *chosen, *more])


class Pupil:
    """A learner that only writes down what it is to imitate."""

    def __init__(self) -> None:
        self.rows: list[Experience] = []

    def imitate(self, demonstrations: list[Experience], how: SFTConfig, on_step: Any) -> float:
        self.rows = demonstrations
        return 0.0


def teach(settings: Any) -> tuple[dict[str, float], list[Experience]]:
    model, pupil = resolve_model(settings), Pupil()
    trainer = replace(open_trainer(settings, model), learner=pupil)
    template = load_words(settings, str(model)).template
    return asyncio.run(warm_start(trainer, template, settings.warm_start, lambda *_: None)), pupil.rows


# --- as players ------------------------------------------------------------------------------------------------------


def test_a_run_behind_its_own_endpoint_plays_as_it_does_without(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = str(finished.path / "config.yaml")
    local = evaluate_policy(str(finished.path), ["eval.episodes=12"], QUIET, recipe=None, split="eval").report
    with served(finished) as url:
        asked = evaluate_policy(url, ["eval.episodes=12"], QUIET, recipe=recipe, split="eval").report
    assert (asked.success, asked.mean_return, asked.stop_reasons) == (
        local.success,
        local.mean_return,
        local.stop_reasons,
    )
    # Of tokens only the number by our own tokenizer is known: text does not say how it was sampled.
    assert [(r.reply, r.actions, r.cut) for r in asked.replies] == [(r.reply, r.actions, r.cut) for r in local.replies]


def test_an_endpoint_is_talked_to_as_a_model_that_was_trained_before(tmp_path: Path) -> None:
    plain = load_settings("frozenlake")
    found = find_policy("http://127.0.0.1:1/v1", ["engine.model=m"])
    assert (plain.context.instructions, found.settings.context.instructions) == ("none", "full")
    assert found.settings.engine.tells_tokens is False
    with pytest.raises(ConfigError, match=r"engine\.url: given beside the URL"):
        find_policy("http://127.0.0.1:1/v1", ["engine.url=http://127.0.0.1:2/v1"])


def test_an_endpoint_plays_an_environment_without_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeEndpoint(lambda _: said(RIGHT))) as endpoint:
        assert main(["eval", endpoint.url, "--env", "frozen_lake", "--episodes", "3", "--json"]) == 0
        assert '"episodes": 3' in capsys.readouterr().out
        console = Console(record=True, width=100, file=None, quiet=False)
        play_in_terminal(console, "frozen_lake", agent=endpoint.url, seed=0, split="eval", words=[])
    shown = console.export_text()
    assert "<answer>Right</answer>" in shown
    assert "prompt, as the model sees it" not in shown
    assert "frozen lake" in endpoint.chats[0]["messages"][0]["content"].lower()


def test_a_server_that_fails_in_the_middle_costs_episodes_and_not_the_evaluation() -> None:
    # Eight episodes ask at least eight times, and one that was refused asks no more: whatever the order in which they
    # come, the refused calls are of three episodes.
    lock, calls = threading.Lock(), itertools.count(1)

    def answer(_: dict[str, Any]) -> Answer:
        with lock:
            return refusal(500, "tripped") if next(calls) in (3, 4, 5) else said(RIGHT)

    with serving(FakeEndpoint(answer)) as endpoint:
        report = evaluate_policy(
            endpoint.url, ["eval.episodes=8", "engine.max_retries=0"], QUIET, recipe=None, split="eval"
        ).report
    assert report.episodes == 8
    assert report.stop_reasons is not None
    assert report.stop_reasons["engine_error"] == 3


def test_an_endpoint_that_never_answers_ends_the_evaluation_and_saves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(FakeEndpoint(lambda _: refusal(500, "out of memory"))) as endpoint:
        assert main(["eval", endpoint.url, "--episodes", "3", "--markdown", "m.md", "engine.max_retries=0"]) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert re.search(r"no reply in any of 3 episodes.* ended with engine_error: .*500.*out of memory", shown)
    assert [str(path) for path in tmp_path.rglob("*") if path.name in ("m.md", "evals", "eval.json")] == []


# --- never learnt from -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["both", "explore", "train"])
def test_training_through_an_endpoint_is_refused_before_anything_is_made(mode: str, tmp_path: Path) -> None:
    words = ["engine.type=openai", "engine.url=http://127.0.0.1:1/v1", "engine.model=m", f"run.mode={mode}"]
    words += ["buffer.type=sqlite", "sync.method=checkpoint"]
    found = [error.text for error in find_errors(load_settings("frozenlake", words))]
    assert [text for text in found if re.match(r"engine\.type: 'openai' given.*log-probs", text)]
    with pytest.raises(ConfigError, match=r"engine\.type: 'openai' given"):
        train("frozenlake", words, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_episodes_of_an_endpoint_never_become_experience() -> None:
    with serving(FakeEndpoint(lambda _: said(RIGHT))) as endpoint:
        policy = open_policy(find_policy(endpoint.url, ["eval.episodes=2"]))
        played = asyncio.run(evaluate_once(policy)).trajectories
    with pytest.raises(LearnError, match="not sampled by a policy of ours"):
        build_experiences([Group(task=t.task, trajectories=(t,)) for t in played])


# --- as teachers -----------------------------------------------------------------------------------------------------


def test_only_successes_are_imitated_unless_all_are_wanted() -> None:
    with serving(FakeEndpoint(towards_the_goal)) as endpoint:
        told, rows = teach(lessons(endpoint.url))
        told_all, rows_all = teach(lessons(endpoint.url, "warm_start.keep=all"))
    assert told["played"] == told_all["played"] == told_all["demonstrations"] == 12
    assert 0 < told["demonstrations"] < 12
    won = {str(row.id.trajectory) for row in rows_all if row.raw_rewards.sum() > 0}
    assert {str(row.id.trajectory) for row in rows} == won
    assert len(won) == told["demonstrations"]
    # What is imitated are the reply's tokens and its end, in the template of the model that learns.
    assert {int(row.segment.loss_mask.sum()) for row in rows} == {3}


def test_a_reply_that_the_policy_could_not_begin_so_is_not_taught() -> None:
    with (
        serving(FakeEndpoint(lambda _: said(f"Easy! {RIGHT}"))) as endpoint,
        pytest.raises(LearnError, match="12 cannot be spelled as the policy would"),
    ):
        teach(lessons(endpoint.url, "warm_start.keep=all", "context.answer.is_strict=false"))


def test_a_teacher_that_never_succeeds_or_always_fails_ends_the_run_with_the_reason() -> None:
    with (
        serving(FakeEndpoint(lambda _: said("no idea"))) as endpoint,
        pytest.raises(LearnError, match=r"warm_start\.url: no episode .*: 12 did not succeed"),
    ):
        teach(lessons(endpoint.url))
    with (
        serving(FakeEndpoint(lambda _: refusal(500, "broken"))) as endpoint,
        pytest.raises(LearnError, match=r"12 failed\. warm_start\.url: .* answers 500"),
    ):
        teach(lessons(endpoint.url, "warm_start.max_retries=0"))


def test_episodes_that_do_not_say_whether_they_succeeded_are_not_taken_for_successes() -> None:
    silent = "rollout.workflow=tests.unit.run.test_unknown_success:Wordy"
    with (
        serving(FakeEndpoint(lambda _: said(RIGHT))) as endpoint,
        pytest.raises(LearnError, match=r"12 did not say whether they succeeded .*set warm_start\.keep=all"),
    ):
        teach(lessons(endpoint.url, silent))


def test_a_run_starts_from_an_endpoint_and_writes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    with serving(FakeEndpoint(towards_the_goal)) as endpoint:
        run = train(lessons(endpoint.url).model_dump(mode="json"), run_dir=tmp_path / "run")
    assert run.summary.warm_start is not None
    assert run.summary.warm_start["played"] == 12
    written = [path for path in run.path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert written == []


def test_a_teacher_who_is_not_there_is_told_before_anything_is_made(tmp_path: Path) -> None:
    nobody = FakeEndpoint(lambda _: said(""))
    with serving(nobody):
        pass
    with pytest.raises(ConfigError, match=r"warm_start\.url: nobody answers"):
        train(lessons(nobody.url).model_dump(mode="json"), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mode", ["explore", "train"])
def test_two_processes_do_not_take_the_same_lessons_from_an_endpoint(mode: str) -> None:
    with serving(FakeEndpoint(lambda _: said(RIGHT))) as endpoint:
        settings = lessons(endpoint.url, f"run.mode={mode}", "buffer.type=sqlite", "sync.method=checkpoint")
        found = [error.text for error in find_errors(settings)]
    assert [text for text in found if text.startswith("warm_start.type: 'endpoint' given")]
