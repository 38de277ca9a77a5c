"""For all tests: made models go to a folder of this session, and one thread keeps numbers and times steady."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def turnwise_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Nothing is read from or left in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("cache"))
        patch.setenv("TURNWISE_CACHE", folder)
        yield folder
