"""A conversation becomes tokens, by a chat template that is learned once and verified.

In come messages and single texts; out come ids: of whole prompts, and of the *bridge* between a sampled reply and the
header of the next one, so that earlier ids never change. Everything is learned by rendering probe conversations with
the tokenizer at hand; no model name, no token name and no role marker is known here.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from turnwise.context.messages import short_id
from turnwise.context.template_slots import (
    ASKED,
    REPLIED,
    USER_PROBES,
    EndOfTurn,
    Frame,
    Slot,
    as_ids,
    fill,
    learn_edit,
    learn_end_of_turn,
    learn_frame,
    make_slot,
    probe_messages,
)
from turnwise.context.tokenizer import HFTokenizer, SpecialTokenEscaper, TokenizerAdapter
from turnwise.context.tool_calls import ToolsUnsupported, ToolSyntax, find_call_parser, infer_tool_syntax
from turnwise.context.tool_turns import Tools, ToolTurnEncoder
from turnwise.errors import ModelError
from turnwise.types import Completion, FinishReason, ImagePart, IntArray, Message, ToolCall, ToolSchema

_log = logging.getLogger("turnwise.context")

_REPLY_PROBES = (
    ("Right", "I go\nDown.", "Up || Left"),
    ("<answer>Right</answer>", "<answer>Down</answer>", "<answer>Up</answer>"),
    ("<think>why</think>Right", "<think>so</think>Down", "Up"),
    ("<think>\nwhy\n</think>\n\nRight", "Down", "<think>\nso\n</think>\n\nUp"),
)
_SYSTEM_PROBE = Message("system", "qzsystemqz")
_PROBE_NAME = "qznameqz"
_MAX_SLOTS = 512
"""Prompts that share their preceding messages share a slot; a window that slides makes a new one every turn."""


class HFChatTemplate:
    """Implements `protocols.ChatTemplate` over a Hugging Face tokenizer.

    `rewrites_history` is true where appending is not provably the same as rendering the whole conversation again;
    `why_cut` then says what was seen. Texts that spell control tokens are edited, see `SpecialTokenEscaper`. What the
    template makes of tools is learned when it is first asked for; `supports_tools` and `why_no_tools` say what was
    found.
    """

    def __init__(self, tokenizer: HFTokenizer, *, call_parser: str | None = None) -> None:
        """`call_parser` names how replies write tool calls; without it, the parser that reads the template's own."""
        self._codec = TokenizerAdapter(tokenizer)
        frame = learn_frame(self._codec)
        self._end = learn_end_of_turn(self._codec, frame)
        self._stop_ids = frozenset({i for i in (self._end and self._end.id, self._codec.eos_id) if i is not None})
        if not self._stop_ids:
            raise ModelError(
                "No token ends a reply: the chat template writes no token of its own after a reply, and the tokenizer "
                "has no eos token. Set eos_token in tokenizer_config.json."
            )
        self._frame_ids = self._codec.encode(frame.first + frame.reply_header + frame.between)
        self._guard = SpecialTokenEscaper(self._codec, self._frame_ids, self._stop_ids)
        self._call_parser = call_parser
        self._named_parser = find_call_parser(call_parser) if call_parser else None
        self._slots: dict[tuple[tuple[Message, ...], Tools], Slot | None] = {}
        self._seen: set[tuple[tuple[Message, ...], Tools]] = set()
        self._header = frame.next_header
        self._header_ids = self._codec.encode(frame.next_header)
        self.accepts_system = self._probe_system()
        """Whether a conversation may start with a system message."""
        self._bridge = self._learn_bridge(frame)
        self.why_cut = self._find_reason_to_cut()
        """Why every turn needs a segment of its own; empty where it does not."""
        if self.why_cut:
            _log.warning("Episodes are cut into one segment per turn: %s.", self.why_cut)

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._stop_ids

    @property
    def end_of_turn_id(self) -> int | None:
        """The token that the template writes after a reply; None where it writes only text."""
        return self._end.id if self._end else None

    @property
    def rewrites_history(self) -> bool:
        return bool(self.why_cut)

    @property
    def longest_token(self) -> int:
        return self._codec.longest_token

    @property
    def supports_tools(self) -> bool:
        """Whether the template writes tools, calls and results, and its calls can be read."""
        return isinstance(self._tool_syntax, ToolSyntax)

    @property
    def why_no_tools(self) -> str:
        """Why `supports_tools` is false; empty where it is true."""
        return (
            f"the chat template {self._tool_syntax.reason}" if isinstance(self._tool_syntax, ToolsUnsupported) else ""
        )

    # --- encoding ---------------------------------------------------------------------------------------------------

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> IntArray:
        preceding, last, given = tuple(messages[:-1]), messages[-1], tuple(tools)
        slot = self._slot_after(preceding, given) if last.role == "user" else None
        # A template may leave an empty message out altogether, so that it is no text in a slot. With tools it may look
        # for the last user message, and mistake an earlier one of the same text for it.
        if (
            slot is None
            or not isinstance(last.content, str)
            or not last.content.strip()
            or (given and last in preceding)
        ):
            return self._render_and_encode(messages, given)
        return fill(self._codec, slot, last.content)

    def encode_continuation(
        self, messages: Sequence[Message], *, reply_is_closed: bool, tools: Sequence[ToolSchema] = ()
    ) -> IntArray:
        if self._bridge is not None and not tools and not self.why_cut and _is_user_text(messages):
            token_ids = fill(self._codec, self._bridge, messages[0].text)
        else:
            token_ids = self._encode_tool_bridge(messages, tuple(tools))
        return token_ids[1:] if reply_is_closed else token_ids

    def can_extend(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> bool:
        if not tools and _is_user_text(messages):
            return not self.why_cut
        try:
            self._encode_tool_bridge(messages, tuple(tools))
        except ModelError:
            return False
        return True

    def is_closed(self, completion: Completion) -> bool:
        """Another stop token still needs the end of turn behind it; without such a token, any stop is the end."""
        if self._end is None:
            return completion.finish_reason is FinishReason.STOP
        return len(completion.token_ids) > 0 and int(completion.token_ids[-1]) == self._end.id

    def encode_text(self, text: str) -> IntArray:
        """The ids of a text at the start of a reply; control tokens may be spelled, nothing is added."""
        token_ids = self._codec.encode(self._header + text)
        start = len(self._header_ids)
        if token_ids[:start] != self._header_ids:
            # The header and the text share a token; the header is already with the engine, so the text stands alone.
            return as_ids(self._codec.encode(text))
        return as_ids(token_ids[start:])

    def decode_reply(self, token_ids: IntArray) -> str:
        ids = token_ids.tolist()
        if ids and ids[-1] in self._stop_ids:
            ids.pop()
        return self._codec.decode(ids)

    def parse_reply(self, text: str) -> Message:
        """A call that the reply gives no id gets one made from the reply, so that its result can name it."""
        syntax = self._tool_syntax
        parser = self._named_parser or (syntax.parser if isinstance(syntax, ToolSyntax) else None)
        said, calls = parser.read(text) if parser else (text, ())
        named = (replace(call, id=call.id or short_id(f"{i} {text}")) for i, call in enumerate(calls))
        return Message("assistant", said, tuple(named))

    def render_tool_calls(self, calls: Sequence[ToolCall]) -> str:
        syntax = self._tool_syntax
        if isinstance(syntax, ToolsUnsupported):
            raise ModelError(f"The model '{self._codec.model_name}' cannot use tools: {self.why_no_tools}.")
        return (self._named_parser or syntax.parser).write(calls)

    def tool_call_prefix(self, name: str = "") -> str:
        written = self.render_tool_calls([ToolCall(name or _PROBE_NAME, "{}")])
        return written[: written.rindex("{}")] if name else written[: written.index(_PROBE_NAME)]

    def _encode_tool_bridge(self, messages: Sequence[Message], tools: Tools) -> IntArray:
        """From the end of turn on, itself included."""
        reason = self._find_reason_against(messages, tools)
        token_ids = self._tool_turns.encode(messages, tools) if self._tool_turns and not reason else None
        if token_ids is None:
            raise ModelError(
                f"This chat template has no bridge: {reason or 'the messages change what comes before them'}. Expected "
                "a template that only appends. Encode the whole conversation with encode_prompt, and start a new "
                "segment for every turn."
            )
        return token_ids

    def _find_reason_against(self, messages: Sequence[Message], tools: Tools) -> str:
        """Why these messages cannot be bridged; empty where they can."""
        roles = tuple(message.role for message in messages)
        if self.why_cut and (self._tool_turns is None or "user" in roles):
            return self.why_cut
        if self._tool_turns is None:
            return self.why_no_tools
        if image := _find_image(messages):
            return f"a message holds the image {reprlib.repr(image.url)}"
        return self._tool_turns.find_reason_to_cut(roles, tools)

    def _render_and_encode(self, messages: Sequence[Message], tools: Tools = ()) -> IntArray:
        syntax = self._syntax_for(messages, tools)
        dialect = syntax.dialect if syntax else None
        return as_ids(self._codec.encode(self._codec.render(self._safe(messages, syntax), tools, dialect)))

    def _syntax_for(self, messages: Sequence[Message], tools: Tools) -> ToolSyntax | None:
        """How these messages speak of tools, None where they do not; raises where the model cannot take them."""
        if image := _find_image(messages):
            raise ModelError(
                f"The model '{self._codec.model_name}' reads text alone, and a message holds the image part "
                f"{reprlib.repr(image.url)}. Leave the image out, or describe it in words."
            )
        if not tools and not any(m.tool_calls or m.role == "tool" for m in messages):
            return None
        if isinstance(self._tool_syntax, ToolsUnsupported):
            raise ModelError(
                f"The model '{self._codec.model_name}' cannot use tools: {self.why_no_tools}. Play without tools, use "
                "a model whose chat template knows them, or name the parser of its calls (call_parser)."
            )
        return self._tool_syntax

    def _safe(self, messages: Sequence[Message], syntax: ToolSyntax | None) -> list[Message]:
        """System texts are the owner's and replies are the policy's own: only what the world says is guarded."""
        guard = syntax.guard if syntax else self._guard
        return [_spell_out(m, syntax) if m.role in ("system", "assistant") else guard.safe_message(m) for m in messages]

    def _slot_after(self, preceding: tuple[Message, ...], tools: Tools) -> Slot | None:
        """The slot behind these messages; learned when they come a second time, since most histories come once."""
        key = (preceding, tools)
        if key in self._slots:
            return self._slots[key]
        if key in self._seen:
            self._slots[key] = self._learn_prompt_slot(preceding, tools)
            return self._slots[key]
        if len(self._seen) >= _MAX_SLOTS:
            self._seen.clear()
            self._slots.clear()
        self._seen.add(key)
        return None

    # --- learning ---------------------------------------------------------------------------------------------------

    def _learn_prompt_slot(self, preceding: tuple[Message, ...], tools: Tools) -> Slot | None:
        syntax = self._syntax_for(preceding, tools)
        safe, dialect = self._safe(preceding, syntax), syntax.dialect if syntax else None
        guard = syntax.guard if syntax else self._guard

        def render(text: str) -> str:
            return self._codec.render([*safe, Message("user", text)], tools, dialect)

        pieces = render(ASKED).split(ASKED)
        if len(pieces) != 2 or (edit := learn_edit(render, pieces[0], pieces[1])) is None:
            return None
        slot = make_slot(self._codec, guard, pieces[0], pieces[1], edit)
        probes = (*USER_PROBES, ASKED)
        is_exact = all(fill(self._codec, slot, text).tolist() == self._codec.encode(render(text)) for text in probes)
        return slot if is_exact else None

    def _learn_bridge(self, frame: Frame) -> Slot | None:
        if self._end is None:
            return None
        before = frame.first + ASKED + frame.reply_header + REPLIED + frame.between

        def render(text: str) -> str:
            return self._codec.render([*probe_messages()[:2], Message("user", text)])

        edit = learn_edit(render, before, frame.next_header)
        if edit is None:
            return None
        slot = make_slot(self._codec, self._guard, self._end.text + self._end.gap, frame.next_header, edit)
        return slot if fill(self._codec, slot, ASKED)[0] == self._end.id else None

    def _probe_system(self) -> bool:
        try:
            text = self._codec.render([_SYSTEM_PROBE, Message("user", ASKED)])
        except ModelError:
            return False
        return _SYSTEM_PROBE.text in text

    @property
    def _openings(self) -> list[list[Message]]:
        return [[], [_SYSTEM_PROBE]] if self.accepts_system else [[]]

    @cached_property
    def _tool_syntax(self) -> ToolSyntax | ToolsUnsupported:
        return infer_tool_syntax(self._codec, self._end, self._frame_ids, self._stop_ids, self._call_parser)

    @cached_property
    def _tool_turns(self) -> ToolTurnEncoder | None:
        if isinstance(self._tool_syntax, ToolsUnsupported) or self._end is None or self._bridge is None:
            return None
        return ToolTurnEncoder(self._codec, self._end, self._tool_syntax, self._openings, self._bridge)

    # --- verifying --------------------------------------------------------------------------------------------------

    def _find_reason_to_cut(self) -> str:
        if self._end is None:
            return "the chat template marks the end of a reply with no token of its own"
        if self._bridge is None:
            return "the chat template edits user texts in a way that cannot be learned"
        # Thinking is not always marked by the common tags: a template that drops it names the marks it looks for.
        marked = [(f"why{mark}Right",) * 3 for mark in self._codec.template_marks if mark != self._end.text]
        for opening in self._openings:
            for replies in (*_REPLY_PROBES, *marked):
                if reason := self._compare(opening, replies, self._end, self._bridge):
                    return reason
        return ""

    def _compare(self, opening: list[Message], replies: Sequence[str], end: EndOfTurn, bridge: Slot) -> str:
        """Play a conversation by appending, and compare it with the tokenizer's own rendering after every turn."""
        messages = [*opening, Message("user", USER_PROBES[0])]
        text, token_ids = self._codec.render(messages), self.encode_prompt(messages).tolist()
        for reply, user_text in zip(replies, USER_PROBES[1:], strict=True):
            messages += [Message("assistant", reply), Message("user", user_text)]
            rendered = self._codec.render(messages)
            if not rendered.startswith(text):
                return f"the chat template writes the header of a reply differently later (seen with {reply!r})"
            text += reply + end.text
            if not rendered.startswith(text):
                return f"the chat template rewrites earlier replies once later turns exist (seen with {reply!r})"
            closed = self._codec.encode(text)
            if closed[: len(token_ids)] != token_ids:
                return f"the tokens of a reply's header depend on the reply (seen with {reply!r})"
            text, token_ids = rendered, closed + fill(self._codec, bridge, user_text).tolist()[1:]
            if self._codec.encode(text) != token_ids:
                return f"the tokens between two replies depend on what stands around them (seen with {user_text!r})"
        return ""


def _is_user_text(messages: Sequence[Message]) -> bool:
    if len(messages) != 1 or messages[0].role != "user":
        return False
    return isinstance(messages[0].content, str) or not _find_image(messages)


def _find_image(messages: Sequence[Message]) -> ImagePart | None:
    parts = (part for m in messages if not isinstance(m.content, str) for part in m.content)
    return next((part for part in parts if isinstance(part, ImagePart)), None)


def _spell_out(message: Message, syntax: ToolSyntax | None) -> Message:
    """Calls as the model writes them, where the template takes one call and the reply made several."""
    if syntax is None or syntax.takes_many_calls or len(message.tool_calls) < 2:
        return message
    written = syntax.parser.write(message.tool_calls)
    return Message(message.role, f"{message.text}\n{written}" if message.text else written)


LearnedTemplate = HFChatTemplate
"""The documented name of earlier versions, for one release."""
