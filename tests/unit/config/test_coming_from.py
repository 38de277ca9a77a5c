"""docs/coming_from.md and its tables: every key that those projects' example files have is accounted for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnwise.config.component import Registry
from turnwise.config.schema import CHOICES, TurnwiseSettings
from turnwise.config.settings import Settings
from turnwise.convert.load import TableFormat, load_formats

FORMATS = {config_format.name: config_format for config_format in load_formats()}
SHARED = Path(__file__).parents[4] / "shared" / "reference" / "dialects.md"
needs_list = pytest.mark.skipif(not SHARED.is_file(), reason="../shared/reference/dialects.md is not here")


def listed_keys(title: str) -> Iterator[str]:
    """The dotted keys that the list names below a title."""
    section = SHARED.read_text(encoding="utf-8").split(f"## {title}")[1].split("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("- "):
            yield from (key for key in re.findall(r"`([A-Za-z_][\w.\[\]*@]*)`", line))


@needs_list
@pytest.mark.parametrize("title", ["RAGEN", "align-anything", "Trinity-RFT"])
def test_every_key_of_their_example_files_has_a_row(title: str) -> None:
    config_format = FORMATS[title]
    keys = [key.replace("[]", "") for key in listed_keys(title)]
    assert len(keys) > 60
    # What stands in a list of mappings is read with the list.
    unknown = [key for key in keys if not (config_format.has_key(key) or _is_in_list(key, config_format))]
    assert unknown == []


def _is_in_list(key: str, config_format: TableFormat) -> bool:
    parts = key.split(".")
    return any(config_format.has_key(".".join(parts[:length])) for length in range(2, len(parts)))


@needs_list
def test_every_key_of_verls_trainer_has_a_row() -> None:
    section = SHARED.read_text(encoding="utf-8").split("## verl trainer")[1].split("\n## ")[0]
    keys = []
    for line in section.splitlines():
        if not line.startswith("- "):
            continue
        for part in line[2:].split("; "):
            place, _, names = part.partition(": ")
            keys += [f"{place.strip()}.{name}" for name in _spelled_out(names)]
    assert len(keys) > 100
    assert [key for key in keys if not FORMATS["verl"].has_key(key)] == []


def _spelled_out(names: str) -> Iterator[str]:
    """`a.{b, c}`, `a(_per_x)` and `a.b/c` stand for several names each."""
    for name in re.findall(r"`([^`]+)`", names):
        start, brace, inner = name.partition(".{")
        if brace:
            for last in inner.rstrip("}").split(", "):
                if last != "…":
                    yield f"{start}.{last}"
        elif "(" in name:
            short, _, more = name.partition("(")
            yield from (short, short + more.rstrip(")"))
        elif "/" in name:
            start, _, lasts = name.rpartition(".")
            yield from (f"{start}.{last}" for last in lasts.split("/"))
        elif re.fullmatch(r"[a-z_.]+\*?", name):
            yield name.removesuffix("*").removesuffix(".") + (".lr" if name.endswith("optim.*") else "")


def known_paths() -> set[str]:
    """Every config path of ours, those of choices included."""
    return {
        *_paths(TurnwiseSettings, ""),
        *(f"{choice.path}.{key}" for choice in CHOICES for key in _of_choice(choice)),
    }


def _of_choice(choice: object) -> Iterator[str]:
    registry = choice.registry  # type: ignore[attr-defined]
    for name in registry.shipped:
        params = registry.find(name) if isinstance(registry, Registry) else registry.get_params(name)
        if isinstance(params, type) and issubclass(params, Settings):
            yield from (path for path in _paths(params, ""))


def _paths(model: type[Settings], start: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{start}{name}"
        yield path
        for inner in _models(field.annotation):
            yield from _paths(inner, f"{path}.")


def _models(annotation: object) -> list[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models(argument)]


def test_every_setting_that_a_row_names_is_there() -> None:
    known = known_paths()
    named = {
        path.strip()
        for config_format in FORMATS.values()
        for row in config_format.rows
        for path in re.split(r", (?:or )?", row.to)
        if "." in path and "TAG" not in path
    }
    assert len(named) > 60
    assert sorted(named - known) == []
