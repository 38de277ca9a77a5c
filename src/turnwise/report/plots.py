"""The metrics of a run come in; PNG files that can be read at a glance go out.

Draws what is there: a metric that was never recorded has no panel. Refuses to know how a number came about, and touches
neither pyplot nor any display.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import AsinhNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from turnwise.errors import Finding
from turnwise.infra.atomic_files import atomic_write
from turnwise.report.run_dir import TIME_SECTIONS, Summary
from turnwise.types import Metrics

DPI = 140
INK, FAINT, GRID = "#1f2937", "#6b7280", "#e5e7eb"
BLUE, ORANGE = "#2563eb", "#ea580c"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the figure looks the same on every machine
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


def save_figure(figure: Figure, path: Path) -> None:
    image = io.BytesIO()
    FigureCanvasAgg(figure).print_png(image)
    atomic_write(path, image.getvalue())


_NUM_TOLD = 4
"""Findings that fit beside a heading."""
_BASELINE_COLOURS = {"oracle": "#15803d", "warm_start": "#7c3aed"}
_SECTION_COLOURS = dict(zip(TIME_SECTIONS, ("#2563eb", "#0891b2", "#ea580c", "#9333ea", "#9ca3af"), strict=True))
_SMALL_PANELS = {
    "rollout/return": "return per episode",
    "learn/entropy": "entropy",
    "learn/approx_kl": "approximate KL",
}
_HEALTH_PANELS = {
    "learn/entropy": "entropy",
    "learn/approx_kl": "approximate KL",
    "learn/clip_fraction": "clip fraction",
    "learn/grad_norm": "gradient norm",
    "learn/value_loss": "value loss",
    "learn/explained_variance": "explained variance of the critic",
    "rollout/in_group_std": "spread of returns inside a group",
    "rollout/dead_groups": "groups without spread",
    "rollout/repetition": "repeated 3-grams in replies",
    "rollout/response_tokens": "sampled tokens per turn",
    "rollout/num_turns": "turns per episode",
    "rollout/truncated": "truncated episodes",
    "rollout/invalid_actions": "invalid actions",
    "rollout/errors": "failed episodes",
}


def plot_learning_curve(metrics: Sequence[Metrics], summary: Summary | None, path: Path) -> None:
    """Success over steps against the baselines, and below it the few numbers that explain its shape.

    Where nobody says what a success is, the return.
    """
    outcome = _outcome_of(metrics)
    titles = {name: title for name, title in _SMALL_PANELS.items() if name != f"rollout/{outcome}"}
    small = {name: title for name, title in titles.items() if len(_series(metrics, name).steps)}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 5.72), dpi=DPI)
        # The main panel leaves room at the right for the names of its lines; the small ones use the full width.
        main = figure.add_gridspec(1, 1, left=0.065, right=0.84, top=0.86, bottom=0.36 if small else 0.085)
        axes = figure.add_subplot(main[0])
        _draw_outcome(axes, metrics, outcome)
        _draw_references(axes, summary, outcome)
        _write_heading(figure, metrics, summary, outcome)
        below = figure.add_gridspec(1, max(1, len(small)), left=0.065, right=0.975, top=0.235, bottom=0.06, wspace=0.2)
        for column, (name, title) in enumerate(small.items()):
            _draw_panel(figure.add_subplot(below[column]), _series(metrics, name), title)
        save_figure(figure, path)


def plot_training_health(metrics: Sequence[Metrics], path: Path, findings: Sequence[Finding] = ()) -> None:
    """One small panel for each number that shows whether learning is sound, and one for where the time went.

    Thin lines mark the steps of the findings; their kinds stand in the heading.
    """
    shown = {name: title for name, title in _HEALTH_PANELS.items() if len(_series(metrics, name).steps)}
    sections = {name: series for name in TIME_SECTIONS if len((series := _time_series(metrics, name)).steps)}
    num_panels = max(1, len(shown) + bool(sections))
    num_rows = -(-num_panels // 3)
    height = 0.9 + 1.75 * num_rows
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, height), dpi=DPI)
        figure.subplots_adjust(left=0.065, right=0.975, top=1 - 0.78 / height, bottom=0.42 / height)
        figure.text(0.065, 1 - 0.34 / height, "Training health", fontsize=14, weight="bold")
        grid = figure.add_gridspec(num_rows, 3, hspace=0.5, wspace=0.22)
        panels = [figure.add_subplot(grid[index // 3, index % 3]) for index in range(num_panels)]
        told = [f"{finding.kind.replace('_', ' ')} at {finding.step}" for finding in findings]
        more = f"  ·  {len(told) - _NUM_TOLD} more" if len(told) > _NUM_TOLD else ""
        heading = "  ·  ".join(told[:_NUM_TOLD]) + more
        figure.text(0.975, 1 - 0.34 / height, heading, fontsize=8.5, color=ORANGE, ha="right")
        for panel, (name, title) in zip(panels, shown.items(), strict=False):
            _draw_panel(panel, _series(metrics, name), title)
            for finding in findings:
                panel.axvline(finding.step, color=ORANGE, linewidth=0.8, alpha=0.7)
        if sections:
            _draw_time(panels[-1], sections)
        elif not shown:
            _say_empty(panels[0])
        save_figure(figure, path)


# --- series ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Series:
    steps: NDArray[np.float64]
    values: NDArray[np.float64]


def _series(metrics: Sequence[Metrics], name: str) -> _Series:
    points = [(row["step"], row[name]) for row in metrics if name in row and np.isfinite(row[name])]
    steps, values = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return _Series(steps, values)


def _time_series(metrics: Sequence[Metrics], section: str) -> _Series:
    plain = _series(metrics, f"time/{section}")
    return plain if len(plain.steps) else _series(metrics, f"time/{section}_s")


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A centred weighted mean over about an eighth of the run; at the ends only over what is there, so no lag."""
    half = max(1, len(values) // 16)
    kernel = np.hanning(2 * half + 3)[1:-1]
    weights = np.convolve(np.ones_like(values), kernel)[half : half + len(values)]
    return np.convolve(values, kernel)[half : half + len(values)] / weights


# --- the main panel -------------------------------------------------------------------------------------------------


def _outcome_of(metrics: Sequence[Metrics]) -> str:
    """What the run is about: success, or the return where that is all there is."""
    measured = {name for row in metrics for name in row}
    is_known, is_paid = (measured & {f"rollout/{name}", f"eval/{name}"} for name in ("success", "return"))
    return "return" if is_paid and not is_known else "success"


def _draw_outcome(axes: Axes, metrics: Sequence[Metrics], outcome: str) -> None:
    training, held_out = _series(metrics, f"rollout/{outcome}"), _series(metrics, f"eval/{outcome}")
    if not len(training.steps) and not len(held_out.steps):
        _say_empty(axes)
    if len(training.steps):
        axes.plot(training.steps, training.values, color=BLUE, alpha=0.22, linewidth=1, marker=_marker(training))
        axes.plot(training.steps, _smooth(training.values), color=BLUE, linewidth=2.2, label="training, smoothed")
    if len(held_out.steps):
        axes.plot(held_out.steps, held_out.values, color=ORANGE, linewidth=1, alpha=0.5, zorder=4)
        style = {"s": 44, "color": ORANGE, "edgecolor": "white", "linewidth": 1.2, "zorder": 5}
        axes.scatter(held_out.steps, held_out.values, label="held-out episodes", **style)
    if outcome == "success":
        axes.set_ylim(-0.02, 1.02)
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _fit_steps(axes, np.concatenate([training.steps, held_out.steps]))
    axes.set_xlabel("step", labelpad=2)
    if axes.get_legend_handles_labels()[0]:
        # Above the plot, where no curve can run through it.
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, labelcolor=INK, handlelength=1.6)


