"""One prompt, one reply, one score: what a function and a task of reasoning-gym have in common.

In come seeds and a reply; out come the prompt, then the score and the end. It refuses to know where tasks come from.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from turnwise.envs.adapters.foreign import ForeignWorld, foreign_info, is_playable, worth_of
from turnwise.infra.process_state import States


@dataclass(frozen=True, slots=True)
class OneTurnTask:
    """What is asked, how a reply is scored, and a right reply where one is known."""

    prompt: str
    grade: Callable[[str], Any]
    answer: str | None = None


class OneTurnWorld(ForeignWorld):
    """Subclasses say how a task is made."""

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._task = OneTurnTask("", lambda reply: 0.0)

    @abstractmethod
    def _make_task(self, seed: int, split: str) -> OneTurnTask:
        """The task of a seed; called inside the generators of this environment."""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        seed, luck = self._begin(seed, split, dynamics_seed)
        with self._rngs.inside():
            self._task = self._make_task(seed, split)
        self._rngs.seed(luck)
        self._phase = "playing"
        return self._task.prompt

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, object]]:
        self._require_playing()
        if not is_playable(action):
            return self._refuse()
        with self._rngs.inside():
            score = self._task.grade(action)
        self._phase = "over"
        success = worth_of(score) > self.params.success_above
        return "", score, True, foreign_info(success=success, is_valid=True, is_effective=True)

    def render(self) -> str:
        return self._task.prompt

    @property
    def instructions(self) -> str:
        return "Answer the question."

    def oracle(self) -> str:
        self._require_playing()
        return self._task.answer or super().oracle()

    def snapshot(self) -> object:
        return self._task, self._phase, self._rngs.states

    def restore(self, state: object) -> None:
        self._task, self._phase, self._rngs.states = cast("tuple[OneTurnTask, Any, States]", state)

    def _refuse(self) -> tuple[str, float, bool, dict[str, object]]:
        return self._task.prompt, 0.0, False, foreign_info(success=False, is_valid=False, is_effective=False)
