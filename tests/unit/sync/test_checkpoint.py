"""Weights and requests as files: whole, checked, newest only; and who is at work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from turnwise.errors import RunError, SyncError
from turnwise.protocols import PolicyVersion
from turnwise.sync.role_locks import RoleLock, RoleProgress
from turnwise.sync.sync_schedule import Notifier
from turnwise.sync.weight_store import FileWeightStore, find_damaged_weights


def mailbox(folder: Path) -> FileWeightStore:
    return FileWeightStore(folder / "weights", Notifier().ring)


def weights(value: float) -> dict[str, torch.Tensor]:
    shared = torch.full((2, 3), value)
    return {"embed": shared, "head": shared, "turned": torch.arange(6.0).reshape(2, 3).T}


def test_the_newest_and_the_one_before_it_stay(tmp_path: Path) -> None:
    trainer = mailbox(tmp_path)
    for step in range(1, 6):
        trainer.post(PolicyVersion(step, step), weights(step))
    names = sorted(file.name for file in (tmp_path / "weights").iterdir())
    assert names == ["newest.json", "step-000004.safetensors", "step-000005.safetensors"]


def test_a_clock_that_is_set_back_takes_no_weights_away(tmp_path: Path) -> None:
    trainer = mailbox(tmp_path)
    for step in (1, 2):
        trainer.post(PolicyVersion(step, step), weights(step))
    for file in (tmp_path / "weights").glob("*.safetensors"):
        os.utime(file, (2e10, 2e10))
    trainer.post(PolicyVersion(3, 3), weights(3))
    assert trainer.fetch()[0] == PolicyVersion(3, 3)
    # A trainer that goes on from an earlier checkpoint counts its steps from there.
    trainer.post(PolicyVersion(1, 4), weights(4))
    assert trainer.fetch()[0] == PolicyVersion(1, 4)


def test_weights_that_are_not_what_was_posted_are_refused(tmp_path: Path) -> None:
    trainer = mailbox(tmp_path)
    with pytest.raises(SyncError, match="nothing has been posted"):
        trainer.fetch()
    trainer.post(PolicyVersion(1, 1), weights(1))
    (file,) = (tmp_path / "weights").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(SyncError, match="checksum of step-000001"):
        trainer.fetch()
    file.unlink()
    with pytest.raises(SyncError, match=r"step-000001\.safetensors cannot be read \(No such file"):
        trainer.fetch()


@pytest.mark.parametrize(
    ("found", "instead"), [('"step": 1,', '"step": 3,'), ('"file"', '"fine"'), ("}", "]"), ('{"step"', '[{"step"')]
)
def test_a_record_that_is_not_what_was_written_is_refused(tmp_path: Path, found: str, instead: str) -> None:
    trainer = mailbox(tmp_path)
    trainer.post(PolicyVersion(1, 1), weights(1))
    record = tmp_path / "weights" / "newest.json"
    assert find_damaged_weights(record.parent) is None
    record.write_text(record.read_text().replace(found, instead, 1))
    with pytest.raises(SyncError, match=r"newest\.json"):
        trainer.newest()
    with pytest.raises(SyncError, match=r"newest\.json"):
        trainer.fetch()
    assert "newest.json" in (find_damaged_weights(record.parent) or "")


@pytest.mark.parametrize(
    "wrong", [{"step": None}, {"policy_version": "1"}, {"file": "../a"}, {"file": "\ud800"}, {"file": 5}]
)
def test_a_record_without_a_checksum_is_believed_where_it_is_whole(tmp_path: Path, wrong: dict[str, object]) -> None:
    trainer = mailbox(tmp_path)
    trainer.post(PolicyVersion(1, 1), weights(1))
    record = tmp_path / "weights" / "newest.json"
    told = {name: value for name, value in json.loads(record.read_text()).items() if name != "checksum"}
    record.write_text(json.dumps(told))
    assert trainer.newest() == PolicyVersion(1, 1)
    record.write_text(json.dumps(told | wrong))
    with pytest.raises(SyncError, match=r"newest\.json is not as it was written"):
        trainer.fetch()


def test_weights_that_are_no_file_are_told(tmp_path: Path) -> None:
    trainer = mailbox(tmp_path)
    trainer.post(PolicyVersion(1, 1), weights(1))
    file = tmp_path / "weights" / "step-000001.safetensors"
    file.unlink()
    file.mkdir()
    with pytest.raises(SyncError, match=r"step-000001\.safetensors cannot be read \(Is a directory\)"):
        trainer.fetch()


@pytest.mark.parametrize("found", ["{}", '{"step": null}', '{"step": "two"}', "[]"])
def test_a_damaged_request_for_weights_is_told(tmp_path: Path, found: str) -> None:
    explorer = mailbox(tmp_path)
    explorer.request(2)
    assert explorer.requested() == 2
    (tmp_path / "weights" / "request.json").write_text(found)
    with pytest.raises(SyncError, match=r"request\.json"):
        explorer.requested()


@pytest.mark.slow
def test_a_role_is_had_by_one_process_and_is_free_after_a_kill(tmp_path: Path) -> None:
    place = RoleLock(tmp_path, "explorer")
    assert not place.is_taken()
    code = (
        "import pathlib, sys; from turnwise.sync.role_locks import RoleLock; "
        "place = RoleLock(pathlib.Path(sys.argv[1]), 'explorer'); place.claim(); print('here', flush=True); "
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"here\n"
        assert place.is_taken()
        with pytest.raises(RunError, match="has a running explorer already"):
            place.claim()
        other.send_signal(signal.SIGKILL)
    assert not place.is_taken()
    place.claim()
    assert place.is_taken()
    place.leave()
    assert not place.is_taken()


def test_a_role_says_how_far_it_is(tmp_path: Path) -> None:
    record = RoleProgress(step=4, has_ended=True, tasks={"next_seed": 9})
    RoleLock(tmp_path, "trainer").write(record)
    assert RoleLock(tmp_path, "trainer").read() == record
    assert RoleLock(tmp_path, "explorer").read() == RoleProgress()
