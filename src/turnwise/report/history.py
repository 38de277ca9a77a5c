"""The metrics of each step come in; what is usual in a run, and whether its outcome stands, goes out.

Keeps a window of each metric and not the whole past. Refuses to know what is a bad sign: `watch.py` says that.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum, auto
from statistics import fmean, median

from turnwise.config.schema import WatchSettings
from turnwise.types import Metrics

SUCCESS, RETURN, INVALID = "rollout/success", "rollout/return", "rollout/invalid_actions"
SPREAD, DEAD_GROUPS, REPETITION = "rollout/in_group_std", "rollout/dead_groups", "rollout/repetition"
ENTROPY, GRAD_NORM, CLIPPED = "learn/entropy", "learn/grad_norm", "learn/clip_fraction"
REWARDED = "rollout/rewarded"
KL, REFERENCE_KL, BEHAVIOR_GAP = "learn/approx_kl", "learn/reference_kl", "learn/behavior_gap"
_WATCHED = (
    *(SUCCESS, RETURN, INVALID, SPREAD, DEAD_GROUPS, REPETITION),
    *(ENTROPY, GRAD_NORM, CLIPPED, KL, REFERENCE_KL, BEHAVIOR_GAP),
)

_HIGH_SUCCESS = 0.8
_SOME_SUCCESS = 0.01
"""Below this, and where nobody says what a success is, the return says more."""
_STANDING_SHARE = 0.8
"""Of the way to the best outcome: what still stands."""


class Series:
    """One metric: its start, its newest values, and the extremes of its running mean."""

    def __init__(self, window: int) -> None:
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=window)
        self._window = window
        self.newest: float | None = None
        """None where the newest step did not measure it."""
        self.median_before: float | None = None
        """Of the window before the newest value."""
        self.level: float | None = None
        """Mean of the newest window."""
        self.best, self.lowest = -math.inf, math.inf
        """Highest and lowest level so far."""
        self.best_step = 0
        """The end of the best window; 0 where that is the first one."""
        self._num_levels = 0
        self.noise = 0.0
        """How far apart the values of one window are, on average over all windows so far."""

    def add(self, step: int, value: float | None) -> None:
        self.newest = value if value is not None and math.isfinite(value) else None
        if self.newest is None:
            return
        if len(self._first) < self._window:
            self._first.append(self.newest)
        self.median_before = median(self._recent) if len(self._recent) == self._window else None
        self._recent.append(self.newest)
        if len(self._recent) == self._window:
            self.level = fmean(self._recent)
            self.lowest = min(self.lowest, self.level)
            if self.level >= self.best:
                # A first window that nothing surpasses may have fallen inside it; only its start is known as good.
                self.best, self.best_step = self.level, step if self._num_levels else 0
            self._num_levels += 1
            self.noise += (max(self._recent) - min(self._recent) - self.noise) / self._num_levels

    @property
    def is_measured(self) -> bool:
        """Whether any step had it."""
        return bool(self._first)

    @property
    def start(self) -> float | None:
        """Median of the first window, once that is over."""
        return median(self._first) if len(self._first) == self._window else None

    @property
    def start_level(self) -> float:
        return fmean(self._first) if self.is_measured else 0.0


class Standing(Enum):
    WELL = auto()
    """Nearly everything succeeds."""
    HOLDING = auto()
    """What was gained is still there."""
    POOR = auto()
    """A good part of it is gone, or nothing was ever gained."""


class History:
    """All that rules may ask about a run."""

    def __init__(self, settings: WatchSettings, *, needs_groups: bool) -> None:
        self.settings = settings
        self.step = 0
        self.num_dead_steps = 0
        """Newest steps in a row without any signal."""
        self.num_unpaid_steps = 0
        """Steps so far in which every reward was zero."""
        self.was_paid = False
        """Whether any reward was ever something else."""
        self._needs_groups = needs_groups
        self._series = {name: Series(settings.window) for name in _WATCHED}

    def __getitem__(self, name: str) -> Series:
        return self._series[name]

    def add(self, step: int, metrics: Metrics) -> None:
        self.step = step
        is_dead = self._needs_groups and metrics.get(DEAD_GROUPS) == 1
        self.num_dead_steps = self.num_dead_steps + 1 if is_dead else 0
        self.num_unpaid_steps += metrics.get(REWARDED) == 0
        self.was_paid = self.was_paid or (metrics.get(REWARDED) or 0) > 0
        for name, series in self._series.items():
            # Without a signal there is next to no gradient, which says nothing about the usual size of one.
            series.add(step, None if is_dead and name == GRAD_NORM else metrics.get(name))

    @property
    def outcome(self) -> tuple[str, Series, float]:
        """What the run is for: its name, its numbers, and what counts as nothing."""
        success, returned = self[SUCCESS], self[RETURN]
        if success.best >= _SOME_SUCCESS or (success.is_measured and returned.level is None):
            return "success", success, 0.0
        return "return", returned, returned.start_level

    @property
    def standing(self) -> Standing:
        _, series, nothing = self.outcome
        if series.level is None:
            return Standing.HOLDING
        gain = series.best - nothing
        # A return always moves a little; success is counted from zero and needs no such margin.
        has_gained = gain > (series.noise if series is self[RETURN] else 0.0)
        if not has_gained or series.level < nothing + _STANDING_SHARE * gain:
            return Standing.POOR
        is_high = series is self[SUCCESS] and series.level >= _HIGH_SUCCESS
        return Standing.WELL if is_high else Standing.HOLDING

    @property
    def is_poor(self) -> bool:
        return self.standing is Standing.POOR

    def describe_outcome(self) -> str:
        name, series, _ = self.outcome
        if series.level is None:
            return f"no smoothed {name} yet"
        return f"{name} {series.level:.3g}, at its best {series.best:.3g}"
