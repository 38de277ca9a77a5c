"""The files that the page is made of: scripts, styles, and the chart library that is shipped with them."""

from __future__ import annotations

from importlib.resources import files

SCRIPTS = (
    "dom.js",
    "api.js",
    "colours.js",
    "calls.js",
    "shop.js",
    "household.js",
    "worlds.js",
    "charts.js",
    "runs.js",
    "curves.js",
    "episodes.js",
    "tokens.js",
    "policy.js",
    "episode.js",
    "task.js",
    "system.js",
    "main.js",
)
"""In an order in which each needs only those before it."""
STYLES = ("vendor/uPlot.min.css", "page.css")
CHARTS = "vendor/uPlot.iife.min.js"
ASSETS = frozenset((*SCRIPTS, *STYLES, CHARTS))


def read_asset(name: str) -> str:
    return files("turnwise.view").joinpath("page", *name.split("/")).read_text(encoding="utf-8")
