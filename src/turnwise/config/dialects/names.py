"""Environments and workflows under the names that other projects give them."""

from __future__ import annotations

from typing import Any

from turnwise.config.dialects.table import Refusal
from turnwise.config.registry import ENVS
from turnwise.errors import did_you_mean

_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "simplesokoban": ("sokoban", {"rows": 6, "columns": 6, "num_boxes": 1}),
    "largersokoban": ("sokoban", {"rows": 8, "columns": 8, "num_boxes": 2}),
    "sokobandifferentgridvocab": ("sokoban", {"rows": 6, "columns": 6, "num_boxes": 1}),
    "simplefrozenlake": ("frozen_lake", {}),
    "bandittest": ("bandit", {"names": ["Trader", "Librarian"]}),
    "metamath": ("metamathqa", {}),
    "math": ("metamathqa", {}),
    "alfworldold": ("alfworld", {}),
}


def find_env(name: Any) -> tuple[str, dict[str, Any]]:
    """Our name of an environment and the settings that a variant stands for; `package:Class` is taken as it is."""
    if not isinstance(name, str) or not name:
        raise Refusal("expected an environment's name")
    if name in ENVS or ":" in name:
        return name, {}
    plain = _plain(name)
    if plain in _VARIANTS:
        return _VARIANTS[plain]
    for known in ENVS:
        if _plain(known) == plain:
            return known, {}
    raise Refusal(f"there is no such environment. {did_you_mean(name, ENVS)} Your own is named as package.module:Class")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
