"""Three switches that users of multi-turn PPO know, as other words for the choices they stand for.

In: the keys of a file and its overrides. Out: the same keys with `multi_turn`, `use_reward_model` and
`use_reward_critic` replaced by `rollout.max_turns`, `reward.judge` and `learn.critic`. Where only `multi_turn` is given
the other two follow it, as they do where these switches come from: many turns need neither a reward model nor a critic,
single-turn PPO loads a critic, and a reward model where the environment gives no rewards. Without an environment, one
turn is about the built-in prompts. What a file chooses itself is left as it chose.
"""

from __future__ import annotations

from typing import Any

from turnwise.config.fitted import needs_judge
from turnwise.errors import ConfigError

SHORTHANDS = ("multi_turn", "use_reward_model", "use_reward_critic")


def expand_shorthands(raw: dict[str, Any]) -> dict[str, Any]:
    """The keys without shorthands."""
    given = {name: _checked(name, raw[name]) for name in SHORTHANDS if name in raw}
    expanded = {name: value for name, value in raw.items() if name not in SHORTHANDS}
    multi_turn = given.get("multi_turn")
    if multi_turn is False:
        expanded = _single_turn(expanded)
    elif multi_turn and not expanded.get("env"):
        raise ConfigError(
            "multi_turn: true given and no environment; many turns need one. Set env.type, for example "
            "env.type=frozen_lake, or multi_turn=false for the built-in prompts."
        )
    for name, path in {"use_reward_model": ("reward", "judge"), "use_reward_critic": ("learn", "critic")}.items():
        is_wanted = given.get(name)
        if is_wanted is None and multi_turn is not None and _find(expanded, path) is None:
            is_wanted = not multi_turn and (name != "use_reward_model" or needs_judge(expanded))
        if is_wanted is not None:
            expanded = _with(expanded, path, _switched(_find(expanded, path), is_wanted))
    return _with_built_in_judge(expanded) if multi_turn is False else expanded


def _single_turn(raw: dict[str, Any]) -> dict[str, Any]:
    """One turn, of the built-in prompts where nothing else is named."""
    raw = _with(raw, ("rollout", "max_turns"), 1)
    raw = raw if raw.get("env") else {**raw, "env": {"type": "prompts"}}
    if not _is_built_in(raw) or _find(raw, ("context", "answer")) is not None:
        return raw
    return _with(raw, ("context", "answer"), {"type": "plain"})


def _with_built_in_judge(raw: dict[str, Any]) -> dict[str, Any]:
    """The built-in prompts have a built-in judge; what other texts are worth, a file must say."""
    judge = _find(raw, ("reward", "judge"))
    is_unnamed = isinstance(judge, dict) and judge.get("type") == "model" and judge.get("path") is None
    return _with(raw, ("reward", "judge"), {**judge, "path": "tiny"}) if is_unnamed and _is_built_in(raw) else raw


def _is_built_in(raw: dict[str, Any]) -> bool:
    return _find(raw, ("env", "type")) == "prompts" and _find(raw, ("env", "path")) is None


def _checked(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: {value!r} given; expected true or false.")
    return value


def _switched(choice: Any, is_wanted: bool) -> dict[str, Any]:
    """The choice that is there, if it already is what is wanted; else a model, or none."""
    current = choice if isinstance(choice, dict) else {}
    if not is_wanted:
        return {"type": "none"}
    return current if current.get("type", "none") != "none" else {**current, "type": "model"}


def _find(raw: dict[str, Any], path: tuple[str, str]) -> Any:
    section = raw.get(path[0])
    return section.get(path[1]) if isinstance(section, dict) else None


def _with(raw: dict[str, Any], path: tuple[str, str], value: object) -> dict[str, Any]:
    section = raw.get(path[0]) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{path[0]}: {section!r} given; expected a section of settings.")
    return {**raw, path[0]: {**section, path[1]: value}}
