"""Programs of tools, forked for the package verifiers: they live no longer than the environment that they are for."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from ...clock import HANG_S

pytestmark = pytest.mark.slow

TOOL = """
import os, time
with open(os.environ["TOLD"], "w") as told:
    print("here", file=told, flush=True)
    time.sleep(600)
"""
ENVIRONMENT = """
import os, sys, time
from turnwise.envs.adapters.verifiers_runner import ToolProcessPool
folder = sys.argv[1]
programs = ToolProcessPool()
programs.start("sleeping_tool", folder, f"{folder}/log", {"TOLD": f"{folder}/told"})
time.sleep(600)
"""


def read_some(told: int) -> bytes:
    assert select.select([told], [], [], HANG_S)[0], "nothing was heard of the program, and it has not ended"
    return os.read(told, 100)


def test_a_program_ends_with_an_environment_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "sleeping_tool.py").write_text(TOOL)
    os.mkfifo(tmp_path / "told")
    told = os.open(tmp_path / "told", os.O_RDWR)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    environment = subprocess.Popen([sys.executable, "-c", ENVIRONMENT, str(tmp_path)], env=env)
    try:
        assert read_some(told) == b"here\n"
        # From here on the program alone holds the other end.
        reading = os.open(tmp_path / "told", os.O_RDONLY | os.O_NONBLOCK)
        os.close(told)
    finally:
        environment.kill()
        environment.wait(HANG_S)
    assert read_some(reading) == b""
    os.close(reading)
