"""Nim, a game for two: from one heap each player takes one, two or three; whoever takes the last one wins."""

from __future__ import annotations

from pydantic import PositiveInt

from turnwise.config.settings import Settings
from turnwise.envs.two_player import TwoPlayerEnv
from turnwise.infra.seeds import make_rng

MOST = 3
"""What one move can take."""


class NimParams(Settings):
    smallest: PositiveInt = 5
    """The smallest heap that is dealt."""
    largest: PositiveInt = 12


class Nim(TwoPlayerEnv):
    """A heap is won by whoever leaves a multiple of four behind, and so is every heap that is none."""

    name = "nim"
    Params = NimParams
    params: NimParams
    rewards = "1 for the last one, -1 for the other player"
    has_oracle = True

    def deal(self, seed: int, split: str, dynamics_seed: int) -> None:
        self._heap = make_rng("nim", split, seed).randint(self.params.smallest, self.params.largest)
        self._mover = 0

    def whose_turn(self) -> int | None:
        return self._mover if self._heap else None

    def tell(self, player: int) -> str:
        return f"heap {self._heap}"

    def move(self, action: str) -> bool:
        if action not in self.admissible_actions():
            return False
        self._heap -= int(action)
        self._mover = 1 - self._mover
        return True

    def payoffs(self) -> tuple[float, float]:
        # Whoever would have to move now has lost.
        return (-1.0, 1.0) if self._mover == 0 else (1.0, -1.0)

    @property
    def action_names(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(1, MOST + 1))

    def admissible_actions(self) -> tuple[str, ...]:
        return self.action_names[: self._heap]

    @property
    def instructions(self) -> str:
        return "Two players take 1, 2 or 3 from a heap in turns. Whoever takes the last one wins."

    def oracle(self) -> str:
        return str(self._heap % (MOST + 1) or 1)
