"""Small tokenizers and chat templates with the structure of the common model families, and an episode played on them.

The templates are written for these tests: each has the traits of its family (who opens a turn, what closes it, what is
trimmed, added, forbidden or dropped) and no text of any model. Tokenizers have fixed merges, so that their ids never
change with a library version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turnwise.context.recorder import Transcript
from turnwise.context.template import HFChatTemplate
from turnwise.types import Completion, FinishReason, IntArray, Message, Segment

_WORDS = ["user", "assistant", "system", "model", "think", "answer", "Right", "Down", "Left", "Up", "You", "are"]
_WORDS += [
    "playing",
    "the",
    "lake",
    "Reward",
    "Turn",
    "State",
    "go",
    "to",
    "and",
    "header",
    "end",
    "start",
    "im",
    "turn",
]


@dataclass(frozen=True)
class Family:
    name: str
    template: str | dict[str, str]
    """One for everything, or one for each use by its name."""
    special: tuple[str, ...]
    eos: str
    bos: str | None = None
    plain_added: tuple[str, ...] = ()
    """Added tokens that are not marked special."""
    swallows_space: bool = False
    """Whether its tokens eat the whitespace that follows them."""
    tokenizer: str = "byte_level"
    rewrites: bool = False
    """Whether appending to it differs from rendering it again, for whatever reason."""


CHATML = """
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

HEADERS = """{{ bos_token }}{% for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

INST = """{%- if messages[0].role == 'system' %}{% set preface = messages[0].content + '\n\n' %}
{%- set rest = messages[1:] %}
{%- else %}{% set preface = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}
{%- for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}
{%- elif m.role == 'user' %}{{ '[INST]' + (preface if loop.first else '') + m.content + '[/INST]' }}
{%- else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"""

START_OF_TURN = """{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{%- for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}
{%- endif %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim
 + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

DROPS_THINKING = """{%- for m in messages %}{% set text = m.content %}
{%- if m.role == 'assistant' and not loop.last and '</think>' in text %}
{%- set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}
{{- '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

ROLE_TOKENS = """{%- for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""

NO_END_OF_TURN = """{{ '[gMASK]' }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""

OPENS_THINKING = """{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'user' %}{{ '<|User|>' + m.content }}
{%- else %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + eos_token }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"""

SPACED_INST = """{%- for m in messages %}{% if m.role == 'user' %}
{{- bos_token + '[INST] ' + m.content | trim + ' [/INST]' }}
{%- else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"""

_IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
FAMILIES = {
    family.name: family
    for family in (
        Family("chatml", CHATML, _IM, "<|im_end|>"),
        Family("chatml_other_eos", CHATML, _IM, "<|endoftext|>"),
        Family("headers", HEADERS, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "<eos>", "<bos>"),
        Family("inst", INST, ("[INST]", "[/INST]"), "</s>", "<s>", tokenizer="metaspace"),
        Family("start_of_turn", START_OF_TURN, ("<start_of_turn>", "<end_of_turn>"), "<eos>", "<bos>",
               tokenizer="metaspace"),
        Family("role_tokens", ROLE_TOKENS, ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"), "<|endoftext|>",
               swallows_space=True),
        Family("role_tokens_metaspace", ROLE_TOKENS, ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"), "</s>",
               tokenizer="metaspace"),
        Family("no_end_of_turn", NO_END_OF_TURN, ("[gMASK]", "<|system|>"), "<|endoftext|>",
               plain_added=("<|user|>", "<|assistant|>")),
        Family("drops_thinking", DROPS_THINKING, _IM, "<|im_end|>", plain_added=("<think>", "</think>"), rewrites=True),
        Family("opens_thinking", OPENS_THINKING, (), "<eos>", "<bos>",
               plain_added=("<|User|>", "<|Assistant|>", "<think>", "</think>"), rewrites=True),
        Family("spaced_inst", SPACED_INST, (), "</s>", "<s>", tokenizer="metaspace", rewrites=True),
        Family("joined_newlines", HEADERS, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "<eos>", "<bos>",
               tokenizer="joins_newlines", rewrites=True),
    )
}  # fmt: skip
APPENDING = [name for name, family in FAMILIES.items() if not family.rewrites]


def _byte_level(*, joins_newlines: bool) -> Tokenizer:
    """With `joins_newlines`, two newlines are one token at the end of a text and two tokens before a word."""
    tokens, merges = sorted(pre_tokenizers.ByteLevel.alphabet()), []
    _add_merges(tokens, merges, [*_WORDS, *("Ġ" + word for word in _WORDS), "ĊĊ"])
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    split = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n+|\s+(?!\S)|\s+"), "isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=joins_newlines)
    tokenizer.pre_tokenizer = whole if joins_newlines else pre_tokenizers.Sequence([split, whole])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _metaspace() -> Tokenizer:
    """Like sentencepiece: words carry their space, text that stands first gets one, rare characters become bytes."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127))]
    merges: list[tuple[str, str]] = []
    _add_merges(tokens, merges, [*_WORDS, *("▁" + word for word in _WORDS)])
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _add_merges(tokens: list[str], merges: list[tuple[str, str]], words: Sequence[str]) -> None:
    for word in words:
        for end in range(1, len(word)):
            if word[: end + 1] not in tokens:
                merges.append((word[:end], word[end]))
                tokens.append(word[: end + 1])


def build_tokenizer(family: Family, *, folds_lookalikes: bool = False) -> PreTrainedTokenizerFast:
    joins_newlines = family.tokenizer == "joins_newlines"
    backend = _metaspace() if family.tokenizer == "metaspace" else _byte_level(joins_newlines=joins_newlines)
    if folds_lookalikes:
        backend.normalizer = normalizers.NFKC()
    names = [name for name in (family.bos, family.eos, *family.special) if name]
    added = [
        AddedToken(name, special=True, rstrip=family.swallows_space, normalized=folds_lookalikes)
        for name in dict.fromkeys(names)
    ]
    backend.add_special_tokens(added)
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in family.plain_added])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=family.bos, eos_token=family.eos)
    tokenizer.chat_template = family.template
    return tokenizer


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    return build_tokenizer(FAMILIES[name])


@cache
def template_of(name: str) -> HFChatTemplate:
    return HFChatTemplate(tokenizer_of(name))


def own_ids(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message]) -> list[int]:
    """The tokenizer's own rendering: the truth that templates are compared with."""
    turns = [{"role": m.role, "content": m.content} for m in messages]
    return tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]  # type: ignore


