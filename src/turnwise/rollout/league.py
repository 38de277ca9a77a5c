"""Two policies at one game, one of them trained: `rollout.workflow: league`, for environments that are games for two.

Of every two siblings one sits at the first seat and the other at the second, each at a game of its own, and the other
seat of both games is a frozen policy's: a model that is given, an earlier checkpoint of this run, or the checkpoint
that another run has reached. In a share of the tasks siblings meet each other, as in `self_play`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, cast

from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError
from turnwise.rollout.episode import EnvEpisode
from turnwise.rollout.rivals import Rival
from turnwise.rollout.self_play import SelfPlayWorkflow, play_game
from turnwise.rollout.workflow import Workflow, read_count
from turnwise.types import StopReason, Trajectory

_WAIT_S = 3600.0
WON = "won_against_frozen"
"""What an episode against a frozen policy tells: 1 where it was won."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeagueArgs:
    """`rollout.workflow_args` of a league."""

    opponents: tuple[str, ...] = ()
    """Folders: of models, of checkpoints, of finished runs."""
    past_selves: int = 0
    """How many of the newest checkpoints of this run are met."""
    rival_run: str | None = None
    """The directory of a run that may be under way: met is the checkpoint that it has reached at the same step."""
    self_share: float = 0.0
    """The share of tasks in which siblings meet each other, and both are trained."""
    seat: int | None = None
    """Where the policy sits: 0 or 1; None: at either, in turns."""
    wait_s: float = _WAIT_S
    """Longest wait for a checkpoint of `rival_run`."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        args = cls(
            opponents=tuple(_read(given, "opponents", [], list, "a list of folders")),
            past_selves=0 if given.get("past_selves") is None else read_count(given, "past_selves", 1),
            rival_run=_read(given, "rival_run", None, str, "the directory of a run"),
            self_share=float(_read(given, "self_share", 0.0, (int, float), "a number from 0 to below 1")),
            seat=_read(given, "seat", None, int, "0 or 1"),
            wait_s=float(_read(given, "wait_s", _WAIT_S, (int, float), "seconds above 0")),
        )
        args._refuse_nonsense()
        return args

    @property
    def meets_checkpoints(self) -> bool:
        """Whether it depends on what runs have saved so far."""
        return bool(self.past_selves or self.rival_run)

    def _refuse_nonsense(self) -> None:
        if not (self.opponents or self.meets_checkpoints):
            raise ConfigError(
                "rollout.workflow_args: a league has nobody to meet; give opponents, past_selves or rival_run, or "
                "choose rollout.workflow 'self_play'."
            )
        if not 0 <= self.self_share < 1:
            _refuse("self_share", self.self_share, "a number from 0 to below 1; 'self_play' is the name for 1")
        if self.seat not in (None, 0, 1):
            _refuse("seat", self.seat, "0 or 1")
        if self.seat is not None and self.self_share:
            _refuse("seat", self.seat, "none beside self_share: siblings that meet each other sit at both seats")
        if not 0 < self.wait_s < math.inf:
            _refuse("wait_s", self.wait_s, "seconds above 0")


class LeagueWorkflow(SelfPlayWorkflow):
    """One player; the other of its game is another sibling or a frozen policy."""

    arg_names: ClassVar[frozenset[str]] = frozenset(field.name for field in fields(LeagueArgs))
    meets_rivals = True
    _met: Rival | None = None

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        LeagueArgs.read(workflow_args)

    @classmethod
    def check_settings(cls, settings: TurnwiseSettings) -> None:
        super().check_settings(settings)
        _check_run(settings, LeagueArgs.read(settings.rollout.workflow_args))

    @classmethod
    async def play_together(cls, players: Sequence[Workflow]) -> list[Trajectory]:
        """One game of two siblings, or one game each; whatever fails in them costs both."""
        sitting = cast("Sequence[Self]", players)
        rival, args = sitting[0].task.rival, sitting[0].task.workflow_args
        if rival is None:
            return await play_game(sitting)
        seats = range(len(sitting)) if args.get("seat") is None else [int(args["seat"])] * len(sitting)
        games = [player.meet(rival, seat) for player, seat in zip(sitting, seats, strict=True)]
        # Where one fails the other is waited for: nothing of a game goes on behind the scheduler's back.
        played = await asyncio.gather(*games, return_exceptions=True)
        for outcome in played:
            if isinstance(outcome, BaseException):
                raise outcome
        return cast("list[Trajectory]", played)

    async def meet(self, rival: Rival, seat: int) -> Trajectory:
        """A game against a frozen policy, which is a player as any other, and of which nothing is kept."""
        task, self._met = self.task, rival
        context = rival.context or task.context
        # Its dice are the game's: where a run lies, and what a folder is called, changes nothing.
        model = rival.open_model(context, seed=task.dynamics_seed, name=f"{task.id}/rival")
        other = type(self)(task=replace(task, context=context, rival=None), model=model)
        try:
            played = await play_game([self, other] if seat == 0 else [other, self])
            return played[seat]
        finally:
            model.release()
            await other.close()

    async def leave(self, seat: int, game: EnvEpisode, payoff: float, stop: StopReason | None) -> Trajectory:
        if self._met is not None and self.facts:
            last = max(self.facts)
            told, known = self.facts[last].metrics, self.facts[last].info
            self.facts[last] = replace(
                self.facts[last], metrics={**told, WON: float(payoff > 0)}, info={**known, "met": self._met.name}
            )
        return await super().leave(seat, game, payoff, stop)


def _check_run(settings: TurnwiseSettings, args: LeagueArgs) -> None:
    if settings.cluster.type != "none":
        raise ConfigError(
            f"cluster.type: '{settings.cluster.type}' given; rollout.workflow 'league' opens frozen policies in the "
            "process of the run. Set it to 'none'."
        )
    if not args.meets_checkpoints:
        return
    if settings.report.checkpoint_every == 0:
        raise ConfigError(
            "report.checkpoint_every: 0 given; past_selves and rival_run of rollout.workflow_args meet what was saved "
            "on the way. Set it to how many steps apart two of them are, such as 10."
        )
    if not settings.loop.is_in_turns or settings.run.mode != "both":
        raise ConfigError(
            f"loop.type: '{settings.loop.type}' and run.mode: '{settings.run.mode}' given; with past_selves or "
            "rival_run in rollout.workflow_args it must be certain which checkpoints are there. Set loop.type to "
            "'serial' and run.mode to 'both'."
        )


def _read(given: Mapping[str, Any], name: str, default: Any, kind: type | tuple[type, ...], expected: str) -> Any:
    found = given.get(name, default)
    if found is not default and (not isinstance(found, kind) or isinstance(found, bool)):
        _refuse(name, found, expected)
    return found


def _refuse(name: str, found: object, expected: str) -> None:
    raise ConfigError(f"rollout.workflow_args.{name}: {found!r} given; expected {expected}.")
