"""Where a user's own code hears of a run: after a rollout, before an update, after a step, an evaluation, a checkpoint.

A callback only listens: what it is given must stay as it is. What it returns from `on_step` is written down beside the
house's own metrics. One that raises ends the run, with its file and line on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from turnwise.config.component import CALLBACKS
from turnwise.errors import ConfigError, LearnError
from turnwise.types import Batch, Group, Metrics, Trajectory

Figure: TypeAlias = float | NDArray[np.generic] | Sequence[float] | str
"""A number goes to every sink; several numbers are a histogram and a text is a text, in TensorBoard."""


class Callback:
    """Subclass it and write what you want to hear. Steps are counted from 1; 0 is before the first update."""

    def on_rollout(self, step: int, groups: Sequence[Group]) -> None:
        """The episodes of a step, before anything is learnt from them; not where another process explores."""

    def on_batch(self, update: int, batch: Batch) -> None:
        """The arrays of an update, before it is made; `update` is the policy version that it will make."""

    def on_step(self, step: int, metrics: Metrics) -> Mapping[str, Figure] | None:
        """All metrics of a step; what is returned is written down with them, under names of your own."""

    def on_eval(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """The episodes of an evaluation of the policy after a step."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """A checkpoint is whole on disk; the policy is in `folder / "policy"`."""

    def close(self) -> None:
        """The run has ended, well or not."""


class Callbacks:
    """All callbacks of a run as one."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._all = tuple(callbacks)

    def on_rollout(self, step: int, groups: Sequence[Group]) -> None:
        for callback in self._all:
            callback.on_rollout(step, groups)

    def on_batch(self, update: int, batch: Batch) -> None:
        for callback in self._all:
            callback.on_batch(update, batch)

    def on_step(self, step: int, metrics: Metrics) -> dict[str, Figure]:
        """What all of them have to add; a name that is taken is refused."""
        own: dict[str, Figure] = {}
        for callback in self._all:
            added = callback.on_step(step, metrics) or {}
            if taken := [name for name in added if name in metrics or name in own]:
                raise LearnError(
                    f"callback {type(callback).__name__}.on_step returned '{taken[0]}', which is a metric already; "
                    "choose another name."
                )
            own |= added
        return own

    def on_eval(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        for callback in self._all:
            callback.on_eval(step, trajectories)

    def on_checkpoint(self, step: int, folder: Path) -> None:
        for callback in self._all:
            callback.on_checkpoint(step, folder)

    def close(self) -> None:
        for callback in self._all:
            callback.close()


def open_callbacks(names: Sequence[str], given: Sequence[Callback] = ()) -> Callbacks:
    """Those that `report.callbacks` names, and those that were given from Python."""
    opened = [cast("type[object]", CALLBACKS.get_target(name))() for name in names]
    for name, callback in zip(names, opened, strict=True):
        if not isinstance(callback, Callback):
            raise ConfigError(f"report.callbacks: '{name}' is no turnwise.Callback; expected a subclass of it.")
    return Callbacks([*(callback for callback in opened if isinstance(callback, Callback)), *given])


def sort_figures(figures: Mapping[str, Figure]) -> tuple[dict[str, float], dict[str, object], dict[str, str]]:
    """Numbers, histograms and texts."""
    numbers: dict[str, float] = {}
    histograms: dict[str, object] = {}
    texts: dict[str, str] = {}
    for name, figure in figures.items():
        if isinstance(figure, str):
            texts[name] = figure
        elif np.ndim(figure) == 0:
            numbers[name] = float(cast(float, figure))
        else:
            histograms[name] = figure
    return numbers, histograms, texts