def completion_from_text(token_ids: Sequence[int], *, is_closed: bool = True) -> Completion:
    return Completion(
        token_ids=np.array(token_ids, dtype=np.int32),
        behavior_logprobs=-0.5 - np.arange(len(token_ids), dtype=np.float32),
        finish_reason=FinishReason.STOP if is_closed else FinishReason.LENGTH,
        policy_version=0,
    )


@dataclass
class Played:
    """An episode, and what an engine saw of it."""

    transcript: Transcript = field(default_factory=Transcript)
    calls: list[tuple[IntArray, IntArray]] = field(default_factory=list)
    """The prompt that each call saw, and what it sampled."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.transcript.segments()


def play(
    template: HFChatTemplate,
    opening: Sequence[Message],
    turns: Sequence[tuple[str, Completion]],
    *,
    forced_prefix: str = "",
) -> Played:
    """Play the way a workflow does: `turns` are observations with the completions that answer them."""
    played, messages, is_closed = Played(), list(opening), True
    for index, (observation, completion) in enumerate(turns):
        messages.append(Message("user", observation))
        if index == 0 or template.rewrites_history:
            played.transcript.start_segment()
            played.transcript.add_context(template.encode_prompt(messages))
        else:
            played.transcript.add_context(
                template.encode_continuation([Message("user", observation)], reply_is_closed=is_closed)
            )
        if forced_prefix:
            played.transcript.add_context(template.encode_text(forced_prefix))
        played.calls.append((played.transcript.current_ids, completion.token_ids))
        played.transcript.add_sampled(completion, index)
        is_closed = completion.finish_reason is FinishReason.STOP
        messages.append(Message("assistant", forced_prefix + template.decode_reply(completion.token_ids)))
    return played
