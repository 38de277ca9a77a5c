"""The serial loop is short, and reaches few modules."""

from __future__ import annotations

import ast
from pathlib import Path

import turnwise

SOURCE = Path(turnwise.__file__).parent
MODULES = {
    ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in SOURCE.rglob("*.py")
}


def imported_by(body: list[ast.stmt]) -> set[str]:
    """Modules of turnwise that a module imports when it is loaded."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)} & MODULES.keys()
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & MODULES.keys()
        elif isinstance(node, ast.If) and not ast.unparse(node.test).endswith("TYPE_CHECKING"):
            found |= imported_by(node.body) | imported_by(node.orelse)
        elif isinstance(node, ast.Try):
            found |= imported_by(node.body)
    return found - {"turnwise"}


def reached_from(module: str) -> set[str]:
    found, waiting = {module}, [module]
    while waiting:
        new = imported_by(ast.parse(MODULES[waiting.pop()].read_text("utf-8")).body) - found
        found |= new
        waiting += new
    return found - {module}


def test_the_serial_loop_has_fewer_than_eighty_lines() -> None:
    assert len(MODULES["turnwise.loop.serial"].read_text("utf-8").splitlines()) < 80


def test_the_serial_loop_reaches_at_most_a_hundred_modules_and_no_concrete_components() -> None:
    reached = reached_from("turnwise.loop.serial")
    assert "turnwise.loop.step" in reached
    assert "turnwise.loop.build" not in reached
    assert len(reached) <= 100
