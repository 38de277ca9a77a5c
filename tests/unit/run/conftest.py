"""One finished run for all tests of this room that only look."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwise.run.api import Run, train

from ...small_run import SMALL_LAKE


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path: Path = tmp_path_factory.mktemp("runs") / "finished"
    return train("frozenlake", [*SMALL_LAKE, "report.tensorboard=true", "eval.every=1"], run_dir=path)
