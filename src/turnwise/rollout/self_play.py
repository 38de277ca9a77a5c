"""Two policies at one game: `rollout.workflow: self_play`, for environments that are games for two.

While training, siblings 0 and 1 play one game against each other, 2 and 3 the next, and so on. Each is an episode of
its own, with the tokens, the turns and the payoff of its player alone, so credit is a player's and both are trained.
In evaluation the policy plays as in `environment`, against the other player of the environment: a fixed yardstick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

from turnwise.config.component import CREDITS, ENVS
from turnwise.config.schema import NoIsolation, TurnwiseSettings
from turnwise.context.answer import ParsedAnswer, parse_answer
from turnwise.envs.safe_calls import describe_env
from turnwise.envs.two_player import GAME_METHODS
from turnwise.errors import ConfigError, ContextOverflow, EnvError, RewardError
from turnwise.infra.untrusted import read_reward, show
from turnwise.rollout.environment import EnvironmentWorkflow
from turnwise.rollout.episode import EnvEpisode
from turnwise.rollout.workflow import Workflow
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
        one, other = (read_reward(payoff, f"{label}.payoffs returned") for payoff in given)
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
    if getattr(CREDITS.get_target(credit), "needs_greedy", False):
        raise ConfigError(
            f"credit.type: '{credit}' given; it measures against a greedy play of one episode, and with "
            f"rollout.workflow '{rollout.workflow}' an episode is half of a game. Choose another rule, such as 'grpo'."
        )
    if not isinstance(rollout.isolation, NoIsolation):
        raise ConfigError(
            f"rollout.isolation.type: '{rollout.isolation.type}' given; rollout.workflow '{rollout.workflow}' moves "
            "both players of a game in the process of the run. Set it to 'none'."
        )
