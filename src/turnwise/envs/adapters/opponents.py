"""The simple players of the other side: at random, or by a script.

In come the settings of a game and what it tells; out come moves. Each is an `Opponent`; the one that is a trained
policy is built by the loop, which alone knows engines (`OPPONENTS` in `config/component.py`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle

from turnwise.envs.adapters.textarena_settings import TextArenaParams
from turnwise.errors import EnvError
from turnwise.infra.seeds import make_rng
from turnwise.rollout_io import EnvDescription


class RandomMoves:
    """Draws from its moves, or from what the game last offered."""

    def __init__(self, params: TextArenaParams, label: str) -> None:
        self._label = label
        self._moves = params.opponent_moves
        self._offered: Sequence[str] = ()
        self._luck = random.Random(0)

    def begin(self, about: EnvDescription, seed: int) -> None:
        self._offered = ()
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self._luck = make_rng("opponent", seed)

    def choose_move(self, text: str, offered: Sequence[str]) -> str:
        self._offered = self._moves or offered or self._offered
        if not self._offered:
            raise EnvError(f"{self._label} offers no moves in brackets; set env.opponent_moves.")
        return self._luck.choice(self._offered)


class ScriptedMoves:
    """Plays its moves in order, again and again."""

    def __init__(self, params: TextArenaParams, label: str) -> None:
        self._moves = params.opponent_moves
        self._next = cycle(self._moves)

    def begin(self, about: EnvDescription, seed: int) -> None:
        self._next = cycle(self._moves)

    def reseed(self, seed: int) -> None:
        """A script leaves nothing to chance."""

    def choose_move(self, text: str, offered: Sequence[str]) -> str:
        return next(self._next)
