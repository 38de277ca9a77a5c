"""The explorers of a run: who is there, who joins with the newest weights, who has left or was lost.

In: players that somebody hires, and how many are wanted. Out: those who are at work. One that is lost is replaced; a
run goes on with the others meanwhile. It refuses to know where a player is and what it plays.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor

from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ClusterError, EngineError, WorkerLostError
from turnwise.experience.codec import decode_experiences, encode_experiences
from turnwise.infra.atomic_files import atomic_write
from turnwise.infra.parsing import parse_json
from turnwise.infra.threads import end_tasks
from turnwise.infra.wait_tracking import waiting
from turnwise.loop.build import (
    build_scorer,
    chosen_engine,
    connect,
    connect_explorer,
    held_out_tasks,
    load_words,
    needs_greedy,
    open_audit,
)
from turnwise.loop.components import Collectors, RolloutComponents, TrainComponents, TrainerComponents
from turnwise.protocols import Learner, PolicyVersion, SFTConfig, Weights
from turnwise.report.run_dir import RunDirectory
from turnwise.sync.weight_store import EnginePublisher, as_safetensors
from turnwise.types import (
    Annotations,
    Batch,
    Experience,
    FloatArray,
    GenerateRequest,
    Group,
    IntArray,
    StepReport,
    Task,
    Trajectory,
    TrajectoryId,
)

Kind = Literal["train", "greedy", "eval"]
"""How tasks are played: with siblings and sampled; once and greedily; or as an evaluation does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one explorer plays of a rollout."""

    number: int
    """Of all shares of a run, so that one can be stopped."""
    kind: Kind
    rollout: int
    tasks: tuple[Task, ...]
    known: Mapping[TrajectoryId, Trajectory] = field(default_factory=dict[TrajectoryId, Trajectory])
    """Episodes that were played already, by somebody who is gone; they are not played again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an explorer says while it plays a share: episodes as they end, and in the end the groups."""

    episodes: tuple[Trajectory, ...] = ()
    """Before any judge has seen them."""
    groups: tuple[Group, ...] | None = None
    """With what they are worth; None until all are there."""
    env_seconds: float = 0.0
    """Spent in environments since this was last told."""


class Player(Protocol):
    """An explorer, wherever it is. Every call raises WorkerLostError once it is gone."""

    name: str

    def play(self, share: Share) -> AsyncGenerator[Told, None]:
        """Whoever stops listening stops the play."""
        ...

    async def load(self, weights: Weights, policy_version: int) -> None:
        """Return when its engine serves these weights; WeightsLostError where they are gone."""
        ...

    async def score(self, token_ids: IntArray) -> Sequence[FloatArray]:
        """What the copies of the weights that its engine holds make of a text; see `LogprobEngine`."""
        ...

    async def leave(self) -> None:
        """Nothing more is asked of it; its place becomes free."""
        ...


def deal(tasks: Sequence[Task], num_players: int) -> list[tuple[Task, ...]]:
    """As even as it goes, in their order; never an empty share."""
    num_shares = min(num_players, len(tasks))
    bounds = [number * len(tasks) // num_shares for number in range(num_shares + 1)] if num_shares else [0]
    return [tuple(tasks[a:b]) for a, b in pairwise(bounds)]


log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""How often it is asked how many players are wanted."""
_GRACE_S = 20.0
"""How long the first rollout waits for the others once one player is there."""
_MAX_LOST_STARTS = 3
"""Players in a row that are lost before they are at work; then something else is wrong."""


