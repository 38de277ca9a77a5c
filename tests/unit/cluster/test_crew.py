"""Who is at work: players join with the newest weights, leave when fewer are wanted, and are replaced when lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from tests.clock import HANG_S
from turnwise.cluster import explorer_pool as crews
from turnwise.cluster.explorer_pool import (
    DistributedCollector,
    DistributedEngine,
    ExplorerPool,
    ExplorerPoolConfig,
    Share,
    Told,
    WeightsLostError,
    deal,
)
from turnwise.errors import ClusterError, ConfigError, WorkerLostError
from turnwise.infra.wait_tracking import list_waits
from turnwise.types import Group, StopReason, Task, Trajectory, TrajectoryId

TASKS = [Task(tag="lake", seed=seed, split="train") for seed in range(5)]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "_LOOK_S", 0.001)
    monkeypatch.setattr(crews, "_GRACE_S", 0.2)


class FakePlayer:
    """Plays at once, or does what it is told to do first."""

    def __init__(self, name: str, before: Callable[[Share], Awaitable[None]] | None = None) -> None:
        self.name = name
        self.loaded: list[int] = []
        self.shares: list[Share] = []
        self.has_left = False
        self.fails_to_load: Exception | None = None
        self._before = before

    async def play(self, share: Share) -> AsyncGenerator[Told, None]:
        self.shares.append(share)
        played = [
            share.known.get(name) or _episode(task, name) for task in share.tasks for name in [_name(share, task)]
        ]
        yield Told(episodes=tuple(played[:1]))
        if self._before is not None:
            await self._before(share)
        groups = tuple(Group(task=one.task, trajectories=(one,)) for one in played)
        yield Told(episodes=tuple(played[1:]), groups=groups)

    async def load(self, weights: Any, policy_version: int) -> None:
        if self.fails_to_load is not None:
            raise self.fails_to_load
        self.loaded.append(policy_version)

    async def leave(self) -> None:
        self.has_left = True


def _name(share: Share, task: Task) -> TrajectoryId:
    return TrajectoryId(share.rollout, task.id, 0)


def _episode(task: Task, name: TrajectoryId) -> Trajectory:
    return Trajectory(
        id=name, task=task, segments=(), turns=(), stop_reason=StopReason.ENV_ERROR, is_success=False, failure="none"
    )


class Agency:
    """Hires fake players, and remembers them."""

    def __init__(self, wanted: int = 1, make: Callable[[str], FakePlayer] = FakePlayer) -> None:
        self.wanted = wanted
        self.hired: list[FakePlayer] = []
        self.told: list[str] = []
        self._make = make

    async def hire(self, name: str) -> FakePlayer:
        self.hired.append(self._make(name))
        return self.hired[-1]

    def hiring(self, **given: Any) -> ExplorerPoolConfig:
        usual = {"hire": self.hire, "wanted": lambda: self.wanted, "timeout_s": 5.0, "tell": self.told.append}
        return ExplorerPoolConfig(describe_room=lambda: "The cluster has 1 of 2 CPU free.", **{**usual, **given})


def run(work: Callable[[ExplorerPool], Awaitable[None]], hiring: ExplorerPoolConfig) -> None:
    async def begin() -> None:
        crew = ExplorerPool(hiring)
        crew.start()
        try:
            await work(crew)
        finally:
            await crew.close()

    asyncio.run(begin())


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_so():
            await asyncio.sleep(0.001)


def test_shares_are_as_even_as_they_can_be() -> None:
    assert [len(share) for share in deal(TASKS, 2)] == [2, 3]
    assert [task for share in deal(TASKS, 3) for task in share] == TASKS
    assert [len(share) for share in deal(TASKS[:2], 4)] == [1, 1]
    assert deal([], 3) == []


def test_who_joins_later_begins_with_the_newest_weights() -> None:
    agency = Agency()

    async def work(crew: ExplorerPool) -> None:
        await crew.gather()
        await crew.publish({}, 7)
        agency.wanted = 3
        await until(lambda: len(agency.hired) == 3)
        await crew.gather()
        assert [player.loaded for player in agency.hired] == [[7], [7], [7]]
        assert DistributedEngine(crew).policy_version == 7

    run(work, agency.hiring())


def test_who_is_no_longer_wanted_ends_its_share_and_leaves() -> None:
    agency, may_end = Agency(wanted=2), asyncio.Event()

    async def before(share: Share) -> None:
        await may_end.wait()

    agency._make = lambda name: FakePlayer(name, before)

    async def work(crew: ExplorerPool) -> None:
        await crew.gather()
        collecting = asyncio.create_task(
            DistributedCollector(crew, "train", silence_s=HANG_S).collect(TASKS, rollout=1)
        )
        await until(lambda: all(player.shares for player in agency.hired))
        agency.wanted = 1
        await until(lambda: any("leaves" in told for told in agency.told))
        assert not any(player.has_left for player in agency.hired)
        may_end.set()
        assert [group.task for group in await collecting] == TASKS
        await until(lambda: sum(player.has_left for player in agency.hired) == 1)

    run(work, agency.hiring())


def test_what_a_lost_player_had_not_finished_goes_to_another() -> None:
    heard: list[Trajectory] = []
    agency = Agency(wanted=2)

    async def lose(share: Share) -> None:
        raise WorkerLostError("its machine is gone")

    agency._make = lambda name: FakePlayer(name, lose if name == "explorer-1" else None)

    async def work(crew: ExplorerPool) -> None:
        await crew.gather()
        groups = await DistributedCollector(crew, "train", silence_s=HANG_S).collect(
            TASKS, rollout=3, on_done=heard.append
        )
        assert [group.task for group in groups] == TASKS
        lost = next(player for player in agency.hired if player.name == "explorer-1")
        again = next(player.shares[-1] for player in agency.hired if player is not lost and player.shares[-1].known)
        assert again.tasks == lost.shares[0].tasks
        assert set(again.known) == {_name(again, again.tasks[0])}
        assert sorted(str(t.id) for t in heard) == sorted({str(t.id) for t in heard})
        await until(lambda: lost.has_left and len(agency.hired) == 3)

    run(work, agency.hiring())


def test_a_player_that_is_silent_for_too_long_counts_as_lost() -> None:
    agency = Agency()

    async def hang(share: Share) -> None:
        await asyncio.Event().wait()

    agency._make = lambda name: FakePlayer(name, hang if name == "explorer-1" else None)

    async def work(crew: ExplorerPool) -> None:
        groups = await DistributedCollector(crew, "train", silence_s=0.05).collect(TASKS, rollout=1)
        assert len(groups) == len(TASKS)
        assert agency.hired[0].has_left
        assert any("no news" in told for told in agency.told)

    run(work, agency.hiring())


def test_a_player_that_is_lost_while_it_loads_weights_is_replaced() -> None:
    agency = Agency()

    async def work(crew: ExplorerPool) -> None:
        await crew.gather()
        agency.hired[0].fails_to_load = WorkerLostError("gone")
        await crew.publish({}, 1)
        assert [player.name for player in await crew.players()] == ["explorer-2"]
        assert agency.hired[1].loaded == [1]

    run(work, agency.hiring())


def test_weights_that_are_gone_reach_whoever_waits() -> None:
    agency = Agency()

    async def work(crew: ExplorerPool) -> None:
        await crew.gather()
        agency.hired[0].fails_to_load = WeightsLostError("gone with their machine")
        with pytest.raises(WeightsLostError):
            await crew.publish({}, 1)

    run(work, agency.hiring())


def test_where_weights_are_forgotten_whoever_joins_waits_for_the_next() -> None:
    may_load = asyncio.Event()

    class Late(FakePlayer):
        """Its weights are gone; the first one notices after others were published."""

        async def load(self, weights: Any, policy_version: int) -> None:
            if policy_version == 1:
                if self.name == "explorer-2":
                    await may_load.wait()
                raise WeightsLostError("gone with their machine")
            await super().load(weights, policy_version)

    agency = Agency(make=Late)

    async def work(crew: ExplorerPool) -> None:
        await crew.gather()
        with pytest.raises(WeightsLostError):
            await crew.publish({}, 1)
        crew.lose(agency.hired[0], "on the same machine")
        await until(lambda: len(agency.hired) == 2)
        crew.forget_weights()
        may_load.set()
        assert [player.name for player in await crew.players()] == ["explorer-3"]
        await crew.publish({}, 2)
        assert [player.loaded for player in agency.hired] == [[], [], [2]]

    run(work, agency.hiring())


def test_who_had_weights_that_were_forgotten_while_it_loaded_joins_and_gets_the_next() -> None:
    is_loading, may_load = asyncio.Event(), asyncio.Event()

    class Slow(FakePlayer):
        async def load(self, weights: Any, policy_version: int) -> None:
            if self.name == "explorer-2":
                is_loading.set()
                await may_load.wait()
            await super().load(weights, policy_version)

    agency = Agency(make=Slow)

    async def work(crew: ExplorerPool) -> None:
        await crew.gather()
        await crew.publish({}, 1)
        agency.wanted = 2
        await is_loading.wait()
        crew.forget_weights()
        may_load.set()
        await until(lambda: len(crew._players) == 2 or crew._failure is not None)
        await crew.publish({}, 2)
        assert [player.name for player in await crew.players()] == ["explorer-1", "explorer-2"]
        assert [player.loaded for player in agency.hired] == [[1, 2], [1, 2]]

    run(work, agency.hiring())


def test_nobody_in_time_is_told_with_the_room_there_is() -> None:
    async def never(name: str) -> FakePlayer:
        await asyncio.Event().wait()
        raise AssertionError

    async def work(crew: ExplorerPool) -> None:
        asking = asyncio.create_task(crew.players())
        await asyncio.sleep(0)
        (wait,) = list_waits()
        assert (wait.who, wait.reason, wait.deadline_s) == ("the run", "an explorer that is at work", 0.05)
        with pytest.raises(ClusterError, match=r"cluster.start_timeout_s.*1 of 2 CPU"):
            await asking

    run(work, Agency().hiring(hire=never, timeout_s=0.05))


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ConfigError("engine.type: wrong"), "engine.type: wrong"), (WorkerLostError("killed"), "3 explorers in a row")],
)
def test_players_that_cannot_start_end_the_wait(error: Exception, expected: str) -> None:
    async def fail(name: str) -> FakePlayer:
        raise error

    async def work(crew: ExplorerPool) -> None:
        with pytest.raises((ConfigError, ClusterError), match=expected):
            await crew.players()

    run(work, Agency().hiring(hire=fail))
