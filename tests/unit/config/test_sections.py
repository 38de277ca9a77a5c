"""Where a setting is looked for."""

from __future__ import annotations

import pytest

from turnwise.config.schema import TurnwiseSettings
from turnwise.config.settings import Settings

SECTIONS = [name for name in TurnwiseSettings.model_fields if name != "recipe"]


def models_in(annotation: object) -> list[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in models_in(argument)]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_settings_of_a_section_are_in_the_file_of_its_name(section: str) -> None:
    models = models_in(TurnwiseSettings.model_fields[section].annotation)
    home = "schema_learn" if section in ("learn", "reward") else "schema"
    assert {model.__module__ for model in models} <= {f"turnwise.config.{home}", "turnwise.config.kinds"}
