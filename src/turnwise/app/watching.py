"""Keeps watch over a run: metrics come in, findings are told, a collapse raises."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from turnwise.config.component import CREDITS
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import Finding
from turnwise.report.console import print_notice
from turnwise.report.run_dir import RunDirectory
from turnwise.report.watch import CollapseWatch
from turnwise.types import Metrics


class CollapsedError(Exception):
    """Training must not go on; raised where `watch.stop` is 'collapse'."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class Watcher:
    """Looks at every step of one run. A resumed run's recorded steps are looked at again first."""

    def __init__(self, settings: TurnwiseSettings, directory: RunDirectory, console: Console) -> None:
        credit: Any = settings.credit
        rule: Any = CREDITS.get_target(credit.type)
        self.watch = CollapseWatch(settings.watch, needs_groups=rule.needs_groups)
        self._should_stop = settings.watch.stop == "collapse"
        self._directory = directory
        self._console = console
        for row in directory.read_metrics():
            self.watch.look(int(row["step"]), row)

    def look(self, step: int, metrics: Metrics) -> list[Finding]:
        """Tell what is found: on the console and in the run directory."""
        found = self.watch.look(step, metrics)
        for finding in found:
            self._directory.append_finding(finding)
            print_notice(self._console, f"step {step}, {finding.kind}: {finding.message}")
        return found

    def check(self, found: list[Finding]) -> None:
        """Raise where one of them is a collapse and the run is to stop for it."""
        collapses = [finding for finding in found if finding.is_collapse]
        if self._should_stop and collapses:
            # Of several, the one that began first: what was saved before it is sound in every respect.
            raise CollapsedError(min(collapses, key=lambda finding: finding.since))
