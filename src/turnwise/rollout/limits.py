"""Budgets of an episode and the order in which they are checked.

After each turn, the first that holds ends the episode:

1. the environment failed                        env_error
2. the world ended it                            terminated
3. the environment's own time limit              env_truncated
4. `rollout.max_actions` actions were played     max_actions
5. `rollout.max_turns` turns were played         max_turns

Before the next reply, `context.max_tokens` is checked: if the conversation and a reply do not fit, the episode ends
with `context_overflow`. All but the first two are truncations: the last state still has a value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from turnwise.types import StepResult, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_turns: int
    max_actions: int | None = None
    max_actions_per_turn: int = 1

    def shortened(self, max_turns: int) -> Limits:
        """The same with at most so many turns."""
        return replace(self, max_turns=min(self.max_turns, max_turns))

    def actions_left(self, num_actions: int, num_turns: int) -> int:
        """How many actions the rest of the episode can hold."""
        by_turns = (self.max_turns - num_turns) * self.max_actions_per_turn
        return by_turns if self.max_actions is None else min(by_turns, self.max_actions - num_actions)

    def find_stop(self, last: StepResult | None, *, num_actions: int, num_turns: int) -> StopReason | None:
        """Why the episode is over after a turn, or None where it goes on; `last` is None if no action was played."""
        if last is not None and last.terminated:
            return StopReason.TERMINATED
        if last is not None and last.truncated:
            return StopReason.ENV_TRUNCATED
        if self.max_actions is not None and num_actions >= self.max_actions:
            return StopReason.MAX_ACTIONS
        if num_turns >= self.max_turns:
            return StopReason.MAX_TURNS
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """What bounds the episodes of a rollout from outside."""

    max_concurrent: int | None = None
    """Episodes that run at the same time."""
    timeout_s: float | None = None
    """Longest episode, counted from its own start."""
    max_retries: int = 0
    """How often an episode that failed is played again, in a fresh environment."""
