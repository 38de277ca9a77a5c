"""Explorer and trainer over one mailbox: in no style and no order of events do they wait for each other for ever."""

from __future__ import annotations

import asyncio
import logging
import random
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.config.schema import SyncSettings
from turnwise.errors import SyncError
from turnwise.protocols import PolicyVersion, Weights
from turnwise.sync import sync_schedule as waiting
from turnwise.sync.sync_schedule import ExplorerSync, Notifier, SyncRules, TrainerSync, list_policies
from turnwise.sync.weight_store import MemoryWeightStore

from ...clock import HANG_S

START = PolicyVersion(0, 0)
DEADLOCK_S = 30.0
"""Rollouts and updates take no time here, so whoever waits that long waits for ever."""


def rules(style: str = "fixed", **numbers: int | None) -> SyncRules:
    return list_policies(SyncSettings.model_validate({"style": style, **numbers}))


class Served:
    """An engine's channel that remembers which versions it was given."""

    def __init__(self) -> None:
        self.versions = [0]

    async def publish(self, weights: Weights, policy_version: int) -> int:
        await asyncio.sleep(0)
        assert int(weights["w"]) == policy_version
        self.versions.append(policy_version)
        return policy_version


class Play:
    """A whole run without models: rollouts and updates take as many turns of the event loop as the dice say."""

    def __init__(self, rules: SyncRules, dice: random.Random, num_steps: int) -> None:
        self.bell, self.dice, self.num_steps = Notifier(), dice, num_steps
        self.mailbox, self.served = MemoryWeightStore(self.bell.ring), Served()
        self.weights = {"w": torch.tensor(0)}
        self.explorer = ExplorerSync(rules, self.mailbox, self.served, self.bell, start=START, timeout_s=DEADLOCK_S)
        self.trainer = TrainerSync(rules, self.mailbox, lambda: self.weights, start=START)
        self.begun: list[int] = []
        """The step of the weights each rollout began with."""
        self.finished: set[int] = set()
        self.most_running = 0

    async def run(self) -> None:
        explore = asyncio.create_task(self._explore())
        for step in range(1, self.num_steps + 1):

            def is_there(step: int = step) -> bool:
                self.trainer.answer()
                return step in self.finished

            await self.bell.wait_until(is_there, who="the trainer", reason=f"rollout {step}", timeout_s=DEADLOCK_S)
            await self._take_time()
            self.weights["w"] += 1
            self.trainer.finish_update(PolicyVersion(step, step))
        await explore

    async def _explore(self) -> None:
        playing = []
        for number in range(1, self.num_steps + 1):
            mark = await self.explorer.admit(number)
            self.begun.append(mark.step)
            self.most_running = max(self.most_running, number - len(self.finished))
            playing.append(asyncio.create_task(self._play(number)))
        await asyncio.gather(*playing)

    async def _play(self, number: int) -> None:
        await self._take_time()
        self.finished.add(number)
        self.bell.ring()

    async def _take_time(self) -> None:
        for _ in range(self.dice.randrange(12)):
            await asyncio.sleep(0)


@settings(max_examples=150, deadline=None)
@given(
    style=st.sampled_from(["fixed", "dynamic_by_explorer", "dynamic_by_trainer"]),
    interval=st.integers(1, 4),
    slack=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)
def test_every_order_of_events_ends_with_versions_that_grow(style: str, interval: int, slack: int, seed: int) -> None:
    # In a dynamic style the bound may be tighter than the interval; in the fixed one that is refused.
    bound = slack + (interval - 1 if style == "fixed" else 0)
    play = Play(rules(style, interval=interval, max_staleness=bound), random.Random(seed), num_steps=12)
    asyncio.run(play.run())
    assert play.served.versions == sorted(set(play.served.versions))
    assert all(rollout - 1 - bound <= step <= rollout - 1 for rollout, step in enumerate(play.begun, start=1))
    assert play.most_running <= bound + 1


# --- the checklist: dynamic_by_explorer ----------------------------------------------------------------------------


def ends(style: str, **numbers: int | None) -> tuple[ExplorerSync, TrainerSync, MemoryWeightStore, Served]:
    bell = Notifier()
    mailbox, served = MemoryWeightStore(bell.ring), Served()
    chosen = rules(style, **numbers)
    explorer = ExplorerSync(chosen, mailbox, served, bell, start=START, timeout_s=HANG_S)
    return explorer, TrainerSync(chosen, mailbox, dict, start=START), mailbox, served


def finish(trainer: TrainerSync, step: int) -> None:
    trainer._weights = lambda: {"w": torch.tensor(step)}
    trainer.finish_update(PolicyVersion(step, step))