class WeightsLostError(WorkerLostError):
    """The newest weights were on a machine that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerPoolConfig:
    """Where players come from, and how many there should be."""

    hire: Callable[[str], Awaitable[Player]]
    """Returns when a player of that name is ready; WorkerLostError where it was lost on the way."""
    wanted: Callable[[], int]
    describe_room: Callable[[], str]
    """What the cluster has room for, for whoever waited in vain."""
    timeout_s: float
    """Longest wait for anybody at all."""
    tell: Callable[[str], None] = log.info


class ExplorerPool:
    """Consumes: players as they are hired. Produces: those at work. Waits for: the first one, with a deadline."""

    def __init__(self, hiring: ExplorerPoolConfig) -> None:
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
        except WorkerLostError as lost:
            self.lose(player, str(lost))

    async def score(self, token_ids: IntArray) -> list[FloatArray]:
        """What every copy of the weights makes of a text, of those at work."""
        scores = await asyncio.gather(*(self._score(player, token_ids) for player in list(self._players)))
        return [of_copy for of_player in scores for of_copy in of_player]

    async def _score(self, player: Player, token_ids: IntArray) -> Sequence[FloatArray]:
        try:
            return await player.score(token_ids)
        except WorkerLostError as lost:
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
        except WorkerLostError as lost:
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


_FILE = "explorers.json"


def write_target(run_path: Path, explorers: int) -> None:
    """Explorers join and leave while the run goes on; a resumed run keeps the number."""
    atomic_write(run_path / _FILE, json.dumps({"explorers": explorers}), error=ClusterError)


def read_target(run_path: Path, default: int) -> int:
    """What was written last; `default` where nothing was, or no number."""
    try:
        wanted = parse_json((run_path / _FILE).read_text())["explorers"]
    except (OSError, ValueError, KeyError, TypeError):
        return default
    return wanted if isinstance(wanted, int) and wanted > 0 else default


class Reference(Protocol):
    """A result that stays where it was made."""

    def get(self) -> Any:
        """Fetch it; WorkerLostError where it is gone."""
        ...


class Host(Protocol):
    """An object of another process, called by the names of its methods; WorkerLostError once it is gone."""

    def call(self, method: str, *args: object) -> Any:
        """What the method returns, or raises."""
        ...

    def stream(self, method: str, *args: object) -> Iterator[Any]:
        """What the method yields, as it comes."""
        ...

    def refer(self, method: str, *args: object) -> Reference:
        """What the method returns, left there."""
        ...


# --- weights ---------------------------------------------------------------------------------------------------------


def pack_weights(weights: Weights) -> np.ndarray:
    """As safetensors, in a block that travels as it is."""
    return np.frombuffer(as_safetensors(weights), dtype=np.uint8)


def unpack_weights(packed: np.ndarray) -> Weights:
    return load(packed.tobytes())


class RemoteWeights(Mapping[str, Tensor]):
    """Weights that are elsewhere; whoever looks at one of them fetches all."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self._fetched: Weights | None = None

    def _here(self) -> Weights:
        if self._fetched is None:
            self._fetched = unpack_weights(self.reference.get())
        return self._fetched

    def __getitem__(self, name: str) -> Tensor:
        return self._here()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._here())

    def __len__(self) -> int:
        return len(self._here())


class ReferenceMailbox:
    """A `Mailbox` that keeps which weights are the newest, and not the weights: those do not change once made."""

    is_shared: ClassVar[bool] = False

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._posted: tuple[PolicyVersion, Weights] | None = None
        self._requested: int | None = None

    def post(self, mark: PolicyVersion, weights: Weights) -> None:
        assert isinstance(weights, RemoteWeights), "a learner elsewhere makes a copy for each publication"
        self._posted = (mark, weights)
        self._ring()

    def newest(self) -> PolicyVersion | None:
        return None if self._posted is None else self._posted[0]

    def fetch(self) -> tuple[PolicyVersion, Weights]:
        assert self._posted is not None, "nothing has been posted"
        return self._posted

    def request(self, step: int) -> None:
        self._requested = step
        self._ring()

    def requested(self) -> int | None:
        return self._requested


# --- what is known about experiences ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedAnnotations:
    """`Annotations` with the tokens of all experiences end to end: a few arrays travel faster than thousands."""

    values: FloatArray | None
    reference_logprobs: FloatArray | None
    token_penalties: FloatArray | None


def pack_annotations(annotations: Annotations) -> PackedAnnotations:
    return PackedAnnotations(
        values=_join(annotations.values),
        reference_logprobs=_join(annotations.reference_logprobs),
        token_penalties=_join(annotations.token_penalties),
    )


def unpack_annotations(packed: PackedAnnotations, experiences: Sequence[Experience]) -> Annotations:
    """Those of the experiences that were asked about."""
    ends = np.cumsum([len(experience.segment) for experience in experiences], dtype=np.int64)
    return Annotations(
        values=_cut(packed.values, ends),
        reference_logprobs=_cut(packed.reference_logprobs, ends),
        token_penalties=_cut(packed.token_penalties, ends),
    )


