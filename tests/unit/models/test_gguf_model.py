"""A GGUF file becomes an ordinary folder with the same numbers and the same tokens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.context.template import HFChatTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.errors import ModelError
from turnwise.models.resolve import check_gguf, convert_gguf, gguf_folder

pytest.importorskip("gguf", reason="needs the package gguf: pip install 'turnwise[gguf]'")
from tests.unit.learn.gguf_files import TEXTS, make_llama, write_gguf


@pytest.mark.parametrize("is_tied", [True, False])
def test_logits_are_those_of_the_original(tmp_path: Path, is_tied: bool) -> None:
    model, tokenizer = make_llama(is_tied=is_tied)
    write_gguf(tmp_path / "small.gguf", model, tokenizer, cut="default")
    folder = convert_gguf(tmp_path / "cache", tmp_path / "small.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, atol=1e-5, rtol=0)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == is_tied
    assert (loaded.dtype, loaded.config.rms_norm_eps) == (torch.float32, 1e-5)
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_folder_speaks_with_the_files_own_template_and_special_tokens(tmp_path: Path) -> None:
    model, tokenizer = make_llama(is_tied=True)
    write_gguf(tmp_path / "small.gguf", model, tokenizer, cut="default")
    loaded = load_tokenizer(str(convert_gguf(tmp_path / "cache", tmp_path / "small.gguf")))
    assert loaded.chat_template == tokenizer.chat_template
    said = "<|user|>Go<|end|><|assistant|>"
    assert loaded(said, add_special_tokens=False)["input_ids"] == tokenizer(said)["input_ids"]
    assert HFChatTemplate(loaded).end_of_turn_id == tokenizer.eos_token_id
    assert loaded.model_max_length == 128


def test_the_way_of_cutting_is_that_of_the_file(tmp_path: Path) -> None:
    model, tokenizer = make_llama(is_tied=True)
    cuts = {}
    for cut in ("smollm", "gpt-2"):
        write_gguf(tmp_path / f"{cut}.gguf", model, tokenizer, cut=cut)
        loaded = AutoTokenizer.from_pretrained(convert_gguf(tmp_path / "cache", tmp_path / f"{cut}.gguf"))
        cuts[cut] = [text for text, _ in loaded.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in  2026.")]
    assert cuts["smollm"][-5:] == [*"2026", "."]
    assert "2026" in cuts["gpt-2"][-2]


def test_it_is_made_once_and_anew_when_the_file_changes(tmp_path: Path) -> None:
    model, tokenizer = make_llama(is_tied=True)
    file = tmp_path / "small.gguf"
    write_gguf(file, model, tokenizer, cut="default")
    assert not gguf_folder(tmp_path / "cache", file).exists()
    folder = convert_gguf(tmp_path / "cache", file)
    assert folder == gguf_folder(tmp_path / "cache", file)
    (folder / "mark").touch()
    assert (convert_gguf(tmp_path / "cache", file) / "mark").exists()
    os.utime(file, ns=(1, 1))
    assert convert_gguf(tmp_path / "cache", file) != folder


def test_a_damaged_file_leaves_nothing_behind(tmp_path: Path) -> None:
    model, tokenizer = make_llama(is_tied=True)
    file = tmp_path / "small.gguf"
    write_gguf(file, model, tokenizer, cut="default")
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ModelError, match="cannot be converted to a Hugging Face folder"):
        convert_gguf(tmp_path / "cache", file)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        check_gguf(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelError, match="is no GGUF file"):
        check_gguf(tmp_path / "text.gguf")
