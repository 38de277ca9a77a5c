"""The agents of `examples/agents`, each by the real package of its framework, unmodified: tools, exact tokens, rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...clock import HANG_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("TURNWISE_AGENTS_PYTHON", sys.executable)


def require(package: str) -> None:
    has_package = subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, cwd=ROOT)
    if has_package.returncode:
        pytest.skip(
            f"the package '{package}' is not installed; `make test-agents` makes an environment with it, or name one "
            "in TURNWISE_AGENTS_PYTHON"
        )


@pytest.mark.parametrize(
    ("program", "package", "num_calls", "num_rows"),
    [
        ("openai_client", "openai", 4, 1),
        ("anthropic_client", "anthropic", 4, 1),
        ("openai_agents", "agents", 4, 1),
        ("langgraph_react", "langgraph", 4, 1),
        ("pydantic_ai_agent", "pydantic_ai", 4, 1),
        # It writes earlier calls into the text of its messages: every call is encoded anew.
        ("smolagents_tools", "smolagents", 4, 4),
    ],
)
def test_an_agent_plays_unmodified(program: str, package: str, num_calls: int, num_rows: int) -> None:
    require(package)
    played = subprocess.run(
        [PYTHON, "-m", "tests.unit.serve.play_framework", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    assert played.returncode == 0, played.stderr
    told = json.loads(played.stdout.splitlines()[-1])
    assert told == {
        "reward": 1.0,
        "is_success": True,
        "calls": num_calls,
        "rows": num_rows,
        "encoded_anew": num_rows - 1,
        "is_exact": True,
    }


def test_an_agent_is_taught_and_trained(tmp_path: Path) -> None:
    require("openai")
    example = str(ROOT / "examples" / "agents" / "openai_client.py")
    trained = subprocess.run(
        [PYTHON, example, "--lessons", "40", "--steps", "6", "--root", "made"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=10 * HANG_S,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TURNWISE_CACHE": str(tmp_path / "cache")},
    )
    assert trained.returncode == 0, trained.stderr
    (run,) = (tmp_path / "made").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["policy_version"], summary["failures"]) == (6, {})
    # All lessons succeeded, each in one row for each call, and the policy calls tools after them.
    lessons = summary["warm_start"]
    assert (lessons["demonstrations"], lessons["played"], lessons["rows"]) == (32, 32, 128)
    assert summary["success_before"] > 0
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    returns = [step["rollout/return"] for step in steps if "rollout/return" in step]
    assert sum(returns[-2:]) > sum(returns[:2])
