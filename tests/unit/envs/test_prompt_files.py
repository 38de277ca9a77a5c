"""Files of prompts: every format, every mistake, and splits that share nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs import rows as files
from turnwise.envs.base import make_env
from turnwise.envs.prompts import Prompts
from turnwise.envs.prompts.sources import PromptParser, PromptRow, split_prompts
from turnwise.envs.rows import RowFile, load_rows, read_rows
from turnwise.errors import ConfigError, TaskError

PARSER = PromptParser(prompt="prompt", response="response")
ROWS = [PromptRow("One?", "1"), PromptRow("Zwei? ü"), PromptRow("Three, \u2028 four?", "3")]
OBJECTS = [
    {"prompt": "One?", "response": "1"},
    {"prompt": "Zwei? ü"},
    {"prompt": "Three, \u2028 four?", "response": "3"},
]


def read_prompts(path: str, parser: PromptParser) -> list[PromptRow]:
    return list(load_rows(RowFile.find(path, parser.format()), parser))


def write(tmp_path: Path, name: str, text: str | bytes) -> Path:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def lines_of(objects: list[dict[str, str]]) -> str:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in objects)


@pytest.mark.parametrize("suffix", ["json", "jsonl", "txt", "data"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\n\n \n"])
@pytest.mark.parametrize(
    "text",
    [json.dumps(OBJECTS), json.dumps(OBJECTS, indent=2, ensure_ascii=False), lines_of(OBJECTS) + "\n"],
    ids=["list", "indented", "lines"],
)
def test_the_content_decides_the_format(tmp_path: Path, suffix: str, bom: str, line_end: str, text: str) -> None:
    file = write(tmp_path, f"p.{suffix}", bom + "\n" + text.replace("\n", line_end))
    assert read_prompts(str(file), PARSER) == ROWS


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r\n\r\n  "])
def test_plain_text_has_one_prompt_per_line(tmp_path: Path, bom: bytes, line_end: str) -> None:
    prompts = ["[INST] Hello", "  {curly} words", '"Quoted"', "Ünï \u2028 code", "4"]
    file = write(tmp_path, "p.txt", bom + line_end.join(prompts).encode())
    assert read_prompts(str(file), PARSER) == [PromptRow(prompt.strip()) for prompt in prompts]


def test_rows_may_be_texts(tmp_path: Path) -> None:
    expected = [PromptRow("One?"), PromptRow("Two?")]
    assert read_prompts(str(write(tmp_path, "a.json", '["One?", " Two?"]')), PARSER) == expected
    assert read_prompts(str(write(tmp_path, "a.jsonl", '"One?"\n"Two?"')), PARSER) == expected
    assert read_prompts(str(write(tmp_path, "a", '"One?"\n"Two?"')), PARSER) == expected
    # In a text file, quotation marks belong to the prompt.
    assert read_prompts(str(write(tmp_path, "a.txt", '"One?"\n"Two?"')), PARSER)[0] == PromptRow('"One?"')


def test_fields_can_be_named(tmp_path: Path) -> None:
    file = write(tmp_path, "p.jsonl", lines_of([{"q": "One?", "a": "1", "prompt": "x"}]))
    assert read_prompts(str(file), PromptParser(prompt="q", response="a")) == [PromptRow("One?", "1")]
    assert read_prompts(str(file), PromptParser(prompt="prompt", response="none")) == [PromptRow("x")]


def test_a_blank_or_null_response_is_none(tmp_path: Path) -> None:
    file = write(tmp_path, "p.json", '[{"prompt": "a", "response": " "}, {"prompt": "b", "response": null}]')
    assert read_prompts(str(file), PARSER) == [PromptRow("a"), PromptRow("b")]


GOOD = '{"prompt": "a"}'


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.jsonl", f'{GOOD}\n\n{{"question": "b"}}', ["line 3", "'question'", "'prompt'", "env.prompt_field"]),
        ("p.jsonl", f"{GOOD}\n{{}}", ["line 2", "no keys", "env.prompt_field"]),
        ("p.jsonl", f'{GOOD}\n{{"prompt": 7}}', ["line 2", "the number 7", "env.prompt_field"]),
        ("p.jsonl", f'{GOOD}\n{{"prompt": ["b"]}}', ["line 2", "a list under 'prompt'", "env.prompt_field"]),
        ("p.jsonl", f'{GOOD}\n{{"prompt": " "}}', ["line 2", "a blank prompt", "env.prompt_field"]),
        ("p.jsonl", f'{GOOD}\n{{"prompt": "b", "response": {{}}}}', ["line 2", "an object", "env.response_field"]),
        ("p.jsonl", f"{GOOD}\n17", ["line 2", "the number 17", "expected a text, or an object"]),
        ("p.jsonl", f"{GOOD}\nnull", ["line 2", "null", "expected a text, or an object"]),
        ("p.jsonl", f"{GOOD}\r\n{{'prompt': 'b'}}", ["line 2", "not valid JSON", "env.path"]),
        ("p.jsonl", f"{GOOD}\nplain words", ["line 2", "'plain words'", "not valid JSON"]),
        ("p.txt", f"{GOOD}\nplain words", ["line 2", "'plain words'", "not valid JSON"]),
        ("p.jsonl", "plain words", ["line 1", "not valid JSON"]),
        ("p.json", '[\n"a",\n{"prompt": false}]', ["row 2", "true or false under 'prompt'", "env.prompt_field"]),
        ("p.json", '["a", ["b"]]', ["row 2", "a list", "env.prompt_field"]),
        ("p.json", '["a", ""]', ["row 2", "a blank prompt"]),
        ("p.json", '[\n"a",\n"b"\n"c"]', ["line 4", "not valid", "env.path"]),
        ("p.txt", '["a", "b",]', ["line 1", "not valid"]),
        ("p.json", '{\n"prompt": "a"\n}', ["line 1", "one object over many lines", "env.path"]),
        ("p.json", "[" * 100_000, ["line 1", "lists inside lists"]),
        ("p.txt", b"good\nb\xe4d", ["line 2", "0xe4", "UTF-8"]),
        ("p.txt", "word\n".encode("utf-16"), ["line 1", "0xff", "UTF-8"]),
        ("p.txt", " \n\r\n", ["holds no prompts", "env.path"]),
        ("p.jsonl", "", ["holds no prompts"]),
    ],
)
def test_a_bad_row_is_one_clear_error(tmp_path: Path, name: str, text: str | bytes, words: list[str]) -> None:
    file = write(tmp_path, name, text)
    with pytest.raises(TaskError) as caught:
        Prompts(path=str(file))
    for word in [str(file), *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere.txt", "."])
def test_what_is_no_file_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match=r"env\.path: .* cannot be read: .*JSON, JSONL, CSV or TXT"):
        Prompts(path=str(tmp_path / name))


def test_one_prompt_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"p\.txt holds 1 different prompts; expected at least 2"):
        Prompts(path=str(write(tmp_path, "p.txt", "same\nsame\n")))


def test_a_file_is_read_once_for_each_state(tmp_path: Path) -> None:
    file = write(tmp_path, "p.txt", "One?\nTwo?")
    with patch.object(files, "read_rows", wraps=read_rows) as reading:
        texts = [Prompts(path=str(file)).reset(seed) for seed in (0, 0, 0)]
        assert (reading.call_count, len(set(texts))) == (1, 1)
        file.write_text("New one?\nNew two?")
        os.utime(file, ns=(1, 1))
        assert Prompts(path=str(file)).reset(0).startswith("New")
        Prompts(path=str(file), prompt_field="q")
        assert reading.call_count == 3


prompt_lists = st.lists(st.text(min_size=1), min_size=2, max_size=40)


@given(prompts=prompt_lists, eval_share=st.floats(0.001, 0.999))
def test_no_prompt_is_in_both_splits_and_none_is_lost(prompts: list[str], eval_share: float) -> None:
    rows = [PromptRow(prompt, str(number)) for number, prompt in enumerate(prompts)]
    if len(set(prompts)) < 2:
        with pytest.raises(TaskError):
            split_prompts(rows, eval_share=eval_share, source="x")
        return
    found = split_prompts(rows, eval_share=eval_share, source="x")
    train, held_out = ([row.prompt for row in part] for part in (found.train, found.eval))
    assert train
    assert held_out
    assert not set(train) & set(held_out)
    assert sorted(train + held_out) == sorted(set(prompts))
    assert found.num_duplicates == len(prompts) - len(set(prompts))
    # Of equal prompts the first one stays.
    assert all(row == rows[prompts.index(row.prompt)] for row in (*found.train, *found.eval))


@given(prompts=st.lists(st.text(min_size=1), min_size=60, max_size=60, unique=True), extra=st.text(min_size=1))
def test_a_prompt_keeps_its_split_when_others_come(prompts: list[str], extra: str) -> None:
    before, after = (
        {row.prompt for row in split_prompts([PromptRow(p) for p in ps], eval_share=0.5, source="x").eval}
        for ps in (prompts, [extra, *prompts])
    )
    assert before - {extra} == after - {extra}


def test_the_share_is_about_what_was_asked_for() -> None:
    rows = [PromptRow(f"prompt {number}") for number in range(2000)]
    for share in (0.1, 0.5):
        assert len(split_prompts(rows, eval_share=share, source="x").eval) / 2000 == pytest.approx(share, abs=0.03)


def test_a_file_for_evaluation_is_held_out_whole(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "val.json").write_text('["three", "four"]')
    env = make_env("prompts", path=str(tmp_path / "train.txt"), eval_path=str(tmp_path / "val.json"))
    assert [env.reset(seed, split="train") for seed in range(3)] == ["one", "two", "one"]
    assert [env.reset(seed, split="eval") for seed in range(2)] == ["three", "four"]
    with pytest.raises(ConfigError, match=r"eval_path is given and path is not"):
        make_env("prompts", eval_path=str(tmp_path / "val.json"))
    with pytest.raises(TaskError, match=r"env\.eval_path: '.*nowhere' cannot be read"):
        make_env("prompts", path=str(tmp_path / "train.txt"), eval_path=str(tmp_path / "nowhere"))
