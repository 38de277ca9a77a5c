"""Numbers of the source stay within `tests/budgets.json`; the counters on small sources, where each can go wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .. import budgets, core_seconds
from ..budgets import DENSITY, Source


@pytest.mark.slow
def test_numbers_of_the_source_only_fall() -> None:
    faults = budgets.find_faults(budgets.measure(), budgets.read_budgets()["numbers"])
    assert not faults, "\n".join(faults)


# --- counters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("from typing import cast\nx = cast(int, cast('str', 1))", 2),
        ("from typing import cast as as_type\nx = as_type(int, 1)", 1),
        ("import typing\nx = typing.cast(int, 1)", 1),
        ("x = tensor.cast(int)\n# cast(int, 1)\ny = 'cast(int, 1)'", 0),
        ("from numpy import cast\nx = cast(int, 1)", 0),
    ],
)
def test_casts(text: str, number: int) -> None:
    assert budgets.count_casts(Source(text)) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("x = getattr(a, 'b', None) or hasattr(a, 'c')", 2),
        ("x = getattr(\n    a,\n    'b',\n)", 1),
        ("setattr(a, 'b', 1)\nx = a.getattr('b')\n# getattr(a, 'b')\n'hasattr(a, b)'", 0),
    ],
)
def test_calls_of_getattr(text: str, number: int) -> None:
    assert budgets.count_getattr(Source(text)) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("from typing import Any\ndef f(x: Any, *args: dict[str, Any]) -> Any: ...", 3),
        ("import typing\nx: typing.Any = 1", 1),
        ("from typing import Any", 0),
        ("'Any'\n# Any\nclass Any: ...\nx: Any = 1", 0),
    ],
)
def test_uses_of_any(text: str, number: int) -> None:
    assert budgets.count_any(Source(text)) == number


def test_comments_that_silence_the_type_checker() -> None:
    text = "x = 1  # type: ignore[assignment]\ny = 2  #type:ignore\nz = 3  # pyright: ignore\n"
    assert budgets.count_ignores(Source(text)) == 3
    assert budgets.count_ignores(Source("x = '# type: ignore'\n'''\n# type: ignore\n'''\n# noqa: E501\n")) == 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("x = 12\nyy = 123\n", 700),
        ("class A:\n    x = 12  # a comment that is long\n\n\n    # another\n", 700),
        ('"""A docstring."""\nx = 12\n"""Of x,\non two lines."""\n', 600),
        ("f(\n    'abc',\n)\n", 300),
        ("x = '''abc\n    de'''\n", 750),
        ("# nothing\n", 0),
    ],
)
def test_density_is_of_code_alone(text: str, number: int) -> None:
    assert budgets.characters_per_100_lines([Source(text)]) == number


def test_modules_with_one_importer() -> None:
    sources = {
        "turnwise": "",
        "turnwise.a": "from turnwise.b import x\nimport turnwise.c",
        "turnwise.b": "def f():\n    from turnwise import c",
        "turnwise.c": "",
        "turnwise.alone": "from turnwise.alone import itself",
        "turnwise.d": "from turnwise.b.inner import x\nimport torch",
    }
    # b is imported by a and d, c by a and b; nothing else is imported by one alone.
    assert budgets.count_single_importers({name: Source(text) for name, text in sources.items()}) == 0
    del sources["turnwise.d"]
    assert budgets.count_single_importers({name: Source(text) for name, text in sources.items()}) == 1


def test_settings_are_rows_and_keys_beside_environments_are_different_ones() -> None:
    page = (
        "## Top level\n| `recipe` | text |\n## `learn`\n| `lr` | number |\n| key | type |\n"
        "## `engine` with `type: local`\n| `device` | text |\n## `engine` with `type: vllm`\n| `device` | text |\n"
        "## `env` with `type: bandit` (environment)\n| `arms` | integer |\n## `env.symbols`\n| `wall` | text |\n"
    )
    assert budgets.count_settings(page) == (6, 3)


@pytest.mark.parametrize(
    ("path", "text", "number"),
    [
        ("src/turnwise/a.py", "Nobody was told; it refuses\nto know whoever tells.", 5),
        ("src/turnwise/a.py", "_told = told_by(retell, clearhouse)", 0),
        ("src/turnwise/a.py", "a room", 1),
        ("src/turnwise/envs/sokoban/level.py", "a Room, two rooms, told", 1),
        ("docs/environments/alfworld.md", "a house, nobody", 1),
        ("src/turnwise/envs/webshop/goals.py", '("Home", "Living Room"), house slipper, a house', 1),
    ],
)
def test_words_of_the_private_language(path: str, text: str, number: int) -> None:
    assert budgets.count_words(path, text) == number


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_a_number_above_its_budget_is_named_with_what_to_do() -> None:
    (fault,) = budgets.find_faults({"cast": 81}, {"cast": 80})
    assert fault.startswith("`cast` (calls of typing.cast) must be at most 80, got 81: 1 too many.")
    assert "tests/budgets.json" in fault


def test_a_number_that_fell_by_more_than_the_slack_lowers_the_budget() -> None:
    assert budgets.find_faults({"cast": 77, "lines": 990}, {"cast": 80, "lines": 1000}) == []
    fell = budgets.find_faults({"cast": 76, "lines": 989}, {"cast": 80, "lines": 1000})
    assert len(fell) == 2
    assert all("`python -m tests.budgets --lower`" in fault for fault in fell)


def test_every_number_has_a_budget_and_the_reverse() -> None:
    first, second = budgets.find_faults({"cast": 1}, {"casts": 1})
    assert first.startswith("`casts` is unknown")
    assert second.startswith("`cast` has no budget")
    assert set(budgets.read_budgets()["numbers"]) == set(budgets.MEANINGS)


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A repository with one module of two lines, and a place for its budgets."""
    (tmp_path / "src" / "turnwise").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "configuration.md").write_text("## `learn`\n| `lr` | number |\n")
    (tmp_path / "src" / "turnwise" / "a.py").write_text("x = 1\ny = 2\n")
    return tmp_path, tmp_path / "budgets.json"


