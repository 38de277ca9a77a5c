"""Two policies at one game: `rollout.workflow: self_play`, for environments that are games for two.

While training, siblings 0 and 1 play one game against each other, 2 and 3 the next, and so on. Each is an episode of
its own, with the tokens, the turns and the payoff of its player alone, so credit is a player's and both are trained.
In evaluation the policy plays as in `environment`, against the other player of the environment: a fixed yardstick.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, cast

from turnwise.config.component import ENVS
from turnwise.config.schema import NoIsolation, TurnwiseSettings
from turnwise.context.answer import ParsedAnswer, parse_answer
from turnwise.envs.safe_calls import describe_env
from turnwise.envs.two_player import GAME_METHODS
from turnwise.errors import ConfigError, ContextOverflow, EnvError, RewardError
from turnwise.infra.untrusted import parse_reward, show
from turnwise.rollout.episode import EnvEpisode
from turnwise.rollout.workflow import EnvironmentWorkflow, FrozenOpponent, Workflow, read_count
from turnwise.rollout_io import HistoryEntry
from turnwise.types import StopReason, Trajectory

_SEATS = (0, 1)


class SelfPlayWorkflow(EnvironmentWorkflow):
    """One player of a game. `run` plays alone, against whoever the environment brings."""

    seats = len(_SEATS)

    @classmethod
    def check_settings(cls, settings: TurnwiseSettings) -> None:
        _check_numbers(settings)
        mixed = {f"mix.{tag}.env": other.env for tag, other in settings.mix.by_tag().items()}
        for path, env in {"env": settings.env, **mixed}.items():
            target = ENVS.get_target(env.type)
            if missing := [method for method in GAME_METHODS if not callable(getattr(target, method, None))]:
                raise ConfigError(
                    f"{path}.type: '{env.type}' given; rollout.workflow '{settings.rollout.workflow}' needs a game for "
                    f"two, and this has no {', '.join(missing)}. Choose a 'textarena:…' game for two, or extend "
                    "TwoPlayerEnv."
                )

    @classmethod
    async def play_together(cls, players: Sequence[Workflow]) -> list[Trajectory]:
        return await play_game(cast("Sequence[Self]", players))

    async def take_turn(self, seat: int, game: EnvEpisode) -> StopReason | None:
        """One reply and its moves, as far as they are this player's to make; why the game cannot go on."""
        episode, limits = self.episode, self.task.limits
        left = limits.actions_left(episode.num_actions, len(episode.history))
        episode.history.append(HistoryEntry(state=str(await game.ask("tell", seat)), actions_left=left))
        try:
            reply = await self.answer(self.show())
        except ContextOverflow as overflow:
            episode.failure = str(overflow)
            return StopReason.CONTEXT_OVERFLOW
        parsed = parse_answer(reply.response_text, self.task.context.answer)
        played = await self._move(parsed, reply.response_text, seat, game)
        self.facts[self.model.step] = episode.history[-1] = played
        self.model.step += 1
        return limits.find_stop(None, num_actions=episode.num_actions, num_turns=len(episode.history))

    async def leave(self, seat: int, game: EnvEpisode, payoff: float, stop: StopReason | None) -> Trajectory:
        """The game is over, or a budget of either player ended it, unless the game ended with that very turn."""
        episode = self.episode
        is_over = await _whose_turn(game) is None
        episode.stop(StopReason.TERMINATED if is_over else stop or StopReason.ENV_TRUNCATED, episode.failure)
        return self.finish(
            payoff,
            stop_reason=episode.stop_reason or StopReason.TERMINATED,
            final_observation=str(await game.ask("tell", seat)),
            is_success=payoff > 0,
            failure=episode.failure,
        )

    async def _move(self, answer: ParsedAnswer, reply: str, seat: int, game: EnvEpisode) -> HistoryEntry:
        episode, before = self.episode, self.episode.history[-1]
        budget = self.task.limits.max_actions
        validities: list[bool] = []
        for action in answer.actions[: None if budget is None else budget - episode.num_actions]:
            validities.append(bool(await game.ask("move", action)))
            episode.num_actions += 1
            if await _whose_turn(game) != seat:
                break
        is_valid = answer.is_well_formed and all(validities)
        return HistoryEntry(
            state=before.state,
            actions_left=before.actions_left,
            actions=answer.actions[: len(validities)],
            penalty=0.0 if is_valid else self.task.invalid_penalty,
            # A turn without a move did nothing.
            is_valid=is_valid and bool(validities),
            is_effective=any(validities),
            llm_response=reply,
        )


