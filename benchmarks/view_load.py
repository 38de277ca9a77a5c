"""The page with 100,000 episodes and 100 million tokens on disk: when it is painted, and how long an episode takes.

A run directory is made by the library's own writers: metrics, trajectories and a learning record. `turnwise view` runs
in a process of its own and is asked over HTTP, first at once, while it knows nothing, then after it has looked into all
files; where Chromium and playwright are installed, a real browser opens it too. There an episode takes from the click
until its tokens are painted, as the page's own clock says: the first one that is opened, while the server still reads
files, and then one of another step after the other. Times are wall times, which are too long on a machine that is busy
with other things; beside them stands what the server has computed (`cpu_s`).
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlparse

import numpy as np

from turnwise.learn.pack import pack
from turnwise.report.manifest import collect_manifest
from turnwise.report.run_dir import RunDirectory
from turnwise.report.token_log import TokenLogWriter
from turnwise.report.token_log_codec import UpdateRecord
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
    recorder = TokenLogWriter(directory.learning_record, "all")
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


def _learn(rng: np.random.Generator, episodes: Sequence[Trajectory]) -> UpdateRecord:
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
    return UpdateRecord.of(
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

    def __init__(self, address: str, pid: int) -> None:
        self._pid = pid
        parts = urlparse(address)
        self._token = parse_qs(parts.query)["token"][0]
        self._place = (parts.hostname or "", parts.port)

    def cpu_s(self) -> float:
        """What the server has computed so far."""
        words = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def ask_often(self, questions: Sequence[tuple[str, dict[str, object]]]) -> dict[str, float]:
        """How long single answers take, and what the server computes for each on average."""
        before = self.cpu_s()
        seconds = [self.ask(name, **words)[0] for name, words in questions]
        computed = (self.cpu_s() - before) / len(questions)
        return {
            "median": statistics.median(seconds),
            "p95": float(np.quantile(seconds, 0.95)),
            "most": max(seconds),
            "cpu_s": computed,
        }

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
            asker = Asker(address, server.pid)
            first = [asker.ask("runs")[0], asker.ask("episodes", run="run")[0]]
            painted = _paint(address, made)
            while asker.ask("episodes", run="run")[1]["num_files_left"]:
                time.sleep(0.2)
            read_s = {"wall_s": time.perf_counter() - opened, "cpu_s": asker.cpu_s()}
            return {
                "first_runs_s": first[0],
                "first_episodes_s": first[1],
                **painted,
                **_go_on(address, made, _draw_names(asker, steps)),
                "all_files_read": read_s,
                **_ask_often(asker, steps),
            }
        finally:
            server.send_signal(signal.SIGINT)


def _draw_names(asker: Asker, steps: int) -> Iterator[dict[str, object]]:
    """Episodes of any step, for as long as somebody asks for more."""
    rng = np.random.default_rng(0)
    _, listed = asker.ask("episodes", run="run", limit=500)
    names = [row["id"].split("/", 1)[1] for row in listed["episodes"][:100]]
    while True:
        step = int(rng.integers(1, steps + 1))
        yield {"run": "run", "step": step, "id": f"{step % 10}/{rng.choice(names)}"}


def _ask_often(asker: Asker, steps: int) -> dict[str, Any]:
    rng, drawn = np.random.default_rng(1), _draw_names(asker, steps)
    about: dict[str, object] = {"run": "run"}
    paged = [("episodes", {**about, "offset": int(rng.integers(0, 50 * steps)), "success": 1}) for _ in range(30)]
    return {
        "episode_s": asker.ask_often([("episode", next(drawn)) for _ in range(200)]),
        "page_of_a_filter_s": asker.ask_often(paged),
        "page_of_a_sort_s": asker.ask_often([("episodes", {**about, "sort": "return"})] * 10),
        "frequent_word_s": asker.ask_often([("episodes", {**about, "text": "fridge"})]),
        "missing_word_s": asker.ask_often([("episodes", {**about, "text": "zeppelin"})]),
        "credit_s": asker.ask_often([("credit", next(drawn)) for _ in range(10)]),
    }


@contextmanager
def _browse(address: str) -> Iterator[Any]:
    """A page of a browser that has just opened the address; None where there is no browser."""
    chromium = shutil.which("chromium")
    if chromium is None or find_spec("playwright") is None:
        yield None
        return
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where it is installed

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("tr[data-run]")
        yield page
        browser.close()


def _paint(address: str, made: Path) -> dict[str, float]:
    """A browser opens the page for the first time."""
    with _browse(address) as page:
        if page is None:
            return {}
        paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
        runs_s = page.evaluate("performance.now() / 1000")
        started = time.perf_counter()
        _open_list(page, address, made)
        episodes_s = time.perf_counter() - started
        return {
            "browser_first_paint_s": paint_ms / 1000,
            "browser_runs_s": runs_s,
            "browser_episodes_s": episodes_s,
            "browser_first_episode_s": _open_episode(page, page.get_attribute("tr[data-episode] a", "href")),
        }


def _go_on(
    address: str, made: Path, names: Iterator[dict[str, object]], num_episodes: int = 20
) -> dict[str, dict[str, float]]:
    """From one episode to another in a page that stays open."""
    with _browse(address) as page:
        if page is None:
            return {}
        _open_list(page, address, made)
        _open_episode(page, page.get_attribute("tr[data-episode] a", "href"))
        seconds = []
        for name in islice(names, num_episodes):
            # As a person would: after the last one is whole.
            page.wait_for_selector("table.credit")
            seconds.append(_open_episode(page, f"#/episode?{urlencode(name)}"))
    return {"browser_episode_s": {"median": statistics.median(seconds), "most": max(seconds)}}


def _open_list(page: Any, address: str, made: Path) -> None:
    page.goto(f"{address.split('?')[0]}#/episodes?run={made.name}")
    page.wait_for_selector("tr[data-episode]")


def _open_episode(page: Any, place: str) -> float:
    """Seconds until the tokens of the episode are painted."""
    return page.evaluate(_OPEN_EPISODE, place) / 1000


_OPEN_EPISODE = """(place) => new Promise((done) => {
    const before = document.querySelector("h1")?.textContent;
    const started = performance.now();
    const seen = new MutationObserver(() => {
        if (!document.querySelector(".tok.sampled") || document.querySelector("h1").textContent === before) return;
        seen.disconnect();
        // Behind the next frame: then it has been painted.
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - started), 0));
    });
    seen.observe(document.body, { childList: true, subtree: true });
    location.hash = place;
})"""
