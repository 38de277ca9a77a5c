"""Puzzles from files: every format, the splits, and what is said about a bad row."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from turnwise.envs.countdown import Countdown
from turnwise.errors import ConfigError, TaskError

ROWS = [{"target": 10 + number, "nums": [number, 4, 6]} for number in range(40)]


def texts_of(env: Countdown, split: str, num_seeds: int = 60) -> list[str]:
    return [env.reset(seed, split=split) for seed in range(num_seeds)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in ROWS))
    return path


def test_every_row_is_in_exactly_one_split_in_the_order_of_the_file(lines: Path) -> None:
    env = Countdown(path=str(lines), eval_share=0.3)
    train, evaluation = texts_of(env, "train"), texts_of(env, "eval")
    assert not set(train) & set(evaluation)
    assert set(train) | set(evaluation) == {
        f"Numbers: {' '.join(map(str, row['nums']))} Target: {row['target']}"  # type: ignore[arg-type]
        for row in ROWS
    }
    num_train = len(set(train))
    targets = [int(text.rsplit(" ", 1)[1]) for text in train]
    assert targets[:num_train] == sorted(targets[:num_train])
    assert targets[num_train] == targets[0]


def test_a_list_and_lines_are_the_same(lines: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS, indent=1))
    assert texts_of(Countdown(path=str(path)), "train") == texts_of(Countdown(path=str(lines)), "train")


@pytest.mark.parametrize("words", ["[{}]", "{}"])
@pytest.mark.parametrize("between", [", ", " ", ";"])
def test_numbers_of_a_csv_file_are_read_as_numbers(lines: Path, tmp_path: Path, words: str, between: str) -> None:
    path = tmp_path / "rows.csv"
    nums = [words.format(between.join(map(str, row["nums"]))) for row in ROWS]  # type: ignore[call-overload]
    rows = [f'"{text}",{row["target"]}' for text, row in zip(nums, ROWS, strict=True)]
    path.write_text("\n".join(["nums,target", *rows]))
    assert texts_of(Countdown(path=str(path)), "train") == texts_of(Countdown(path=str(lines)), "train")
    path.write_text('nums,target\n"1, two",3\n')
    with pytest.raises(TaskError, match=r"rows.csv, line 2: found .*'nums'"):
        Countdown(path=str(path))


def test_parquet_is_read_where_pyarrow_is_there(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1")
    stand_in = ModuleType("pyarrow.parquet")
    stand_in.read_table = lambda _file: SimpleNamespace(to_pylist=lambda: ROWS)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", stand_in)
    assert texts_of(Countdown(path=str(path)), "train") == texts_of(Countdown(path=str(lines)), "train")


def test_parquet_without_pyarrow_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"env.path: .*needs the package 'pyarrow.*pip install 'turnwise\[data\]'"):
        Countdown(path=str(path))


@pytest.mark.parametrize(
    "row",
    [
        '{"target": 3}',
        '{"target": "3", "nums": [1, 2]}',
        '{"target": 3, "nums": [1]}',
        '{"target": 3, "nums": [1, 2, 3, 4, 5, 6, 7]}',
        '{"target": 3, "nums": [1, 2.5]}',
        '{"target": 3, "nums": [1, -2]}',
        '{"target": 3, "nums": [true, 2]}',
        "[1, 2]",
        "nonsense",
    ],
)
def test_a_bad_row_is_named(row: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(ROWS[0])}\n{row}\n")
    with pytest.raises(TaskError, match=r"rows.jsonl, line 2: found .*'nums'.*set env.path to another"):
        Countdown(path=str(path))


def test_missing_broken_and_tiny_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"env.path: .*nowhere.json' cannot be read: No such file"):
        Countdown(path=str(tmp_path / "nowhere.json"))
    path = tmp_path / "one.json"
    path.write_text('[{"target": 3, "nums": [1, 2]}]')
    with pytest.raises(TaskError, match="gives 1 puzzles to training and 0 to evaluation"):
        Countdown(path=str(path))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match=r"one.json, line 1: found the byte 0xff, which is not UTF-8"):
        Countdown(path=str(path))
    path.write_text('[{"target": 3,')
    with pytest.raises(TaskError, match=r"line 1: .*not valid JSON"):
        Countdown(path=str(path))


def test_a_changed_file_is_read_again(lines: Path) -> None:
    first = texts_of(Countdown(path=str(lines), eval_share=0.3), "train")
    lines.write_text("\n".join(json.dumps({"target": 100 + number, "nums": [9, 9]}) for number in range(40)))
    assert not set(first) & set(texts_of(Countdown(path=str(lines), eval_share=0.3), "train"))
