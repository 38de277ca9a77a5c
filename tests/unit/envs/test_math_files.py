"""Files of problems: formats, fields, splits, and errors that say where."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from turnwise.envs.metamathqa import MetaMathQA
from turnwise.envs.metamathqa.problems import Problem, ProblemParser, problem_format
from turnwise.envs.rows import RowFile, load_rows
from turnwise.errors import ConfigError, TaskError

from .math_data import find_data

METAMATH = {"query": "What is 2+3?", "response": "2+3=5.\nThe answer is: 5", "original_question": "Two and three?"}
GSM8K = {"question": "Half of 10?", "answer": "10/2=5\n#### 5"}
MATH = {"problem": "A third?", "solution": r"It is $\boxed{\frac{1}{3}}$."}
ROWS = [METAMATH, GSM8K, MATH]
PROBLEMS = (
    Problem("What is 2+3?", "5", "Two and three?"),
    Problem("Half of 10?", "5", "Half of 10?"),
    Problem("A third?", r"\frac{1}{3}", "A third?"),
)


def load_problems(path: str, parser: ProblemParser) -> tuple[Problem, ...]:
    return load_rows(RowFile.find(path, problem_format("env.path")), parser)


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        "\ufeff" + json.dumps(ROWS, indent=1),
        "\r\n\r\n".join(json.dumps(row) for row in ROWS) + "\n",
    ],
)
def test_lists_and_lines_packed_or_not(tmp_path: Path, text: str, is_packed: bool) -> None:
    data = text.encode()
    path = write(tmp_path / "rows.data", gzip.compress(data) if is_packed else data)
    assert load_problems(path, ProblemParser()) == PROBLEMS


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([METAMATH]), tmp_path / "rows.parquet")
    assert load_problems(str(tmp_path / "rows.parquet"), ProblemParser()) == PROBLEMS[:1]
    with pytest.raises(TaskError, match="not a readable Parquet file"):
        load_problems(write(tmp_path / "bad.parquet", "text"), ProblemParser())


def test_a_missing_pyarrow_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"rows.parquet needs the package .* pip install 'turnwise\[data\]'"):
        MetaMathQA(path=write(tmp_path / "rows.parquet", "PAR1"))


def test_fields_can_be_named_and_numbers_are_answers(tmp_path: Path) -> None:
    row = {"question": "no", "answer": "no", "ask": "What is 2+3?", "gold": 5}
    path = write(tmp_path / "rows.jsonl", json.dumps(row))
    parser = ProblemParser(question="ask", answer="gold")
    assert load_problems(path, parser) == (Problem("What is 2+3?", "5", "What is 2+3?"),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{nonsense", "line 3: found '{nonsense', which is not valid JSON"),
        ("7", "line 3: found 7; expected an object"),
        ('{"text": "?", "answer": "5"}', "line 3: found the keys 'text', 'answer'; expected one of query, question"),
        ('{"question": "?"}', "Set env.answer_field"),
        ('{"question": "?", "answer": [5]}', "line 3: found [5] under 'answer'"),
        ('{"question": "?", "answer": true}', "line 3: found True under 'answer'"),
        ('{"question": " ", "answer": "5"}', "line 3: found a blank question"),
        ('{"question": "?", "answer": "..."}', "line 3: found no final answer in '...'"),
        (json.dumps({"question": "?", "answer": "so " * 100}), "line 3: found no final answer"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "rows.jsonl", f"{json.dumps(GSM8K)}\n\n{line}\n")
    with pytest.raises(TaskError) as caught:
        load_problems(path, ProblemParser())
    assert message in str(caught.value)
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no problems"),
        (b'[{"question": 1, "answer": 2},\n oops]', "line 2: found 'oops]', which is not valid JSON"),
        (b"\n\xff", "line 2: found the byte 0xff"),
        (gzip.compress(b"{}" * 500, mtime=0)[:-9], "gzip data is damaged"),
        (b"[" * 100_000, "lists inside lists"),
    ],
)
def test_a_bad_file_is_explained(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        load_problems(write(tmp_path / "rows.json", content), ProblemParser())
    assert message in str(caught.value)


def test_a_missing_file_names_the_setting(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", json.dumps(GSM8K))
    with pytest.raises(TaskError, match=r"env.path: '/no/such' cannot be read: No such file"):
        MetaMathQA(path="/no/such")
    with pytest.raises(TaskError, match=r"env.eval_path: '.*' cannot be read"):
        MetaMathQA(path=path, eval_path=str(tmp_path))
    with pytest.raises(ConfigError, match="eval_path is given and path is not"):
        MetaMathQA(eval_path=path)


# --- splits ----------------------------------------------------------------------------------------------------------


def questions(env: MetaMathQA, split: str, num_seeds: int) -> set[str]:
    return {env.reset(seed, split=split) for seed in range(num_seeds)}


def test_versions_of_one_question_stay_in_one_split(tmp_path: Path) -> None:
    rows = [{"query": f"{n} as {v}", "answer": "1", "original_question": str(n)} for n in range(40) for v in "abc"]
    env = MetaMathQA(path=write(tmp_path / "rows.json", json.dumps(rows)), eval_share=0.3)
    train, held_out = ({text.split()[0] for text in questions(env, split, 120)} for split in ("train", "eval"))
    assert train | held_out == {str(n) for n in range(40)}
    assert train.isdisjoint(held_out)
    assert len(questions(env, "eval", 120)) == 3 * len(held_out)


def test_the_share_decides_how_many_are_held_out(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": "1"} for n in range(1000)]
    path = write(tmp_path / "rows.json", json.dumps(rows))
    for share in (0.1, 0.5):
        assert len(questions(MetaMathQA(path=path, eval_share=share), "eval", 1000)) == pytest.approx(
            1000 * share, abs=50
        )
    with pytest.raises(TaskError, match=r"gives 1 problems to training and 0 to evaluation"):
        MetaMathQA(path=write(tmp_path / "one.json", json.dumps([GSM8K])), eval_share=1e-9)


def test_a_file_for_each_split_shares_nothing(tmp_path: Path) -> None:
    train = write(tmp_path / "train.json", json.dumps(ROWS))
    held_out = write(tmp_path / "eval.json", json.dumps([GSM8K, {"question": "New?", "answer": "1"}]))
    env = MetaMathQA(path=train, eval_path=held_out)
    assert questions(env, "train", 6) == {"What is 2+3?", "A third?"}
    assert questions(env, "eval", 6) == {"Half of 10?", "New?"}
    with pytest.raises(TaskError, match="nothing is left to train on"):
        MetaMathQA(path=train, eval_path=train)


def test_real_files_load_and_their_answers_are_right() -> None:
    train, test = (str(find_data(f"math/gsm8k_{split}.jsonl.gz")) for split in ("train", "test"))
    env = MetaMathQA(path=train, eval_path=test)
    for split, num_problems in (("train", 7473), ("eval", 1319)):
        for seed in range(0, num_problems, 50):
            env.reset(seed, split=split)
            assert env.step(f"The answer is: {env.oracle()}")[1:3] == (1.0, True)
    backward = MetaMathQA(path=str(find_data("math/metamath_gsm8k_backward.jsonl.gz")))
    assert backward.reset(0).endswith("what is the value of unknown variable x?")