def test_the_explorer_asks_after_so_many_rollouts_and_a_starved_trainer_answers() -> None:
    async def run() -> None:
        explorer, trainer, mailbox, served = ends("dynamic_by_explorer", interval=3, max_staleness=9)
        for step in (1, 2):
            await explorer.admit(step)
            finish(trainer, step)
            assert (mailbox.requested(), mailbox.newest()) == (None, None)
        await explorer.admit(3)
        assert mailbox.requested() == 1
        # The trainer has made no update since: it waits for experience, and answers meanwhile.
        trainer.answer()
        assert mailbox.newest() == PolicyVersion(2, 2)
        await explorer.admit(4)
        assert served.versions == [0, 2]
        # The next request is due three rollouts after these weights came.
        trainer.answer()
        finish(trainer, 3)
        assert mailbox.newest() == PolicyVersion(2, 2)

    asyncio.run(run())


def test_a_request_for_what_is_not_there_is_answered_after_the_update_that_makes_it() -> None:
    explorer, trainer, mailbox, _ = ends("dynamic_by_explorer", interval=1, max_staleness=0)

    async def run() -> None:
        assert (await explorer.admit(1)).step == 0
        waiting_for_one = asyncio.create_task(explorer.admit(2))
        await asyncio.sleep(0)
        trainer.answer()
        assert mailbox.newest() is None
        assert trainer.is_asked_for_more()
        finish(trainer, 1)
        assert not trainer.is_asked_for_more()
        assert (await waiting_for_one).step == 1
        assert explorer.waited_s > 0

    asyncio.run(run())


def test_the_trainer_publishes_by_itself_in_the_other_styles() -> None:
    for style in ("fixed", "dynamic_by_trainer"):
        _, trainer, mailbox, _ = ends(style, interval=2, max_staleness=5)
        finish(trainer, 1)
        assert mailbox.newest() is None
        finish(trainer, 2)
        assert mailbox.newest() == PolicyVersion(2, 2)
        finish(trainer, 3)
        assert mailbox.newest() == PolicyVersion(2, 2)


@pytest.mark.parametrize(
    ("style", "offset", "expected"),
    [
        ("dynamic_by_trainer", 1, [0, 0, 2, 2, 4, 4]),
        ("fixed", 0, [0, 0, 2, 2, 4, 4]),
        ("fixed", 1, [0, 0, 0, 2, 2, 4]),
    ],
)
def test_a_dynamic_explorer_takes_weights_at_once_and_a_fixed_one_at_its_points(
    style: str, offset: int, expected: list[int]
) -> None:
    async def begin() -> list[int]:
        explorer, trainer, _, _ = ends(style, interval=2, max_staleness=9, offset=offset)
        steps = []
        for number in range(1, 7):
            steps.append((await explorer.admit(number)).step)
            finish(trainer, number)
        return steps

    assert asyncio.run(begin()) == expected


# --- waits -----------------------------------------------------------------------------------------------------------


def test_a_wait_that_fails_names_owner_reason_and_setting() -> None:
    async def run() -> None:
        explorer, *_ = ends("fixed", interval=1, max_staleness=0)
        await explorer.admit(1)
        explorer._timeout_s = 0.05
        await explorer.admit(2)

    expected = r"the explorer has waited \d+ s for the weights of update 1 before rollout 2 .* sync\.timeout_s is 0\.05"
    with pytest.raises(SyncError, match=expected):
        asyncio.run(run())


def test_a_long_wait_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(waiting, "_LONG_S", 0.01)
    monkeypatch.setattr(waiting, "_POLL_S", 0.01)
    answers = iter([False] * 6 + [True])
    with caplog.at_level(logging.WARNING):
        asyncio.run(
            Notifier().wait_until(lambda: next(answers), who="the trainer", reason="rollout 3", timeout_s=HANG_S)
        )
    (told,) = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(r"the trainer has been waiting \d+ s for rollout 3", told)


def test_a_wait_can_be_cancelled_while_the_bell_rings() -> None:
    async def run() -> None:
        bell = Notifier()
        waiter = asyncio.create_task(bell.wait_until(lambda: False, who="a", reason="b", timeout_s=HANG_S))
        await asyncio.sleep(0)
        bell.ring()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiter, HANG_S)

    asyncio.run(run())


# --- numbers that follow from each other -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "offset", "max_staleness"),
    [
        ({}, 1, 1),
        ({"interval": 4}, 1, 4),
        ({"offset": 0}, 0, 0),
        ({"offset": 2, "interval": 3}, 2, 4),
        ({"max_staleness": 0}, 0, 0),
        ({"max_staleness": 5, "interval": 2}, 4, 5),
    ],
)
def test_offset_and_bound_follow_from_each_other(given: dict[str, int], offset: int, max_staleness: int) -> None:
    chosen = rules(**given)
    assert (chosen.offset, chosen.max_staleness) == (offset, max_staleness)


def test_an_explorer_that_is_alone_waits_for_nobody_unless_told_to() -> None:
    alone = list_policies(SyncSettings(), is_alone=True)
    assert [alone.required_version(number) for number in (1, 50)] == [0, 0]
    assert alone.may_load(7)
    bounded = list_policies(SyncSettings(max_staleness=2), is_alone=True)
    assert bounded.required_version(50) == 47
