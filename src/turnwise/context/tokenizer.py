"""Tokenizers of transformers: loading, fast encoding and escaping of special tokens.

`TokenizerAdapter` turns text into ids and back, and `SpecialTokenEscaper` keeps a user's text from spelling control
tokens. Conversations and their turns are in `template.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from turnwise.config.schema import ContextSettings
from turnwise.context.messages import Dialect, write_message
from turnwise.errors import ConfigError, ModelError
from turnwise.models.chat_rendering import render_chat
from turnwise.models.load import in_words, load_tokenizer_of
from turnwise.types import IntArray, Message, ToolSchema


def choose_template(tokenizer: PreTrainedTokenizerBase, context: ContextSettings, *, model: str) -> None:
    """Give the tokenizer the template of `context.template` and the values of `context.template_kwargs`."""
    if context.template is not None:
        tokenizer.chat_template = _read(tokenizer, context.template)
    if not context.template_kwargs:
        return
    own = tokenizer.chat_template or ""
    sources = own if isinstance(own, dict) else {"": own}
    source = context.template or model
    for name in context.template_kwargs:
        if not any(re.search(rf"\b{name}\b", text) for text in sources.values()):
            raise ConfigError(
                f"context.template_kwargs: '{name}' given; the chat template of '{source}' has no such variable, so it "
                "would change nothing. Leave it out, or correct its name."
            )
    chosen = {key: _with_values(text, context.template_kwargs) for key, text in sources.items()}
    tokenizer.chat_template = chosen if isinstance(own, dict) else chosen[""]


def _read(tokenizer: PreTrainedTokenizerBase, path: str) -> str:
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(
            f"context.template: '{path}' cannot be read (looked in {file.absolute()}): {why.lower()}. Give a file with "
            "a Jinja chat template, or leave it out for the model's own."
        ) from error
    try:
        render_chat(tokenizer, [{"role": "user", "content": "?"}], chat_template=text)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"context.template: '{path}' is no valid Jinja template: line {error.lineno}: {error.message}"
        ) from error
    except SecurityError as error:
        raise ConfigError(f"context.template: '{path}' cannot be used: {error}.") from error
    except Exception:  # noqa: BLE001 - a template is a program, and raises what it likes
        # What it makes of a conversation is tried elsewhere; here it must only be a template.
        pass
    return text


def _with_values(template: str, values: dict[str, bool | int | float | str]) -> str:
    """The template with other defaults; a caller that names a value still has it."""
    lines = (f"{{% set {name} = {name} if {name} is defined else {value!r} %}}\n" for name, value in values.items())
    return "".join(lines) + template


HFTokenizer: TypeAlias = PreTrainedTokenizerBase

THINK_TAGS = frozenset({"<think>", "</think>"})
"""Some vocabularies hold these as added tokens. They mark a part of a reply, not a role, so a user may write them."""

_FOLDER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")
_EQUALITY_PROBES = ("Right", " a  b\n\nc\t", "_POG\n#.#", "naïve 日本 🙂", "x</think>\n\ny 12345 !!")


def load_tokenizer(path: str, context: ContextSettings | None = None) -> HFTokenizer:
    """The tokenizer of a local model folder or of a model on the hub, with the chat template that `context` chooses."""
    _check_folder(path)
    try:
        tokenizer = load_tokenizer_of(path)
    except ModelError as error:
        raise ModelError(
            f"Cannot load a tokenizer from '{path}': {error} Expected a folder with a Hugging Face "
            "tokenizer (tokenizer.json and tokenizer_config.json) or the name of a model on the hub. Check the "
            "spelling, and the network or the local cache if it is a hub name."
        ) from error
    if context is not None:
        choose_template(tokenizer, context, model=path)
    if not tokenizer.chat_template:
        raise ModelError(
            f"The tokenizer in '{path}' has no chat template. turnwise plays conversations and needs one. Use an "
            "instruction-tuned model, or give a Jinja file: context.template=FILE."
        )
    return tokenizer


def _check_folder(path: str) -> None:
    """A missing folder must be called that; transformers would take its path for a hub name."""
    folder = Path(path).expanduser()
    if path and folder.is_dir():
        if not any((folder / name).exists() for name in _FOLDER_FILES):
            raise ModelError(
                f"The folder '{path}' is no model folder: it holds none of {', '.join(_FOLDER_FILES)}. "
                "Give the folder that `save_pretrained` wrote, tokenizer included."
            )
    elif path and folder.exists():
        raise ModelError(f"'{path}' is a file. Give the model folder that holds it, or the name of a model on the hub.")
    elif not path or path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(
            f"The model folder '{path}' does not exist (looked in {folder.absolute()}). Give an existing folder, or a "
            "hub name such as 'owner/model'."
        )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


class TokenizerAdapter:
    """One tokenizer, as this room uses it: nothing is added to a text, and every special token stays visible."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        try:
            with in_words():
                self._learn(tokenizer)
        except ModelError as error:
            raise ModelError(
                f"the tokenizer '{tokenizer.name_or_path}' cannot be used: {error} Check tokenizer.json and "
                "tokenizer_config.json."
            ) from error

    def _learn(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer
        self._fast = _private_backend(tokenizer)
        self.eos_id = _optional_int(tokenizer.eos_token_id)
        self.bos_id = _optional_int(tokenizer.bos_token_id)
        self.unk_id = _optional_int(tokenizer.unk_token_id)
        self.spellings: dict[int, str] = {}
        """Every added token that is visible text."""
        self.special_ids: set[int] = _ids_of(tokenizer)
        for token_id, token in tokenizer.added_tokens_decoder.items():
            if token.content.strip():
                self.spellings[int(token_id)] = token.content
            if token.special:
                self.special_ids.add(int(token_id))
        self.ids_by_spelling = {spelling: token_id for token_id, spelling in self.spellings.items()}
        longest_first = sorted(self.ids_by_spelling, key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.template_marks = self._marks_in(str(tokenizer.get_chat_template()))
        """The added tokens that the chat template names, in its own text or to look for them in a message."""
        # A tokenizer may carry a template of its own for conversations with tools.
        self.tool_template_marks = self._marks_in(str(tokenizer.get_chat_template(tools=[])))
        self.num_ids = max(len(tokenizer), max(self.special_ids, default=0) + 1)
        self.model_name = str(tokenizer.name_or_path or type(tokenizer).__name__)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest entry of the vocabulary; of bytes each is written as one."""
        return max(map(len, self._tokenizer.get_vocab()))

    def _marks_in(self, source: str) -> list[str]:
        return [text for text in self.spellings.values() if text in source]

    def encode(self, text: str) -> list[int]:
        try:
            if self._fast is not None:
                return self._fast.encode(text, add_special_tokens=False).ids
            return self._encode_slowly(text)
        except TypeError:
            # Half a surrogate pair is no text to a tokenizer, and an environment may send one.
            return self.encode(text.encode("utf-8", "replace").decode("utf-8"))

    def _encode_slowly(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]

    def decode(self, token_ids: Sequence[int]) -> str:
        if self._fast is not None:
            return self._fast.decode(token_ids, skip_special_tokens=False)
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return cast(str, text)

    def added_in(self, text: str) -> list[tuple[int, int]]:
        """Where added tokens are spelled in a text: begin and end, in order."""
        return [match.span() for match in self._added.finditer(text)]

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), dialect: Dialect | None = None
    ) -> str:
        """The tokenizer's own text of a conversation, up to and including the header of the next reply."""
        turns = [write_message(message, dialect) for message in messages]
        given = [tool.to_mapping() for tool in tools] or None
        try:
            return render_chat(self._tokenizer, turns, tools=given, add_generation_prompt=True)
        except Exception as error:  # a template is a program, and raises what it likes
            roles = ", ".join(message.role for message in messages)
            raise ModelError(
                f"The chat template refuses a conversation with the roles [{roles}]: {_first_line(error)}. Expected a "
                "template for text that accepts these roles in this order. Leave the system message away if the "
                "template forbids it, or use another chat template."
            ) from error


def _ids_of(tokenizer: HFTokenizer) -> set[int]:
    """The ids of the special tokens; the type of some is None where a file names a token that is not there."""
    named = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=False))
    if missing := [token for token, token_id in named.items() if not isinstance(token_id, int)]:
        raise ModelError(f"it names the special token {missing[0]!r}, which is not in its vocabulary.")
    return set(named.values())


