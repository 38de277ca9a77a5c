"""A Ray cluster of several nodes on this machine, and runs on it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.small_run import without_plots


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head, where the command and the buffer are, and nodes that a test adds and removes."""
    # Ray starts workers with a niceness of 15, with which a busy machine starves them.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    watched: Any = importlib.import_module("tests.ray.watched")
    cluster = watched.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield cluster
    watched.ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def watch(tmp_path: Path, nodes: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    without_plots(monkeypatch)
    watched: Any = importlib.import_module("tests.ray.watched")
    return lambda *words: watched.Watched(tmp_path / "run", nodes.address, list(words))
