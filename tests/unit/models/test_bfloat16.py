"""bfloat16 where the machine has no units for it is told with what was measured, and nothing is said elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.checks.plan import make_plan
from turnwise.config.load import load_settings
from turnwise.models import load as bfloat16
from turnwise.models.load import Speeds, measure_speeds, warn_of_slow_bfloat16

SLOW, FAST = Speeds(float32=65.2, bfloat16=10.4), Speeds(float32=80.0, bfloat16=190.0)


def told(dtype: str, *, has_units: bool, speeds: Speeds = SLOW) -> str:
    model = load_settings("bandit", {"model.dtype": dtype}).model
    return warn_of_slow_bfloat16(model, has_units=lambda: has_units, measure=lambda: speeds)


def test_both_measured_speeds_and_the_setting_are_told() -> None:
    words = told("bfloat16", has_units=False)
    assert words.startswith("model.dtype: bfloat16 given")
    assert "10 GFLOP/s in bfloat16 and at 65 in float32" in words


@pytest.mark.parametrize(
    "given",
    [
        {"dtype": "float32", "has_units": False},
        {"dtype": "bfloat16", "has_units": True},
        {"dtype": "bfloat16", "has_units": False, "speeds": FAST},
    ],
)
def test_nothing_is_said_where_nothing_is_slow(given: dict[str, Any]) -> None:
    assert told(**given) == ""


def test_where_units_are_there_nothing_is_measured() -> None:
    def fail() -> Speeds:
        raise AssertionError("measured")

    model = load_settings("bandit", {"model.dtype": "bfloat16"}).model
    assert warn_of_slow_bfloat16(model, has_units=lambda: True, measure=fail) == ""


def test_a_measurement_counts_operations() -> None:
    speeds = measure_speeds()
    assert speeds.float32 > 0
    assert speeds.bfloat16 > 0


def test_a_plan_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bfloat16.warn_of_slow_bfloat16, "__kwdefaults__", {"has_units": lambda: False, "measure": lambda: SLOW}
    )
    notes = make_plan(load_settings("bandit", {"model.dtype": "bfloat16"})).notes
    assert any("GFLOP/s" in note for note in notes)
    assert not any("GFLOP/s" in note for note in make_plan(load_settings("bandit")).notes)
