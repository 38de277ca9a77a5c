"""The default model: a small Llama-style network with its own tokenizer and chat template, as a Hugging Face folder.

The tokenizer is byte-level BPE fitted to sample texts of the environment, so any text can be encoded and the words of
the environment are short.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from turnwise.config.schema import TinySettings
from turnwise.infra.atomic_files import atomic_dir

PAD, END = "<|pad|>", "<|end|>"
_SPECIAL = (PAD, "<|system|>", "<|user|>", "<|assistant|>", END)
"""The trainer gives special tokens the first ids, in this order."""
_WORDS = ("<think>", "</think>", "<answer>", "</answer>")
"""One token each, yet ordinary text to a reader: answers are parsed from them."""

_CUTS = {
    # A cell such as "Pb2" may become one token, which small models learn faster.
    "space": (r"\s", "merged_with_next"),
    # The comma of "white, black" and the bracket of "click[white]" stay off the name, and a number is its digits.
    "words": (r" ?\d| ?[^\W\d]+| ?[^\w\s]|\s", "isolated"),
}

_FORMAT = 3
"""Part of a folder's name: raised when the same ingredients give another model."""

CHAT_TEMPLATE = (
    # Tools stand in front, one JSON object a line; calls and results in the tags that Hermes and Qwen models know.
    "{% if tools %}{{ '<|system|>' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}"
    "{{ '<|end|>' }}{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ '<|user|><tool_response>' + message['content'] + '</tool_response>' }}"
    "{% else %}{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>' }}{{ {'name': call['function']['name'], 'arguments': call['function']['arguments']} | tojson }}"
    "{{ '</tool_call>' }}{% endfor %}"
    "{% if message['role'] == 'assistant' or message['role'] == 'system' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def tiny_model_folder(cache: Path, *, settings: TinySettings, seed: int, sample_texts: Sequence[str]) -> Path:
    """The folder of the model made from these ingredients; made on first use, found again later."""
    ingredients = [_FORMAT, settings.model_dump(), seed, list(sample_texts)]
    return find_or_make(cache, "tiny", ingredients, lambda folder: _create_actor(folder, settings, seed, sample_texts))


def find_or_make(cache: Path, kind: str, ingredients: list[object], create: Callable[[Path], None]) -> Path:
    """The folder of a made model; it is whole or not there."""
    folder = cached_model_folder(cache, kind, ingredients)
    # In this order: another process may finish it at any moment, and what is whole must not be taken for broken.
    if folder.is_dir() and not (folder / "config.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
    if not folder.is_dir():
        transformers_logging.disable_progress_bar()
        # Another process may be faster, and its model be in use already; both make the same.
        with atomic_dir(folder, keeps_first=True, failures=(SafetensorError,)) as unfinished:
            create(unfinished)
    return folder


def cached_model_folder(cache: Path, kind: str, ingredients: list[object]) -> Path:
    """Its name, after all that it is made of; it need not be there."""
    recipe = json.dumps(ingredients)
    return cache / f"{kind}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def _create_actor(folder: Path, settings: TinySettings, seed: int, sample_texts: Sequence[str]) -> None:
    tokenizer = fit_tokenizer(sample_texts, settings.vocab_size, settings.cut)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(tiny_config(settings, vocab_size=len(tokenizer)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny_config(settings: TinySettings, *, vocab_size: int) -> LlamaConfig:
    """The network's shape; the size of its vocabulary is known once the tokenizer is made."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_heads,
        max_position_embeddings=settings.max_positions,
        tie_word_embeddings=True,
        # The usual 0.02 is made for wide models; at this width it all but silences attention and learning crawls.
        initializer_range=settings.hidden_size**-0.5,
        bos_token_id=None,
        eos_token_id=_SPECIAL.index(END),
        pad_token_id=_SPECIAL.index(PAD),
    )


def fit_tokenizer(
    sample_texts: Sequence[str], vocab_size: int, cut: Literal["space", "words"] = "space"
) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the samples, with the chat template of all built-in models."""
    core = Tokenizer(models.BPE())
    pattern, behavior = _CUTS[cut]
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior=behavior),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(sample_texts, trainer)
    core.add_tokens(list(_WORDS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