async def play_game(sitting: Sequence[SelfPlayWorkflow]) -> list[Trajectory]:
    """One game from the deal to the end, by seat; whatever fails in it costs both players."""
    first = sitting[0]
    # The environment of the first player is the game; every player keeps a history of its own.
    game = first.episode
    await game.ask("deal", first.task.seed, first.task.split, first.task.dynamics_seed)
    about = describe_env(game.env)
    for player in sitting:
        player.episode.about = about
    stop: StopReason | None = None
    seat = await _whose_turn(game)
    while seat is not None and stop is None:
        stop = await sitting[seat].take_turn(seat, game)
        seat = await _whose_turn(game)
    payoffs = (0.0, 0.0) if seat is not None else _read_payoffs(await game.ask("payoffs"), game)
    return [await player.leave(own, game, payoffs[own], stop) for own, player in enumerate(sitting)]


async def _whose_turn(game: EnvEpisode) -> int | None:
    seat = await game.ask("whose_turn")
    if seat is not None and seat not in _SEATS:
        raise EnvError(f"{game.env.label()}.whose_turn returned {show(seat)}; expected 0, 1 or None.")
    return cast("int | None", seat)


def _read_payoffs(given: Any, game: EnvEpisode) -> tuple[float, float]:
    label = game.env.label()
    if not isinstance(given, tuple | list) or len(given) != len(_SEATS):
        raise EnvError(f"{label}.payoffs returned {show(given)}; expected a number for each of the two players.")
    try:
        one, other = (parse_reward(payoff, f"{label}.payoffs returned") for payoff in given)
    except RewardError as error:
        raise EnvError(str(error)) from error
    return one, other


def _check_numbers(settings: TurnwiseSettings) -> None:
    """What two players need of a run, whichever their game is."""
    rollout, credit = settings.rollout, settings.credit.type
    if rollout.group_size % len(_SEATS):
        raise ConfigError(
            f"rollout.group_size: {rollout.group_size} given; rollout.workflow '{rollout.workflow}' seats siblings in "
            f"pairs. Set it to an even number, such as {rollout.group_size + 1}."
        )
    if settings.credit.needs_greedy:
        raise ConfigError(
            f"credit.type: '{credit}' given; it measures against a greedy play of one episode, and with "
            f"rollout.workflow '{rollout.workflow}' an episode is half of a game. Choose another rule, such as 'grpo'."
        )
    if not isinstance(rollout.isolation, NoIsolation):
        raise ConfigError(
            f"rollout.isolation.type: '{rollout.isolation.type}' given; rollout.workflow '{rollout.workflow}' moves "
            "both players of a game in the process of the run. Set it to 'none'."
        )


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


def _read(given: Mapping[str, Any], name: str, default: Any, kind: type | tuple[type, ...], expected: str) -> Any:
    found = given.get(name, default)
    if found is not default and (not isinstance(found, kind) or isinstance(found, bool)):
        _refuse(name, found, expected)
    return found


def _refuse(name: str, found: object, expected: str) -> None:
    raise ConfigError(f"rollout.workflow_args.{name}: {found!r} given; expected {expected}.")


class LeagueWorkflow(SelfPlayWorkflow):
    """One player; the other of its game is another sibling or a frozen policy."""

    arg_names: ClassVar[frozenset[str]] = frozenset(field.name for field in fields(LeagueArgs))
    meets_rivals = True
    _met: FrozenOpponent | None = None

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

    async def meet(self, rival: FrozenOpponent, seat: int) -> Trajectory:
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
