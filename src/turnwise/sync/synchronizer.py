"""The two ends of the way from the trainer's weights to the explorer's policy.

They share a mailbox and nothing else, so that they may live in one process or in two. Steps only grow: the explorer
never gets older weights than it has. A trainer that has nothing to do answers requests, so that an explorer which waits
for it always gets what there is.
"""

from __future__ import annotations

from collections.abc import Callable

from turnwise.protocols import Channel, Mailbox, PolicyMark, Weights
from turnwise.sync.styles import SyncRules
from turnwise.sync.waiting import Bell


class ExplorerEnd:
    """Admits rollouts: loads what there is and waits for what there must be."""

    def __init__(
        self, rules: SyncRules, mailbox: Mailbox, channel: Channel, bell: Bell, *, start: PolicyMark, timeout_s: float
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

    async def admit(self, rollout: int) -> PolicyMark:
        """Return when the rollout may begin, with the weights it begins with."""
        needed = self._rules.needed_for(rollout)
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
        if self._rules.should_ask(self._num_rollouts):
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


class TrainerEnd:
    """Publishes after updates as the style says, and answers requests while there is nothing to learn from."""

    def __init__(
        self, rules: SyncRules, mailbox: Mailbox, weights: Callable[[], Weights], *, start: PolicyMark
    ) -> None:
        self._rules = rules
        self._mailbox = mailbox
        self._weights = weights
        self._done = start
        self._published = start.step

    def finish_update(self, mark: PolicyMark) -> None:
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
