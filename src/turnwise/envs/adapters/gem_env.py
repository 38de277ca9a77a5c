"""Environments of the package gem-llm: `gem:ID`, such as `gem:game:GuessTheNumber-v0-easy`.

Texts, rewards and ends are the package's; its time limits are truncations, unless the episode ended as well. The
package's requirements conflict with ours, so it usually runs under a Python of its own: `rollout.isolation.python`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field

from turnwise.config.settings import Settings, require_in_env_python
from turnwise.envs.adapters.external import (
    ExternalEnv,
    Option,
    define_env,
    is_valid_reply,
    make_info,
    require_env_id,
    reward_value,
    split_seed,
)
from turnwise.errors import ConfigError, did_you_mean

_MADE_ANEW = ("game:", "rg:")
"""Worlds that are quickly made, and made anew for every episode: some keep things from one to the next."""
_BOX = "\\boxed{"


class GemParams(Settings):
    """The settings of an environment of gem-llm."""

    options: dict[str, Option] = Field(default={})
    """Passed to `gem.make`: `{max_turns: 8}`."""
    should_box: bool = True
    r"""Whether a reply without `\boxed{}` is put into one, which is where most of these worlds look for an answer."""
    success_above: float = 0.99
    """An episode whose last reward is above this counts as a success; in games a win pays 1."""


class GemEnv(ExternalEnv):
    """One world of gem-llm."""

    Params: ClassVar[type[Settings]] = GemParams
    packages = ("gem", "gem.utils.constants")
    world_id: ClassVar[str] = ""

    params: GemParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        gem, constants = (require_in_env_python(module, asked_by=self.label()) for module in self.packages)
        known = gem.envs.registration.ENV_REGISTRY
        if self.world_id not in known:
            meant = did_you_mean(self.world_id, known)
            raise ConfigError(f"environment '{self.label()}': gem-llm has no such environment. {meant}")
        self._constants = constants
        self._new_world = lambda: self._make(
            lambda **options: gem.make(self.world_id, **options), **self.params.options
        )
        self._world = self._new_world()
        self._text = ""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        seed, luck = self._begin(seed, split, dynamics_seed)
        if self.world_id.startswith(_MADE_ANEW):
            self._world = self._new_world()
        with self._rngs.inside():
            text, info = self._world.reset(seed=split_seed(seed, split))
        self._rngs.seed(luck)
        self._text, self._phase = _join(text, info), "playing"
        return self._text

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, object]]:
        self._require_playing()
        if not is_valid_reply(action):
            return self._text, 0.0, False, make_info(success=False, is_valid=False, is_effective=False)
        if self.params.should_box and _BOX not in action:
            action = f"{_BOX}{action.strip()}}}"
        with self._rngs.inside():
            text, reward, terminated, truncated, told = self._world.step(action)
        is_over = bool(terminated or truncated)
        if is_over:
            self._phase = "over"
        self._text = str(text).replace(self._constants.TERMINAL_STATE, "") if is_over else _join(text, told)
        is_valid = reward != self._constants.LanguageGameReward.format_error_reward
        success = is_over and reward_value(reward) > self.params.success_above
        info = make_info(success=success, is_valid=is_valid, is_effective=is_valid)
        return self._text, reward, is_over, info | {"truncated": bool(truncated and not terminated)}

    def render(self) -> str:
        return self._text

    def admissible_actions(self) -> list[str] | None:
        """One that the world draws; a look must not move its generators."""
        if self._phase != "playing":
            return None
        before = self._rngs.states
        try:
            with self._rngs.inside():
                return [self._world.sample_random_action()]
        except NotImplementedError:
            return None
        finally:
            self._rngs.states = before

    @property
    def instructions(self) -> str:
        return "Do what is asked."


def _join(text: object, info: Any) -> Any:
    """The text with what the package puts under it: the board, or what to do next."""
    suffix = info.get("suffix") if isinstance(info, dict) else None
    return f"{text}\n{suffix}" if suffix and isinstance(text, str) else text


@lru_cache
def adapt_gem(world_id: str) -> type[GemEnv]:
    """The environment class of an id; the package is imported when one is made."""
    require_env_id(world_id, "gem:game:GuessTheNumber-v0-easy")
    return define_env(GemEnv, name=f"gem:{world_id}", world_id=world_id)
