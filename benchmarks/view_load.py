"""The page with 100,000 episodes and 100 million tokens on disk: when it is painted, and how long an episode takes.

A run directory is made by the library's own writers: metrics, trajectories and a learning record. `turnwise view` runs
in a process of its own and is asked over HTTP, first at once, while it knows nothing, then after it has looked into all
files; where Chromium and playwright are installed, a real browser opens it too. Times are wall times: on a machine that
is busy with other things they are too long.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlparse

import numpy as np

from turnwise.learn.pack import pack
from turnwise.report.learning_record.file import LearningRecorder
from turnwise.report.learning_record.learnt import LearntBatch
from turnwise.report.manifest import collect_manifest
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import TrajectoryWriter
from turnwise.types import (
    Annotations,
    Experience,
    ExperienceId,
    Sample,
    Segment,
    StepReport,
    StopReason,
    Task,
    Trajectory,
    TrajectoryId,
    Turn,
    UpdateTrace,
)

NUM_TURNS, GROUP_SIZE, SAMPLED_SHARE = 10, 10, 0.2
CONFIG = "recipe: load\nrun: {seed: 0}\nenv: {type: household}\ncredit: {type: grpo}\nlearn: {steps: 1000}\n"
WORDS = ("go", "to", "the", "kitchen", "take", "apple", "table", "then", "open", "fridge", "and", "look", "at", "it")


def run(num_episodes: int = 100_000, tokens_per_episode: int = 1000, per_step: int = 100) -> dict[str, Any]:
    """Make a run of that size, look at it, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="view_load-"))
    try:
        started = time.perf_counter()
        made = make_run(folder / "run", num_episodes // per_step, per_step, tokens_per_episode)
        size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
        facts = {
            "benchmark": "view_load",
            "episodes": num_episodes,
            "tokens": num_episodes * tokens_per_episode,
            "bytes_on_disk": size,
            "seconds_to_make_it": time.perf_counter() - started,
        }
        return {**facts, **look_at(made, num_episodes // per_step)}
    finally:
        shutil.rmtree(folder)


# --- the run ---------------------------------------------------------------------------------------------------------


def make_run(path: Path, steps: int, per_step: int, tokens_per_episode: int) -> Path:
    """Episodes are drawn once for every tenth step and written again: what they say does not matter here."""
    manifest = collect_manifest("load", 0, command=["view_load"])
    directory = RunDirectory.create(path, config_yaml=CONFIG, manifest=manifest)
    recorder = LearningRecorder(directory.learning_record, "all")
    drawn = [_draw(np.random.default_rng(number), number, per_step, tokens_per_episode) for number in range(10)]
    learnt = [_learn(np.random.default_rng(number), episodes) for number, episodes in enumerate(drawn)]
    texts: dict[int, bytes] = {}
    rows = []
    for step in range(1, steps + 1):
        number = step % 10
        if number not in texts:
            file = TrajectoryWriter(directory.trajectories, max_per_step=per_step).write(step, drawn[number])
            texts[number] = file.read_bytes()
        (directory.trajectories / f"step-{step:06d}.jsonl").write_bytes(texts[number])
        recorder.write(step, learnt[number])
        rows.append(json.dumps({"step": step, "time_s": step, "rollout/success": step / steps, "learn/entropy": 0.5}))
    directory.metrics.write_text("\n".join(rows) + "\n")
    return path


def _draw(rng: np.random.Generator, rollout: int, per_step: int, tokens_per_episode: int) -> list[Trajectory]:
    length = tokens_per_episode // NUM_TURNS
    num_sampled = max(1, round(length * SAMPLED_SHARE))
    turn_ids = np.concatenate([[-1] * (length - num_sampled) + [turn] * num_sampled for turn in range(NUM_TURNS)])
    episodes = []
    for place in range(per_step):
        task = Task(tag="household", seed=place // GROUP_SIZE, split="train")
        is_success = bool(rng.random() < 0.5)
        segment = Segment(
            token_ids=rng.integers(0, 50_000, len(turn_ids)).astype(np.int32),
            loss_mask=turn_ids >= 0,
            behavior_logprobs=np.where(turn_ids >= 0, -rng.random(len(turn_ids)), 0).astype(np.float32),
            turn_ids=turn_ids.astype(np.int32),
        )
        turns = tuple(_turn(rng, turn, float(is_success and turn == NUM_TURNS - 1)) for turn in range(NUM_TURNS))
        episodes.append(
            Trajectory(
                id=TrajectoryId(rollout, task.id, place % GROUP_SIZE),
                task=task,
                segments=(segment,),
                turns=turns,
                stop_reason=StopReason.TERMINATED if is_success else StopReason.MAX_TURNS,
                is_success=is_success,
            )
        )
    return episodes


def _turn(rng: np.random.Generator, index: int, reward: float) -> Turn:
    said = " ".join(rng.choice(WORDS, size=60))
    return Turn(
        index=index,
        segment_index=0,
        observation=said,
        response_text=said[:100],
        actions=("look",),
        reward=reward,
        penalty=0.0,
        policy_version=0,
        step=index,
    )


def _learn(rng: np.random.Generator, episodes: Sequence[Trajectory]) -> LearntBatch:
    samples = []
    for episode in episodes:
        (segment,) = episode.segments
        rewards = np.array([turn.reward for turn in episode.turns], dtype=np.float32)
        turns = np.arange(len(rewards), dtype=np.int32)
        experience = Experience(
            id=ExperienceId(episode.id, 0),
            segment=segment,
            turn_indices=turns,
            raw_rewards=rewards,
            turn_rewards=rewards,
            turn_states=turns.astype(np.uint64),
            turn_steps=turns,
            policy_version=0,
            is_last=True,
            is_truncated=False,
        )
        credit = _numbers(rng, segment.loss_mask)
        nothing = np.zeros_like(credit)
        samples.append(
            Sample(experience=experience, advantages=credit, returns=credit, values=nothing, reference_logprobs=nothing)
        )
    batch = pack(samples)
    trace = UpdateTrace(
        proximal_logprobs=_numbers(rng, batch.loss_mask),
        proximal_steps=np.zeros(batch.num_rows, dtype=np.int32),
        first_ratios=_numbers(rng, batch.loss_mask),
        last_ratios=_numbers(rng, batch.loss_mask),
        entropies=_numbers(rng, batch.loss_mask),
        is_clipped=np.zeros(len(batch.loss_mask), dtype=np.bool_),
    )
    return LearntBatch.of(
        samples,
        batch,
        StepReport(policy_version=1, metrics={}, trace=trace),
        annotated=[sample.experience for sample in samples],
        annotations=Annotations(values=None, reference_logprobs=None, token_penalties=None),
    )


def _numbers(rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, rng.normal(size=len(mask)), 0).astype(np.float32)


# --- the page --------------------------------------------------------------------------------------------------------


class Asker:
    """Asks the server as the page does, and takes the time."""

    def __init__(self, address: str) -> None:
        parts = urlparse(address)
        self._token = parse_qs(parts.query)["token"][0]
        self._place = (parts.hostname or "", parts.port)

    def ask(self, name: str, **words: object) -> tuple[float, Any]:
        started = time.perf_counter()
        # A connection of its own: one that is kept is closed by the server after a while.
        with closing(http.client.HTTPConnection(*self._place)) as connection:
            connection.request("GET", f"/api/{name}?{urlencode(words)}", headers={"x-turnwise-token": self._token})
            said = connection.getresponse().read()
        return time.perf_counter() - started, json.loads(said)


def look_at(made: Path, steps: int) -> dict[str, Any]:
    """Everything that is measured of one page."""
    command = [sys.executable, "-u", "-m", "turnwise", "view", str(made)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            opened = time.perf_counter()
            asker = Asker(address)
            first = [asker.ask("runs")[0], asker.ask("episodes", run="run")[0]]
            painted = _paint(address, made)
            while asker.ask("episodes", run="run")[1]["num_files_left"]:
                time.sleep(0.2)
            indexed_s = time.perf_counter() - opened
            return {
                "first_runs_s": first[0],
                "first_episodes_s": first[1],
                **painted,
                "all_files_read_s": indexed_s,
                **_ask_often(asker, steps),
            }
        finally:
            server.send_signal(signal.SIGINT)


def _ask_often(asker: Asker, steps: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    _, listed = asker.ask("episodes", run="run", limit=500)
    names = [row["id"].split("/", 1)[1] for row in listed["episodes"][:100]]
    opened = []
    for _ in range(200):
        step = int(rng.integers(1, steps + 1))
        opened.append(asker.ask("episode", run="run", step=step, id=f"{step % 10}/{rng.choice(names)}")[0])
    pages = [asker.ask("episodes", run="run", offset=int(rng.integers(0, 90_000)), success=1)[0] for _ in range(30)]
    sorted_ = [asker.ask("episodes", run="run", sort="return", order="ascending")[0] for _ in range(10)]
    step_id = f"1/{names[0]}"
    credit = [asker.ask("credit", run="run", step=1, id=step_id)[0] for _ in range(2)]
    return {
        "episode_s": _spread(opened),
        "page_of_a_filter_s": _spread(pages),
        "page_of_a_sort_s": _spread(sorted_),
        "frequent_word_s": asker.ask("episodes", run="run", text="fridge")[0],
        "missing_word_s": asker.ask("episodes", run="run", text="zeppelin")[0],
        "credit_first_s": credit[0],
        "credit_again_s": credit[1],
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "median": statistics.median(seconds),
        "p95": float(np.quantile(seconds, 0.95)),
        "most": max(seconds),
    }


def _paint(address: str, made: Path) -> dict[str, float]:
    """A browser opens the page for the first time; nothing where there is none."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where it is installed
    except ImportError:
        return {}
    if chromium is None:
        return {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        started = time.perf_counter()
        page.goto(address)
        page.wait_for_selector("tr[data-run]")
        runs_s = time.perf_counter() - started
        paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
        started = time.perf_counter()
        page.goto(f"{address.split('?')[0]}#/episodes?run={made.name}")
        page.wait_for_selector("tr[data-episode]")
        episodes_s = time.perf_counter() - started
        started = time.perf_counter()
        page.locator("tr[data-episode] a").first.click()
        page.wait_for_selector(".tok.sampled")
        episode_s = time.perf_counter() - started
        browser.close()
    return {
        "browser_first_paint_s": paint_ms / 1000,
        "browser_runs_s": runs_s,
        "browser_episodes_s": episodes_s,
        "browser_episode_s": episode_s,
    }
