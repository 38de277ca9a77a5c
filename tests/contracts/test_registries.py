"""Every choice of a config against its protocol: the table of methods, and the classes behind the shipped names."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Protocol, get_origin, get_type_hints

import pytest

from turnwise import protocols
from turnwise.checks.settings import _class_problems
from turnwise.config.component import Registry
from turnwise.config.kinds import Choice
from turnwise.config.schema import CHOICES
from turnwise.protocols import Buffer, Engine, Learner, Mailbox

from .entries import EXAMPLES, choice_at, names_of, plug_in_modules, plug_ins

PROTOCOLS: dict[str, type] = {
    "engine": Engine,
    "buffer": Buffer,
    "learn": Learner,
    "sync": Mailbox,
}
PAGE = EXAMPLES.parent / "docs" / "custom_components.md"
OPENED = ("engine", "buffer", "learn", "sync")
"""Made by `open(settings, site)`; the others from their settings alone."""


def promised(protocol: type) -> set[str]:
    """What an object of a class can only have from its class: methods, and what stands on the class itself."""
    hints = get_type_hints(protocol, vars(protocols) | {"Tensor": Any})
    on_class = {name for name, hint in hints.items() if hint is ClassVar or get_origin(hint) is ClassVar}
    methods = {name for name, member in vars(protocol).items() if inspect.isfunction(member)}
    return on_class | {name for name in methods if not name.startswith("_") or name in ("__call__", "__len__")}


@pytest.mark.parametrize("path", PROTOCOLS)
def test_the_table_of_methods_says_what_the_protocol_promises(path: str) -> None:
    assert issubclass(PROTOCOLS[path], Protocol)  # type: ignore[arg-type]
    wanted = promised(PROTOCOLS[path]) | ({"open"} if path in OPENED else set())
    assert set(choice_at(path).methods) == wanted


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.path)
def test_every_name_has_what_its_kind_must_have(choice: Choice) -> None:
    for name in names_of(choice.path):
        if isinstance(choice.registry, Registry):
            assert issubclass(choice.registry.find(name), choice.registry.base)
        else:
            assert list(_class_problems(choice, name, choice.registry.get_target(name))) == []


@pytest.mark.parametrize(
    "choice", [choice for choice in CHOICES if choice.is_component], ids=lambda choice: choice.path
)
def test_the_names_in_the_source_are_those_of_the_classes(choice: Choice) -> None:
    registry = choice.registry
    assert isinstance(registry, Registry)
    for name, module in registry.shipped.items():
        component = registry.find(name)
        assert component.__module__ == module
        assert component.model_fields[registry.key].default == name


def test_the_page_about_plug_ins_names_every_key_and_all_that_a_class_must_have() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    for choice in CHOICES:
        (row,) = [line for line in rows if line.startswith(f"| `{choice.path}.{choice.key}` |")]
        methods = choice.registry.old_form if isinstance(choice.registry, Registry) else choice.methods
        assert [method for method in methods if f"`{method}" not in row and method != "open"] == []
        assert ("Class.open(" in row) == (choice.path in OPENED)


def test_every_kind_has_a_plug_in_here() -> None:
    """A contract over nothing proves nothing; a user's own modules may hold fewer kinds."""
    if [module.__name__ for module in plug_in_modules()] != ["plug_ins"]:
        pytest.skip("plug-ins of the user's are tested")
    assert [choice.path for choice in CHOICES if choice.path not in plug_ins()] == ["buffer.priority"]
