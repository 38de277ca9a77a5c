"""Rows of files: every format gives the same rows and places, and every environment tells a mistake alike."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.envs.base import make_env
from turnwise.envs.rows import Row, RowFile, RowFormat, read_object, read_rows
from turnwise.errors import TaskError

STRICT = RowFormat(setting="env.path", items="rows", file="a file of rows", row="an object")
LOOSE = RowFormat(setting="env.path", items="rows", file="a file of rows", row="an object", has_text_lines=True)
FILE_SETTINGS = {"prompts": "path", "countdown": "path", "metamathqa": "path", "webshop": "products"}

quick = settings(max_examples=60, deadline=None)
values = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.lists(st.text(max_size=4), max_size=2)
objects = st.dictionaries(st.text(max_size=4), values, min_size=1, max_size=3)


def rows_of(path: Path, text: str | bytes, expected: RowFormat = STRICT) -> list[Row]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_rows(RowFile.find(str(path), expected)))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows") / "rows.data"


@quick
@given(rows=st.lists(objects, max_size=6), indent=st.none() | st.integers(0, 2), is_packed=st.booleans())
def test_a_list_is_what_json_says_it_is(file: Path, rows: list[object], indent: int | None, is_packed: bool) -> None:
    data = json.dumps(rows, indent=indent).encode()
    found = rows_of(file, gzip.compress(data) if is_packed else data)
    assert [row.content for row in found] == rows
    assert [row.place.rpartition(", ")[2] for row in found] == [f"row {n}" for n in range(1, len(rows) + 1)]


@quick
@given(rows=st.lists(objects, min_size=1, max_size=6), line_end=st.sampled_from(["\n", "\r\n", "\r", "\n\n \n"]))
def test_lines_and_a_list_over_lines_have_the_same_places(file: Path, rows: list[object], line_end: str) -> None:
    texts = [json.dumps(row) for row in rows]
    lines = rows_of(file, line_end.join(texts))
    assert [row.content for row in lines] == rows
    listed = rows_of(file, "[" + f",{line_end}".join(texts) + "]")
    assert [row.place.rpartition(", ")[0] for row in listed] == [row.place for row in lines]


@quick
@given(text=st.text(alphabet='[]{},:" \n\t1ae\u00a0\\', max_size=12))
def test_a_list_is_refused_exactly_where_json_refuses_it(file: Path, text: str) -> None:
    text = f"[{text}"
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(TaskError, match=r"rows\.data, line \d+: found .*expected an object"):
            rows_of(file, text)
    else:
        assert [row.content for row in rows_of(file, text)] == expected


@quick
@given(data=st.binary(max_size=40))
def test_any_bytes_are_rows_or_one_error_of_ours(file: Path, data: bytes) -> None:
    for expected in (STRICT, LOOSE):
        with suppress(TaskError):
            assert all(str(file) in row.place for row in rows_of(file, data, expected))


def test_text_lines_are_rows_only_where_they_may_be(tmp_path: Path) -> None:
    text = "[INST] One?\n\n Two? "
    assert rows_of(tmp_path / "a", text, LOOSE) == [
        Row(f"{tmp_path / 'a'}, line 1", "[INST] One?"),
        Row(f"{tmp_path / 'a'}, line 3", "Two?"),
    ]
    with pytest.raises(TaskError, match=r"line 1: .*not valid JSON in a list"):
        rows_of(tmp_path / "a", text)
    # The suffix behind .gz still counts: in a JSON file a line of text is a mistake.
    assert rows_of(tmp_path / "a.txt.gz", gzip.compress(b'"One?"'), LOOSE)[0].content == '"One?"'
    with pytest.raises(TaskError, match="line 1: found 'One', which is not valid JSON"):
        rows_of(tmp_path / "a.jsonl.gz", gzip.compress(b"One"), LOOSE)


def test_one_object_is_told_from_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text, expected in (('{\n"a": 1}', {"a": 1}), ('{"a": 1}\n{"a": 2}', None), ("[1]", None), ("no", None)):
        path.write_text(text)
        assert read_object(RowFile.find(str(path), STRICT)) == expected


@pytest.mark.parametrize("name", FILE_SETTINGS)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[{"asin": "B1"},\n\n oops]', None),
        (b"[\n\xe4]", "line 2: found the byte 0xe4, which is not UTF-8"),
        (gzip.compress(b"[]" * 500, mtime=0)[:-9], "cannot be read: the gzip data is damaged"),
        (b"[" * 100_000, "line 1: found lists inside lists without end"),
        (b'[{"a": 1}\n{"a": 2}]', None),
    ],
)
def test_every_environment_tells_a_mistake_alike(name: str, content: bytes, words: str | None, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    with pytest.raises(TaskError) as caught:
        make_env(name, **{FILE_SETTINGS[name]: str(path)})
    message = str(caught.value)
    assert str(path) in message
    if words is not None:
        assert words in message
        assert f"env.{FILE_SETTINGS[name]}" in message


@pytest.mark.parametrize("name", FILE_SETTINGS)
def test_every_environment_reads_parquet_by_its_content(name: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"prompt": f"{n}?", "nums": [n, 1], "target": n, "query": f"{n}?", "answer": str(n), "asin": f"B{n}"}
        for n in range(40)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows")
    assert make_env(name, **{FILE_SETTINGS[name]: str(tmp_path / "rows")}).label() == name


def test_a_csv_file_is_read_as_one_and_never_as_text(tmp_path: Path) -> None:
    text = 'prompt,response\n"Say ""hi"", please","two\nlines"\n\nGo,\n'
    rows = rows_of(tmp_path / "rows.csv", text)
    assert [row.content for row in rows] == [
        {"prompt": 'Say "hi", please', "response": "two\nlines"},
        {"prompt": "Go", "response": ""},
    ]
    assert make_env("prompts", path=str(tmp_path / "rows.csv")).reset(0) in ('Say "hi", please', "Go")
    with pytest.raises(TaskError, match=r"bad\.csv, line 3: found 1 values; expected 2.*prompt, response"):
        rows_of(tmp_path / "bad.csv", "prompt,response\na,b\nalone\n")
    with pytest.raises(TaskError, match=r"open\.csv, line 2: found no valid CSV"):
        rows_of(tmp_path / "open.csv", 'prompt\n"never closed\n')