def _draw_references(axes: Axes, summary: Summary | None, outcome: str) -> None:
    """Dashed lines with their names at the right edge, pushed apart where they would overlap; all are successes."""
    if summary is None or outcome != "success":
        return
    labels = [(value, _label(name, value), _colour(name), "normal") for name, value in _baselines(summary).items()]
    for value, _, colour, _ in labels:
        axes.axhline(value, color=colour, linewidth=1, linestyle=(0, (5, 4)), alpha=0.75, zorder=1)
    if summary.success_after is not None:
        labels.append((summary.success_after, _label("trained", summary.success_after), ORANGE, "bold"))
    labels.sort(key=lambda label: label[0])
    heights = _push_apart([label[0] for label in labels], gap=0.066, low=0.0, high=1.0)
    right = axes.get_yaxis_transform()  # x in parts of the axes, y in data
    for (value, text, colour, weight), height in zip(labels, heights, strict=True):
        axes.plot([1.0, 1.012, 1.022], [value, height, height], transform=right, color=colour, lw=0.8, clip_on=False)
        axes.text(1.028, height, text, transform=right, color=colour, weight=weight, va="center", fontsize=9)


def _baselines(summary: Summary) -> dict[str, float]:
    """The measured baselines; a warm start counts as one, because training must beat what it was given."""
    baselines = dict(summary.baselines)
    if summary.warm_start is not None and summary.success_before is not None:
        baselines.setdefault("warm_start", summary.success_before)
    return baselines


def _label(name: str, value: float) -> str:
    return f"{name.replace('_', ' ')}  {value:.0%}"


def _colour(name: str) -> str:
    return _BASELINE_COLOURS.get(name, FAINT)


