"""When weights move: pure rules over how far the explorer and the trainer are.

`step` always counts updates: the weights of step 3 are those after the third update. Rollouts count from 1, and rollout
n is what update n learns from, so a rollout played with the weights of step n - 1 is not stale at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.config.schema import SyncSettings, SyncStyle


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRules:
    """One sync style with its numbers."""

    style: SyncStyle
    interval: int
    offset: int
    """Rollouts that the explorer is ahead where it loads weights at fixed points."""
    max_staleness: int | None
    """Most updates that the weights of a rollout may be behind when it begins; None: the explorer never waits."""

    def needed_for(self, rollout: int) -> int:
        """The oldest step whose weights the rollout may begin with."""
        if self.max_staleness is None:
            return 0
        if self.style == "fixed":
            return max(0, (rollout - 1 - self.offset) // self.interval * self.interval)
        return max(0, rollout - 1 - self.max_staleness)

    def may_load(self, rollout: int) -> bool:
        """Whether newer weights are loaded before this rollout; between them, nothing changes in the fixed style."""
        return self.style != "fixed" or (rollout - 1 - self.offset) % self.interval == 0

    def should_ask(self, num_rollouts: int) -> bool:
        """Whether the explorer asks for newer weights, so many rollouts after it got its own."""
        return self.style == "dynamic_by_explorer" and num_rollouts >= self.interval

    def should_publish(self, done: int, published: int, requested: int | None) -> bool:
        """Whether the trainer publishes after update `done`."""
        match self.style:
            case "fixed":
                return done % self.interval == 0
            case "dynamic_by_trainer":
                return done - published >= self.interval
            case "dynamic_by_explorer":
                return self.should_answer(done, published, requested)

    def should_answer(self, done: int, published: int, requested: int | None) -> bool:
        """Whether a trainer that has nothing to do answers: in every style, or both would wait for each other."""
        return requested is not None and published < requested <= done


def rules_of(settings: SyncSettings, *, is_alone: bool = False) -> SyncRules:
    """The rules of a run; an explorer that is alone waits for nobody, unless a bound is given."""
    staleness = settings.max_staleness
    if staleness is None and not is_alone:
        staleness = settings.interval if settings.offset is None else settings.offset + settings.interval - 1
    offset = settings.offset
    if offset is None:
        offset = 0 if staleness is None else max(0, staleness - settings.interval + 1)
    return SyncRules(style=settings.style, interval=settings.interval, offset=offset, max_staleness=staleness)
