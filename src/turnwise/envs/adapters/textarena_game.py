"""Games of the package textarena: `textarena:ID`, such as `textarena:GuessTheNumber-v0`.

In comes the id of a game for one or two players; out comes an environment class. The policy is player 0; in a game for
two the other player is a simple one with moves from the settings or from what the game offers. It refuses games for
more players. Rewards come at the end, as the game gives them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field

from turnwise.config.packages import require_package
from turnwise.config.settings import Settings
from turnwise.envs.adapters.foreign import (
    ForeignWorld,
    Option,
    foreign_info,
    is_playable,
    require_rest,
    seed_for,
    worth_of,
)
from turnwise.envs.base import make_rng
from turnwise.errors import ConfigError, EnvError, TaskError, did_you_mean

_POLICY = 0
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_MAX_OPPONENT_MOVES = 1_000
"""In one turn of the policy; a game that never hands over is broken."""


class TextArenaParams(Settings):
    """The settings of a game of textarena."""

    options: dict[str, Option] = Field(default={})
    """Passed to `textarena.make`: `{max_number: 10}`."""
    opponent: Literal["random", "scripted"] = "random"
    """How the other player of a game for two moves: at random, or through its moves in order, again and again."""
    opponent_moves: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """The other player's moves, such as `[col 3]`; empty: what the game last offered in brackets, at random only."""
    success_above: float = 0.0
    """An episode that ends with more reward than this counts as a success."""


class TextArenaGame(ForeignWorld):
    """One game of textarena, seen by player 0."""

    Params: ClassVar[type[Settings]] = TextArenaParams
    game_id: ClassVar[str] = ""

    params: TextArenaParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        if self.params.opponent == "scripted" and not self.params.opponent_moves:
            raise ConfigError(f"env '{self.label()}': opponent 'scripted' needs its opponent_moves; none are given.")
        textarena = require_package("textarena", extra="textarena", asked_by=self.label())
        # The raw version of a game tells what is new; the others repeat the whole conversation in every turn.
        raw = f"{self.game_id}-raw"
        game_id = raw if raw in textarena.envs.registration.ENV_REGISTRY else self.game_id
        self._game = self._make(lambda **options: textarena.make(game_id, **options), **self.params.options)
        self._num_players: int | None = None
        self._text = ""
        self._luck = random.Random(0)
        self._offered: Sequence[str] = ()
        self._num_opponent_moves = 0

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        seed, luck = self._begin(seed, split, dynamics_seed)
        with self._rngs.inside():
            self._start(seed_for(seed, split))
        self._rngs.seed(luck)
        self._luck, self._offered, self._num_opponent_moves = make_rng("opponent", luck), (), 0
        is_over, self._text = self._hand_over(is_over=False)
        if is_over:
            raise EnvError(f"{self.label()}: the game is over before the first move of the policy.")
        self._phase = "playing"
        return self._text

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, object]]:
        self._require_playing()
        if not is_playable(action):
            return self._text, 0.0, False, foreign_info(success=False, is_valid=False, is_effective=False)
        # Games look for moves in brackets; a bare word is meant as one.
        move = action if "[" in action else f"[{action.strip()}]"
        with self._rngs.inside():
            is_over, _ = self._game.step(move)
        is_over, self._text = self._hand_over(is_over=bool(is_over))
        reward, is_valid = 0.0, "attempted an invalid move" not in self._text
        if is_over:
            self._phase = "over"
            rewards, about = self._game.close()
            reward = 0.0 if rewards is None else rewards.get(_POLICY, 0.0)
            is_valid = is_valid and not about[_POLICY].get("invalid_move", False)
        success = is_over and worth_of(reward) > self.params.success_above
        return self._text, reward, is_over, foreign_info(success=success, is_valid=is_valid, is_effective=is_valid)

    def render(self) -> str:
        return self._text

    @property
    def instructions(self) -> str:
        return "Play the game. Write a move the way the game asks for it."

    def _start(self, seed: int) -> None:
        """The game itself knows how many players it takes, and says so only by refusing."""
        reason = ""
        for num_players in (1, 2) if self._num_players is None else (self._num_players,):
            try:
                self._game.reset(num_players=num_players, seed=seed)
            except (AssertionError, ValueError) as error:
                reason = str(error)
                continue
            self._num_players = num_players
            return
        raise TaskError(f"{self.label()}: expected a game for one or two players; the game says: {reason}")

    def _hand_over(self, *, is_over: bool) -> tuple[bool, str]:
        """Let the other player move until it is the policy's turn; what the policy is told meanwhile."""
        for _ in range(_MAX_OPPONENT_MOVES):
            if is_over:
                return True, _tell(self._game.state.observations.get(_POLICY, []))
            player, messages = self._game.get_observation()
            if player == _POLICY:
                return False, _tell(messages)
            with self._rngs.inside():
                is_over, _ = self._game.step(self._choose_move(messages))
        raise EnvError(f"{self.label()}: the other player moved {_MAX_OPPONENT_MOVES} times in one turn.")

    def _choose_move(self, messages: Any) -> str:
        if self.params.opponent == "scripted":
            self._num_opponent_moves += 1
            return self.params.opponent_moves[(self._num_opponent_moves - 1) % len(self.params.opponent_moves)]
        self._offered = self.params.opponent_moves or _offers(messages) or self._offered
        if not self._offered:
            raise EnvError(f"{self.label()} offers no moves in brackets; set env.opponent_moves.")
        return self._luck.choice(self._offered)


def _tell(messages: Any) -> str:
    """What the game and the others said; the policy knows its own words."""
    if isinstance(messages, str):
        return messages.strip()
    return "\n".join(str(text).strip() for sender, text, *_ in messages if sender != _POLICY)


def _offers(messages: Any) -> list[str]:
    """The moves in the game's newest text that has any."""
    texts = [messages] if isinstance(messages, str) else [str(text) for sender, text, *_ in messages if sender < 0]
    return next((moves for text in reversed(texts) if (moves := _MOVE.findall(text))), [])


@lru_cache
def adapt_textarena(game_id: str) -> type[TextArenaGame]:
    """The environment class of an id."""
    require_rest(game_id, "textarena:GuessTheNumber-v0")
    name = f"textarena:{game_id}"
    known = require_package("textarena", extra="textarena", asked_by=name).envs.registration.ENV_REGISTRY
    if game_id not in known:
        raise ConfigError(f"environment '{name}': textarena has no such game. {did_you_mean(game_id, known)}")
    members = {"name": name, "game_id": game_id, "__module__": __name__}
    return cast("type[TextArenaGame]", type("TextArenaGame", (TextArenaGame,), members))
