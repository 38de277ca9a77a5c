from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turnwise.report.plots import HeatMap, HeatRow, plot_heat_map


def make_map(num_turns: int, *rows: HeatRow) -> HeatMap:
    return HeatMap(
        title="One episode",
        subtitle="of many",
        turns=tuple(f"cell {n}\nRight" for n in range(num_turns)),
        tokens_per_turn=2,
        tokens=("0", "1") * num_turns,
        rows=rows,
        note_title="note",
    )


def make_row(name: str, values: np.ndarray) -> HeatRow:
    return HeatRow(name=name, values=values, note="0.50")


def draw(heat_map: HeatMap, path: Path) -> tuple[bytes, tuple[int, int]]:
    plot_heat_map(heat_map, path)
    image = path.read_bytes()
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    return image, struct.unpack(">II", image[16:24])  # type: ignore[return-value]


def test_a_row_more_makes_the_picture_higher_and_not_wider(tmp_path: Path) -> None:
    row = make_row("truth", np.linspace(-1, 1, 6))
    _, one = draw(make_map(3, row), tmp_path / "one.png")
    _, three = draw(make_map(3, row, row, row), tmp_path / "new" / "three.png")
    assert one[0] == three[0]
    assert one[1] < three[1]


@pytest.mark.parametrize("values", [np.zeros(2), np.full(2, np.nan), np.array([np.nan, 3.0])])
def test_rows_with_nothing_to_show(tmp_path: Path, values: np.ndarray) -> None:
    truth = make_row("truth", np.zeros(2))
    empty, _ = draw(make_map(1, truth, make_row("rule", values)), tmp_path / "empty.png")
    shown, _ = draw(make_map(1, truth, make_row("rule", np.array([-1.0, 1.0]))), tmp_path / "shown.png")
    assert empty != shown


def test_signs_names_and_turns_are_drawn(tmp_path: Path) -> None:
    first = make_map(2, make_row("truth", np.array([-1.0, 0.2, 0.4, 1.0])))
    others = [
        make_map(2, make_row("truth", -first.rows[0].values)),
        make_map(2, make_row("other", first.rows[0].values)),
        replace(first, turns=("cell 1\nLeft", "cell 2\nLeft")),
        replace(first, tokens=("1", "1", "1", "1")),
    ]
    images = {draw(heat_map, tmp_path / "map.png")[0] for heat_map in (first, *others)}
    assert len(images) == 5
