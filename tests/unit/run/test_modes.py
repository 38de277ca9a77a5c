"""Explore today, train tomorrow; two processes at once; a process that is killed loses nothing."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clock import HANG_S
from tests.small_run import SMALL_LAKE, without_plots
from turnwise.errors import ConfigError, RunError, SyncError
from turnwise.experience.codec import write_experiences
from turnwise.experience.store import SqliteBuffer
from turnwise.report.metrics import JsonlSink
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import TrajectoryJournal
from turnwise.run.api import resume, train
from turnwise.sync.role_locks import RoleLock, RoleProgress
from turnwise.types import Trajectory

pytestmark = pytest.mark.slow

GROUPS = 3
SEPARATE = [
    *SMALL_LAKE,
    "buffer.type=sqlite",
    "buffer.train_batch_size=6",
    "buffer.unit=groups",
    "sync.method=checkpoint",
    f"sync.timeout_s={HANG_S}",
    "report.trajectories_per_step=0",
]


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


def run(path: Path, mode: str, *overrides: str) -> None:
    train("frozenlake", [*SEPARATE, f"run.mode={mode}", *overrides], run_dir=path)


def ask(path: Path, question: str) -> list[tuple[int, ...]]:
    with sqlite3.connect(path / "experience.db", timeout=HANG_S) as db:
        return db.execute(question).fetchall()


def count_groups(path: Path) -> int:
    # A process that is starting has made the file before its tables.
    is_made = (path / "experience.db").exists() and ask(path, "SELECT 1 FROM sqlite_master WHERE name = 'groups'")
    return ask(path, "SELECT COUNT(*) FROM groups")[0][0] if is_made else 0


def role(path: Path, name: str) -> dict[str, object]:
    return json.loads((path / "roles" / f"{name}.json").read_text())


# --- one after the other ---------------------------------------------------------------------------------------------


def test_explore_today_and_train_tomorrow(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run(path, "explore", "learn.steps=5")
    assert count_groups(path) == 5 * GROUPS
    assert role(path, "explorer") == {"step": 5, "has_ended": True, "tasks": {"next_seed": 10_000 + 5 * GROUPS}}
    rollouts = [json.loads(line) for line in (path / "explorer.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rollouts] == [1, 2, 3, 4, 5]
    run(path, "train", "learn.steps=5")
    # Fifteen groups are two batches of six; three are left over and told.
    directory = RunDirectory.open(path)
    assert [row["step"] for row in directory.read_metrics()] == [0, 1, 2]
    assert directory.read_metrics()[-1]["buffer/experiences_left"] > 0
    assert ask(path, "SELECT step, COUNT(*) FROM uses GROUP BY step") == [(1, 6), (2, 6)]
    assert directory.read_summary().steps == 2
    assert directory.checkpoint_steps() == [2]
    # The trainer leaves its newest weights, and the explorer would begin with them; it has nothing left to do.
    assert json.loads((path / "weights" / "newest.json").read_text())["step"] == 2
    run(path, "explore", "learn.steps=5")
    assert count_groups(path) == 5 * GROUPS


def test_a_batch_is_a_ceiling_also_for_what_is_stored(tmp_path: Path) -> None:
    small = ["learn.steps=1", "buffer.train_batch_size=7680"]
    run(tmp_path / "run", "explore", *small)
    run(tmp_path / "run", "train", *small)
    assert ask(tmp_path / "run", "SELECT step, COUNT(*) FROM uses GROUP BY step") == [(1, GROUPS)]


def test_a_trainer_without_an_explorer_gives_up_with_a_message_and_keeps_what_it_has(tmp_path: Path) -> None:
    lonely = ["sync.timeout_s=0.3", "learn.steps=3"]
    with pytest.raises(SyncError, match=r"the trainer has waited .* for a batch.*explorer is not running"):
        run(tmp_path / "run", "train", *lonely)
    assert RunDirectory.open(tmp_path / "run").checkpoint_steps() == [0]
    for role in ("explorer", "trainer"):
        assert not RoleLock(tmp_path / "run" / "roles", role).is_taken()


def test_an_explorer_with_a_bound_gives_up_on_a_trainer_that_never_comes(tmp_path: Path) -> None:
    expected = r"the explorer has waited \d+ s for the weights of update 1 before rollout 3"
    with pytest.raises(SyncError, match=expected):
        run(tmp_path / "run", "explore", "sync.timeout_s=0.3", "sync.max_staleness=1", "learn.steps=4")
    assert count_groups(tmp_path / "run") == 2 * GROUPS


def test_an_explorer_that_fails_closes_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[JsonlSink] = []
    close = JsonlSink.close

    def note(sink: JsonlSink) -> None:
        close(sink)
        closed.append(sink)

    monkeypatch.setattr(JsonlSink, "close", note)
    with pytest.raises(SyncError):
        run(tmp_path / "run", "explore", "sync.timeout_s=0.3", "sync.max_staleness=0", "learn.steps=2")
    assert closed


def test_an_explorer_goes_on_with_the_newest_weights(tmp_path: Path) -> None:
    run(tmp_path / "run", "explore", "learn.steps=2")
    first = ask(tmp_path / "run", "SELECT MAX(policy_version) FROM groups")
    run(tmp_path / "run", "train", "learn.steps=2")
    # As after a kill: the record says that one rollout is missing.
    record = json.dumps({"step": 1, "has_ended": False, "tasks": {"next_seed": 10_000 + GROUPS}})
    (tmp_path / "run" / "roles" / "explorer.json").write_text(record)
    SqliteBuffer(tmp_path / "run" / "experience.db").delete_rollouts(after=1)
    run(tmp_path / "run", "explore", "learn.steps=2")
    assert first == [(0,)]
    assert ask(tmp_path / "run", "SELECT DISTINCT policy_version FROM groups WHERE rollout = 2") == [(1,)]


def test_a_trainer_learns_from_a_file_without_an_explorer(tmp_path: Path) -> None:
    run(tmp_path / "first", "explore", "learn.steps=2")
    file = tmp_path / "stored.jsonl"
    write_experiences(SqliteBuffer(tmp_path / "first" / "experience.db").read_groups(), file)
    run(tmp_path / "second", "train", "learn.steps=2", f"buffer.offline={file}")
    assert ask(tmp_path / "second", "SELECT step, COUNT(*) FROM uses GROUP BY step") == [(1, 2 * GROUPS)]
    with pytest.raises(ConfigError, match=r"buffer\.offline: a file given; run\.mode 'explore'"):
        run(tmp_path / "third", "explore", f"buffer.offline={file}")


def test_evaluating_is_a_mode_too(tmp_path: Path) -> None:
    run(tmp_path / "model", "eval")
    told = json.loads((tmp_path / "model" / "evaluation.json").read_text())
    assert (told["policy"], told["episodes"]) == ("tiny", 5)
    train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "both")
    train("frozenlake", [*SMALL_LAKE, "run.mode=eval"], run_dir=tmp_path / "both")
    told = json.loads((tmp_path / "both" / "evaluation.json").read_text())
    assert told["policy"].endswith("step-000002/policy")
    assert told["success"] == RunDirectory.open(tmp_path / "both").read_summary().success_after


# --- an explorer that is cut short -----------------------------------------------------------------------------------

FINISHED = 3
"""Episodes that end before the explorer breaks down: an odd number, so that not all of their groups are complete."""


def explore_and_break_down(path: Path, patch: pytest.MonkeyPatch, *overrides: str) -> list[Trajectory]:
    """Returns what had ended until then."""
    finished: list[Trajectory] = []
    append = TrajectoryJournal.append

    def append_some(journal: TrajectoryJournal, trajectory: Trajectory) -> None:
        if len(finished) == FINISHED:
            raise RuntimeError("broken down")
        append(journal, trajectory)
        finished.append(trajectory)

    with patch.context() as patched:
        patched.setattr(TrajectoryJournal, "append", append_some)
        with pytest.raises(RuntimeError, match="broken down"):
            run(path, "explore", "learn.steps=1", *overrides)
    return finished


def count_appends(patch: pytest.MonkeyPatch) -> list[Trajectory]:
    appended: list[Trajectory] = []
    append = TrajectoryJournal.append

    def append_and_count(journal: TrajectoryJournal, trajectory: Trajectory) -> None:
        append(journal, trajectory)
        appended.append(trajectory)

    patch.setattr(TrajectoryJournal, "append", append_and_count)
    return appended


def tokens_of(trajectories: list[Trajectory]) -> dict[str, bytes]:
    return {f"{t.id}#{n}": segment.token_ids.tobytes() for t in trajectories for n, segment in enumerate(t.segments)}


def stored(path: Path) -> dict[str, bytes]:
    store = SqliteBuffer(path / "experience.db")
    found = {str(e.id): e.segment.token_ids.tobytes() for group in store.read_groups() for e in group}
    store.close()
    return found


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param([], id="groups that are stored as they end"),
        pytest.param(["reward.filter.type=threshold", "reward.filter.above=-1"], id="groups that a filter sees first"),
    ],
)
def test_no_finished_episode_is_lost_or_played_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    path = tmp_path / "run"
    finished = explore_and_break_down(path, monkeypatch, *overrides)
    appended = count_appends(monkeypatch)
    run(path, "explore", "learn.steps=1", *overrides)
    assert len(appended) == 2 * GROUPS - FINISHED
    assert not {t.id for t in appended} & {t.id for t in finished}
    found = stored(path)
    assert len({name.split("#")[0] for name in found}) == 2 * GROUPS
    assert tokens_of(finished).items() <= found.items()
    assert list((path / "unfinished").iterdir()) == []


def test_a_rollout_that_was_played_is_finished_though_its_trainer_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "run", RoleLock.write
    one_step = ("learn.steps=1", f"buffer.train_batch_size={GROUPS}", "buffer.unit=groups", "sync.timeout_s=20")

    def break_down_in_the_end(place: RoleLock, record: RoleProgress) -> None:
        if record.step == 1:
            raise RuntimeError("broken down")
        write(place, record)

    with monkeypatch.context() as patched:
        patched.setattr(RoleLock, "write", break_down_in_the_end)
        with pytest.raises(RuntimeError, match="broken down"):
            run(path, "explore", *one_step)
    run(path, "train", *one_step)
    appended = count_appends(monkeypatch)
    run(path, "explore", *one_step)
    assert appended == []
    assert (RoleLock(path / "roles", "explorer").read().step, count_groups(path)) == (1, GROUPS)
    assert list((path / "unfinished").iterdir()) == []


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(["mix={more: {groups: 2, max_turns: 3, env: {type: frozen_lake}}}"], id="other environments too"),
        pytest.param(["reward.filter={type: threshold, above: 99, max_rounds: 2}"], id="groups that no filter passes"),
    ],
)
def test_a_rollout_that_was_played_in_part_is_left_where_its_trainer_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    path = tmp_path / "run"
    # More episodes have ended than those of `rollout.groups`, and fewer than the rollout has.
    small = ("rollout.groups=1", *overrides)
    assert len(explore_and_break_down(path, monkeypatch, *small)) == FINISHED
    RoleLock(path / "roles", "trainer").write(RoleProgress(step=1, has_ended=True))
    appended = count_appends(monkeypatch)
    run(path, "explore", "learn.steps=1", *small)
    assert appended == []
    assert RoleLock(path / "roles", "explorer").read().has_ended


def test_episodes_of_tasks_that_are_not_chosen_again_are_stored_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    finished = explore_and_break_down(path, monkeypatch)
    record = json.dumps({"step": 0, "has_ended": False, "tasks": {"next_seed": 20_000}})
    (path / "roles" / "explorer.json").write_text(record)
    run(path, "explore", "learn.steps=1")
    assert tokens_of(finished).items() <= stored(path).items()
    assert count_groups(path) == GROUPS + len({t.id.group for t in finished})


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_what_is_shared_must_lie_in_the_run_directory(tmp_path: Path) -> None:
    for mode in ("explore", "train"):
        with pytest.raises(ConfigError) as caught:
            train("frozenlake", [*SMALL_LAKE, f"run.mode={mode}"], run_dir=tmp_path / mode)
        assert "Set buffer.type=sqlite." in str(caught.value)
        assert "Set sync.method=checkpoint." in str(caught.value)
        assert not (tmp_path / mode).exists()


def test_processes_of_a_run_share_their_settings(tmp_path: Path) -> None:
    run(tmp_path / "run", "explore", "learn.steps=1")
    with pytest.raises(ConfigError, match=r"learn\.steps: 2 given; .*config\.yaml has 1"):
        run(tmp_path / "run", "train", "learn.steps=2")
    # A resumed part is the same part.
    resume(tmp_path / "run")
    assert count_groups(tmp_path / "run") == GROUPS


def test_a_trainer_needs_a_place_to_learn_from() -> None:
    with pytest.raises(ConfigError, match="without --run-dir"):
        train("frozenlake", [*SEPARATE, "run.mode=train"])


def test_a_role_that_is_taken_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "run", "explore", "learn.steps=1")
    place = RoleLock(tmp_path / "run" / "roles", "explorer")
    place.claim()
    with pytest.raises(RunError, match="has a running explorer already"):
        run(tmp_path / "run", "explore", "learn.steps=1")
    place.leave()


# --- two processes ---------------------------------------------------------------------------------------------------

STEPS = 4
"""Rollouts of three groups, learnt from three groups at a time."""
TOGETHER = [
    *SEPARATE,
    "buffer.train_batch_size=3",
    f"learn.steps={STEPS}",
    "report.checkpoint_every=1",
]


@contextmanager
def process(path: Path, mode: str, program: tuple[str, ...] = ("-m", "turnwise")) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *program, "train", "frozenlake", *TOGETHER, f"run.mode={mode}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--run-dir", str(path)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def wait_until(is_so: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to pass"
        assert all(p.poll() in (None, 0) for p in processes), [p.communicate()[0] for p in processes if p.poll()]
        time.sleep(0.02)


def finish(started: subprocess.Popen[str]) -> None:
    output, _ = started.communicate(timeout=HANG_S)
    assert started.returncode == 0, output


def kill(started: subprocess.Popen[str]) -> None:
    started.send_signal(signal.SIGKILL)
    started.wait()


def num_updates(path: Path) -> int:
    return len(RunDirectory.open(path).checkpoint_steps()) if (path / "config.yaml").exists() else 0


def check_nothing_lost_or_doubled(path: Path) -> None:
    assert count_groups(path) == STEPS * GROUPS
    assert ask(path, "SELECT step, COUNT(*) FROM uses GROUP BY step") == [(s, GROUPS) for s in range(1, STEPS + 1)]
    assert ask(path, "SELECT COUNT(DISTINCT number) FROM uses") == [(STEPS * GROUPS,)]
    assert RunDirectory.open(path).read_summary().steps == STEPS
    assert [row["step"] for row in RunDirectory.open(path).read_metrics()] == list(range(STEPS + 1))


def test_a_killed_explorer_is_started_again_and_the_trainer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    # In the middle of a rollout that is not the first.
    stalling = (str(Path(__file__).with_name("stalling.py")), str(tmp_path / "mark"), str(2 * GROUPS + FINISHED))
    with process(path, "train") as trainer:
        with process(path, "explore", stalling) as explorer:
            wait_until((tmp_path / "mark").exists, explorer, trainer)
            kill(explorer)
        files = sorted((path / "unfinished").glob("*.jsonl"))
        finished = [t for file in files for t in TrajectoryJournal(file.parent, int(file.stem[5:])).read()]
        assert finished
        assert trainer.poll() is None
        with process(path, "explore") as explorer:
            finish(explorer)
        finish(trainer)
    assert tokens_of(finished).items() <= stored(path).items()
    check_nothing_lost_or_doubled(path)


def test_a_killed_trainer_is_started_again_and_the_explorer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with process(path, "explore") as explorer:
        with process(path, "train") as trainer:
            wait_until(lambda: num_updates(path) >= 2, explorer, trainer)
            kill(trainer)
        finish(explorer)
    with process(path, "train") as trainer:
        finish(trainer)
    check_nothing_lost_or_doubled(path)
