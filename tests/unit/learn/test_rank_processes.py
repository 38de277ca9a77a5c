"""What becomes of ranks: one that is gone, fails or is silent ends all of them; none outlives the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turnwise.errors import LearnError
from turnwise.learn.local_launcher import RankProcesses

from .parts import make_batch, make_model
from .ranks import open_in, start

pytestmark = pytest.mark.slow

_PARENT = """
import sys, time
from tests.unit.learn.ranks import start

if __name__ == "__main__":
    hosts = start(1)
    print(*[started.process.pid for started in hosts._ranks], flush=True)
    time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], limit_s: float = 60) -> bool:
    deadline_s = time.monotonic() + limit_s
    while any(map(is_running, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return not any(map(is_running, pids))


def pids_of(hosts: RankProcesses) -> list[int]:
    return [started.process.pid or 0 for started in hosts._ranks]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    make_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_rank_that_is_gone_ends_all_in_words(model: Path, tmp_path: Path) -> None:
    hosts = start(2, run_path=tmp_path)
    learner = open_in(hosts, model, "ddp")
    pids = pids_of(hosts)
    with pytest.raises(LearnError, match=r"rank 1 of 2 ended with exit code 3 in 'fall'.*ranks/rank-1\.log"):
        hosts.call("fall", 1)
    assert wait_until_gone(pids)
    assert (tmp_path / "ranks" / "rank-1.log").is_file()
    with pytest.raises(LearnError, match="have ended"):
        learner.step(make_batch())
    learner.close()


def test_a_rank_that_was_killed_is_noticed_at_the_next_call(model: Path) -> None:
    hosts = start(2)
    learner = open_in(hosts, model, "fsdp")
    os.kill(pids_of(hosts)[0], signal.SIGKILL)
    with pytest.raises(LearnError, match="rank 0 of 2 ended with signal SIGKILL in 'step'"):
        learner.step(make_batch())
    assert wait_until_gone(pids_of(hosts))


def test_a_failure_of_one_rank_ends_all_and_one_of_all_ends_none(model: Path) -> None:
    hosts = start(2)
    learner = open_in(hosts, model, "ddp")
    with pytest.raises(LearnError, match="the batch has no sampled tokens"):
        learner.step(replace(make_batch(), loss_mask=np.zeros_like(make_batch().loss_mask)))
    assert learner.step(make_batch()).policy_version == 1
    with pytest.raises(LearnError, match=r"rank 1 of 2 failed in 'stumble': ZeroDivisionError: stumbled"):
        hosts.call("stumble", 1)
    assert wait_until_gone(pids_of(hosts))


def test_a_call_that_was_broken_off_ends_all(model: Path) -> None:
    """What is still to be answered must not be taken for the answer to the next call."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hosts = start(1)
    open_in(hosts, model, "ddp", 1)
    with pytest.raises(KeyboardInterrupt):
        hosts.call("weights", on_note=interrupt)
    assert wait_until_gone(pids_of(hosts))


def test_a_rank_that_says_nothing_is_given_up(model: Path) -> None:
    hosts = start(1)
    open_in(hosts, model, "ddp", 1)
    hosts._timeout_s = 0.2
    with pytest.raises(LearnError, match=r"gave no answer to 'sleep' within learn.parallel.timeout_s = 0.2"):
        hosts.call("sleep", 600.0)
    assert wait_until_gone(pids_of(hosts))


def test_ranks_end_with_the_process_that_started_them() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 1
    assert is_running(pids[0])
    parent.kill()
    parent.wait()
    assert wait_until_gone(pids)