def _optional_int(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None


def _private_backend(tokenizer: HFTokenizer) -> Tokenizer | None:
    """A copy of the Rust tokenizer, or None where it does not give the ids of the Python one.

    A copy, because a call with other options anywhere in the process leaves those options behind in the original.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    try:
        copy = Tokenizer.from_str(backend.to_str())
    except Exception:  # noqa: BLE001 - custom Python components cannot be copied; Rust raises bare Exception
        return None
    copy.no_padding()
    copy.no_truncation()
    for text in (*_EQUALITY_PROBES, "".join(map(str, tokenizer.all_special_tokens)).join("ab")):
        if copy.encode(text, add_special_tokens=False).ids != tokenizer(text, add_special_tokens=False)["input_ids"]:
            return None
    return copy


class SpecialTokenEscaper:
    """Knows the control tokens, and edits texts that spell them.

    Control is every special token, every end of turn, and every added token that the template itself writes around a
    message (a role's header is not always marked special). Not control: the unknown token, since any rare character
    gives it, and the thinking tags, since instructions name them.

    A spelled token is broken by a space after its first character (`< |im_end|>`): the text stays readable, is
    tokenised in its context like any other, and the same text always gives the same edit. Whether an edit is needed is
    decided on ids, not on spellings, so that look-alikes which a tokenizer normalises are found too. A role header
    that a template writes in ordinary words has no token of its own and cannot be guarded.
    """

    def __init__(self, codec: TokenizerAdapter, template_ids: Iterable[int], stop_ids: Iterable[int]) -> None:
        self._codec = codec
        written = {i for i in template_ids if i in codec.spellings}
        harmless = {i for i, spelling in codec.spellings.items() if spelling in THINK_TAGS} | {codec.unk_id}
        control = ((codec.special_ids | written) - harmless) | set(stop_ids)
        self._is_control = np.zeros(max(codec.num_ids, max(control, default=0) + 1), dtype=np.bool_)
        self._is_control[sorted(control)] = True
        spelled = sorted({codec.decode([i]) for i in control} | {codec.spellings.get(i, "") for i in control}, key=len)
        self._pattern = re.compile("|".join(re.escape(text) for text in reversed(spelled) if text.strip()) or r"(?!)")

    def controls_in(self, token_ids: IntArray) -> list[int]:
        """The control ids of a sequence, in order."""
        return token_ids[self._is_control.take(token_ids)].tolist()

    def safe_text(self, text: str) -> str:
        """The text itself, or the first edit of it that gives no control token."""
        for candidate in (text, self._broken(text), self._broken(re.sub(r"[^\w\s]+", " ", text))):
            if not self.controls_in(np.array(self._codec.encode(candidate), dtype=np.int32)):
                return candidate
        return ""

    def safe_message(self, message: Message) -> Message:
        """The message of a user or a tool, with nothing in it that gives a control token."""
        tool_call_id, name = (self.safe_text(word) if word else "" for word in (message.tool_call_id, message.name))
        return Message(message.role, self.safe_text(message.text), (), tool_call_id, name)

    def _broken(self, text: str) -> str:
        # Breaking one spelling can in theory complete another; three passes, and the ids are checked anyway.
        for _ in range(3):
            text = self._pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        return text
