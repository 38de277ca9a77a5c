"""The packages and the machine: what is installed, in which version, and what there is to compute with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from turnwise import __version__
from turnwise.app.doctor.findings import Finding, fine, problem, warning
from turnwise.models.memory import size_words

_OURS = "turnwise"
_NOT_FOR_USERS = "dev"


def examine_packages() -> list[Finding]:
    """One line for what is needed, or one for each package that is missing or too old; one for the extras."""
    try:
        stated = [Requirement(text) for text in metadata.requires(_OURS) or ()]
    except metadata.PackageNotFoundError:
        return [warning("packages", "turnwise is not installed, so what it needs is not known. Run pip install in it.")]
    needed = [requirement for requirement in stated if requirement.marker is None]
    faults = [fault for requirement in needed if (fault := _fault(requirement))]
    found = ", ".join(
        f"{requirement.name} {metadata.version(requirement.name)}" for requirement in needed if _has(requirement)
    )
    lines = [problem("packages", fault) for fault in faults] or [fine("packages", f"turnwise {__version__}; {found}")]
    return [*lines, *_extras([requirement for requirement in stated if requirement.marker is not None])]


def _has(requirement: Requirement) -> bool:
    try:
        return bool(metadata.version(requirement.name))
    except metadata.PackageNotFoundError:
        return False


def _fault(requirement: Requirement) -> str:
    name, expected = requirement.name, requirement.specifier
    if not _has(requirement):
        return f"{name} is not installed. Install it with: pip install '{name}{expected}'"
    version = metadata.version(name)
    if expected.contains(version, prereleases=True):
        return ""
    return f"{name} {version} is installed; expected {expected}. Install it with: pip install '{name}{expected}'"


def _extras(stated: list[Requirement]) -> Iterator[Finding]:
    names = {str(requirement.marker).split('"')[1]: requirement for requirement in reversed(stated)}
    extras = {name: requirement for name, requirement in names.items() if name != _NOT_FOR_USERS}
    there = [f"{name} ({r.name} {metadata.version(r.name)})" for name, r in extras.items() if _has(r)]
    missing = [name for name, requirement in extras.items() if not _has(requirement)]
    words = f"installed: {', '.join(sorted(there)) or 'none'}"
    if missing:
        words += f"; not installed: {', '.join(sorted(missing))} (pip install 'turnwise[{sorted(missing)[0]}]')"
    yield fine("extras", words)


def examine_machine() -> list[Finding]:
    """What there is to compute with."""
    import torch  # noqa: PLC0415 - the only part of this look that is slow to import

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, free = torch.get_num_threads(), free_bytes()
    words = f"{cores} cores, of which torch uses {threads}, {size_words(free)} of memory free, {device}"
    if threads > cores:
        return [warning("machine", f"{words}. More threads than cores slow each other down: set learn.num_threads.")]
    return [fine("machine", words)]


def free_bytes() -> int | None:
    """Memory that models may take: of the GPU where there is one."""
    import torch  # noqa: PLC0415 - see above

    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    return free_host_bytes()


def free_host_bytes() -> int | None:
    """Memory of the machine itself; None where the system does not tell."""
    table = Path("/proc/meminfo")
    if not table.is_file():
        return None
    rows = dict(line.split(":", 1) for line in table.read_text(encoding="ascii").splitlines())
    return int(rows["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in rows else None
