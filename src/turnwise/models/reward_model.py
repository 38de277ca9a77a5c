"""Reward models as judges: any Hugging Face sequence classifier with one label.

In come a model folder or hub name and conversations; out come scores. The model reads with its own tokenizer and chat
template, frozen, and a score depends on its own conversation alone, not on the batch it lands in. It refuses to know
what the scores are used for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from turnwise.config.schema import TinySettings
from turnwise.errors import ModelError
from turnwise.infra.untrusted import told_by
from turnwise.models.chat_rendering import render_chat
from turnwise.models.load import load_classifier, load_tokenizer_of
from turnwise.models.tiny import find_or_make, fit_tokenizer, tiny_config
from turnwise.types import Message


class ConversationReader:
    """Conversations become padded rows of ids, as the tokenizer's own model knows them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        # The reply and its end matter most, so a long conversation loses its beginning.
        tokenizer.truncation_side = "left"
        tokenizer.padding_side = "right"
        if tokenizer.pad_token_id is None:
            # Decoders take the rightmost token that is no padding, so it should be one that ends no conversation.
            tokenizer.pad_token = tokenizer.bos_token or tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
        added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        marks = added | {str(token) for token in tokenizer.all_special_tokens}
        longest_first = sorted((mark for mark in marks if mark.strip()), key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @property
    def pad_id(self) -> int:
        return cast(int, self._tokenizer.pad_token_id)

    def read(self, conversations: Sequence[Sequence[Message]]) -> dict[str, Tensor]:
        texts = [self._render(conversation) for conversation in conversations]
        # A chat template writes its own special tokens; plain text gets those the tokenizer adds.
        encoded = self._tokenizer(
            texts,
            add_special_tokens=not self._tokenizer.chat_template,
            truncation=True,
            max_length=self._max_tokens,
            padding=True,
            return_tensors="pt",
        )
        return {name: cast(Tensor, rows) for name, rows in encoded.items()}

    def _render(self, conversation: Sequence[Message]) -> str:
        turns = [{"role": message.role, "content": self._guarded(message.text)} for message in conversation]
        if not self._tokenizer.chat_template:
            return "\n".join(turn["content"] for turn in turns)
        try:
            return render_chat(self._tokenizer, turns)
        except Exception as error:  # a template is a program, and raises what it likes
            raise ModelError(
                f"reward.judge.path: the chat template of the reward model refuses a conversation: {told_by(error)}. "
                "Give another reward model."
            ) from error

    def _guarded(self, text: str) -> str:
        """The text with every spelled control token broken: a policy must not end its turn and praise itself."""
        safe = text.encode("utf-8", "replace").decode("utf-8")
        return self._marks.sub(lambda mark: f"{mark[0][:1]} {mark[0][1:]}", safe)


class ModelScorer:
    """`reward.judge: {type: model}`"""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_rows: int, max_tokens: int
    ) -> None:
        self._model = model.eval().requires_grad_(False)
        self._batch_rows = batch_rows
        self._reader = ConversationReader(tokenizer, max_tokens=min(max_tokens, _longest(model, tokenizer)))
        # A decoder finds the last real token by this id; another one would let padding be read.
        model.config.get_text_config().pad_token_id = self._reader.pad_id

    @torch.no_grad()
    def score(self, conversations: Sequence[Sequence[Message]]) -> list[float]:
        scores: list[float] = []
        for start in range(0, len(conversations), self._batch_rows):
            rows = self._reader.read(conversations[start : start + self._batch_rows])
            inputs = {name: ids.to(self._model.device) for name, ids in rows.items() if name != "token_type_ids"}
            scores += self._model(**inputs).logits[:, 0].float().tolist()
        return scores


def load_reward_model(path: str | Path, *, batch_rows: int, max_tokens: int) -> ModelScorer:
    """A reward model with its own tokenizer, from a local folder or a hub name."""
    try:
        model, missing = load_classifier(path)
        tokenizer = load_tokenizer_of(path)
    except ModelError as error:
        raise ModelError(
            f"reward.judge.path '{path}' cannot be loaded as a reward model: {error} Give a Hugging Face folder "
            "or hub name of a sequence classifier with one label, or 'tiny' for the built-in one."
        ) from error
    _check_is_reward_model(model, missing, path)
    return ModelScorer(model, tokenizer, batch_rows=batch_rows, max_tokens=max_tokens)


def _check_is_reward_model(model: PreTrainedModel, missing: Collection[str], path: str | Path) -> None:
    """transformers also loads plain language models here, with a head of random numbers."""
    if model.config.num_labels != 1 or missing:
        found = (
            f"lacks the weights {', '.join(sorted(missing))}" if missing else f"has {model.config.num_labels} labels"
        )
        raise ModelError(
            f"reward.judge.path '{path}' {found}; expected a reward model: a sequence classifier with one label, its "
            "score, and all its weights. Give the path of one, or 'tiny' for the built-in one."
        )


def _longest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """What the model itself can read."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or tokenizer.model_max_length
    return min(positions, tokenizer.model_max_length)


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
