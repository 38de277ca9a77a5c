"""Every byte that a run has written and that is read again is held against what was written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.small_run import SMALL_LAKE, without_plots
from turnwise.audit.records import describe
from turnwise.run.api import Run, train
from turnwise.run.run_audit import audit_run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("finished_run")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        settings = [*SMALL_LAKE, "learn.steps=2", "report.checkpoint_every=1", "report.tokens=all"]
        settings += ["buffer.type=sqlite", "sync.method=checkpoint", "learn.critic.type=model"]
        return train("frozenlake", settings, run_dir=tmp_path_factory.mktemp("finished") / "run")


@contextmanager
def changed(file: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    sound = file.read_bytes()
    file.write_bytes(change(sound))
    try:
        yield
    finally:
        file.write_bytes(sound)


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def flip_in_the_middle(data: bytes) -> bytes:
    return flip(data, len(data) // 2)


def test_what_a_run_has_written_is_sound(run: Run) -> None:
    counts, breaches = audit_run(run.path)
    assert breaches == []
    assert {kind for kind, count in counts.items() if not count} <= {"journals", "published weights"}


def test_a_run_that_has_ended_leaves_no_page_of_its_buffer_beside_the_file(run: Run) -> None:
    assert [path.name for path in run.path.glob("experience.db*")] == ["experience.db"]


def test_nothing_is_written(run: Run) -> None:
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    audit_run(run.path)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/step-000002/policy/model.safetensors",
        "checkpoints/step-000002/optimizer.pt",
        "checkpoints/step-000001/progress.json",
        "learning_record.bin",
        "trajectories/step-000001.jsonl",
        "trajectories/eval/step-000002.jsonl",
        "evals/step-000002/step-000000.jsonl",
    ],
)
def test_one_flipped_bit_is_found_and_its_file_is_named(run: Run, name: str) -> None:
    with changed(run.path / name, flip_in_the_middle):
        _, breaches = audit_run(run.path)
    assert [breach.kind for breach in breaches] == ["file"]
    told = describe(breaches[0])
    assert Path(name).name in told or "learning record" in told or name.split("/")[1] in told


def test_an_evaluation_is_held_against_its_plays(run: Run) -> None:
    with changed(
        run.path / "evals" / "step-000002" / "eval.json", lambda data: data.replace(b'"turns": 3', b'"turns": 2')
    ):
        _, breaches = audit_run(run.path)
    assert ["tasks differ from the episodes beside it" in breach.message for breach in breaches] == [True]


def test_every_file_of_a_checkpoint_has_a_checksum(run: Run) -> None:
    folder = run.path / "checkpoints" / "step-000002"
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert files == {*json.loads((folder / "checksums.json").read_text()), "checksums.json"}


def test_a_damaged_header_does_not_make_a_step_vanish(run: Run) -> None:
    with changed(run.path / "learning_record.bin", lambda data: flip(data, 2)):
        _, breaches = audit_run(run.path)
    assert "bytes 0 to" in breaches[0].message


def test_a_flipped_bit_in_a_stored_group_is_found(run: Run) -> None:
    file = run.path / "experience.db"
    with closing(sqlite3.connect(file)) as db:
        (block,) = db.execute("SELECT data FROM blocks WHERE number = 2").fetchone()
    with changed(file, lambda data: flip(data, data.index(block[100:160]) + 30)):
        _, breaches = audit_run(run.path)
    assert len(breaches) == 1
    assert "checksum" in breaches[0].message
    assert "group" in breaches[0].where


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE groups SET policy_version = policy_version + 1 WHERE number = 3", "another policy_version"),
        ("DELETE FROM uses WHERE number = 3", "used 1 times by its row, and 0 times"),
        ("DELETE FROM blocks WHERE number = 3", "gone"),
        ("INSERT INTO uses VALUES (2, 99)", "1 rows of uses belong to no group"),
    ],
)
def test_rows_of_the_store_that_contradict_each_other_are_found(run: Run, change: str, told: str) -> None:
    with changed(run.path / "experience.db", lambda data: data):
        with closing(sqlite3.connect(run.path / "experience.db")) as db, db:
            db.execute(change)
        _, breaches = audit_run(run.path)
    assert [told in breach.message for breach in breaches] == [True]


def test_a_changed_reward_whose_line_was_written_anew_is_found_by_its_seal(run: Run) -> None:
    def pay_more(data: bytes) -> bytes:
        line, *rest = data.decode().splitlines()
        played = json.loads(line)
        del played["checksum"]
        played["turns"][0]["reward"] += 1.0
        return ("\n".join([json.dumps(played), *rest]) + "\n").encode()

    with changed(run.path / "trajectories" / "step-000001.jsonl", pay_more):
        _, breaches = audit_run(run.path)
    assert [breach.kind for breach in breaches] == ["seal"]


def test_a_missing_row_of_the_metrics_is_found(run: Run) -> None:
    with changed(run.path / "metrics.jsonl", lambda data: b"".join(data.splitlines(keepends=True)[::2])):
        _, breaches = audit_run(run.path)
    assert "no row of steps 1 to 1" in breaches[0].message


def test_a_step_of_any_size_in_the_metrics_is_told_at_once(run: Run) -> None:
    """Counting up to it would take for ever."""
    with changed(run.path / "metrics.jsonl", lambda data: data.replace(b'"step": 2,', b'"step": %d,' % 10**30)):
        _, breaches = audit_run(run.path)
    assert f"no row of steps 2 to {10**30 - 1}" in breaches[0].message
