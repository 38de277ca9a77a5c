"""The agents of `examples/agents`, each by the real package of its framework, unmodified: tools, exact tokens, rows,
calls that nobody should follow, lessons and updates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ...clock import HANG_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("TURNWISE_AGENTS_PYTHON", sys.executable)
PACKAGES = {
    "openai_client": "openai",
    "anthropic_client": "anthropic",
    "openai_agents": "agents",
    "langgraph_react": "langgraph",
    "pydantic_ai_agent": "pydantic_ai",
    "smolagents_tools": "smolagents",
}
NUM_UPDATES = 6
APPENDING = [program for program in PACKAGES if program != "smolagents_tools"]


def require(program: str) -> None:
    package = PACKAGES[program]
    has_package = subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, cwd=ROOT)
    if has_package.returncode:
        pytest.skip(
            f"the package '{package}' is not installed; `make test-agents` makes an environment with it, or name one "
            "in TURNWISE_AGENTS_PYTHON"
        )


def play(program: str, way: str) -> dict[str, Any]:
    """One episode against a teacher; what was recorded."""
    require(program)
    played = subprocess.run(
        [PYTHON, "-m", "tests.unit.serve.play_framework", program, way],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    assert played.returncode == 0, played.stderr
    told = json.loads(played.stdout.splitlines()[-1])
    assert told.pop("is_exact"), "a row holds something else than the engine saw"
    return told


@pytest.mark.parametrize("program", APPENDING)
def test_an_agent_plays_unmodified(program: str) -> None:
    assert play(program, "short") == {"reward": 1.0, "is_success": True, "calls": 4, "rows": 1, "encoded_anew": 0}


def test_an_agent_that_writes_its_calls_anew_plays_unmodified() -> None:
    """smolagents writes earlier calls into the text of its messages: every call is encoded anew."""
    told = play("smolagents_tools", "short")
    assert told == {"reward": 1.0, "is_success": True, "calls": 4, "rows": 4, "encoded_anew": 3}


@pytest.mark.parametrize("program", APPENDING)
def test_two_hundred_calls_are_one_row_where_a_framework_only_appends(program: str) -> None:
    assert play(program, "long") == {"reward": 1.0, "is_success": True, "calls": 200, "rows": 1, "encoded_anew": 0}


@pytest.mark.parametrize(
    ("program", "num_calls", "is_success"),
    [
        ("openai_client", 12, True),
        ("anthropic_client", 12, True),
        # It ends a run that calls a tool which there is not.
        ("openai_agents", 7, False),
        ("langgraph_react", 12, True),
        # It gives up when a tool was called wrongly twice.
        ("pydantic_ai_agent", 4, False),
        ("smolagents_tools", 12, True),
    ],
)
def test_invalid_tool_call_does_not_fail_episode(program: str, num_calls: int, is_success: bool) -> None:
    told = play(program, "hostile")
    assert (told["calls"], told["is_success"]) == (num_calls, is_success)


def train(program: str, tmp_path: Path, *, num_steps: int) -> tuple[dict[str, Any], list[float]]:
    """The summary of a run of an example, and the mean return of each update's episodes."""
    require(program)
    example = str(ROOT / "examples" / "agents" / f"{program}.py")
    trained = subprocess.run(
        [PYTHON, example, "--steps", str(num_steps), "--root", "made"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=10 * HANG_S,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TURNWISE_CACHE": str(tmp_path / "cache")},
    )
    assert trained.returncode == 0, trained.stderr
    (run,) = (tmp_path / "made").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["policy_version"], summary["failures"]) == (num_steps, {})
    # All lessons succeeded and could be spelled; one row each, but where every call is encoded anew.
    lessons = summary["warm_start"]
    num_rows = 32 if program in APPENDING else 128
    assert (lessons["demonstrations"], lessons["played"], lessons["rows"]) == (32, 32, num_rows)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return summary, [step["rollout/return"] for step in steps if "rollout/return" in step]


@pytest.mark.parametrize("program", PACKAGES)
def test_an_agent_is_taught_and_trained_until_it_earns_more(program: str, tmp_path: Path) -> None:
    summary, returns = train(program, tmp_path, num_steps=NUM_UPDATES)
    # Two standard errors of the difference between two means of 128 episodes.
    assert summary["return_after"] > summary["return_before"] + 0.1
    assert sum(returns[-2:]) > sum(returns[:2])
