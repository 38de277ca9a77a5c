"""The buffer of a run in a process of its own, as a Ray actor or anything else. Nothing here loads torch."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.settings import require_package
from turnwise.errors import ClusterError
from turnwise.experience.codec import decode_experiences, encode_experiences
from turnwise.infra.parsing import parse_yaml
from turnwise.loop.build import open_buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorConfig:
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


def begin(site: ActorConfig) -> TurnwiseSettings:
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


class BufferWorker:
    """A durable buffer, in a process of its own. One that takes the place of a lost one may be asked a thing twice."""

    def __init__(self, settings: TurnwiseSettings, run_path: Path, *, is_replacement: bool) -> None:
        self._buffer = open_buffer(settings, run_path)
        self._may_have_taken = is_replacement
        """Whether the one before may have been lost between taking a batch and handing it over."""

    def add(self, blocks: Sequence[bytes]) -> None:
        self._buffer.add(decode_experiences(blocks))

    def take(self, step: int) -> list[bytes]:
        if self._may_have_taken:
            self._buffer.rewind(step - 1, plays_again=False)
            self._may_have_taken = False
        return encode_experiences(self._buffer.take(step))

    def is_ready(self, step: int) -> bool:
        return self._buffer.is_ready(step)

    def has_group(self, group_id: str) -> bool:
        return self._buffer.has_group(group_id)

    def num_dropped(self) -> int:
        return self._buffer.num_dropped

    def count(self) -> int:
        return len(self._buffer)

    def rewind(self, step: int, plays_again: bool) -> None:
        self._buffer.rewind(step, plays_again=plays_again)


class BufferActor(BufferWorker):
    """`BufferWorker` as an actor that Ray starts again by itself."""

    def __init__(self, site: ActorConfig) -> None:
        ray: Any = require_package("ray", extra="ray", asked_by="cluster.type: 'ray'")
        is_replacement = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        super().__init__(begin(site), site.run_path, is_replacement=is_replacement)

    def open(self) -> None:
        """Answers once it is open."""
