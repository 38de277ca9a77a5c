"""`engine.type: openai`: a model behind an OpenAI-compatible endpoint answers, in messages and texts.

In: requests that say which conversation their ids spell. Out: completions that hold the reply as the endpoint gave it;
their ids are only its spelling by the local tokenizer, with `NO_POLICY` as the version, so that nobody learns from
log-probs that are not there. It refuses to know episodes, and what a reply is for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnwise.config.kinds import EndpointSettings, OpenAiEngineParams
from turnwise.deps import EngineSite
from turnwise.engine.openai_address import Endpoint
from turnwise.engine.openai_words import Wording, read_reply, wrong_parameter
from turnwise.errors import EngineError, ModelError
from turnwise.protocols import ChatTemplate
from turnwise.types import NO_POLICY, Completion, FinishReason, GenerateRequest, IntArray, Message, Metrics


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
                    said, finish_reason = read_reply(await self._ask(line.client, request))
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
            calls = self._template.write_calls(said.tool_calls)
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
