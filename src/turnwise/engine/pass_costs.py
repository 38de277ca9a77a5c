"""What forward passes take: the sums from which the cost of a pass and of each row in it can be told apart later."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.types import Metrics


@dataclass(slots=True)
class PassCosts:
    """Sums over all passes so far: of a straight line through their times, nothing else is needed."""

    passes: float = 0.0
    rows: float = 0.0
    rows_squared: float = 0.0
    busy_s: float = 0.0
    busy_row_s: float = 0.0
    """Of the time of each pass, times its rows."""

    def add(self, num_rows: int, seconds: float) -> None:
        self.passes += 1
        self.rows += num_rows
        self.rows_squared += num_rows * num_rows
        self.busy_s += seconds
        self.busy_row_s += seconds * num_rows

    def told(self) -> Metrics:
        return {
            "passes": self.passes,
            "rows": self.rows,
            "rows_squared": self.rows_squared,
            "busy_s": self.busy_s,
            "busy_row_s": self.busy_row_s,
        }
