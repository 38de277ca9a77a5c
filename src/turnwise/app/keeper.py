"""Keeps watch over a run and the way back: metrics come in, findings are told, a collapse raises.

With `watch.stop: collapse` it says when to save, removes checkpoints that no finding can ask for any more, and leaves
the last sound one as the newest. Refuses to know how a learner is saved and restored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from turnwise.config.registry import CREDITS
from turnwise.config.schema import TurnwiseSettings
from turnwise.report.console import print_notice
from turnwise.report.run_dir import RunDirectory
from turnwise.report.watch import CollapseWatch, Finding
from turnwise.types import Metrics


class CollapsedError(Exception):
    """Training must not go on; raised where `watch.stop` is 'collapse'."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class Keeper:
    """Looks at every step of one run. A resumed run's recorded steps are looked at again first."""

    def __init__(self, settings: TurnwiseSettings, directory: RunDirectory, console: Console) -> None:
        credit: Any = settings.credit
        rule: Any = CREDITS.get_target(credit.type)
        self._watch = CollapseWatch(settings.watch, needs_groups=rule.needs_groups)
        self._should_stop = settings.watch.stop == "collapse"
        self._is_own_pace = self._should_stop and settings.report.checkpoint_every == 0
        self._save_every = settings.watch.window if self._is_own_pace else settings.report.checkpoint_every
        self._directory = directory
        self._console = console
        for row in directory.read_metrics():
            self._watch.look(int(row["step"]), row)

    def look(self, step: int, metrics: Metrics) -> list[Finding]:
        """Tell what is found: on the console and in the run directory."""
        found = self._watch.look(step, metrics)
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

    def is_save_due(self, step: int) -> bool:
        """Whether this step must be on disk; the very start too, where there must always be a way back."""
        if step == 0:
            return self._should_stop
        return self._save_every > 0 and step % self._save_every == 0

    def prune(self) -> None:
        """Remove what no finding can ask for any more; checkpoints that the user asked for stay."""
        if not self._is_own_pace:
            return
        saved = self._directory.checkpoint_steps()
        needed = {_newest(saved, point) for point in self._watch.return_points()}
        for step in saved:
            if step not in needed:
                self._directory.remove_checkpoint(step)

    def go_back(self, collapse: Finding) -> Path:
        """The newest checkpoint from before the trouble; later ones are removed, so that it is the run's newest."""
        saved = self._directory.checkpoint_steps()
        sound = _newest(saved, collapse.since - 1)
        # The newest first: a run that is killed here still has the sound one, and finds the collapse again.
        for step in reversed(saved):
            if step > sound:
                self._directory.remove_checkpoint(step)
        return self._directory.step_checkpoint(sound)


def _newest(saved: list[int], step: int) -> int:
    """The newest that is not after a step; the oldest of all where there is none."""
    return max((s for s in saved if s <= step), default=saved[0])
