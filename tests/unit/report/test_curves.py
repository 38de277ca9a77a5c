"""Recipes side by side: one panel each, one line per seed, the yardsticks in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from turnwise.report import plots as curves
from turnwise.report.plots import HELD_OUT, SAMPLED, CurveSpec, plot_comparison


def rows(*successes: float) -> list[dict[str, float]]:
    evaluated = [{"step": 10.0 * n, "eval/success": success} for n, success in enumerate(successes)]
    return [*evaluated, {"step": 5.0, "rollout/success": 1.0}]


def drawn(monkeypatch: pytest.MonkeyPatch, names: list[str], shown: CurveSpec = HELD_OUT) -> Figure:
    kept: list[Figure] = []
    monkeypatch.setattr(curves, "save_figure", lambda figure, _path: kept.append(figure))
    runs = {name: [rows(0.1, 0.5), rows(0.2, 0.6)] for name in names}
    plot_comparison(runs, {"blind": 0.4}, Path("x.png"), shown)
    return kept[0]


def test_every_recipe_has_a_panel_with_a_line_per_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(monkeypatch, ["grpo", "rloo", "gae", "gigpo", "remax"])
    shown = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title(loc="left") for axes in shown] == ["grpo", "rloo", "gae", "gigpo", "remax"]
    for axes in shown:
        first, second, blind = axes.get_lines()
        assert list(first.get_ydata()) == [0.1, 0.5]
        assert list(second.get_xdata()) == [0.0, 10.0]
        assert set(blind.get_ydata()) == {0.4}
        assert [text.get_text() for text in axes.texts] == ["blind"]


def test_the_number_that_is_drawn_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(monkeypatch, ["grpo", "rloo"], SAMPLED)
    assert [list(axes.get_lines()[0].get_ydata()) for axes in figure.axes] == [[1.0], [1.0]]
    assert figure.get_supylabel() == SAMPLED.label


def test_a_picture_is_written(tmp_path: Path) -> None:
    plot_comparison({"grpo": [rows(0.1)]}, {}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
