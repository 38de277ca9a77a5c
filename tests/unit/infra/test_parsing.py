"""JSON and YAML of any depth: a value or a ValueError, and one module that parses either."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import turnwise
from turnwise.cli import main
from turnwise.infra.parsing import (
    MAX_DEPTH,
    NestingError,
    check_json_depth,
    check_yaml_depth,
    decode_json_at,
    parse_json,
    parse_yaml,
)

LEVELS = (1_000, 30_000, 200_000)
JSON: dict[str, Callable[[int], str]] = {
    "lists": lambda levels: "[" * levels + "]" * levels,
    "lists that never end": lambda levels: "[" * levels,
    "mappings": lambda levels: '{"env":' * levels + "1" + "}" * levels,
    "behind a string": lambda levels: '{"env": ["]]\\"]' + "]" * levels + '", ' + "[1, " * levels,
}
YAML: dict[str, Callable[[int], str]] = JSON | {
    "block lists": lambda levels: "- " * levels + "1",
    "block mappings": lambda levels: "".join(f"{' ' * level}env:\n" for level in range(min(levels, 2_000))),
    "keys that are mappings": lambda levels: "? " * levels + "1",
    "aliases of lists": lambda levels: (
        "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, levels))
    ),
    "aliases of mappings": lambda levels: (
        "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n}\n  b: *a{n - 1}\n" for n in range(1, levels))
    ),
    "merges": lambda levels: "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, levels)),
}


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("kind", JSON)
def test_deep_json_is_refused(kind: str, levels: int) -> None:
    for text in (JSON[kind](levels), JSON[kind](levels).encode()):
        with pytest.raises(NestingError, match="nested too deeply"):
            parse_json(text)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("kind", YAML)
def test_deep_yaml_is_refused(kind: str, levels: int) -> None:
    with pytest.raises(NestingError, match="nested too deeply"):
        parse_yaml(YAML[kind](levels))


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("kind", YAML)
@pytest.mark.parametrize("suffix", [".yaml", ".json", ".txt"])
def test_a_deep_config_file_ends_in_words(
    suffix: str, kind: str, levels: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = (tmp_path / "deep").with_suffix(suffix)
    file.write_text(YAML[kind](levels))
    assert main(["check", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("turnwise: ")
    assert len(error) < 2_000


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize(
    "override",
    [
        *(lambda levels, write=write: f"env.x={write(levels)}" for write in YAML.values()),
        lambda levels: "a." * levels + "a=1",
        lambda levels: "a" + "[0]" * levels + "=1",
        lambda levels: "env.x=" + "${a:" * levels + "}" * levels,
    ],
    ids=[*YAML, "key", "index", "references"],
)
def test_a_deep_override_ends_in_words(
    override: Callable[[int], str], levels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "frozenlake", override(levels)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("turnwise: ")
    assert len(error) < 2_000


def test_the_limit_itself_is_allowed() -> None:
    deep: list[object] = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    text = json.dumps({"wide": [[]] * 500, "no brackets": "[{" * 500})
    assert parse_json(json.dumps(deep)) == parse_yaml(json.dumps(deep)) == deep
    assert parse_json(text) == parse_yaml(text) == json.loads(text)
    for parse in (parse_json, parse_yaml):
        with pytest.raises(NestingError):
            parse(json.dumps([deep]))


def test_aliases_within_the_limits_are_replaced() -> None:
    text = "a: &a {x: [1]}\nb: &b {<<: *a, y: 2}\nc: [*a, *b, *a]\n"
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["&a [*a]", "a: &a {b: *a}", "a: &a\n  - b: [*a]\n"])
def test_a_value_that_holds_itself_is_refused(text: str) -> None:
    with pytest.raises(NestingError):
        parse_yaml(text)


def test_aliases_that_stand_for_too_much_are_refused() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    with pytest.raises(NestingError):
        parse_yaml(bomb)


@pytest.mark.parametrize("text", ["", "[", "*a", "a: [1", "\x00", "a: b: c", "!!python/object:os.system x"])
def test_what_is_no_yaml_is_a_value_error(text: str) -> None:
    try:
        assert parse_yaml(text) is None
    except ValueError:
        check_yaml_depth(text)


nested = st.recursive(
    st.text(st.sampled_from('[]{}"\\a:-*&')) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('[{"\\')), inner, max_size=3),
)


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


@given(nested, st.integers(0, 70), st.booleans())
def test_the_depth_of_a_text_is_that_of_its_value(value: object, levels: int, is_block: bool) -> None:
    for _ in range(levels):
        value = [value]
    is_deep = _depth(value) > MAX_DEPTH
    text = json.dumps(value)
    for check, written in ((check_json_depth, text), (check_yaml_depth, yaml.safe_dump(value) if is_block else text)):
        if is_deep:
            with pytest.raises(NestingError):
                check(written)
        else:
            check(written)


def test_a_value_inside_a_text_is_bounded_too() -> None:
    assert decode_json_at("a [1] b", 2) == ([1], 5)
    for levels in (100, 100_000):
        with pytest.raises(NestingError):
            decode_json_at("a " + "[" * levels + "]" * levels, 2)


MAY_PARSE = {
    "infra/parsing.py",
    # What our own code has written: another process of ours on a pipe, or a value that was parsed and checked before.
    "chat_types.py", "context/tool_calls.py", "envs/env_worker.py", "envs/isolation.py",
    "envs/adapters/reasoning_gym_env.py", "envs/adapters/verifiers_runner.py",
    "envs/metamathqa/math_verify_worker.py", "envs/metamathqa/grading.py",
}  # fmt: skip
PARSERS = {
    ("json", "loads"), ("json", "load"), ("yaml", "load"), ("yaml", "safe_load"), ("yaml", "full_load"),
    ("yaml", "unsafe_load"),
}  # fmt: skip


def test_no_other_module_parses_json_or_yaml() -> None:
    root = Path(turnwise.__file__).parent
    found = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in PARSERS
    }
    assert found == MAY_PARSE
