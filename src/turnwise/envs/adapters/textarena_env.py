"""Games of the package textarena: `textarena:ID`, such as `textarena:GuessTheNumber-v0`.

With `reset` and `step` the policy is player 0, and every other player is random or scripted. The methods of
`TwoPlayerEnv` let two policies play (`rollout.workflow: self_play` or `league`). Rewards come at the end of a game.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from turnwise.config.settings import Settings, require_package
from turnwise.envs.adapters.external import (
    MAX_REPLY_LENGTH,
    ExternalEnv,
    Option,
    define_env,
    is_valid_reply,
    make_info,
    require_env_id,
    reward_value,
    split_seed,
)
from turnwise.errors import ConfigError, EnvError, TaskError, did_you_mean
from turnwise.infra.seeds import derive_seed, make_rng


class TextArenaParams(Settings):
    """Settings of a textarena game."""

    options: dict[str, Option] = Field(default={})
    """Passed to `textarena.make`: `{max_number: 10}`."""
    opponent: Literal["random", "scripted"] = "random"
    """Other players: random moves, or `opponent_moves` in order, repeated. For games against policies set
    `rollout.workflow: league`."""
    opponent_moves: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """The other player's moves, such as `[col 3]`; empty: what the game last offered in brackets, at random only."""
    success_above: float = 0.0
    """An episode that ends with more reward than this counts as a success."""

    @model_validator(mode="before")
    @classmethod
    def _check_no_policy(cls, given: object) -> object:
        if isinstance(given, dict) and (given.get("opponent") in ("policy", "league") or given.get("opponent_path")):
            path = given.get("opponent_path") or "PATH"
            raise ValueError(
                f"opponent {given.get('opponent')!r} with opponent_path is no longer supported. Use "
                f"`rollout.workflow: league` with `rollout.workflow_args: {{opponents: [{path}]}}`, which takes "
                "finished runs, checkpoints and model folders."
            )
        return given

    @model_validator(mode="after")
    def _check_moves(self) -> TextArenaParams:
        if self.opponent == "scripted" and not self.opponent_moves:
            raise ValueError("opponent 'scripted' needs its opponent_moves; none are given.")
        return self


_MODULE = "textarena.envs.utils.word_lists"


def cache_dictionaries() -> None:
    """Called when a game has been made: only those of words load the module."""
    dictionary: Any = getattr(sys.modules.get(_MODULE), "EnglishDictionary", None)
    if dictionary is None or hasattr(dictionary, "remembered"):
        return
    build = dictionary.__init__
    dictionary.remembered = {}

    def init(self: Any, *given: Any, **named: Any) -> None:
        key = repr((given, sorted(named.items())))
        if key not in dictionary.remembered:
            build(self, *given, **named)
            dictionary.remembered[key] = self.__dict__
        self.__dict__ = dict(dictionary.remembered[key])

    dictionary.__init__ = init


_POLICY = 0
_PLAYERS = (0, 1)
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_MAX_PLAYERS = 15
_MAX_OPPONENT_MOVES = 1_000
"""In one turn of the policy; a game that never hands over is broken."""
_MAX_DEALS = 100
"""A deal that the others have ended before the policy's first move is replaced by another."""
_NEXT_DEAL = 1 << 24
"""From the seed of a deal to that of its replacement: even, so that train and eval stay apart."""


class RandomOpponent:
    """Draws from its moves, or from what the game last offered."""

    def __init__(self, moves: Sequence[str], label: str) -> None:
        self._label = label
        self._moves = moves
        self._offered: Sequence[str] = ()
        self._rng = random.Random(0)

    def begin(self, seed: int) -> None:
        """Start an episode."""
        self._offered = ()
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Draw the next moves from this seed; the state of the episode is kept."""
        self._rng = make_rng("opponent", seed)

    def choose_move(self, offered: Sequence[str]) -> str:
        """Return a move; `offered` are the moves that the game's text names, if any."""
        self._offered = self._moves or offered or self._offered
        if not self._offered:
            raise EnvError(f"{self._label} offers no moves in brackets; set env.opponent_moves.")
        return self._rng.choice(self._offered)


class ScriptedOpponent:
    """Plays its moves in order, repeatedly. Uses no random numbers."""

    def __init__(self, moves: Sequence[str]) -> None:
        self._moves = moves
        self._next = cycle(moves)

    def begin(self, seed: int) -> None:
        self._next = cycle(self._moves)

    def reseed(self, seed: int) -> None: ...

    def choose_move(self, offered: Sequence[str]) -> str:
        return next(self._next)


