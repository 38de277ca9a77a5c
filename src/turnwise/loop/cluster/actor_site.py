"""What a process of the cluster is told of its run, and what it does before it is a part of it."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ClusterError
from turnwise.infra.parsing import parse_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSite:
    """What an actor is told of the run that it is a part of."""

    name: str
    settings_yaml: str
    """Settings are made anew at the other end: their classes are made for the choices in them."""
    run_path: Path
    working_folder: Path
    """Of the command, so that relative paths mean the same everywhere."""
    model_path: str = ""

    @property
    def log(self) -> Path:
        return self.run_path / "logs" / f"{self.name}.log"


def begin(site: ActorSite) -> TurnwiseSettings:
    """The process becomes a part of the run: its folder, its log, its settings."""
    if not (site.run_path / "config.yaml").is_file():
        raise ClusterError(
            f"{site.name} does not see {site.run_path} on {os.uname().nodename}: the directory of a run must be on a "
            "file system that all machines of the cluster share. Set run.root or --run-dir to such a folder."
        )
    if site.working_folder.is_dir():
        os.chdir(site.working_folder)
    _write_to(site.log)
    return load_settings(parse_yaml(site.settings_yaml))


def _write_to(log: Path) -> None:
    """Everything that this process says goes into the directory of the run."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
