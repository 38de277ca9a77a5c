"""`engine.type: openai`: a model behind an OpenAI-compatible endpoint answers, in messages and texts.

In: requests that say which conversation their ids spell. Out: completions that hold the reply as the endpoint gave it;
their ids are only its spelling by the local tokenizer, with `NO_POLICY` as the version, so that nobody learns from
log-probs that are not there. It refuses to know episodes, and what a reply is for.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from turnwise.config.kinds import EndpointSettings
from turnwise.config.settings import require_package
from turnwise.deps import EngineSite
from turnwise.engine import OpenAiEngineParams
from turnwise.errors import ConfigError, ContextOverflow, EngineError, ModelError, TurnwiseError, did_you_mean
from turnwise.infra.parsing import parse_json
from turnwise.protocols import ChatTemplate
from turnwise.types import (
    NO_POLICY,
    Completion,
    FinishReason,
    GenerateRequest,
    ImagePart,
    IntArray,
    Message,
    Metrics,
    Part,
    ToolCall,
)

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


def parse_reply(answer: Any) -> tuple[Message, FinishReason]:
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


_NO_KEY = "none"
"""What is sent where there is no key: many local servers want none, and the client wants something."""
_LOOK_S = 10.0
"""Longest wait for the list of models."""


class Endpoint:
    """`where` is the section that names it, for messages."""

    def __init__(self, settings: EndpointSettings, *, where: str) -> None:
        self.settings = settings
        self.where = where
        self.openai: Any = require_package("openai", extra="openai", asked_by=f"{where}.url")
        self._key = os.environ.get(settings.api_key_env, "").strip()

    def connect(self) -> Any:
        """A client for coroutines, which sends again what an endpoint was too busy for."""
        return self.openai.AsyncOpenAI(
            base_url=self.settings.url,
            api_key=self._key or _NO_KEY,
            timeout=self.settings.timeout_s,
            max_retries=self.settings.max_retries,
        )

    def explain(self, error: Exception) -> TurnwiseError:
        return explain(error, self.openai, self.settings, where=self.where, has_key=bool(self._key))

    def find_model(self) -> str:
        """The model to ask; raises ConfigError where nobody is there, the key is refused, or there is no such model.

        So a user's mistake is told once before anything is played, and not by every episode.
        """
        offered, given, url = self._list_models(), self.settings.model, self.settings.url
        if given is None and len(offered) == 1:
            return offered[0]
        if given is None:
            told = f"it has {', '.join(offered)}" if offered else "it does not say what it has"
            raise ConfigError(f"{self.where}.model: nothing given, and at {url} {told}. Name one.")
        if offered and given not in offered:
            raise ConfigError(f"{self.where}.model: there is no '{given}' at {url}. {did_you_mean(given, offered)}")
        return given

    def _list_models(self) -> list[str]:
        """Their names; none where an endpoint does not tell, as not all do."""
        wait_s, key = min(self.settings.timeout_s, _LOOK_S), self._key or _NO_KEY
        refused = (self.openai.AuthenticationError, self.openai.PermissionDeniedError)
        with self.openai.OpenAI(base_url=self.settings.url, api_key=key, timeout=wait_s, max_retries=1) as client:
            try:
                # As it came: the client's own page of models trusts that it is one.
                answer = client.get("/models", cast_to=object)
            except (self.openai.APIConnectionError, *refused) as error:
                raise ConfigError(str(self.explain(error))) from error
            except (self.openai.OpenAIError, ValueError):
                return []
        listed = answer.get("data") if isinstance(answer, dict) else None
        names = [model.get("id") for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
        return [name for name in names if isinstance(name, str)]


@dataclass(frozen=True, slots=True)
class _Line:
    """What belongs to one event loop: connections cannot be carried to another."""

    loop: asyncio.AbstractEventLoop
    client: Any
    gate: asyncio.Semaphore


class OpenAiEngine:
    """Asks an endpoint; `where` is the section that names it, for messages."""

    Params = OpenAiEngineParams

    @classmethod
    def open(cls, settings: Any, site: EngineSite) -> OpenAiEngine:
        return cls(settings, site.template)

    def __init__(self, settings: EndpointSettings, template: ChatTemplate, *, where: str = "engine") -> None:
        """Looks whether somebody is there, takes the key and has the model; raises ConfigError where not."""
        self._settings = settings
        self._template = template
        self._where = where
        self._endpoint = Endpoint(settings, where=where)
        self._wording = Wording(model=self._endpoint.find_model())
        self._line: _Line | None = None
        self._num_asked = 0
        self._num_running = 0

    @property
    def policy_version(self) -> int:
        return NO_POLICY

    async def generate(self, request: GenerateRequest) -> Completion:
        asked = request.asked
        if asked is None:
            raise EngineError(f"{self._where}.url: an endpoint is asked in messages, and this request has ids alone.")
        line = self._open_line()
        self._num_asked += 1
        try:
            async with line.gate:
                self._num_running += 1
                try:
                    said, finish_reason = parse_reply(await self._ask(line.client, request))
                finally:
                    self._num_running -= 1
        finally:
            self._num_asked -= 1
        return self._spell(self._write(said), finish_reason, prefix=asked.prefix)

    def release(self, cache_key: str) -> None:
        """An endpoint keeps what it likes."""

    async def update_weights(self, weights: object, policy_version: int) -> None:
        raise EngineError(f"{self._where}.url: the weights behind an endpoint cannot be replaced.")

    def state(self) -> Metrics:
        return {"running": float(self._num_running), "waiting": float(self._num_asked - self._num_running)}

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None and line.loop is asyncio.get_running_loop():
            await line.client.close()

    # --- asking ------------------------------------------------------------------------------------------------------

    async def _ask(self, client: Any, request: GenerateRequest) -> Any:
        """One reply within the deadline; a parameter that this endpoint spells in another way is spelled anew."""
        openai = self._endpoint.openai
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                while True:
                    wording = self._wording
                    try:
                        return await client.chat.completions.create(**wording.write(request))
                    except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                        wrong = wrong_parameter(error)
                        if wrong not in wording.adjustable:
                            raise
                        self._wording = self._wording.without(wrong)
        except (TimeoutError, ValueError, openai.OpenAIError) as error:
            # ValueError: what calls itself JSON and is none.
            raise self._endpoint.explain(error) from error

    def _open_line(self) -> _Line:
        loop = asyncio.get_running_loop()
        if self._line is None or self._line.loop is not loop:
            gate = asyncio.Semaphore(self._settings.max_concurrent)
            self._line = _Line(loop, self._endpoint.connect(), gate)
        return self._line

    # --- what comes back ---------------------------------------------------------------------------------------------

    def _write(self, said: Message) -> str:
        """The reply as one text, with its calls as the local model would write them."""
        if not said.tool_calls:
            return said.text
        try:
            calls = self._template.render_tool_calls(said.tool_calls)
        except ModelError as error:
            raise EngineError(f"{self._where}.url: the reply calls a tool. {error}") from error
        return f"{said.text}\n{calls}" if said.text else calls

    def _spell(self, content: str, finish_reason: FinishReason, *, prefix: str) -> Completion:
        """The reply with ids of ours; a prefix that it repeats stands in front of them already."""
        ids: IntArray = self._template.encode_text(content.removeprefix(prefix.rstrip()))
        end = self._template.end_of_turn_id
        if finish_reason is FinishReason.STOP and end is not None:
            ids = np.append(ids, end)
        return Completion(
            token_ids=ids.astype(np.int32),
            behavior_logprobs=np.zeros(len(ids), dtype=np.float32),
            finish_reason=finish_reason,
            policy_version=NO_POLICY,
            text=content,
        )
