"""Real data for tests, beside the repository; a test that needs it is skipped where it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parents[4] / "shared" / "data"


def find_data(name: str) -> Path:
    """The file, or a skipped test."""
    file = DATA / name
    if not file.is_file():
        pytest.skip(f"no real data: ../shared/data/{name} is absent")
    return file
