"""Settings that a target is measured in together: the names that `turnwise eval --suite` takes."""

from __future__ import annotations

from turnwise.errors import ConfigError, did_you_mean

SUITES = {
    "mission": ("frozenlake", "bandit", "sokoban", "countdown", "metamathqa", "webshop", "alfworld"),
}
"""Recipes by the name of their suite; `mission` has one for every shipped environment with rewards of its own."""


def find_suite(name: str) -> tuple[str, ...]:
    if name not in SUITES:
        raise ConfigError(f"--suite: there is no suite '{name}'. {did_you_mean(name, SUITES)}")
    return SUITES[name]
