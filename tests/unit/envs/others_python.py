"""The Python with verifiers and gem-llm, where there is one: `TURNWISE_ENVS_PYTHON`, or `.venv-envs` in the repository,
which `make envs-of-others` makes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[3] / ".venv-envs" / "bin" / "python"
PYTHON = os.environ.get("TURNWISE_ENVS_PYTHON") or (str(_BESIDE) if _BESIDE.exists() else "")
WORLDS = Path(__file__).parent / "of_others"
"""Modules that only that Python can import; it finds them by their names."""
NEEDS_ENVS_OF_OTHERS = (
    pytest.mark.envs_of_others,
    pytest.mark.slow,
    pytest.mark.xdist_group("envs_of_others"),
    pytest.mark.skipif(
        not PYTHON,
        reason="needs verifiers and gem-llm in an environment of their own: `make test-envs`, or set "
        "TURNWISE_ENVS_PYTHON",
    ),
)
