"""Files and flags of other projects, as the command line shows them and writes them anew.

In: a Translation. Out: a table for people, rows for programs, a recipe in our own words. What keys mean is decided in
`config/dialects`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from rich.text import Text

from turnwise.config.dialects.environments import find_env
from turnwise.config.dialects.load import foreign_key
from turnwise.config.dialects.table import Refusal
from turnwise.config.dialects.translate import Line, Translation
from turnwise.config.recipes import SHIPPED

_STYLES = {"mapped": "green", "no meaning": "dim", "refused": "bold red"}
_HEADS = {"mapped": "mapped", "no meaning": "without meaning here", "refused": "refused"}


def describe_translation(translation: Translation) -> Text:
    """One line for every key of the file, by what became of it."""
    text = Text(f"a file of {translation.dialect}\n")
    for kind, style in _STYLES.items():
        lines = [line for line in translation.lines if line.kind == kind]
        if lines:
            text.append(f"{_HEADS[kind]} ({len(lines)})\n", style="bold")
        for line in lines:
            text.append(f"  {line.key}: {_short(line.value)}", style=style)
            text.append(f"  {_fate(line)}\n", style="dim" if kind != "refused" else "")
    return text


def _fate(line: Line) -> str:
    if line.kind != "mapped":
        return line.note
    return f"-> {line.to}" + (f" ({line.note})" if line.note else "")


def to_translation_rows(translation: Translation) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {"key": line.key, "given": line.value, "kind": line.kind, "to": line.to, "note": line.note}
        for line in translation.lines
    ]


def to_recipe(translation: Translation, source: str) -> str:
    """The file in our words, as somebody would write it: only what it says."""
    told = [line for line in translation.lines if line.kind == "no meaning" and line.value is not None]
    head = [
        f"# Made from {source}, a file of {translation.dialect}.",
        *(f"# Left out: {line.key}: {line.note}." for line in told),
    ]
    body = yaml.safe_dump(translation.nested(), sort_keys=False, allow_unicode=True)
    return "\n".join([*head, body])


def default_recipe(overrides: Sequence[str]) -> str:
    """The recipe that flags alone are about: that of the environment they name, or of their number of turns."""
    given = [(key, value) for key, _, value in (word.partition("=") for word in overrides)]
    meant = {foreign_key(key, None) or key: value for key, value in given}
    name = meant.get("env_cfgs.env_name") or meant.get("env.type")
    if name:
        return _recipe_of(name)
    is_single = meant.get("train_cfgs.multi_turn", meant.get("multi_turn", "")).lower() == "false"
    return "single_turn_ppo" if is_single else "frozenlake"


def _recipe_of(name: str) -> str:
    try:
        env = find_env(name)[0]
    except Refusal:
        # Said with its config path when the settings are loaded.
        return "frozenlake"
    recipe = env.replace("_", "")
    return recipe if (SHIPPED / f"{recipe}.yaml").is_file() else "frozenlake"


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
