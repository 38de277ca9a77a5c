"""A recipe's name and seed come in; a record of what ran where goes out, to be read when a result must be explained.

Packages are looked up, not imported. Refuses to know who ran it: no environment variables, no user name, no host name,
and the values of options that look like credentials are hidden.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from turnwise.errors import RunError
from turnwise.infra.atomic_files import encode_object, read_object

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic", "omegaconf", "ray", "vllm")
"""The packages whose version can change what a run learns or how fast."""
HIDDEN = "***"
_SECRET_WORDS = frozenset(
    {"key", "apikey", "token", "secret", "password", "passwd", "credential", "credentials", "auth"}
)
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What `manifest.json` holds."""

    turnwise: str
    recipe: str
    seeds: Mapping[str, int]
    """By purpose; `run` is the one from which the others are drawn."""
    created: str
    """UTC, ISO 8601."""
    command: Sequence[str]
    git_commit: str | None
    """Of the repository around the working directory; None where there is none."""
    python: str
    packages: Mapping[str, str]
    platform: str
    num_cpus: int | None
    memory_bytes: int | None

    def to_json(self) -> str:
        return encode_object(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Manifest:
        values = read_object(path)
        names = [f.name for f in fields(cls)]
        missing = [name for name in names if name not in values]
        if missing:
            raise RunError(f"{path} is damaged: it lacks {', '.join(missing)}.")
        return cls(**{name: values[name] for name in names})  # type: ignore[arg-type]


def collect_manifest(
    recipe: str,
    seed: int,
    *,
    seeds: Mapping[str, int] | None = None,
    command: Sequence[str] | None = None,
    directory: Path | None = None,
) -> Manifest:
    """Everything about this process that a later reader needs; never fails on a fact it cannot find."""
    return Manifest(
        turnwise=_version("turnwise") or "unknown",
        recipe=recipe,
        seeds={"run": seed, **(seeds or {})},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=clean_command(sys.argv if command is None else command),
        git_commit=_git_commit(directory or Path.cwd()),
        python=platform.python_version(),
        packages={name: found for name in PACKAGES if (found := _version(name))},
        platform=platform.platform(),
        num_cpus=os.cpu_count(),
        memory_bytes=_memory_bytes(),
    )


def clean_command(command: Sequence[str]) -> list[str]:
    """The command line without secrets and without the home folder, whose path is usually the user's name."""
    home = os.path.expanduser("~")
    cleaned: list[str] = []
    hides_next = False
    for position, given in enumerate(command):
        word = Path(given).name if position == 0 else given
        name, separator, _ = word.partition("=")
        if hides_next and not word.startswith("--"):
            word, hides_next = HIDDEN, False
        elif separator:
            word, hides_next = (f"{name}={HIDDEN}" if _is_secret(name) else word), False
        else:
            hides_next = word.startswith("--") and _is_secret(word)
        word = _URL_CREDENTIALS.sub(f"{HIDDEN}@", word)
        cleaned.append(word if home in ("~", "/") else word.replace(home, "~"))
    return cleaned


def _is_secret(option: str) -> bool:
    # Whole words only: `rollout.max_new_tokens` is a setting, `engine.hf_token` is a secret.
    return not _SECRET_WORDS.isdisjoint(re.split(r"[^a-z]+", option.lower()))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit(directory: Path) -> str | None:
    command = ["git", "-C", str(directory), "rev-parse", "--verify", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system answers, and Windows has no sysconf
        return None
