"""Weights handed over inside one process: into the engines, in place, or left for an explorer to fetch."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import load, save
from torch import nn

from turnwise.config.schema import SyncSettings
from turnwise.deps import TransportSite
from turnwise.errors import ConfigError, SyncError
from turnwise.infra.atomic_files import atomic_write
from turnwise.infra.parsing import parse_json
from turnwise.protocols import Engine, PolicyVersion, Weights


class EnginePublisher:
    """Publishes to engines of this process; the version is live when `publish` returns."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines

    async def publish(self, weights: Weights, policy_version: int) -> int:
        for engine in self._engines:
            await engine.update_weights(weights, policy_version)
        return policy_version


class InPlacePublisher:
    """Notifies an engine that samples from the learner's own model that its weights have changed; nothing is copied."""

    def __init__(self, engine: Engine, model: nn.Module) -> None:
        self._engine = engine
        self._model = model

    async def publish(self, weights: Weights, policy_version: int) -> int:
        """`weights` are those of the model already, perhaps with its adapters merged: they stay unread."""
        await self._engine.update_weights(self._model.state_dict(), policy_version)
        return policy_version


class MemoryWeightStore:
    """`sync.method: memory`: the newest published weights, and the newest request for newer ones."""

    is_shared: ClassVar[bool] = False

    @classmethod
    def open(cls, settings: SyncSettings, site: TransportSite) -> MemoryWeightStore:
        return cls(site.ring)

    def __init__(self, ring: Callable[[], None]) -> None:
        """`ring` wakes all waits."""
        self._ring = ring
        self._mark: PolicyVersion | None = None
        self._weights: Weights = {}
        self._requested: int | None = None

    def post(self, mark: PolicyVersion, weights: Weights) -> None:
        # A copy: the learner goes on changing its own before the explorer has fetched these.
        self._weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self._mark = mark
        self._ring()

    def newest(self) -> PolicyVersion | None:
        return self._mark

    def fetch(self) -> tuple[PolicyVersion, Weights]:
        assert self._mark is not None, "nothing has been posted"
        return self._mark, self._weights

    def request(self, step: int) -> None:
        self._requested = step
        self._ring()

    def requested(self) -> int | None:
        return self._requested


_WEIGHTS_NAME = re.compile(r"step-\d{6,}\.safetensors", re.ASCII)
_NUM_TRIES = 5
"""Newer weights may replace those that are being read; more often in a row, something else is wrong."""


class FileWeightStore:
    """`sync.method: checkpoint`: a folder that both sides open."""

    is_shared: ClassVar[bool] = True

    @classmethod
    def open(cls, settings: SyncSettings, site: TransportSite) -> FileWeightStore:
        if site.run_path is None:
            raise ConfigError("sync.method: 'checkpoint' given without a run directory to keep weights in.")
        return cls(site.run_path / "weights", site.ring)

    def __init__(self, folder: Path, ring: Callable[[], None]) -> None:
        """`ring` wakes all waits of this process."""
        self._folder = folder
        self._ring = ring
        folder.mkdir(parents=True, exist_ok=True)

    def post(self, mark: PolicyVersion, weights: Weights) -> None:
        data, before = as_safetensors(weights), self._name_newest()
        file = self._folder / f"step-{mark.step:06d}.safetensors"
        atomic_write(file, data, error=SyncError)
        about = {
            "step": mark.step,
            "policy_version": mark.policy_version,
            "file": file.name,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        atomic_write(self._folder / "newest.json", json.dumps(about | {"checksum": _sum(about)}), error=SyncError)
        self._forget_all_but(file.name, before)
        self._ring()

    def newest(self) -> PolicyVersion | None:
        about = self._read_newest()
        return None if about is None else _mark(about)

    def fetch(self) -> tuple[PolicyVersion, Weights]:
        problem = "nothing has been posted"
        for _ in range(_NUM_TRIES):
            about = self._read_newest()
            if about is None:
                break
            try:
                data = (self._folder / about["file"]).read_bytes()
            except OSError as error:
                problem = f"{about['file']} cannot be read ({error.strerror})"
                continue
            if hashlib.sha256(data).hexdigest() == about["sha256"]:
                return _mark(about), load(data)
            problem = f"the checksum of {about['file']} is not the one in newest.json"
        raise SyncError(f"the weights in {self._folder} cannot be loaded: {problem}. Start the trainer again.")

    def _read_newest(self) -> Mapping[str, Any] | None:
        """What is said about the newest weights; records from before there were checksums are believed."""
        file = self._folder / "newest.json"
        if (about := read_record(file)) is None:
            return None
        told = {name: value for name, value in about.items() if name != "checksum"}
        is_sound = about.get("checksum", _sum(told)) == _sum(told)
        if not is_sound or not _is_whole(told):
            raise SyncError(f"{file} is not as it was written. Start the trainer again.")
        return told

    def request(self, step: int) -> None:
        if self.requested() != step:
            atomic_write(self._folder / "request.json", json.dumps({"step": step}), error=SyncError)
            self._ring()

    def requested(self) -> int | None:
        file = self._folder / "request.json"
        if (about := read_record(file)) is None:
            return None
        if not isinstance(about.get("step"), int):
            raise SyncError(f"{file} is not as it was written. Remove it and start both sides again.")
        return about["step"]

    def _name_newest(self) -> str | None:
        """The file that others may be reading; None if unknown."""
        try:
            about = self._read_newest()
        except SyncError:
            return None
        return None if about is None else str(about["file"])

    def _forget_all_but(self, *kept: str | None) -> None:
        """By their names: the times of files are those of a clock that can be set back, and steps restart."""
        for file in self._folder.glob("step-*.safetensors"):
            if file.name not in kept:
                file.unlink(missing_ok=True)


def find_damaged_weights(folder: Path) -> str | None:
    """Why the newest weights of a run cannot be loaded; None where they can."""
    try:
        FileWeightStore(folder, lambda: None).fetch()
    except SyncError as error:
        return str(error)
    return None


def as_safetensors(weights: Weights) -> bytes:
    """The bytes of a file with these weights: nothing has to be unpickled."""
    # Cloned: tied weights share memory, which the format refuses.
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()})


def read_record(file: Path) -> Mapping[str, Any] | None:
    """The object that a JSON file holds; None where there is no such file."""
    try:
        about = parse_json(file.read_text())
        if not isinstance(about, dict):
            raise ValueError(f"expected a JSON object, found {type(about).__name__}")
        return about
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SyncError(f"{file} cannot be read: {error}. Remove it and start both sides again.") from error


def _sum(about: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(about, sort_keys=True).encode()):08x}"


def _is_whole(about: Mapping[str, Any]) -> bool:
    """Whether it says all that a record of weights says, and names a file of their folder."""
    numbers, name = [about.get("step"), about.get("policy_version")], about.get("file")
    is_name = isinstance(name, str) and _WEIGHTS_NAME.fullmatch(name) is not None
    return is_name and "sha256" in about and all(isinstance(number, int) for number in numbers)


def _mark(about: Mapping[str, Any]) -> PolicyVersion:
    return PolicyVersion(about["step"], about["policy_version"])