class TextArenaEnv(ExternalEnv):
    """One game of textarena, seen by player 0."""

    Params: ClassVar[type[Settings]] = TextArenaParams
    game_id: ClassVar[str] = ""

    params: TextArenaParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        textarena = require_package("textarena", extra="textarena", asked_by=self.label())
        # The raw version of a game tells what is new; the others repeat the whole conversation in every turn.
        raw = f"{self.game_id}-raw"
        game_id = raw if raw in textarena.envs.registration.ENV_REGISTRY else self.game_id
        self._new_game = lambda: self._make(lambda **options: textarena.make(game_id, **options), **self.params.options)
        self._game = self._new_game()
        cache_dictionaries()
        self._num_players: int | None = None
        self._text = ""
        self._turn: int | None = None
        self._told: dict[int, str] = {}
        """What each player was last told, where both are policies."""
        self._opponents: dict[int, RandomOpponent | ScriptedOpponent] = {}
        """By player."""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        layout, luck = self._lay_out(seed, split, dynamics_seed)
        for _ in range(_MAX_DEALS):
            if not self._open_game(layout):
                break
            layout += _NEXT_DEAL
            self._deal(layout)
        else:
            raise EnvError(f"{self.label()}: {_MAX_DEALS} games in a row were over before the policy's first move.")
        # Siblings begin alike, an opening of the others included; from here on chance is this episode's alone.
        self._rngs.seed(luck)
        for player, opponent in self._opponents.items():
            opponent.reseed(_seed_of(player, luck))
        self._phase = "playing"
        return self._text

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, object]]:
        self._require_playing()
        if not is_valid_reply(action):
            return self._text, 0.0, False, make_info(success=False, is_valid=False, is_effective=False)
        is_over, self._text = self._hand_over(is_over=self._move(action))
        reward, is_valid = 0.0, "attempted an invalid move" not in self._text
        if is_over:
            self._phase = "over"
            rewards, about = self._game.close()
            reward = 0.0 if rewards is None else rewards.get(_POLICY, 0.0)
            is_valid = is_valid and not about[_POLICY].get("invalid_move", False)
            if isinstance(reward, str):
                # Some games give their complaint about a move in the place of a reward.
                reward, is_valid = 0.0, False
        success = is_over and reward_value(reward) > self.params.success_above
        return self._text, reward, is_over, make_info(success=success, is_valid=is_valid, is_effective=is_valid)

    def render(self) -> str:
        return self._text

    # --- both players are policies: see TwoPlayerEnv -----------------------------------------------------------------

    def deal(self, seed: int, split: str, dynamics_seed: int) -> None:
        _, luck = self._lay_out(seed, split, dynamics_seed)
        self._rngs.seed(luck)
        if self._num_players != len(_PLAYERS):
            number = {1: "one"}.get(self._num_players or 0, str(self._num_players))
            raise TaskError(f"{self.label()} is a game for {number}; two policies need a game for two.")
        self._listen()

    def whose_turn(self) -> int | None:
        return self._turn

    def tell(self, player: int) -> str:
        return self._told[player]

    def move(self, action: str) -> bool:
        mover = self._turn
        if mover is None or not is_valid_reply(action):
            return False
        if self._move(action):
            self._turn = None
            about = self._game.close()[1] or {}
            self._told = {player: _tell(self._game.state.observations.get(player, []), player) for player in _PLAYERS}
            return not about.get(mover, {}).get("invalid_move", False)
        self._listen()
        # After a move that was none it is the same player's turn again, and the game says why.
        return not (self._turn == mover and "attempted an invalid move" in self._told[mover])

    def payoffs(self) -> tuple[Any, ...]:
        rewards = self._game.close()[0] or {}
        # Some games give their complaint about a move in the place of a reward.
        return tuple(reward_value(rewards.get(player, 0.0)) for player in _PLAYERS)

    def _listen(self) -> None:
        """Games tell news once, to whoever's turn it is."""
        player, messages = self._game.get_observation()
        self._turn = int(player)
        self._told[self._turn] = _tell(messages, self._turn)

    def _lay_out(self, seed: int | None, split: str, dynamics_seed: int | None) -> tuple[int, int]:
        """A new game; the seed of its layout, and that of chance."""
        seed, luck = self._begin(seed, split, dynamics_seed)
        layout = split_seed(seed, split)
        self._deal(layout)
        return layout, luck

    def _deal(self, layout: int) -> None:
        self._rngs.seed(layout)
        # Some games keep things from one episode to the next, such as the order of a deck.
        self._game = self._new_game()
        with self._rngs.inside():
            self._start(layout)
        self._told = dict.fromkeys(_PLAYERS, "")

    def _open_game(self, layout: int) -> bool:
        """Whoever moves before the policy does so; whether the game is over with that."""
        for player in range(1, self._num_players or 1):
            if player not in self._opponents:
                self._opponents[player] = self._make_opponent()
        for player, opponent in self._opponents.items():
            opponent.begin(_seed_of(player, layout))
        is_over, self._text = self._hand_over(is_over=False)
        return is_over

    def _make_opponent(self) -> RandomOpponent | ScriptedOpponent:
        moves = self.params.opponent_moves
        return ScriptedOpponent(moves) if self.params.opponent == "scripted" else RandomOpponent(moves, self.label())

    @property
    def instructions(self) -> str:
        return "Play the game. Write a move the way the game asks for it."

    def _start(self, seed: int) -> None:
        """The game itself knows how many players it takes, and says so only by refusing."""
        reason = ""
        counts = range(1, _MAX_PLAYERS + 1)
        for num_players in counts if self._num_players is None else (self._num_players,):
            try:
                self._game.reset(num_players=num_players, seed=seed)
            except (AssertionError, ValueError) as error:
                reason = str(error)
                continue
            self._num_players = num_players
            _let_types_be_left_out(self._game.state)
            if isinstance(getattr(self._game.state, "elimination_order", None), list):
                self._game.state.elimination_order = _Eliminated(self._game.state)
            return
        raise TaskError(f"{self.label()}: expected a game for 1 to {_MAX_PLAYERS} players; the game says: {reason}")

    def _hand_over(self, *, is_over: bool) -> tuple[bool, str]:
        """Let the others move until it is the policy's turn; what the policy is told meanwhile."""
        for _ in range(_MAX_OPPONENT_MOVES):
            if is_over:
                return True, _tell(self._game.state.observations.get(_POLICY, []))
            player, messages = self._game.get_observation()
            if player == _POLICY:
                return False, _tell(messages)
            move = self._opponents[player].choose_move(_offers(messages))
            is_over = self._move(move[:MAX_REPLY_LENGTH])
        raise EnvError(f"{self.label()}: the others moved {_MAX_OPPONENT_MOVES} times in one turn.")

    def _move(self, action: str) -> bool:
        """Games look for moves in brackets; a bare word is meant as one. Whether the game is over."""
        with self._rngs.inside():
            is_over, _ = self._game.step(action if "[" in action else f"[{action.strip()}]")
        return bool(is_over)


