"""Defaults that follow from other choices: what is not chosen is filled in so that it fits what is.

In: the keys of a file and its overrides. Out: the same keys and the choices that follow from them, so that resolved
settings show what runs. What a file chooses itself is left as it chose, and refused later where it does not fit.
"""

from __future__ import annotations

from typing import Any


def fill_in(raw: dict[str, Any]) -> dict[str, Any]:
    """The keys with the choices that follow from others."""
    credit = raw.get("credit") or {}
    if not isinstance(credit, dict) or "type" in credit:
        return raw
    return {**raw, "credit": {"type": _credit_rule(raw), **credit}}


def _credit_rule(raw: dict[str, Any]) -> str:
    """One that asks the critic where there is one, else one that compares siblings where there are any."""
    if _find(raw, "learn", "critic", "type") not in (None, "none"):
        return "gae"
    return "reinforce_pp" if _find(raw, "rollout", "group_size") == 1 else "grpo"


def _find(raw: dict[str, Any], *path: str) -> object:
    """What stands there; None where nothing does. What is no section is refused by whoever reads it."""
    found: object = raw
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
