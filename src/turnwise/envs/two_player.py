"""Games for two in which either seat can be a policy's.

A game is dealt, says whose turn it is, and is moved; in the end each player has a payoff. `rollout.workflow: self_play`
lets two policies sit down at it. Played like any other environment, by `reset` and `step`, the policy is player 0 and
the other player moves at random: that is what evaluation measures against.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from turnwise.envs.base import BaseEnv
from turnwise.errors import EnvError
from turnwise.infra.seeds import make_rng, random_seed

GAME_METHODS = ("deal", "whose_turn", "tell", "move", "payoffs")
"""What an environment has that two policies can play; `TwoPlayerEnv` says what each does."""
_POLICY = 0
_MAX_MOVES = 1_000
"""Of the other player in one turn of the policy; a game that never hands over is broken."""


class TwoPlayerEnv(BaseEnv):
    """Write `deal`, `whose_turn`, `tell`, `move` and `payoffs`, and `admissible_actions` for the random player."""

    @abstractmethod
    def deal(self, seed: int, split: str, dynamics_seed: int) -> None:
        """A new game in which nobody has moved; the seeds are those of `reset`."""

    @abstractmethod
    def whose_turn(self) -> int | None:
        """0 or 1; None where the game is over."""

    @abstractmethod
    def tell(self, player: int) -> str:
        """What a player is told now; asked once before each of its turns, and at the end."""

    @abstractmethod
    def move(self, action: str) -> bool:
        """Whoever's turn it is moves; whether that was a move of the game."""

    @abstractmethod
    def payoffs(self) -> tuple[float, float]:
        """What each player has earned, when the game is over. Above 0 is a success."""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        seed = random_seed() if seed is None else seed
        luck = seed if dynamics_seed is None else dynamics_seed
        self.deal(seed, split, luck)
        self._luck = make_rng("other player", luck)
        self._hand_over()
        self._phase = "playing"
        return self.tell(_POLICY)

    def step(self, action: str) -> tuple[Any, ...]:
        self._require_playing()
        is_valid = self.move(action)
        self._hand_over()
        is_over = self.whose_turn() is None
        payoff = self.payoffs()[_POLICY] if is_over else 0.0
        self._phase = "over" if is_over else "playing"
        info = {"success": payoff > 0, "action_is_valid": is_valid, "action_is_effective": is_valid}
        return self.tell(_POLICY), payoff, is_over, info

    def render(self) -> str:
        return self.tell(_POLICY)

    def _hand_over(self) -> None:
        """Let the other player move until it is the policy's turn."""
        for _ in range(_MAX_MOVES):
            if self.whose_turn() in (_POLICY, None):
                return
            actions = self.admissible_actions()
            if not actions:
                raise EnvError(f"{self.label()} names no admissible_actions, so the random player has none to draw.")
            self.move(self._luck.choice(actions))
        raise EnvError(f"{self.label()}: the other player moved {_MAX_MOVES} times in one turn.")