class _Eliminated(list[int]):
    """Who is out. The package looks for the next player who is not, for ever where everybody is: then it is over."""

    def __init__(self, state: Any) -> None:
        super().__init__(state.elimination_order)
        self._state = state

    def append(self, player: int) -> None:
        super().append(player)
        if len(set(self)) >= self._state.num_players:
            self._state.done = True


def _let_types_be_left_out(state: Any) -> None:
    """Some games do not say of which type a message is, without which the package refuses it: then it is the game's."""
    types = require_package("textarena", extra="textarena", asked_by="textarena").ObservationType
    add = state.add_observation

    def add_observation(message: str, observation_type: Any = types.GAME_MESSAGE, *where: int, **to: int) -> Any:
        return add(message, observation_type, *where, **to)

    state.add_observation = add_observation


def _seed_of(player: int, seed: int) -> int:
    """Of each opponent's own chances; that of a game for two is the seed itself."""
    return seed if player == 1 else derive_seed("opponent", player, seed)


def _tell(messages: Any, player: int = _POLICY) -> str:
    """What the game and the others said; a player knows its own words."""
    if isinstance(messages, str):
        return messages.strip()
    return "\n".join(str(text).strip() for sender, text, *_ in messages if sender != player)


def _offers(messages: Any) -> list[str]:
    """The moves in the game's newest text that has any."""
    texts = [messages] if isinstance(messages, str) else [str(text) for sender, text, *_ in messages if sender < 0]
    return next((moves for text in reversed(texts) if (moves := _MOVE.findall(text))), [])


@lru_cache
def adapt_textarena(game_id: str) -> type[TextArenaEnv]:
    """The environment class of an id."""
    require_env_id(game_id, "textarena:GuessTheNumber-v0")
    name = f"textarena:{game_id}"
    known = require_package("textarena", extra="textarena", asked_by=name).envs.registration.ENV_REGISTRY
    if game_id not in known:
        raise ConfigError(f"environment '{name}': textarena has no such game. {did_you_mean(game_id, known)}")
    return define_env(TextArenaEnv, name=name, game_id=game_id)
