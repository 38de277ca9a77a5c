"""Weights and requests as files: whole, checked, newest only; and who is at work."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from turnwise.errors import RunError, SyncError
from turnwise.protocols import PolicyMark
from turnwise.sync.checkpoint import CheckpointMailbox
from turnwise.sync.presence import RolePlace, RoleRecord
from turnwise.sync.waiting import Bell


def mailbox(folder: Path) -> CheckpointMailbox:
    return CheckpointMailbox(folder / "weights", Bell().ring)


def weights(value: float) -> dict[str, torch.Tensor]:
    shared = torch.full((2, 3), value)
    return {"embed": shared, "head": shared, "turned": torch.arange(6.0).reshape(2, 3).T}


def test_the_newest_and_the_one_before_it_stay(tmp_path: Path) -> None:
    trainer = mailbox(tmp_path)
    for step in range(1, 6):
        trainer.post(PolicyMark(step, step), weights(step))
    names = sorted(file.name for file in (tmp_path / "weights").iterdir())
    assert names == ["newest.json", "step-000004.safetensors", "step-000005.safetensors"]


def test_weights_that_are_not_what_was_posted_are_refused(tmp_path: Path) -> None:
    trainer = mailbox(tmp_path)
    with pytest.raises(SyncError, match="nothing has been posted"):
        trainer.fetch()
    trainer.post(PolicyMark(1, 1), weights(1))
    (file,) = (tmp_path / "weights").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(SyncError, match="checksum of step-000001"):
        trainer.fetch()
    file.unlink()
    with pytest.raises(SyncError, match=r"step-000001\.safetensors is missing"):
        trainer.fetch()


@pytest.mark.slow
def test_a_role_is_had_by_one_process_and_is_free_after_a_kill(tmp_path: Path) -> None:
    place = RolePlace(tmp_path, "explorer")
    assert not place.is_taken()
    code = (
        "import pathlib, sys; from turnwise.sync.presence import RolePlace; "
        "place = RolePlace(pathlib.Path(sys.argv[1]), 'explorer'); place.claim(); print('here', flush=True); "
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
    record = RoleRecord(step=4, has_ended=True, tasks={"next_seed": 9})
    RolePlace(tmp_path, "trainer").write(record)
    assert RolePlace(tmp_path, "trainer").read() == record
    assert RolePlace(tmp_path, "explorer").read() == RoleRecord()
