"""What the doctor says: findings, each about one thing, in plain words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.console import Console

from turnwise import errors
from turnwise.errors import TurnwiseError
from turnwise.infra.untrusted import tell_error
from turnwise.report.console import print_notice
from turnwise.report.run_dir import RunDirectory


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It runs; look at it."""
    PROBLEM = "problem"
    """It does not run, or nothing can be learnt so."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    status: Status
    message: str
    """What was found and, where it is not well, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The whole report."""

    recipe: str
    findings: tuple[Finding, ...]
    numbers: Mapping[str, Any]
    """What was measured in the probe, and the plan, for programs."""

    @property
    def ok(self) -> bool:
        return not self.having(Status.PROBLEM)

    def having(self, status: Status) -> list[Finding]:
        return [finding for finding in self.findings if finding.status is status]

    def to_dict(self) -> dict[str, Any]:
        rows = [{"check": f.check, "status": str(f.status), "message": f.message} for f in self.findings]
        return {"recipe": self.recipe, "ok": self.ok, "findings": rows, **self.numbers}


def fine(check: str, message: str) -> Finding:
    return Finding(check, Status.OK, message)


def warning(check: str, message: str) -> Finding:
    return Finding(check, Status.WARNING, message)


def problem(check: str, message: str) -> Finding:
    return Finding(check, Status.PROBLEM, message)


def guarded(check: str, look: Callable[[], Sequence[Finding]]) -> list[Finding]:
    """What a look finds; one that fails is a finding itself, so that the others still take place."""
    try:
        return list(look())
    except TurnwiseError as error:
        return [problem(check, str(error))]
    except Exception as error:  # noqa: BLE001 - the boundary: packages and a user's code may raise whatever they like
        return [problem(check, f"cannot be looked at: {tell_error(error)}")]


def report_findings(found: Sequence[errors.Finding], directory: RunDirectory, console: Console) -> None:
    """Print findings of a run and add them to its `findings.jsonl`."""
    for finding in found:
        directory.append_finding(finding)
        step = f"step {finding.step}, " if finding.stage == "training" else ""
        print_notice(console, f"{step}{finding.kind}: {finding.text}")
