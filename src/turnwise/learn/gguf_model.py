"""A GGUF file in, an ordinary Hugging Face folder out, made once: the same numbers, in float32.

What transformers makes of such a file refuses to be saved, has the rounded constants of the format, and has lost how
some tokenizers cut a text; all three are set right here. It refuses to know what the model is for.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from turnwise.config.settings import require_package
from turnwise.errors import ModelError
from turnwise.learn.tiny_model import find_or_make, made_folder
from turnwise.pretrained import load_causal_model, load_tokenizer_of

_log = logging.getLogger("turnwise.learn")

_FORMAT = 1
"""Part of a folder's name: raised when the same file gives another folder."""
_MAGIC = b"GGUF"
_HASHED_BYTES = 1 << 20
"""Of each end of a file. It may be as large as the disk; with its size and time this tells any two files apart."""
_NOT_OF_THE_MODEL = ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version", "dtype")

_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
"""Ways of cutting that take every digit alone, and the rest as GPT-2 did; transformers does not know them."""
_KNOWN_CUTS = _SINGLE_DIGITS | {
    "", "default", "gpt-2", "llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2", "tekken", "qwen2",
    "deepseek-r1-qwen", "qwen35", "gpt-4o", "llama4",
}  # fmt: skip


def gguf_folder(cache: Path, file: Path) -> Path:
    """Where the converted model is, or will be."""
    return made_folder(cache, file.stem, _ingredients(file))


def convert_gguf(cache: Path, file: Path) -> Path:
    """The folder of the converted model; made on first use, found again as long as the file stays the same."""
    return find_or_make(cache, file.stem, _ingredients(file), lambda folder: _convert(file, folder))


def check_gguf(file: Path) -> None:
    """Raise where this file cannot be converted for a reason that can be seen from outside."""
    if not file.is_file():
        raise ModelError(
            f"model.path '{file}' does not exist (looked in {file.absolute()}). Give an existing GGUF file."
        )
    with file.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise ModelError(f"model.path '{file}' is no GGUF file: it does not begin with the letters GGUF.")
    require_package("gguf", extra="gguf", asked_by=f"model.path '{file}'")


def _ingredients(file: Path) -> list[object]:
    facts, ends = file.stat(), hashlib.sha256()
    with file.open("rb") as opened:
        ends.update(opened.read(_HASHED_BYTES))
        opened.seek(max(0, facts.st_size - _HASHED_BYTES))
        ends.update(opened.read())
    return [_FORMAT, facts.st_size, facts.st_mtime_ns, ends.hexdigest()]


def _convert(file: Path, folder: Path) -> None:
    place, name = str(file.absolute().parent), file.name
    # A bar of its own would run through the caller's display.
    with _told(file), redirect_stderr(io.StringIO()):
        tokenizer = load_tokenizer_of(place, gguf_file=name)
        model = _plain(load_causal_model(place, gguf_file=name, dtype=torch.float32))
    _restore_cuts(tokenizer, file)
    config = model.config.get_text_config()
    tokenizer.model_max_length = config.max_position_embeddings
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _plain(loaded: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that does not know where they came from."""
    kept: dict[str, Any] = {k: v for k, v in loaded.config.to_dict().items() if k not in _NOT_OF_THE_MODEL}
    # The format holds 32 bits: 1e-05 comes back as 9.99999974e-06.
    kept = {k: float(f"{v:.7g}") if k.endswith("_eps") and isinstance(v, float) else v for k, v in kept.items()}
    with torch.device("meta"):
        model = type(loaded)(type(loaded.config)(**kept))
    model.load_state_dict(loaded.state_dict(), strict=True, assign=True)
    model.tie_weights()
    return model


def _restore_cuts(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """How a text is cut before its tokens are found, where transformers has lost it."""
    fields = require_package("gguf", extra="gguf", asked_by=f"model.path '{file}'").GGUFReader(str(file)).fields
    kind, cut = (
        str(fields[key].contents()) if (key := f"tokenizer.ggml.{name}") in fields else "" for name in ("model", "pre")
    )
    if kind != "gpt2":
        return
    if cut in _SINGLE_DIGITS:
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)  # type: ignore[attr-defined]
    elif cut not in _KNOWN_CUTS:
        _log.warning(
            "%s cuts texts in the way '%s', which is not known here: compare its tokens with those of the original.",
            file, cut,
        )  # fmt: skip


@contextmanager
def _told(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # transformers and gguf raise whatever they like about a file they do not understand
        lines = str(error).strip().splitlines()
        raise ModelError(
            f"model.path '{file}' cannot be converted to a Hugging Face folder: "
            f"{(lines[0] if lines else type(error).__name__).rstrip('.')}. Give the model as a Hugging Face folder."
        ) from error
