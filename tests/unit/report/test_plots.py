from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from turnwise.errors import Finding
from turnwise.report import plots
from turnwise.report.plots import plot_learning_curve, plot_training_health


def png_size(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:24])
    return width, height


def make_rows(num_steps: int) -> list[dict[str, float]]:
    return [
        {
            "step": step,
            "rollout/success": step / num_steps,
            "learn/entropy": 1.0 / (1 + step),
            "learn/grad_norm": 500.0 if step == 5 else 1.0,
            "time/rollout": 1.0,
            "time/learn_s": 2.0,
        }
        | ({"eval/success": 0.5} if step % 4 == 0 else {})
        for step in range(1, num_steps + 1)
    ]


@pytest.mark.parametrize("num_steps", [0, 1, 2, 30])
def test_learning_curve_of_any_length(tmp_path: Path, make_summary, num_steps: int) -> None:
    plot_learning_curve(make_rows(num_steps), make_summary(), tmp_path / "plots" / "curve.png")
    assert png_size(tmp_path / "plots" / "curve.png") == (1400, 800)


def test_learning_curve_of_a_run_that_is_not_finished(tmp_path: Path) -> None:
    plot_learning_curve([{"step": 1, "learn/loss": 0.5}], None, tmp_path / "curve.png")
    assert png_size(tmp_path / "curve.png") == (1400, 800)


def test_the_summary_is_drawn(tmp_path: Path, make_summary) -> None:
    plot_learning_curve(make_rows(9), None, tmp_path / "without.png")
    plot_learning_curve(
        make_rows(9), make_summary(success_before=None, baselines={"oracle": 1.0}), tmp_path / "with.png"
    )
    assert (tmp_path / "without.png").read_bytes() != (tmp_path / "with.png").read_bytes()


def test_where_nobody_says_what_a_success_is_the_return_is_drawn(
    tmp_path: Path, make_summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[list[str], list[float]]] = []

    def look(figure, _path) -> None:
        drawn.append(([text.get_text() for text in figure.texts], list(figure.axes[0].get_ylim())))

    monkeypatch.setattr(plots, "save_figure", look)
    rows = [{"step": step, "rollout/return": 5.0 * step, "env/words/success": 1.0} for step in range(1, 9)]
    summary = make_summary(success_before=None, success_after=None)
    plot_learning_curve(rows, summary, tmp_path / "curve.png")
    (title, under), (_, top) = drawn[0]
    assert title == "frozenlake: return on frozen_lake"
    assert under.startswith("0.02 → 0.71 on 200 held-out episodes")
    assert top > 40
    plot_learning_curve([row | {"rollout/success": 0.5} for row in rows], summary, tmp_path / "curve.png")
    assert drawn[1][0][0] == "frozenlake: success on frozen_lake"
    assert drawn[1][1][1] < 2


def test_training_health_grows_with_what_was_recorded(tmp_path: Path) -> None:
    sizes = []
    for rows in ([], make_rows(1), make_rows(12), [row | {"learn/approx_kl": 0.1} for row in make_rows(12)]):
        plot_training_health(rows, tmp_path / "health.png")
        sizes.append(png_size(tmp_path / "health.png"))
    assert {width for width, _ in sizes} == {1400}
    assert sizes[0] == sizes[1] == sizes[2]  # entropy, gradient norm and time fill one row
    assert sizes[3][1] > sizes[2][1]


def test_findings_are_drawn(tmp_path: Path) -> None:
    found = [
        Finding(kind="low_entropy", level="warning", where="", message="", stage="training", step=step, since=1)
        for step in (2, 3, 4, 5, 6, 7)
    ]
    images = []
    for findings in ([], found[:1], found):
        plot_training_health(make_rows(12), tmp_path / "health.png", findings)
        images.append((tmp_path / "health.png").read_bytes())
    assert len(set(images)) == 3


def test_values_that_are_not_finite_are_left_out() -> None:
    series = plots._series([{"step": 1, "a": math.nan}, {"step": 2, "a": 3.0}, {"step": 3}], "a")
    assert series.steps.tolist() == [2.0]
    assert series.values.tolist() == [3.0]


def test_smoothing_keeps_constants_and_calms_noise() -> None:
    np.testing.assert_allclose(plots._smooth(np.full(50, 0.3)), 0.3)
    noise = np.random.default_rng(0).normal(size=200)
    assert plots._smooth(noise).std() < 0.5 * noise.std()
    assert len(plots._smooth(noise[:2])) == 2


@pytest.mark.parametrize("heights", [[0.5], [0.15, 0.18, 0.2], [0.97, 0.98, 1.0], [0.0, 0.0, 0.0], [0.1, 0.5, 0.9]])
def test_labels_keep_their_distance_and_stay_inside(heights: list[float]) -> None:
    placed = plots._push_apart(heights, gap=0.1, low=0.0, high=1.0)
    assert all(gap >= 0.1 - 1e-9 for gap in np.diff(placed))
    assert min(placed) >= 0.0
    assert max(placed) <= 1.0 + 1e-9


def test_labels_that_have_room_do_not_move() -> None:
    assert plots._push_apart([0.1, 0.5, 0.9], gap=0.1, low=0.0, high=1.0) == pytest.approx([0.1, 0.5, 0.9])
