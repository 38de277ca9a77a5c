"""The learning curves of several recipes side by side, one panel each, one line per seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from turnwise.report.figures import BLUE, DPI, FAINT, STYLE, save_figure
from turnwise.types import Metrics

_MOST_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Shown:
    """Which number of a step is drawn."""

    metric: str
    label: str


HELD_OUT = Shown("eval/success", "success on held-out episodes")
SAMPLED = Shown("rollout/success", "success of sampled play")


def plot_comparison(
    curves: Mapping[str, Sequence[Sequence[Metrics]]],
    yardsticks: Mapping[str, float],
    path: Path,
    shown: Shown = HELD_OUT,
) -> None:
    """`curves[recipe][seed]` are the metrics of a run; `yardsticks` are drawn as level lines in every panel."""
    num_columns = min(len(curves), _MOST_COLUMNS)
    num_rows = -(-len(curves) // num_columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * num_columns, 2.5 * num_rows), layout="constrained", dpi=DPI)
        grid = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
        panels = [axes for row in grid for axes in row]
        for axes, (recipe, seeds) in zip(panels, curves.items(), strict=False):
            _draw_panel(axes, recipe, seeds, yardsticks, shown.metric)
        for axes in panels[len(curves) :]:
            axes.set_axis_off()
        figure.supxlabel("step", fontsize=9)
        figure.supylabel(shown.label, fontsize=9)
        save_figure(figure, path)


def _draw_panel(
    axes: Axes, recipe: str, seeds: Sequence[Sequence[Metrics]], yardsticks: Mapping[str, float], metric: str
) -> None:
    axes.set_title(recipe)
    for rows in seeds:
        points = [(row["step"], row[metric]) for row in rows if metric in row]
        axes.plot(*zip(*points, strict=True), color=BLUE, linewidth=1.4, marker=".", markersize=5, alpha=0.85)
    for name, height in yardsticks.items():
        axes.axhline(height, color=FAINT, linewidth=0.8, linestyle=":")
        axes.annotate(
            name, (0.99, height), xycoords=("axes fraction", "data"), ha="right", va="top", fontsize=7, color=FAINT
        )
    axes.set_ylim(0, 1)
    axes.tick_params(labelsize=8)
