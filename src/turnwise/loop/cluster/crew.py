"""The explorers of a run: who is there, who joins with the newest weights, who has left or was lost.

In: players that somebody hires, and how many are wanted. Out: those who are at work. One that is lost is replaced; a
run goes on with the others meanwhile. It refuses to know where a player is and what it plays.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from turnwise.errors import ClusterError, LostError
from turnwise.infra.wait_tracking import waiting
from turnwise.loop.cluster.shares import Player
from turnwise.protocols import Weights
from turnwise.types import FloatArray, IntArray

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""How often it is asked how many players are wanted."""
_GRACE_S = 20.0
"""How long the first rollout waits for the others once one player is there."""
_MAX_LOST_STARTS = 3
"""Players in a row that are lost before they are at work; then something else is wrong."""


class WeightsLostError(LostError):
    """The newest weights were on a machine that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hiring:
    """Where players come from, and how many there should be."""

    hire: Callable[[str], Awaitable[Player]]
    """Returns when a player of that name is ready; LostError where it was lost on the way."""
    wanted: Callable[[], int]
    describe_room: Callable[[], str]
    """What the cluster has room for, for whoever waited in vain."""
    timeout_s: float
    """Longest wait for anybody at all."""
    tell: Callable[[str], None] = log.info


class Crew:
    """Consumes: players as they are hired. Produces: those at work. Waits for: the first one, with a deadline."""

    def __init__(self, hiring: Hiring) -> None:
        self.policy_version = 0
        """Of the weights that were published last."""
        self._hiring = hiring
        self._changed = asyncio.Event()
        """Somebody has joined, or nobody can."""
        self._players: list[Player] = []
        self._num_running: Counter[str] = Counter()
        self._leaving: dict[str, Player] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._numbers = count(1)
        self._newest: tuple[Weights, int] | None = None
        self._failure: Exception | None = None
        """Why nobody else can join."""
        self._num_lost_starts = 0
        self._keeping: asyncio.Task[None] | None = None
        self._partings: set[asyncio.Task[None]] = set()

    # --- a run begins and ends -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to hire; other parts of the run may be opened meanwhile."""
        self._keeping = asyncio.create_task(self._keep())

    async def gather(self) -> None:
        """Return when all are there, or some and the others are late."""
        await self.players()
        with suppress(TimeoutError), waiting("the run", "the rest of its explorers", _GRACE_S):
            async with asyncio.timeout(_GRACE_S):
                await self._until(lambda: len(self._players) >= self._hiring.wanted() or self._failure is not None)

    async def close(self) -> None:
        ending = [task for task in (self._keeping, *self._starting.values(), *self._partings) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for player in (*self._players, *self._leaving.values()):
            with suppress(ClusterError):
                await player.leave()
        self._players.clear()

    # --- who is at work ------------------------------------------------------------------------------------------

    async def players(self) -> list[Player]:
        """Those at work, the least busy first; waits for the first one."""
        try:
            with waiting("the run", "an explorer that is at work", self._hiring.timeout_s):
                async with asyncio.timeout(self._hiring.timeout_s):
                    await self._until(lambda: bool(self._players) or self._failure is not None)
            if not self._players and self._failure is not None:
                raise self._failure
        except TimeoutError:
            raise ClusterError(
                f"no explorer was at work for {self._hiring.timeout_s:g} s (cluster.start_timeout_s). "
                f"{self._hiring.describe_room()}"
            ) from None
        return sorted(self._players, key=lambda player: self._num_running[player.name])

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    def begin(self, player: Player) -> None:
        """It is given a share; until `end` it is not let go."""
        self._num_running[player.name] += 1

    def end(self, player: Player) -> None:
        self._num_running[player.name] -= 1
        if player.name in self._leaving and not self._num_running[player.name]:
            self._part(self._leaving.pop(player.name))

    def lose(self, player: Player, why: str) -> None:
        """It is gone, or does not answer; another takes its place."""
        self._leaving.pop(player.name, None)
        if player in self._players:
            self._players.remove(player)
            self._hiring.tell(f"{player.name} was lost ({why}); what it had not finished is played by another")
            self._part(player)

    def _part(self, player: Player) -> None:
        async def leave() -> None:
            with suppress(ClusterError):
                await player.leave()

        parting = asyncio.create_task(leave())
        self._partings.add(parting)
        parting.add_done_callback(self._partings.discard)

    # --- weights -------------------------------------------------------------------------------------------------

    async def publish(self, weights: Weights, policy_version: int) -> None:
        """Return when everybody at work serves them; who joins later begins with them."""
        self._newest, self._failure = (weights, policy_version), None
        self.policy_version = policy_version
        await asyncio.gather(*(self._load(player) for player in list(self._players)))

    def forget_weights(self) -> None:
        """Those that were published last are not to be had any more: whoever joins waits for the next ones without."""
        self._newest, self._failure = None, None

    async def _load(self, player: Player) -> None:
        assert self._newest is not None
        try:
            await player.load(*self._newest)
        except WeightsLostError:
            raise
        except LostError as lost:
            self.lose(player, str(lost))

    async def score(self, token_ids: IntArray) -> list[FloatArray]:
        """What every copy of the weights makes of a text, of those at work."""
        scores = await asyncio.gather(*(self._score(player, token_ids) for player in list(self._players)))
        return [of_copy for of_player in scores for of_copy in of_player]

    async def _score(self, player: Player, token_ids: IntArray) -> Sequence[FloatArray]:
        try:
            return await player.score(token_ids)
        except LostError as lost:
            self.lose(player, str(lost))
            return ()

    # --- joining and leaving -------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """As many as are wanted, as far as there is room for them."""
        while True:
            wanted = self._hiring.wanted()
            num_missing = 0 if self._failure else wanted - len(self._players) - len(self._starting)
            for _ in range(num_missing):
                name = f"explorer-{next(self._numbers)}"
                self._starting[name] = asyncio.create_task(self._start(name))
            while self._starting and len(self._players) + len(self._starting) > wanted:
                self._starting.popitem()[1].cancel()
            while len(self._players) > wanted:
                self._let_go(self._players.pop())
            await asyncio.sleep(_LOOK_S)

    def _let_go(self, player: Player) -> None:
        self._hiring.tell(f"{player.name} leaves")
        self._leaving[player.name] = player
        if not self._num_running[player.name]:
            self._part(self._leaving.pop(player.name))

    async def _start(self, name: str) -> None:
        player: Player | None = None
        loaded: tuple[Weights, int] | None = None
        try:
            player = await self._hiring.hire(name)
            # Others may be published, or these be forgotten, while it loads.
            while self._newest is not None and loaded is not self._newest:
                loaded = self._newest
                await player.load(*loaded)
            self._players.append(player)
            self._num_lost_starts = 0
            self._hiring.tell(f"{name} is at work ({len(self._players)} of {self._hiring.wanted()})")
        except WeightsLostError as lost:
            if loaded is self._newest:
                self._failure = lost
        except LostError as lost:
            self._num_lost_starts += 1
            log.warning("%s was lost before it was at work: %s", name, lost)
            if self._num_lost_starts >= _MAX_LOST_STARTS:
                self._failure = ClusterError(f"{self._num_lost_starts} explorers in a row did not start: {lost}")
        except Exception as error:  # noqa: BLE001 - whoever waits for players must hear of it
            self._failure = error
        finally:
            self._changed.set()
            self._starting.pop(name, None)
            if player is not None and player not in self._players:
                self._part(player)
