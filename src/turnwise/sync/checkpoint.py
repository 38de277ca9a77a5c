"""Weights as files in a folder, for an explorer and a trainer in processes of their own.

In the folder: `step-NNNNNN.safetensors`, `newest.json` (which file, its step, version and checksum) and `request.json`.
Every file is whole or not there; the weights are there before `newest.json` names them. The
file before the newest one stays, for whoever is reading it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import load, save

from turnwise.config.sections.sync import SyncSettings
from turnwise.errors import ConfigError, SyncError
from turnwise.floor.files import write_whole
from turnwise.protocols import PolicyMark, Weights
from turnwise.sites import TransportSite

_NUM_KEPT = 2
_NUM_TRIES = 5
"""Newer weights may replace those that are being read; more often in a row, something else is wrong."""


class CheckpointMailbox:
    """`sync.method: checkpoint`: a folder that both sides open."""

    is_shared: ClassVar[bool] = True

    @classmethod
    def open(cls, settings: SyncSettings, site: TransportSite) -> CheckpointMailbox:
        if site.run_path is None:
            raise ConfigError("sync.method: 'checkpoint' given without a run directory to keep weights in.")
        return cls(site.run_path / "weights", site.ring)

    def __init__(self, folder: Path, ring: Callable[[], None]) -> None:
        """`ring` wakes whoever waits in this process."""
        self._folder = folder
        self._ring = ring
        folder.mkdir(parents=True, exist_ok=True)

    def post(self, mark: PolicyMark, weights: Weights) -> None:
        data = as_safetensors(weights)
        file = self._folder / f"step-{mark.step:06d}.safetensors"
        write_whole(file, data, error=SyncError)
        about = {
            "step": mark.step,
            "policy_version": mark.policy_version,
            "file": file.name,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        write_whole(self._folder / "newest.json", json.dumps(about), error=SyncError)
        self._forget_old()
        self._ring()

    def newest(self) -> PolicyMark | None:
        about = read_record(self._folder / "newest.json")
        return None if about is None else _mark(about)

    def fetch(self) -> tuple[PolicyMark, Weights]:
        problem = "nothing has been posted"
        for _ in range(_NUM_TRIES):
            about = read_record(self._folder / "newest.json")
            if about is None:
                break
            try:
                data = (self._folder / about["file"]).read_bytes()
            except FileNotFoundError:
                problem = f"{about['file']} is missing"
                continue
            if hashlib.sha256(data).hexdigest() == about["sha256"]:
                return _mark(about), load(data)
            problem = f"the checksum of {about['file']} is not the one in newest.json"
        raise SyncError(f"the weights in {self._folder} cannot be loaded: {problem}. Start the trainer again.")

    def request(self, step: int) -> None:
        if self.requested() != step:
            write_whole(self._folder / "request.json", json.dumps({"step": step}), error=SyncError)
            self._ring()

    def requested(self) -> int | None:
        about = read_record(self._folder / "request.json")
        return None if about is None else int(about["step"])

    def _forget_old(self) -> None:
        by_age = sorted(self._folder.glob("step-*.safetensors"), key=lambda file: file.stat().st_mtime_ns)
        for file in by_age[:-_NUM_KEPT]:
            file.unlink(missing_ok=True)


def as_safetensors(weights: Weights) -> bytes:
    """The bytes of a file with these weights: nothing has to be unpickled."""
    # Cloned: tied weights share memory, which the format refuses.
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()})


def read_record(file: Path) -> Mapping[str, Any] | None:
    """What a JSON file says; None where there is no such file."""
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SyncError(f"{file} cannot be read: {error}. Remove it and start both sides again.") from error


def _mark(about: Mapping[str, Any]) -> PolicyMark:
    return PolicyMark(int(about["step"]), int(about["policy_version"]))
