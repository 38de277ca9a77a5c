"""math-verify as a grader: symbolic comparison in a process of its own, with a deadline.

In come two answers; out comes a yes or no. What exact comparison accepts is accepted at once. A comparison that takes
longer than `DEADLINE_S` is a no, and its process is replaced: a reply such as `9^{9^{9}}` must not stop a rollout.
"""

from __future__ import annotations

import atexit
import json
import select
import subprocess
import sys
import threading
from pathlib import Path

from turnwise.config.settings import require_package
from turnwise.envs.metamathqa.exact import is_same_answer
from turnwise.envs.metamathqa.final_answer import final_answer
from turnwise.errors import EnvError

DEADLINE_S = 5.0
START_DEADLINE_S = 120.0
"""Importing sympy takes a second, and many on a busy machine."""


class MathVerifier:
    """One worker process for all environments of this process, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def is_same(self, given: str, expected: str) -> bool:
        if is_same_answer(given, expected):
            return True
        pair = final_answer(given), final_answer(expected)
        if not all(pair):
            return False
        with self._lock:
            return self._ask(*pair)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, given: str, expected: str) -> bool:
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps([given, expected]) + "\n")
        process.stdin.flush()
        answer = _read_line(process, DEADLINE_S)
        if answer is None:
            self.close()
        return answer is True

    def _start(self) -> subprocess.Popen[str]:
        worker = str(Path(__file__).with_name("math_verify_worker.py"))
        # -P: the modules beside the worker must not hide packages of the same name.
        self._process = subprocess.Popen(
            [sys.executable, "-P", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if _read_line(self._process, START_DEADLINE_S) != "ready":
            self.close()
            raise EnvError("env.grader: the process of math-verify did not start; try env.grader=exact.")
        return self._process


def _read_line(process: subprocess.Popen[str], deadline_s: float) -> object:
    """What the worker says; None where it says nothing in time or is gone."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], deadline_s)[0]:
        return None
    line = process.stdout.readline()
    return json.loads(line) if line else None


_VERIFIER = MathVerifier()
atexit.register(_VERIFIER.close)


def is_same_by_math_verify(given: str, expected: str) -> bool:
    return _VERIFIER.is_same(given, expected)


def require_math_verify() -> None:
    """Before the first question, not after the first reply."""
    require_package("math_verify", extra="math", asked_by="env.grader: math_verify")
