from __future__ import annotations

import math

import pytest

from turnwise.report.statistics import format_proportion, recorded_interval, wilson_interval


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [
        # From the definition: the p for which (p - share)^2 = z^2 p (1 - p) / n.
        (58, 100, 0.4821, 0.6721),
        (0, 100, 0.0, 0.0370),
        (100, 100, 0.9630, 1.0),
        (1, 2, 0.0945, 0.9055),
    ],
)
def test_the_ends_solve_the_equation_that_defines_them(successes: int, episodes: int, low: float, high: float) -> None:
    share = successes / episodes
    ends = wilson_interval(share, episodes)
    assert ends == pytest.approx((low, high), abs=1e-4)
    for end in ends:
        # At 0 and 1 one end is the share itself.
        if 0 < end < 1:
            assert abs(end - share) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / episodes), rel=1e-6)


def test_more_episodes_say_more_and_none_say_nothing() -> None:
    widths = [high - low for low, high in (wilson_interval(0.5, n) for n in (10, 100, 1000))]
    assert widths == sorted(widths, reverse=True)
    assert wilson_interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("episodes", [1, 3, 7, 400])
def test_the_share_lies_in_its_interval(episodes: int) -> None:
    for successes in range(episodes + 1):
        low, high = wilson_interval(successes / episodes, episodes)
        assert 0 <= low <= successes / episodes <= high <= 1


def test_as_a_person_reads_it() -> None:
    assert format_proportion(0.58, wilson_interval(0.58, 100)) == "0.58 (0.48 to 0.67)"
    assert format_proportion(0.58, None) == "0.58"
    assert format_proportion(None, None) == "unknown"


def test_on_record_it_is_over_the_tasks_that_say_it() -> None:
    assert recorded_interval({"eval/success": 0.5}, 100) == wilson_interval(0.5, 100)
    assert recorded_interval({"eval/success": 0.5, "eval/success_unknown": 0.9}, 100) == wilson_interval(0.5, 10)
    assert recorded_interval({"eval/return": 0.5}, 100) is None