def _join(arrays: Sequence[FloatArray] | None) -> FloatArray | None:
    return None if arrays is None else np.concatenate([np.zeros(0, np.float32), *arrays])


def _cut(joined: FloatArray | None, ends: NDArray[np.int64]) -> tuple[FloatArray, ...] | None:
    return None if joined is None else tuple(np.split(joined, ends)[:-1])


# --- learner and buffer ----------------------------------------------------------------------------------------------


class RemoteLearner:
    """A `Learner` of another process."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._policy_version = int(host.call("policy_version"))

    @property
    def policy_version(self) -> int:
        return self._policy_version

    def annotate(self, experiences: Sequence[Experience]) -> Annotations:
        return unpack_annotations(self._host.call("annotate", encode_experiences(experiences)), experiences)

    def step(self, batch: Batch) -> StepReport:
        report: StepReport = self._host.call("step", batch)
        self._policy_version = report.policy_version
        return report

    def imitate(
        self, demonstrations: Sequence[Experience], how: SFTConfig, on_step: Callable[[int, int], None]
    ) -> float:
        last_loss = 0.0
        for done, total, loss in self._host.stream("imitate", encode_experiences(demonstrations), how):
            on_step(done, total)
            last_loss = loss
        return last_loss

    def supervise(self, demonstrations: Sequence[Experience]) -> None:
        self._host.call("supervise", encode_experiences(demonstrations))

    def weights(self) -> Weights:
        return RemoteWeights(self._host.refer("weights"))

    def logprobs_of(self, experiences: Sequence[Experience], of: str = "policy") -> Sequence[FloatArray]:
        return self._host.call("logprobs_of", encode_experiences(experiences), of)

    def score(self, token_ids: IntArray) -> FloatArray:
        return self._host.call("score", token_ids)

    def save_state(self, folder: Path) -> None:
        self._host.call("save_state", folder.resolve())

    def load_state(self, folder: Path) -> None:
        self._policy_version = int(self._host.call("load_state", folder.resolve()))


class RemoteBuffer:
    """A `Buffer` of another process."""

    is_shared: ClassVar[bool] = True

    def __init__(self, host: Host) -> None:
        self._host = host

    def add(self, experiences: Sequence[Experience]) -> None:
        self._host.call("add", encode_experiences(experiences))

    def take(self, step: int) -> list[Experience]:
        return decode_experiences(self._host.call("take", step))

    def is_ready(self, step: int) -> bool:
        return self._host.call("is_ready", step)

    def has_group(self, group_id: str) -> bool:
        return self._host.call("has_group", group_id)

    @property
    def num_dropped(self) -> int:
        return self._host.call("num_dropped")

    def __len__(self) -> int:
        return self._host.call("count")

    def rewind(self, step: int, *, plays_again: bool) -> None:
        self._host.call("rewind", step, plays_again)


_share_numbers = count()


class DistributedCollector:
    """A `Collector` that plays elsewhere. Waits for: the last share, each with a deadline since its last news."""

    def __init__(self, crew: ExplorerPool, kind: Kind, *, silence_s: float) -> None:
        """`silence_s` without news of a share, its explorer counts as lost."""
        self.env_seconds = 0.0
        self._crew = crew
        self._kind: Kind = kind
        self._silence_s = silence_s

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        rollout: int,
        on_done: Callable[[Trajectory], None] | None = None,
        known: Mapping[TrajectoryId, Trajectory] = MappingProxyType({}),
    ) -> list[Group]:
        ended, groups = dict(known), dict[str, Group]()

        def hear(trajectory: Trajectory) -> None:
            if trajectory.id in ended:
                return
            ended[trajectory.id] = trajectory
            if on_done is not None:
                on_done(trajectory)

        waiting, running = list(tasks), dict[asyncio.Task[list[Group]], Share]()
        try:
            while waiting or running:
                if waiting:
                    running |= await self._hand_out(waiting, rollout, ended, hear)
                    waiting = []
                over, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for playing in over:
                    share = running.pop(playing)
                    try:
                        groups |= {group.task.id: group for group in playing.result()}
                    except WorkerLostError:
                        waiting += share.tasks
        finally:
            await end_tasks(running)
        return [groups[task.id] for task in tasks]

    async def _hand_out(
        self,
        tasks: Sequence[Task],
        rollout: int,
        ended: Mapping[TrajectoryId, Trajectory],
        hear: Callable[[Trajectory], None],
    ) -> dict[asyncio.Task[list[Group]], Share]:
        players = await self._crew.players()
        dealt = deal(tasks, len(players))
        handed: dict[asyncio.Task[list[Group]], Share] = {}
        for player, some in zip(players, dealt, strict=False):
            ids = {task.id for task in some}
            share = Share(
                number=next(_share_numbers),
                kind=self._kind,
                rollout=rollout,
                tasks=some,
                known={name: played for name, played in ended.items() if name.task_id in ids},
            )
            self._crew.begin(player)
            handed[asyncio.create_task(self._play(player, share, hear, len(dealt)))] = share
        return handed

    async def _play(
        self, player: Player, share: Share, hear: Callable[[Trajectory], None], num_shares: int
    ) -> list[Group]:
        try:
            async with aclosing(player.play(share)) as news:
                while True:
                    async with asyncio.timeout(self._silence_s):
                        told = await anext(news)
                    # They play at the same time, so what they wait for does not add up.
                    self.env_seconds += told.env_seconds / num_shares
                    for trajectory in told.episodes:
                        hear(trajectory)
                    if told.groups is not None:
                        return list(told.groups)
        except TimeoutError:
            lost = WorkerLostError(f"no news of rollout {share.rollout} for {self._silence_s:g} s (sync.timeout_s)")
            self._crew.lose(player, str(lost))
            raise lost from None
        except WorkerLostError as lost:
            self._crew.lose(player, str(lost))
            raise
        finally:
            self._crew.end(player)


class DistributedEngine:
    """An `Engine` for the weights alone: whoever plays has one of its own beside it."""

    def __init__(self, crew: ExplorerPool) -> None:
        self._crew = crew

    @property
    def policy_version(self) -> int:
        return self._crew.policy_version

    async def generate(self, request: GenerateRequest) -> NoReturn:
        raise EngineError("cluster.type: 'ray' given; engines answer where the explorers are, not in this process.")

    def release(self, cache_key: str) -> None:
        return

    async def update_weights(self, weights: Weights, policy_version: int) -> None:
        await self._crew.publish(weights, policy_version)

    def state(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """The crew outlives a run that goes back to a checkpoint."""


class ScoringDistributedEngine(DistributedEngine):
    """The same where the explorers' engines hold weights somewhere else, and can be asked about a text."""

    async def score(self, token_ids: IntArray) -> list[FloatArray]:
        return await self._crew.score(token_ids)


