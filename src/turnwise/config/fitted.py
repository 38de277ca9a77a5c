"""Defaults that follow from other choices: what is not chosen is filled in so that it fits what is.

In: the keys of a file and its overrides. Out: the same keys and the choices that follow from them, so that resolved
settings show what runs. What a file chooses itself is left as it chose, and refused later where it does not fit.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from turnwise.config.registry import gives_no_rewards
from turnwise.config.sections.model import TinySettings
from turnwise.config.trust import DistrustError
from turnwise.errors import ConfigError

_VLLM_HEAD_WIDTH = 32
"""The narrowest attention head that vLLM has a kernel for."""


def fill_in(raw: dict[str, Any]) -> dict[str, Any]:
    """The keys with the choices that follow from others."""
    raw = _with_default(raw, ("credit", "type"), _credit_rule(raw))
    if _find(raw, "reward", "judge", "type") not in (None, "none"):
        raw = _with_default(raw, ("reward", "judge", "beside_env"), "leave" if needs_judge(raw) else "add")
    if _has_eval_files(raw):
        raw = _with_default(raw, ("eval", "episodes"), "all")
    if _find(raw, "cluster", "type") == "ray":
        # What runs elsewhere can be lost: what waits there must outlive it.
        raw = _with_default(raw, ("buffer", "type"), "sqlite")
    if _find(raw, "engine", "type") == "vllm":
        raw = _fit_vllm(raw)
    return raw


def _fit_vllm(raw: dict[str, Any]) -> dict[str, Any]:
    """Other kernels than the learner's sample, so what that changes is corrected; and heads are wide enough."""
    raw = _with_default(raw, ("learn", "correction", "type"), "truncated")
    width = _find(raw, "model", "tiny", "hidden_size") or TinySettings().hidden_size
    is_tiny = _find(raw, "model", "path") in (None, "tiny")
    if is_tiny and isinstance(width, int) and width % _VLLM_HEAD_WIDTH == 0:
        raw = _with_default(raw, ("model", "tiny", "num_heads"), width // _VLLM_HEAD_WIDTH)
    return raw


def _has_eval_files(raw: dict[str, Any]) -> bool:
    """Whether every environment of the run has a file for evaluation."""
    mixed = _find(raw, "mix")
    tags = mixed if isinstance(mixed, dict) else {}
    paths = [_find(raw, "env", "eval_path"), *(_find(tags, tag, "env", "eval_path") for tag in tags)]
    return all(path is not None for path in paths)


def _credit_rule(raw: dict[str, Any]) -> str:
    """One that asks the critic where there is one, else one that compares siblings where there are any."""
    if _find(raw, "learn", "critic", "type") not in (None, "none"):
        return "gae"
    return "reinforce_pp" if _find(raw, "rollout", "group_size") == 1 else "grpo"


def needs_judge(raw: dict[str, Any]) -> bool:
    """Whether an environment of the run gives no rewards."""
    mixed = _find(raw, "mix")
    tags = mixed if isinstance(mixed, dict) else {}
    names = [_find(raw, "env", "type"), *(_find(tags, tag, "env", "type") for tag in tags)]
    # What is no environment is refused by whoever reads it.
    with suppress(ConfigError, DistrustError):
        return any(isinstance(name, str) and gives_no_rewards(name) for name in names)
    return False


def _with_default(raw: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    """The keys with a value where nothing was given."""
    key, *inner = path
    if not inner:
        return raw if key in raw else {**raw, key: value}
    section = raw.get(key, {})
    return {**raw, key: _with_default(section, tuple(inner), value)} if isinstance(section, dict) else raw


def _find(raw: dict[str, Any], *path: str) -> object:
    """What stands there; None where nothing does. What is no section is refused by whoever reads it."""
    found: object = raw
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
