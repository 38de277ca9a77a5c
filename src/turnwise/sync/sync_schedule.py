"""When weights move: pure rules over how far the explorer and the trainer are.

`step` always counts updates: the weights of step 3 are those after the third update. Rollouts count from 1, and rollout
n is what update n learns from, so a rollout played with the weights of step n - 1 is not stale at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from turnwise.config.schema import SyncSettings, SyncStyle
from turnwise.errors import SyncError
from turnwise.infra.wait_tracking import waiting
from turnwise.protocols import Channel, Mailbox, PolicyVersion, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRules:
    """One sync style with its numbers."""

    style: SyncStyle
    interval: int
    offset: int
    """Rollouts that the explorer is ahead where it loads weights at fixed points."""
    max_staleness: int | None
    """Most updates that the weights of a rollout may be behind when it begins; None: the explorer never waits."""

    def required_version(self, rollout: int) -> int:
        """The oldest step whose weights the rollout may begin with."""
        if self.max_staleness is None:
            return 0
        if self.style == "fixed":
            return max(0, (rollout - 1 - self.offset) // self.interval * self.interval)
        return max(0, rollout - 1 - self.max_staleness)

    def may_load(self, rollout: int) -> bool:
        """Whether newer weights are loaded before this rollout; between them, nothing changes in the fixed style."""
        return self.style != "fixed" or (rollout - 1 - self.offset) % self.interval == 0

    def should_request(self, num_rollouts: int) -> bool:
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


def list_policies(settings: SyncSettings, *, is_alone: bool = False) -> SyncRules:
    """The rules of a run; an explorer that is alone does not wait, unless a bound is given."""
    staleness = settings.max_staleness
    if staleness is None and not is_alone:
        staleness = settings.interval if settings.offset is None else settings.offset + settings.interval - 1
    offset = settings.offset
    if offset is None:
        offset = 0 if staleness is None else max(0, staleness - settings.interval + 1)
    return SyncRules(style=settings.style, interval=settings.interval, offset=offset, max_staleness=staleness)


log = logging.getLogger(__name__)

_LONG_S = 30.0
"""After which a wait is logged."""
_POLL_S = 0.1
"""How often a wait looks again without being woken: other processes cannot ring."""


class Notifier:
    """Wakes all waits of this process, so that they check their condition again."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait_until(
        self, is_over: Callable[[], bool], *, who: str, reason: str, timeout_s: float, setting: str = "sync.timeout_s"
    ) -> float:
        """Return the seconds waited once `is_over`; a SyncError when it does not come to pass in time."""
        if is_over():
            return 0.0
        with waiting(who, reason, timeout_s):
            return await self._wait_until(is_over, who, reason, timeout_s, setting)

    async def _wait_until(
        self, is_over: Callable[[], bool], who: str, reason: str, timeout_s: float, setting: str
    ) -> float:
        started_s = time.monotonic()
        is_told = False
        while not is_over():
            waited_s = time.monotonic() - started_s
            if waited_s >= timeout_s:
                raise SyncError(
                    f"{who} has waited {waited_s:.0f} s for {reason}, and {setting} is {timeout_s:g}. "
                    f"Look at what the other side does, or raise {setting}."
                )
            if waited_s >= _LONG_S and not is_told:
                log.warning("%s has been waiting %.0f s for %s", who, waited_s, reason)
                is_told = True
            await self._rung_within(min(_POLL_S, timeout_s - waited_s))
        return time.monotonic() - started_s

    async def _rung_within(self, seconds: float) -> None:
        # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes together with the ring.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()


class ExplorerSync:
    """Admits rollouts: loads what there is and waits for what there must be."""

    def __init__(
        self,
        rules: SyncRules,
        mailbox: Mailbox,
        channel: Channel,
        bell: Notifier,
        *,
        start: PolicyVersion,
        timeout_s: float,
    ) -> None:
        self.mark = start
        """The weights that the engine serves."""
        self.waited_s = 0.0
        """For the trainer, so far."""
        self._rules = rules
        self._mailbox = mailbox
        self._channel = channel
        self._bell = bell
        self._timeout_s = timeout_s
        self._num_rollouts = 0
        """Admitted since the weights were loaded."""

    async def admit(self, rollout: int) -> PolicyVersion:
        """Return when the rollout may begin, with the weights it begins with."""
        needed = self._rules.required_version(rollout)
        while True:
            if self._rules.may_load(rollout):
                await self._load_newer()
            if self.mark.step >= needed:
                break
            self._mailbox.request(needed)
            self.waited_s += await self._bell.wait_until(
                self._is_newer,
                who="the explorer",
                reason=f"the weights of update {needed} before rollout {rollout} (it has those of {self.mark.step})",
                timeout_s=self._timeout_s,
            )
        self._num_rollouts += 1
        if self._rules.should_request(self._num_rollouts):
            self._mailbox.request(self.mark.step + 1)
        return self.mark

    def _is_newer(self) -> bool:
        newest = self._mailbox.newest()
        return newest is not None and newest.step > self.mark.step

    async def _load_newer(self) -> None:
        if not self._is_newer():
            return
        mark, weights = self._mailbox.fetch()
        await self._channel.publish(weights, mark.policy_version)
        self.mark, self._num_rollouts = mark, 0


class TrainerSync:
    """Publishes after updates as the style says, and answers requests while there is nothing to learn from."""

    def __init__(
        self, rules: SyncRules, mailbox: Mailbox, weights: Callable[[], Weights], *, start: PolicyVersion
    ) -> None:
        self._rules = rules
        self._mailbox = mailbox
        self._weights = weights
        self._done = start
        self._published = start.step

    def finish_update(self, mark: PolicyVersion) -> None:
        """Update number `mark.step` is done."""
        self._done = mark
        if self._rules.should_publish(mark.step, self._published, self._mailbox.requested()):
            self._publish()

    def answer(self) -> None:
        """While the trainer waits: give the explorer what it asks for, if there is any."""
        if self._rules.should_answer(self._done.step, self._published, self._mailbox.requested()):
            self._publish()

    def is_asked_for_more(self) -> bool:
        """Whether the explorer waits for an update that has not been made."""
        requested = self._mailbox.requested()
        return requested is not None and requested > self._done.step

    def _publish(self) -> None:
        self._mailbox.post(self._done, self._weights())
        self._published = self._done.step
