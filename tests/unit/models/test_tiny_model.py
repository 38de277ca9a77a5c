"""The built-in model: a Hugging Face folder like any other, made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.config.load import load_settings
from turnwise.config.schema import TinySettings
from turnwise.loop.policies import resolve_model
from turnwise.models.tiny import find_or_make, fit_tokenizer, tiny_model_folder
from turnwise.rollout.env_specs import main_env, sample_tokenizer_corpus

SMALL = TinySettings(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
WORDS = fit_tokenizer(["color: white, black\nsize: 11"], 300, "words")
TEXTS = ["Pa1 Ob2 Gc3", "<answer>Right</answer>", "Right", "Left"]


def make(cache: Path, **changes: Any) -> Path:
    options: dict[str, Any] = {"settings": SMALL, "seed": 0, "sample_texts": TEXTS}
    return tiny_model_folder(cache, **(options | changes))


def test_transformers_loads_the_folder(tmp_path: Path) -> None:
    folder = make(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.hidden_size == 16
    assert model.config.vocab_size == len(tokenizer)
    text = "Right, naïve 日本 \n\t <answer>x</answer>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Pa1"}], add_generation_prompt=True)
    decoded = tokenizer.decode(ids["input_ids"] if hasattr(ids, "keys") else ids)
    assert decoded == "<|user|>Pa1<|assistant|>"
    assert tokenizer.eos_token_id == model.config.eos_token_id
    for word in ("<think>", "</think>", "<answer>", "</answer>"):
        assert len(tokenizer(word)["input_ids"]) == 1


def test_the_folder_is_found_again(tmp_path: Path) -> None:
    folder = make(tmp_path)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert make(tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]


def test_a_half_made_folder_is_made_again(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "config.json").unlink()
    assert make(tmp_path) == folder
    assert (folder / "config.json").is_file()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"sample_texts": [*TEXTS, "Up"]},
        {"settings": SMALL.model_copy(update={"hidden_size": 32})},
        {"settings": SMALL.model_copy(update={"num_layers": 2})},
        {"settings": SMALL.model_copy(update={"num_heads": 4})},
        {"settings": SMALL.model_copy(update={"intermediate_size": 16})},
        {"settings": SMALL.model_copy(update={"vocab_size": 300})},
        {"settings": SMALL.model_copy(update={"max_positions": 128})},
        {"settings": SMALL.model_copy(update={"cut": "words"})},
    ],
)
def test_other_ingredients_make_another_model(tmp_path: Path, change: dict[str, Any]) -> None:
    assert make(tmp_path) != make(tmp_path, **change)
    model = AutoModelForCausalLM.from_pretrained(make(tmp_path, **change))
    settings = change.get("settings", SMALL)
    config = model.config
    found = (config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.intermediate_size)
    assert found == (settings.hidden_size, settings.num_layers, settings.num_heads, settings.intermediate_size)
    assert config.max_position_embeddings == settings.max_positions
    assert config.vocab_size <= settings.vocab_size + 4


def test_the_seed_decides_the_weights_and_does_not_disturb_torch(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    folders = [make(tmp_path / str(n), seed=seed) for n, seed in enumerate((0, 0, 1))]
    assert torch.equal(torch.rand(1), expected)
    first, again, other = (AutoModelForCausalLM.from_pretrained(f).model.embed_tokens.weight for f in folders)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def pieces(cut: Literal["space", "words"], text: str) -> list[str]:
    page = "color: white, black\nsize: 11, 12\np17 mug, white $5.99\n"
    tokenizer = fit_tokenizer([page, "click[white]", "click[11]", "click[p17]"] * 4, 400, cut)
    return [str(tokenizer.decode([token])) for token in tokenizer(text)["input_ids"]]


def test_a_cut_at_words_spells_a_name_alike_wherever_it_stands() -> None:
    assert pieces("words", " black, white\np17 mug") == [" black", ",", " white", "\n", "p", "1", "7", " mug"]
    assert pieces("words", "click[p17]") == ["click", "[", "p", "1", "7", "]"]
    assert " white," in pieces("space", "black, white, mug")
    assert "click[p17]" in pieces("space", "click[p17]")


@given(st.text(max_size=40))
def test_a_cut_at_words_loses_nothing(text: str) -> None:
    assert WORDS.decode(WORDS(text)["input_ids"]) == text


def test_every_word_of_the_default_recipe_is_one_token() -> None:
    settings = load_settings("frozenlake", ["model.tiny.hidden_size=16", "model.tiny.num_layers=1"])
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(settings))
    texts = sample_tokenizer_corpus(main_env(settings))
    actions = {"Left", "Down", "Right", "Up"}
    words = {f" {word}" for text in texts for word in text.split() if "answer" not in word} - {f" {a}" for a in actions}
    assert len(words) > 30
    split = {word for word in words if len(tokenizer(word)["input_ids"]) > 1}
    # The first object stands behind a role token and an action behind "<answer>"; all others stand behind a space.
    starts = actions | {text.split(" ")[0] for text in texts if text[:1].strip() and "answer" not in text}
    split |= {word for word in starts if len(tokenizer(word)["input_ids"]) > 1}
    assert not split


def test_a_model_that_another_process_made_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    def create(folder: Path) -> None:
        (folder / "config.json").write_text("ours")
        theirs = tmp_path / folder.parent.name.split(".")[1]
        theirs.mkdir()
        (theirs / "config.json").write_text("theirs")

    folder = find_or_make(tmp_path, "tiny", ["anything"], create)
    assert (folder / "config.json").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