def _push_apart(heights: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Ascending positions at least `gap` apart, as near to the given ones as that allows."""
    # With position i lowered by i gaps, "at least a gap apart" reads "never falling": neighbours that fall are pooled.
    pools: list[tuple[float, int]] = []
    for index, height in enumerate(heights):
        mean, size = height - index * gap, 1
        while pools and pools[-1][0] > mean:
            before, before_size = pools.pop()
            mean, size = (before * before_size + mean * size) / (before_size + size), before_size + size
        pools.append((mean, size))
    lowered = [mean for mean, size in pools for _ in range(size)]
    highest = max(low, high - gap * (len(heights) - 1))
    return [min(max(mean, low), highest) + index * gap for index, mean in enumerate(lowered)]


def _write_heading(figure: Figure, metrics: Sequence[Metrics], summary: Summary | None, outcome: str) -> None:
    title = outcome.capitalize() if summary is None else f"{summary.recipe}: {outcome} on {summary.env}"
    figure.text(0.065, 0.945, title, fontsize=14, weight="bold")
    if summary is None:
        figure.text(0.065, 0.91, f"{len(metrics)} steps so far", fontsize=9.5, color=FAINT)
        return
    parts = [f"{summary.steps} steps", f"seed {summary.seed}", f"{summary.wall_s / 60:.1f} min"]
    before, after, form = (
        (summary.success_before, summary.success_after, ".0%")
        if outcome == "success"
        else (summary.return_before, summary.return_after, ".3g")
    )
    if before is not None and after is not None:
        change = f"{before:{form}} → {after:{form}}"
        parts.insert(0, f"{change} on {summary.eval_episodes} held-out episodes")
    figure.text(0.065, 0.91, "  ·  ".join(parts), fontsize=9.5, color=FAINT)


# --- small panels ---------------------------------------------------------------------------------------------------


def _draw_panel(axes: Axes, series: _Series, title: str) -> None:
    axes.plot(series.steps, series.values, color=BLUE, alpha=0.25, linewidth=0.9)
    if _has_spikes(series.values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        smoothed = np.exp(_smooth(np.log(series.values)))  # one spike must not look like a hill
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
        smoothed = _smooth(series.values)
    axes.plot(series.steps, smoothed, color=BLUE, linewidth=1.6, marker=_marker(series))
    axes.set_title(title)
    axes.tick_params(labelsize=8)
    _fit_steps(axes, series.steps, num_ticks=5)


def _has_spikes(values: NDArray[np.float64]) -> bool:
    """Whether a few huge values would flatten the rest to a line."""
    return bool(values.min() > 0 and values.max() > 30 * np.median(values))


def _draw_time(axes: Axes, sections: Mapping[str, _Series]) -> None:
    steps = max((series.steps for series in sections.values()), key=len)
    heights = [np.interp(steps, series.steps, _smooth(series.values)) for series in sections.values()]
    colours = [_SECTION_COLOURS[name] for name in sections]
    axes.stackplot(steps, heights, labels=list(sections), colors=colours, alpha=0.85, linewidth=0)
    axes.set_title("seconds per step")
    axes.tick_params(labelsize=8)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    _fit_steps(axes, steps, num_ticks=5)
    axes.set_ylim(0, 1.45 * float(np.sum(heights, axis=0).max()) or 1.0)
    axes.legend(loc="upper left", ncols=3, fontsize=7.5, handlelength=0.8, columnspacing=1.0, borderaxespad=0.1)


# --- all panels -----------------------------------------------------------------------------------------------------


def _fit_steps(axes: Axes, steps: NDArray[np.float64], *, num_ticks: int = 8) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(num_ticks, integer=True))
    if len(steps):
        margin = max(0.5, 0.015 * float(steps.max() - steps.min()))
        axes.set_xlim(float(steps.min()) - margin, float(steps.max()) + margin)


def _marker(series: _Series) -> str:
    return "o" if len(series.steps) == 1 else ""  # a line through one point is invisible


def _say_empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "nothing recorded yet", transform=axes.transAxes, ha="center", va="center", color=FAINT)


_MOST_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class CurveSpec:
    """Which number of a step is drawn."""

    metric: str
    label: str


HELD_OUT = CurveSpec("eval/success", "success on held-out episodes")
SAMPLED = CurveSpec("rollout/success", "success of sampled play")


def plot_comparison(
    curves: Mapping[str, Sequence[Sequence[Metrics]]],
    yardsticks: Mapping[str, float],
    path: Path,
    shown: CurveSpec = HELD_OUT,
) -> None:
    """`curves[recipe][seed]` are the metrics of a run; `yardsticks` are drawn as level lines in every panel."""
    num_columns = min(len(curves), _MOST_COLUMNS)
    num_rows = -(-len(curves) // num_columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * num_columns, 2.5 * num_rows), layout="constrained", dpi=DPI)
        grid = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
        panels = [axes for row in grid for axes in row]
        for axes, (recipe, seeds) in zip(panels, curves.items(), strict=False):
            _draw_panel_curves(axes, recipe, seeds, yardsticks, shown.metric)
        for axes in panels[len(curves) :]:
            axes.set_axis_off()
        figure.supxlabel("step", fontsize=9)
        figure.supylabel(shown.label, fontsize=9)
        save_figure(figure, path)


def _draw_panel_curves(
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
