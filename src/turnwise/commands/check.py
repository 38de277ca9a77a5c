"""`turnwise check`: is a config file right, and does an environment keep its contract?

A file that is only looked at runs nothing that it names, unless it is trusted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from turnwise.checks.setup import validate_run
from turnwise.config.component import ENVS
from turnwise.config.load import dump_settings, load_recipe, parse_params, translate_file
from turnwise.config.recipes import find_recipe, list_recipes
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.trust import only_looking
from turnwise.convert.load import describe_translation, to_translation_rows
from turnwise.envs.base import make_env
from turnwise.envs.check import check_env
from turnwise.envs.isolation import check_elsewhere
from turnwise.errors import ConfigError, did_you_mean
from turnwise.report.document import show_rows
from turnwise.rollout.env_specs import settle_length

_SECTIONS = frozenset(TurnwiseSettings.model_fields)
_PASSED = {True: "yes", False: "NO", None: "not made"}
"""What a check of an environment found, in a word."""


def check(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    if _names_environment(options.target, overrides):
        if options.python is None:
            report = check_env(lambda: make_env(options.target, **parse_params(overrides)))
        else:
            report = check_elsewhere(options.python, options.target, parse_params(overrides))
        rows: list[dict[str, Any]] = [
            {"check": check.name, "passed": _PASSED[check.passed], "detail": check.detail} for check in report.checks
        ]
        show_rows(console, rows, as_json=options.json)
        return 0 if report.ok else 2
    if options.python is not None:
        raise ConfigError("--python goes with an environment; a recipe says it with rollout.isolation.python.")
    known = [*list_recipes(), *ENVS]
    if options.target not in known and not Path(options.target).suffix and not Path(options.target).exists():
        meant = did_you_mean(options.target, known)
        raise ConfigError(f"there is no recipe, file or environment named '{options.target}'. {meant}")
    with only_looking(trusts=options.trust) as unseen:
        return _check_file(options, overrides, console, unseen)


def _names_environment(target: str, overrides: Sequence[str]) -> bool:
    """A name that a recipe has as well means the recipe where anything beside the environment is changed."""
    if target in list_recipes() and any(word.partition("=")[0].partition(".")[0] in _SECTIONS for word in overrides):
        return False
    return target in ENVS or (":" in target and not Path(target).exists())


def _check_file(
    options: argparse.Namespace, overrides: list[str], console: Console, unseen: Mapping[str, object]
) -> int:
    translation = translate_file(options.target, overrides)
    if translation is not None and not options.json:
        console.print(describe_translation(translation), soft_wrap=True)
    loaded = load_recipe(options.target, overrides)
    found = validate_run(loaded.settings)
    settings = loaded.settings if unseen else settle_length(loaded.settings)
    notes = [each.text for each in found if each.level == "warning"]
    notes += _notes_on_model(settings, unseen)
    notes += [f"'{name}' was not looked at: that would run it. Read it, then give --trust." for name in unseen]
    if options.json:
        keys = {}
        if translation is not None:
            keys = {"dialect": translation.format_name, "keys": to_translation_rows(translation)}
        report = {
            "file": str(find_recipe(options.target)),
            "settings": settings.model_dump(mode="json"),
            "notes": notes,
        }
        console.print_json(json.dumps({**report, "not_looked_at": list(unseen), **keys}))
        return 0
    console.print(dump_settings(settings, loaded.pretrained), markup=False, highlight=False)
    for note in notes:
        console.print(f"note: {note}", markup=False)
    verdict = "is valid as far as it was looked at" if unseen else "is valid"
    console.print(f"{find_recipe(options.target)} {verdict}.", markup=False, highlight=False)
    return 0


def _notes_on_model(settings: TurnwiseSettings, unseen: Mapping[str, object]) -> list[str]:
    """The built-in model is made to fit, so there is nothing to check, and no reason to load torch."""
    if settings.model.path == "tiny" or unseen:
        return []
    from turnwise.models.resolve import note_on  # noqa: PLC0415

    return list(filter(None, [note_on(settings.model.path)]))
