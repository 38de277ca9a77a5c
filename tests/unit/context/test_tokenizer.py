from __future__ import annotations

import pytest

from turnwise.context.template import HFChatTemplate
from turnwise.context.tokenizer import TokenizerAdapter, load_tokenizer
from turnwise.errors import ModelError

from .chat_families import FAMILIES, build_tokenizer


@pytest.fixture
def model_dir(tmp_path):
    build_tokenizer(FAMILIES["chatml"]).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_tokenizer_loads_and_gives_the_same_ids(model_dir) -> None:
    loaded, built = load_tokenizer(str(model_dir)), build_tokenizer(FAMILIES["chatml"])
    text = "<|im_start|>user\nYou are playing. 日本<|im_end|>"
    assert TokenizerAdapter(loaded).encode(text) == built(text, add_special_tokens=False)["input_ids"]
    assert not HFChatTemplate(loaded).rewrites_history


def test_a_missing_folder_is_called_missing(tmp_path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer("")


def test_a_folder_without_a_tokenizer_is_called_that(tmp_path) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        load_tokenizer(str(tmp_path))


def test_a_file_is_no_folder(model_dir) -> None:
    with pytest.raises(ModelError, match="is a file"):
        load_tokenizer(str(model_dir / "tokenizer.json"))


def test_a_broken_tokenizer_is_a_model_error(model_dir) -> None:
    (model_dir / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="Cannot load a tokenizer"):
        load_tokenizer(str(model_dir))


def test_a_tokenizer_without_chat_template_is_refused(tmp_path) -> None:
    tokenizer = build_tokenizer(FAMILIES["chatml"])
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no chat template"):
        load_tokenizer(str(tmp_path))


def test_an_unreachable_hub_is_a_model_error(monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="hub name"):
        load_tokenizer("turnwise-tests/there-is-no-such-model")


def test_a_backend_that_differs_is_not_used() -> None:
    tokenizer = build_tokenizer(FAMILIES["chatml"])
    tokenizer.split_special_tokens = True
    text = "a<|im_end|>"
    assert TokenizerAdapter(tokenizer).encode(text) == tokenizer(text, add_special_tokens=False)["input_ids"]
