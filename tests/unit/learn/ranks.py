"""Two ranks that tests share, for they take long to start, and learners opened in them or here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.learn.doubled import DoubledTrainer
from turnwise.config.schema import ModelSettings, read_section
from turnwise.config.schema_learn import LearnSettings
from turnwise.deps import LearnerSite
from turnwise.learn.local_launcher import RankProcesses, start_processes
from turnwise.learn.trainer import Trainer
from turnwise.learn.workers import ParallelLearner, RankHosts

_TIMEOUT_S = 600.0


def learn_settings(kind: str, num_ranks: int = 2, **learn: Any) -> LearnSettings:
    parallel: dict[str, Any] = {"type": kind, "ranks": num_ranks} | learn.pop("parallel", {})
    if kind != "none":
        parallel = {"timeout_s": _TIMEOUT_S} | parallel
    optim = {"lr": 1e-2, "grad_clip": 1e9} | learn.pop("optim", {})
    chosen = {"type": "tests.unit.learn.doubled:DoubledTrainer", "device": "cpu", "steps": 10}
    return read_section("learn", chosen | {"parallel": parallel, "optim": optim} | learn)


def start(num_ranks: int, *, run_path: Path | None = None, timeout_s: float = _TIMEOUT_S) -> RankProcesses:
    settings = learn_settings("ddp", num_ranks, parallel={"timeout_s": timeout_s})
    return start_processes(settings, run_path=run_path)


def open_one(folder: Path, **learn: Any) -> DoubledTrainer:
    """In this process."""
    settings, site = _opened_from(folder, "none", 1, learn)
    return DoubledTrainer.open(settings, site)


def open_plain(folder: Path, **learn: Any) -> Trainer:
    """The trainer that users have, in this process."""
    settings, site = _opened_from(folder, "none", 1, learn)
    return Trainer.open(settings, site)


def open_in(hosts: RankHosts, folder: Path, kind: str, num_ranks: int = 2, **learn: Any) -> ParallelLearner:
    """In ranks that run already."""
    settings, site = _opened_from(folder, kind, num_ranks, learn)
    return ParallelLearner(hosts, settings, site)


def _opened_from(folder: Path, kind: str, num_ranks: int, learn: dict[str, Any]) -> tuple[LearnSettings, LearnerSite]:
    learn = dict(learn)
    model = ModelSettings.model_validate(learn.pop("model_settings", {}))
    settings = learn_settings(kind, num_ranks, **learn)
    loss: Any = settings.loss
    return settings, LearnerSite(model_path=str(folder), model=model, loss=loss, temperature=1.0, seed=0, run_path=None)
