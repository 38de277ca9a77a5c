"""The built-in reward model: a small Llama-style classifier that learns a preference from pairs on first use.

In come pairs of conversations, the better one first, and a seed. Out comes a Hugging Face folder that loads like any
other reward model. It learns with the pairwise loss of Bradley and Terry; a pull towards 0 puts the border between good
and bad there. It refuses to know what the conversations are about.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import LlamaConfig, LlamaForSequenceClassification

from turnwise.config.schema import TinySettings
from turnwise.learn.reward_model import ConversationReader
from turnwise.learn.tiny_model import find_or_make, fit_tokenizer, tiny_config
from turnwise.types import Message

Preference: TypeAlias = tuple[Sequence[Message], Sequence[Message]]

_SIZES = TinySettings(
    hidden_size=64, intermediate_size=96, num_layers=2, num_heads=8, vocab_size=1024, max_positions=256
)
_STEPS, _BATCH_PAIRS, _PEAK_LR, _WARMUP_STEPS = 300, 32, 4e-3, 20
_PULL_TO_ZERO = 0.02
_FORMAT = 1
"""Part of a folder's name: raised when the same ingredients give another model."""


def tiny_reward_folder(cache: Path, *, pairs: Sequence[Preference], seed: int) -> Path:
    """The folder of the reward model that learnt from these pairs; trained on first use, found again later."""
    texts = [[(message.role, message.text) for message in side] for pair in pairs for side in pair]
    ingredients: list[object] = [_FORMAT, _SIZES.model_dump(), seed, texts]
    return find_or_make(cache, "tiny-reward", ingredients, lambda folder: _create(folder, pairs, seed))


def tiny_reward_config() -> LlamaConfig:
    """Its shape at the largest vocabulary it may get."""
    return tiny_config(_SIZES, vocab_size=_SIZES.vocab_size)


def _create(folder: Path, pairs: Sequence[Preference], seed: int) -> None:
    tokenizer = fit_tokenizer(_sample_texts(pairs), _SIZES.vocab_size)
    config = tiny_config(_SIZES, vocab_size=len(tokenizer))
    config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForSequenceClassification(config)
    reader = ConversationReader(tokenizer, max_tokens=_SIZES.max_positions)
    # Read once: the rows of the better conversations, then those of the worse ones, in the same order.
    rows = reader.read([chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs])
    _prefer(model, rows, num_pairs=len(pairs), seed=seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _sample_texts(pairs: Sequence[Preference]) -> list[str]:
    """Words look different behind a role token and behind a space."""
    contents = [message.text for pair in pairs for side in pair for message in side]
    return contents + [f" {text}" for text in contents]


def _prefer(model: LlamaForSequenceClassification, rows: dict[str, Tensor], *, num_pairs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PEAK_LR, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _lr_share)
    model.train()
    for _ in range(_STEPS):
        chosen = torch.from_numpy(rng.choice(num_pairs, size=min(_BATCH_PAIRS, num_pairs), replace=False))
        scores = _score(model, rows, torch.cat([chosen, chosen + num_pairs]))
        optimizer.zero_grad(set_to_none=True)
        preference_loss(*scores.chunk(2)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _score(model: LlamaForSequenceClassification, rows: dict[str, Tensor], which: Tensor) -> Tensor:
    # Rows were padded to the longest of all; these need only the longest among themselves.
    mask = rows["attention_mask"][which]
    width = int(mask.sum(dim=1).max())
    logits = model(input_ids=rows["input_ids"][which, :width], attention_mask=mask[:, :width]).logits
    return logits[:, 0]


def preference_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Minus the log-probability that each better conversation wins, and a pull of all scores towards 0."""
    pull = _PULL_TO_ZERO * (chosen.square() + rejected.square()) / 2
    return (pull - logsigmoid(chosen - rejected)).mean()


def _lr_share(step: int) -> float:
    """Up in a straight line, then down to nothing."""
    return min((step + 1) / _WARMUP_STEPS, (_STEPS - step) / (_STEPS - _WARMUP_STEPS))
