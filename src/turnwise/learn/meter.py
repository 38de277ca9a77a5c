"""What an update reports in numbers: means over its optimizer steps, and what its batch was like.

In: sums over the tokens of micro-batches, and a Batch. Out: metrics by name. It refuses to know what the numbers mean.
"""

from __future__ import annotations

from collections import defaultdict

from torch import Tensor

from turnwise.learn.parallel.team import Team
from turnwise.types import Batch


class Meter:
    """Sums over micro-batches, averaged over optimizer steps; notes are summed once per update.

    A number is a rank's share of a sum, or one of all ranks, which each of them knows and one of them counts.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._notes: defaultdict[str, float] = defaultdict(float)
        self._num_steps = 0

    def note(self, name: str, value: float) -> None:
        """Of all ranks."""
        self._notes[name] += value if self._team.is_first else 0.0

    def note_share(self, name: str, value: float) -> None:
        self._notes[name] += value

    def add_share(self, name: str, total: Tensor, count: int) -> None:
        self._sums[name] += float(total) / count

    def count_step(self, grad_norm: Tensor) -> None:
        """An optimizer step was made, by all ranks alike."""
        self._sums["grad_norm"] += float(grad_norm) if self._team.is_first else 0.0
        self._num_steps += 1

    def means(self) -> dict[str, float]:
        """Of all ranks together."""
        steps = max(self._num_steps, 1)
        return self._team.sum_numbers({name: total / steps for name, total in self._sums.items()} | dict(self._notes))


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Counts of a batch, and how much of its returns the critic foresaw.

    `credit_target` is what the critic should say on average; without a critic it is the mean advantage, near 0.
    """
    mask = batch.loss_mask
    returns, values = batch.returns[mask], batch.values[mask]
    spread = float(returns.var())
    explained = 1 - float((returns - values).var()) / spread if spread > 0 else 0.0
    return {
        "tokens": float(len(batch.token_ids)),
        "action_tokens": float(mask.sum()),
        "rows": float(batch.num_rows),
        "credit_target": float(returns.mean()),
        "explained_variance": explained,
    }
