"""The words of OpenAI's chat API as a client speaks them: requests become parameters, and answers become text.

What an endpoint refuses becomes a sentence with the setting to change. It refuses to know connections and retries;
nothing here is an answer's word alone: what is missing or too long is an EngineError.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from turnwise.config.kinds import EndpointSettings
from turnwise.errors import ContextOverflow, EngineError, TurnwiseError
from turnwise.infra.parsing import parse_json
from turnwise.types import FinishReason, GenerateRequest, ImagePart, Message, Part, ToolCall

_MAX_CHARACTERS = 1_000_000
"""Of a reply: more is no reply to what was asked."""
_MAX_SHOWN = 300
"""Characters of what an endpoint says against a request."""
_SEED_RANGE = 2**31


@dataclass(frozen=True, slots=True)
class Wording:
    """How this endpoint is asked: endpoints agree on most parameters."""

    model: str
    length: str = "max_tokens"
    """What the length of a reply is called; newer models of OpenAI's know another name."""
    has_seed: bool = True

    @property
    def adjustable(self) -> tuple[str, ...]:
        """Parameters that can be said in another way, or left out without changing what is asked for."""
        return (*(["max_tokens"] if self.length == "max_tokens" else []), *(["seed"] if self.has_seed else []))

    def without(self, parameter: str) -> Wording:
        if parameter == "seed":
            return replace(self, has_seed=False)
        return replace(self, length="max_completion_tokens")

    def write(self, request: GenerateRequest) -> dict[str, Any]:
        """The parameters of a call; what asks for nothing is left out."""
        sampling, asked = request.sampling, request.asked
        assert asked is not None
        if sampling.top_k:
            raise EngineError(f"top_k = {sampling.top_k} asked for; OpenAI's API has no such parameter.")
        return {
            "model": self.model,
            "messages": [_write(message) for message in asked.messages],
            "temperature": sampling.temperature,
            self.length: sampling.max_new_tokens,
            **({"tools": [tool.to_mapping() for tool in asked.tools]} if asked.tools else {}),
            **({"top_p": sampling.top_p} if sampling.top_p < 1 else {}),
            **({"seed": request.seed % _SEED_RANGE} if self.has_seed else {}),
        }


def read_reply(answer: Any) -> tuple[Message, FinishReason]:
    """What the first choice says and calls, and why it ended; whatever else came is refused."""
    try:
        choice = answer.choices[0]
        content, reason = choice.message.content, choice.finish_reason
        calls = tuple(_read_call(call) for call in getattr(choice.message, "tool_calls", None) or ())
    except (AttributeError, IndexError, TypeError) as error:
        raise EngineError(f"the endpoint's answer has no reply in it: {str(answer)[:_MAX_SHOWN]!r}.") from error
    if content is None:
        # A refusal, or nothing at all: the model said nothing that could be acted on.
        content = ""
    if not isinstance(content, str) or len(content) > _MAX_CHARACTERS:
        length = len(content) if isinstance(content, str) else 0
        raise EngineError(
            f"the endpoint's reply is a {type(content).__name__} of length {length}; expected a text of at most "
            f"{_MAX_CHARACTERS:,} characters."
        )
    said = Message("assistant", content.encode("utf-8", "replace").decode(), calls)
    return said, FinishReason.LENGTH if reason == "length" else FinishReason.STOP


def _read_call(given: Any) -> ToolCall:
    name, arguments = given.function.name, given.function.arguments
    try:
        read = parse_json(arguments)
        written = json.dumps(read, ensure_ascii=False, allow_nan=False)
        # Half a character can be spelled in JSON, and no tokenizer takes it.
        size = len((name + written).encode())
        is_call = bool(name) and isinstance(read, dict) and size <= _MAX_CHARACTERS
    except (TypeError, ValueError, RecursionError):
        is_call, written = False, ""
    if not is_call:
        raise EngineError(
            f"the endpoint's reply calls {str(name)[:_MAX_SHOWN]!r} with {str(arguments)[:_MAX_SHOWN]!r}; expected the "
            "name of a tool and a JSON object."
        )
    return ToolCall(name, written)


def wrong_parameter(error: Any) -> str:
    """The parameter that an endpoint does not take, where it says which; otherwise nothing."""
    param = getattr(error, "param", None)
    if isinstance(param, str) and param:
        return param
    # Servers that check bodies by a schema name the field in their text alone.
    found = re.search(r"\b(max_tokens|seed)\b", str(getattr(error, "message", "")))
    return found[1] if found else ""


def explain(
    error: Exception, openai: ModuleType, settings: EndpointSettings, *, where: str, has_key: bool
) -> TurnwiseError:
    """What went wrong, in a sentence with the setting to change."""
    url, said = settings.url, str(getattr(error, "message", error))[:_MAX_SHOWN]
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return EngineError(
            f"{where}.timeout_s: {url} gave no reply within {settings.timeout_s:g} seconds. Raise it, or lower "
            f"{where}.max_concurrent."
        )
    if isinstance(error, openai.APIConnectionError):
        why = error.__cause__ or error
        return EngineError(f"{where}.url: nobody answers at {url} ({why}). Start the server, or check the address.")
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        key = settings.api_key_env
        wants = f"refuses the key in {key}" if has_key else f"wants a key, and {key} is not set"
        return EngineError(
            f"{where}.api_key_env: {url} {wants} ({_status(error)}). Export the key as {key}, or name another variable."
        )
    if isinstance(error, openai.NotFoundError):
        return EngineError(
            f"{where}.model: {url} knows no model '{settings.model}', or has no chat completions there (404: {said})."
        )
    if getattr(error, "code", None) == "context_length_exceeded":
        return ContextOverflow(f"{url} refuses a conversation that is too long for its model: {said}")
    if isinstance(error, openai.RateLimitError):
        return EngineError(
            f"{where}.max_concurrent: {url} refuses so many requests (429) after {settings.max_retries} further "
            f"attempts: {said}. Lower it, or raise {where}.max_retries."
        )
    if isinstance(error, openai.APIStatusError):
        return EngineError(f"{where}.url: {url} answers {_status(error)}: {said}")
    return EngineError(f"{where}.url: the answer of {url} cannot be read: {said}")


def _status(error: Any) -> int:
    return error.status_code


def _write(message: Message) -> dict[str, Any]:
    content: object = message.content if isinstance(message.content, str) else [_write_part(p) for p in message.content]
    written: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        written["content"] = content or None
        written["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        written["tool_call_id"] = message.tool_call_id
    return written


def _write_part(part: Part) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": part.url}}
    return {"type": "text", "text": part.text}