def open_on_cluster(
    settings: TurnwiseSettings,
    model_path: str,
    directory: RunDirectory,
    *,
    crew: ExplorerPool,
    learner: Learner,
    buffer: Host,
) -> TrainComponents:
    """As `open_components`, with explorers, learner and buffer in other processes."""
    silence_s, words = settings.sync.timeout_s, load_words(settings, model_path)
    engine = ScoringDistributedEngine(crew) if hasattr(chosen_engine(settings), "score") else DistributedEngine(crew)
    rollout = RolloutComponents(
        settings=settings,
        tokenizer=words.tokenizer,
        template=words.template,
        engine=engine,
        publisher=EnginePublisher([engine]),
        scoring=build_scorer(settings),
        eval_collector=DistributedCollector(crew, "eval", silence_s=silence_s),
        eval_tasks=held_out_tasks(settings),
    )

    def open_collectors() -> Collectors:
        greedy = DistributedCollector(crew, "greedy", silence_s=silence_s) if needs_greedy(settings) else None
        return Collectors(sampled=DistributedCollector(crew, "train", silence_s=silence_s), greedy=greedy)

    return connect(
        connect_explorer(rollout, open_collectors),
        TrainerComponents(settings=settings, learner=learner, estimator=settings.credit),
        RemoteBuffer(buffer),
        open_weight_store=ReferenceMailbox,
        hooks=open_audit(settings, learner, directory.path),
    )
