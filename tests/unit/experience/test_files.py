"""Experiences as files: exact in both formats, and clear about what cannot be read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from turnwise.errors import ConfigError, StoreError
from turnwise.experience.build import build_experiences
from turnwise.experience.codec import read_experiences, write_experiences

from .records import make_group
from .step_wise import make_calls
from .test_store import CALLS, assert_same

BOTH = pytest.mark.parametrize("ending", ["parquet", "jsonl"])


@BOTH
def test_what_is_written_is_read_back_exactly(tmp_path: Path, ending: str) -> None:
    groups = [build_experiences([make_group(3, seed=4, rollout=7, version=2)]), make_calls(CALLS, is_truncated=True)]
    path = tmp_path / f"out.{ending}"
    assert write_experiences(iter(groups), path) == 6
    for before, after in zip([e for group in groups for e in group], read_experiences(path), strict=True):
        assert_same(before, after)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@BOTH
def test_nothing_explored_is_an_empty_file(tmp_path: Path, ending: str) -> None:
    assert write_experiences([], tmp_path / f"out.{ending}") == 0
    assert read_experiences(tmp_path / f"out.{ending}") == []


def test_columns_are_those_of_an_experience(tmp_path: Path) -> None:
    write_experiences([build_experiences([make_group(1, seed=4, rollout=7)])], tmp_path / "out.jsonl")
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert (row["rollout"], row["task_id"], row["sibling"], row["segment_index"]) == (7, "words/train/4", 0, 0)
    assert row["token_ids"] == [0, 1, 2, 3]
    assert row["loss_mask"] == [False, False, True, True]
    assert row["behavior_logprobs"] == [0.0, 0.0, -0.5, -0.5]
    assert row["raw_rewards"] == [0.0]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", r"ends in \.parquet or \.jsonl"),
        ("a.jsonl", "{not json", r"line 1 is not JSON"),
        ("a.jsonl", "[1]", r"expected a JSON object, found list"),
        ("a.jsonl", "{}", r"row 1 is no experience: column 'rollout' is missing"),
        ("a.parquet", "no parquet", r"cannot be read as Parquet"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(StoreError, match=words):
        read_experiences(tmp_path / name)


@BOTH
def test_a_file_that_is_not_there(tmp_path: Path, ending: str) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        read_experiences(tmp_path / f"none.{ending}")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"Cannot write .*out\..*: not a directory"):
        write_experiences([], tmp_path / "file" / f"out.{ending}")


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'turnwise\[data\]'"):
        write_experiences([], tmp_path / "out.parquet")
    assert write_experiences([], tmp_path / "out.jsonl") == 0
