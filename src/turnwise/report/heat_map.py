"""Rows of signed numbers over the tokens of one episode come in; a PNG in which good and bad can be told goes out.

The first row is what the others are held against, and stands apart. Refuses to know what the numbers
mean, and touches neither pyplot nor any display.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import AsinhNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from turnwise.report.figures import DPI, FAINT, GRID, STYLE, save_figure

_WIDTH_IN, _ROW_IN, _HEAD_IN, _FOOT_IN = 10.0, 0.27, 0.95, 0.8
_COLOURS = matplotlib.colormaps["RdBu"].with_extremes(bad=GRID)
_GAP = 0.35
"""Between the first row and the rest, in rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeatRow:
    name: str
    values: NDArray[np.float64]
    """One per token; NaN where there is nothing to show."""
    note: str
    """Stands at the right end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeatMap:
    title: str
    subtitle: str
    turns: tuple[str, ...]
    tokens_per_turn: int
    tokens: tuple[str, ...]
    rows: tuple[HeatRow, ...]
    note_title: str


def plot_heat_map(heat_map: HeatMap, path: Path) -> None:
    height = _HEAD_IN + _FOOT_IN + _ROW_IN * (len(heat_map.rows) + _GAP)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH_IN, height), dpi=DPI)
        figure.text(0.02, 1 - 0.32 / height, heat_map.title, fontsize=14, weight="bold")
        figure.text(0.02, 1 - 0.56 / height, heat_map.subtitle, fontsize=9.5, color=FAINT)
        bottom, tall = _FOOT_IN / height, 1 - (_HEAD_IN + _FOOT_IN) / height
        axes = figure.add_axes((0.185, bottom, 0.7, tall))
        axes.grid(visible=False)
        limit = max(float(np.nanmax(np.abs(row.values), initial=0.0)) for row in heat_map.rows) or 1.0
        # Even steps of colour around 0, then ever wider ones: noisy rows reach far beyond the first, which must show.
        norm = AsinhNorm(limit / 8, vmin=-limit, vmax=limit)
        _draw_rows(axes, heat_map, norm)
        _label_tokens(axes, heat_map)
        _draw_scale(figure.add_axes((0.945, bottom, 0.012, tall)), norm, limit)
        save_figure(figure, path)


def _draw_rows(axes: Axes, heat_map: HeatMap, norm: AsinhNorm) -> None:
    """Top down; the first stands a little apart."""
    for number, row in enumerate(heat_map.rows):
        top = number + (_GAP if number else 0.0)
        extent = (0.0, float(len(row.values)), top + 0.94, top + 0.06)
        axes.imshow(row.values[None], extent=extent, aspect="auto", cmap=_COLOURS, norm=norm)
        style = {"transform": axes.get_yaxis_transform(), "va": "center"}
        axes.text(-0.01, top + 0.5, row.name, ha="right", weight="normal" if number else "bold", **style)
        axes.text(1.012, top + 0.5, row.note, color=FAINT, size=8.5, **style)
    axes.set(xlim=(0, len(heat_map.tokens)), ylim=(len(heat_map.rows) + _GAP, 0), yticks=[])


def _draw_scale(axes: Axes, norm: AsinhNorm, limit: float) -> None:
    bar = Colorbar(
        axes, ScalarMappable(norm, _COLOURS), ticks=[-limit, -limit / 8, 0.0, limit / 8, limit], format="{x:.2g}"
    )
    bar.minorticks_off()
    axes.tick_params(labelsize=7.5, colors=FAINT, length=0, pad=2)
    axes.spines[:].set_visible(False)


def _label_tokens(axes: Axes, heat_map: HeatMap) -> None:
    axes.set_xticks(np.arange(len(heat_map.tokens)) + 0.5, heat_map.tokens)
    axes.tick_params(length=0, colors=FAINT, labelsize=8)
    axes.spines[:].set_visible(False)
    size = heat_map.tokens_per_turn
    for number, text in enumerate(heat_map.turns):
        if number:
            axes.axvline(number * size, color="white", linewidth=3)
        axes.annotate(
            f"turn {number + 1}\n{text}",
            xy=((number + 0.5) * size, 0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, -19),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=7.5,
        )
    axes.text(1.012, 1.01, heat_map.note_title, transform=axes.transAxes, va="bottom", color=FAINT, fontsize=7.5)
