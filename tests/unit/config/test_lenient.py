"""All mistakes of a config at once, and what is left without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnwise.config.load import load_partial_settings, load_settings
from turnwise.errors import ConfigError

LAKE: dict[str, Any] = {"env": {"type": "frozen_lake"}, "learn": {"steps": 7}}


def test_right_settings_stay_as_they_are() -> None:
    mended = load_partial_settings(LAKE, ["learn.epochs=2"])
    assert (mended.problems, mended.left_out) == ((), ())
    assert mended.settings == load_settings(LAKE, ["learn.epochs=2"])


def test_every_mistake_is_told_and_left_out() -> None:
    mended = load_partial_settings(
        LAKE,
        [
            "learn.stepz=3",
            "learn.epochs=0",
            "credit.type=gea",
            "credit.lam=0.5",
            "reward.judge.type=function",
            "reward.judge.success_abov=1",
            "mix.extra.env.type=nowhere",
            "model.tiny.num_heads=5",
        ],
    )
    assert set(mended.left_out) == {
        "learn.stepz", "learn.epochs", "credit", "reward.judge", "reward.judge.success_abov", "mix.extra", "model.tiny",
    }  # fmt: skip
    assert len(mended.problems) == 7
    assert "credit.type: there is no credit rule named 'gea'" in mended.problems[0]
    assert "num_heads = 5 does not divide hidden_size" in "".join(mended.problems)
    assert mended.settings == load_settings(LAKE)


@pytest.mark.parametrize(
    ("recipe", "problem"),
    [
        ({"env": {"type": "frozen_lak"}}, "Did you mean 'frozen_lake'?"),
        ({"learn": {"steps": 3}}, "env.type is missing"),
        ({"env": {"type": "bandit"}, "learn": 3}, "learn: 3 given; expected a section"),
        ("nothing_of_this_name", "there is no recipe named"),
    ],
)
def test_where_nothing_is_left_the_reason_is_told(recipe: Any, problem: str) -> None:
    mended = load_partial_settings(recipe)
    assert mended.settings is None
    assert problem in mended.problems[0]


# --- files that are no settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "look"),
    [
        ("prompts.txt", "Say hi.\nSay bye.\n", "plain text (2 lines)"),
        ("prompts.txt", "Question: why?\nAnswer: so.\n", "plain text (2 lines)"),
        ("prompts.txt", "a: b: c\n[\n", "plain text (2 lines)"),
        ("words.yaml", "only words\n", "plain text (one line)"),
        ("rows.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n', "JSON lines"),
        ("rows.txt", '[{"prompt": "a"}]', "a JSON list"),
        ("table.csv", "prompt,answer\na,b\n", "a table (CSV)"),
        ("code.py", "x = 1\n", "a Python file"),
        ("rows.parquet", "PAR1...", "a Parquet file"),
        ("weights.bin", "a\0b", "a binary file"),
        ("empty.txt", "", "an empty file"),
    ],
)
def test_a_file_of_another_kind_is_told_what_it_looks_like(name: str, content: str, look: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_settings(str(tmp_path / name))
    assert f"is no settings file: it looks like {look}; expected a YAML file of settings" in str(caught.value)
    assert "env.type is missing" not in str(caught.value)


def test_settings_may_stand_in_a_file_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("env: {type: bandit}\n")
    assert load_settings(str(tmp_path / "mine.txt")).env.type == "bandit"