def test_the_command_writes_lowers_and_never_raises(small: tuple[Path, Path]) -> None:
    root, file = small
    assert budgets.main([], root, file) == 1
    assert budgets.main(["--write"], root, file) == 0
    written = budgets.read_budgets(file)
    assert (written["numbers"]["lines"], written["numbers"]["modules"], written["core_seconds"]) == (2, 1, {})
    (root / "src" / "turnwise" / "a.py").write_text("x = 1\n")
    assert budgets.main(["--lower"], root, file) == 0
    assert budgets.read_budgets(file)["numbers"]["lines"] == 1
    (root / "src" / "turnwise" / "b.py").write_text("z = 3\n")
    assert budgets.main(["--lower"], root, file) == 1
    assert budgets.read_budgets(file)["numbers"]["lines"] == 1


def test_a_mean_has_room_to_move_and_does_not_creep_up() -> None:
    today = dict.fromkeys(budgets.MEANINGS, 4000)
    written = budgets.as_budgets(today)
    assert (written[DENSITY], written["lines"]) == (4020, 4000)
    assert budgets.lowered(written, budgets.as_budgets({**today, DENSITY: 4015})) == written


def test_core_seconds_are_lowered_too(small: tuple[Path, Path], tmp_path: Path) -> None:
    root, file = small
    times = tmp_path / "times.json"
    times.write_text(json.dumps({"flow": 9.2, "unit/credit": 3.0}))
    assert budgets.main(["--write", "--times", str(times)], root, file) == 0
    assert budgets.read_budgets(file)["core_seconds"] == {"flow": 10, "unit/credit": 3}
    times.write_text(json.dumps({"flow": 20.0, "unit/credit": 1.5, "ray": 7.0}))
    assert budgets.main(["--lower", "--times", str(times)], root, file) == 0
    assert budgets.read_budgets(file)["core_seconds"] == {"flow": 10, "unit/credit": 2, "ray": 7}


@pytest.mark.parametrize("text", [None, "{", "[1]", '{"flow": "x"}'])
def test_a_file_of_times_that_is_none_is_refused(small: tuple[Path, Path], tmp_path: Path, text: str | None) -> None:
    root, file = small
    if text is not None:
        (tmp_path / "times.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        budgets.main(["--write", "--times", str(tmp_path / "times.json")], root, file)
    assert ended.value.code == 2
    assert not file.exists()


# --- core-seconds ----------------------------------------------------------------------------------------------------


def test_times_are_summed_by_folder(tmp_path: Path) -> None:
    times = core_seconds.CoreSeconds()
    for test in ("tests/unit/credit/deep/test_a.py::test_x[a::b]", "tests/unit/credit/test_b.py::test_y"):
        times.add(test, 1.5)
    times.add("tests/flow/test_c.py::test_z", 2.0)
    times.add("tests/unit/test_d.py::test_z", 4.0)
    times.write(tmp_path / "new" / "times.json")
    assert json.loads((tmp_path / "new" / "times.json").read_text()) == {"flow": 2.0, "unit": 4.0, "unit/credit": 3.0}
    assert times.format()[-1].startswith("9 core-seconds in 0.")


def test_only_a_folder_far_above_its_budget_is_a_warning() -> None:
    lines = core_seconds.format_table({"flow": 29.0, "unit/a": 31.0, "unit/new": 99.0}, {"flow": 10, "unit/a": 10})
    assert [line.split()[0] for line in lines[1:]] == ["unit/new", "unit/a", "flow"]
    assert ["WARNING" in line for line in lines[1:]] == [False, True, False]


def test_processor_time_grows_with_work() -> None:
    before = core_seconds.used_s()
    while core_seconds.used_s() == before:
        sum(range(10_000))
    assert core_seconds.used_s() > before
