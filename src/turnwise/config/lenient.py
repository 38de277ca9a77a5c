"""All mistakes of a config at once: what cannot be understood is told and left out, so that the rest can be looked at.

In: a recipe and overrides, as for `load_settings`. Out: the settings without what is wrong in them, and one message for
each mistake. For those who look before a run; a run itself takes settings that are right, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from turnwise.config.choices import CHOICES, Choice, choice_at, made_for, params_class
from turnwise.config.load import read_keys
from turnwise.config.problems import describe_problem, written_keys
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """Settings as far as they can be understood."""

    settings: TurnwiseSettings | None
    """None where nothing is left to look at."""
    problems: tuple[str, ...]
    left_out: tuple[str, ...]
    """The config paths that were wrong; what follows from their absence is no mistake of its own."""


def load_what_can_be(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> Mended:
    """The settings without their mistakes, and the mistakes."""
    mending = _Mending()
    try:
        raw = read_keys(recipe, overrides)
        mending.drop_unknown_choices(raw)
        settings = mending.validate(raw)
    except ConfigError as error:
        # A file that cannot be read at all, or a section that is none.
        settings, mending.problems = None, [*mending.problems, str(error)]
    return Mended(settings=settings, problems=tuple(mending.problems), left_out=tuple(mending.left_out))


class _Mending:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.left_out: list[str] = []

    def drop_unknown_choices(self, raw: dict[str, Any]) -> None:
        """A class that cannot be found takes its section with it: nobody knows what its keys mean."""
        mixed = [f"mix.{tag}.env" for tag in _at(raw, "mix")]
        for path in [*(choice.path for choice in CHOICES), *mixed]:
            choice, section = choice_at(path), _at(raw, path)
            if choice is None or choice.key not in section or not choice.takes_params:
                continue
            try:
                params_class(choice, section[choice.key], path)
            except ConfigError as error:
                self._note(str(error), path.removesuffix(".env") if path in mixed else path)
                self._drop_choice(raw, choice, path)

    def _drop_choice(self, raw: dict[str, Any], choice: Choice, path: str) -> None:
        if path.startswith("mix."):
            del raw["mix"][path.split(".")[1]]
        elif choice.field.is_required():
            raise ConfigError(f"nothing more can be checked without {path}.{choice.key}.")
        else:
            section = _at(raw, path)
            for key in set(section) - (choice.base.model_fields.keys() - {choice.key}):
                del section[key]

    def validate(self, raw: dict[str, Any]) -> TurnwiseSettings | None:
        """Each round leaves out what pydantic refused; there are no more rounds than keys."""
        while True:
            settings_class = made_for(raw)
            try:
                return settings_class.model_validate(raw)
            except ValidationError as error:
                found = [(dict(problem), written_keys(raw, problem["loc"])) for problem in error.errors()]
                for problem, keys in found:
                    self._note(describe_problem(problem, settings_class), ".".join(keys))
                    if not keys:
                        return None
                    _drop(raw, keys)

    def _note(self, problem: str, path: str) -> None:
        self.problems.append(problem)
        self.left_out.append(path)


def _at(raw: dict[str, Any], path: str) -> dict[str, Any]:
    """The section at a path; an empty one where there is none."""
    found = reduce(lambda section, key: section.get(key) if isinstance(section, dict) else None, path.split("."), raw)  # type: ignore[arg-type, return-value]
    return found if isinstance(found, dict) else {}


def _drop(raw: dict[str, Any], keys: list[str]) -> None:
    """Where two mistakes stand in one section, the first may have taken it away."""
    holder = _at(raw, ".".join(keys[:-1])) if keys[1:] else raw
    holder.pop(keys[-1], None)
