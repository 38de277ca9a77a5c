"""How every figure looks and how it is saved; touches neither pyplot nor any display."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from turnwise.infra.atomic_files import write_whole

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
    write_whole(path, image.getvalue())
