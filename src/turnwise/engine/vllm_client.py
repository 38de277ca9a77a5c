"""One vLLM server over HTTP: tokens in, tokens and log-probs out, and the calls around a change of weights.

It knows the words of vLLM's interface and nothing else: not which server to ask, not what to do when one is gone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnwise.config.settings import require_package
from turnwise.errors import EngineError
from turnwise.types import IMPOSSIBLE_LOGPROB, Alternatives, FloatArray, GenerateRequest, IntArray

_CONNECT_S = 10.0
_HEALTH_S = 5.0
_MAX_SEED = 2**63 - 1
_ABORTED = "abort"


class ServerUnavailableError(EngineError):
    """A server cannot be reached, or says that it is ill: another one may do what was asked."""


class ServerRequestError(EngineError):
    """A healthy server does not do what it is asked, and no other would."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """What a server says to one request."""

    token_ids: IntArray
    logprobs: FloatArray
    alternatives: Alternatives | None
    is_stopped: bool
    """Whether a stop token ended it."""
    is_aborted: bool
    """Whether it was broken off by a change of weights."""
    versions: tuple[str, ...]
    """Of the weights that sampled it, as the server names them."""


class ServerClient:
    """Connections are those of the event loop that asks; an engine may outlive several."""

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._httpx = require_package("httpx", extra="vllm", asked_by="engine.type 'vllm'")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: Any = None

    # --- tokens --------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest, stop_ids: Iterable[int]) -> Reply:
        sampling = request.sampling
        params = {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "seed": request.seed & _MAX_SEED,
            # The template says what ends a reply, and nothing else does.
            "stop_token_ids": sorted(stop_ids),
            "ignore_eos": True,
            "detokenize": False,
            # One more than is asked for: the token that was sampled takes a place of its own.
            "logprobs": request.alternatives + 1 if request.alternatives else 0,
        }
        answer = await self._post("/inference/v1/generate", _asked(request.prompt_ids, params))
        choice = answer["choices"][0]
        ids = np.asarray(choice["token_ids"], dtype=np.int32)
        entries = (choice["logprobs"] or {}).get("content") or ()
        logprobs = [entry["logprob"] for entry in entries]
        if sampling.temperature == 0:
            # One token was possible at each place.
            logprobs = [0.0] * len(ids)
        return Reply(
            token_ids=ids,
            logprobs=np.asarray(logprobs, dtype=np.float32),
            alternatives=_read_alternatives(entries, request.alternatives),
            is_stopped=choice["finish_reason"] == "stop",
            is_aborted=choice["finish_reason"] == _ABORTED,
            versions=tuple(str(span["version"]) for span in choice["weight_versions"] or ()),
        )

    async def score(self, token_ids: IntArray) -> FloatArray:
        """The log-probability of each token after the first, given those before it, at temperature 1."""
        params = {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False, "ignore_eos": True}
        answer = await self._post("/inference/v1/generate", _asked(token_ids, params))
        places: Sequence[Mapping[str, Any]] = answer["prompt_logprobs"][1:]
        pairs = zip(token_ids[1:].tolist(), places, strict=True)
        return np.asarray([place[str(token)]["logprob"] for token, place in pairs], dtype=np.float32)

    # --- weights -------------------------------------------------------------------------------------------------

    async def pause(self, mode: str) -> None:
        await self._post(f"/pause?mode={mode}")

    async def resume(self) -> None:
        await self._post("/resume")

    async def reset_prefix_cache(self) -> None:
        """Running requests compute theirs anew; a pause that keeps them also keeps what old weights computed."""
        await self._post("/reset_prefix_cache?reset_running_requests=true")

    async def init_transfer(self, info: Mapping[str, Any]) -> None:
        await self._post("/init_weight_transfer_engine", {"init_info": dict(info)})

    async def start_update(self) -> None:
        await self._post("/start_weight_update")

    async def update(self, info: Mapping[str, Any]) -> None:
        """A part of the weights; what `info` says is the transfer backend's own."""
        await self._post("/update_weights", {"update_info": dict(info)})

    async def finish_update(self, version: int) -> None:
        await self._post("/finish_weight_update", {"weight_version": str(version)})

    async def set_version(self, version: int) -> None:
        await self._post("/update_weight_version", {"new_version": str(version)})

    async def num_workers(self) -> int:
        return int((await self._answer("GET", "/get_world_size"))["world_size"])

    # --- itself --------------------------------------------------------------------------------------------------

    async def is_healthy(self) -> bool:
        try:
            answer = await self._open().get("/health", timeout=_HEALTH_S)
        except self._httpx.HTTPError:
            return False
        return answer.status_code == 200

    async def close(self) -> None:
        if self._connections is not None and self._loop is asyncio.get_running_loop():
            await self._connections.aclose()
        self._connections = None

    def _open(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._connections is None or self._loop is not loop:
            self._loop = loop
            self._connections = self._httpx.AsyncClient(
                base_url=self.url,
                headers=self._headers,
                timeout=self._httpx.Timeout(self._timeout_s, connect=_CONNECT_S),
                limits=self._httpx.Limits(max_connections=None, max_keepalive_connections=None),
                # A proxy of the environment is for the world outside.
                trust_env=False,
            )
        return self._connections

    async def _post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return await self._answer("POST", path, {} if body is None else body)

    async def _answer(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            answer = await self._open().request(method, path, json=body)
        except self._httpx.ReadTimeout as error:
            raise EngineError(
                f"{self.url}{path} did not answer within engine.request_timeout_s = {self._timeout_s:g}."
            ) from error
        except self._httpx.HTTPError as error:
            raise ServerUnavailableError(
                f"{self.url}{path} cannot be reached: {type(error).__name__} {error}".rstrip()
            ) from error
        if answer.status_code == 200:
            return answer.json()
        told = f"{self.url}{path} says {answer.status_code}: {answer.text[:500]}"
        if answer.status_code >= 500 and not await self.is_healthy():
            raise ServerUnavailableError(told)
        raise ServerRequestError(told)


def _asked(token_ids: IntArray, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"token_ids": token_ids.tolist(), "sampling_params": dict(params)}


def _read_alternatives(entries: Sequence[Mapping[str, Any]], num: int) -> Alternatives | None:
    """The likeliest at each place: the server puts the sampled one first, wherever it belongs."""
    if num == 0:
        return None
    places = []
    for entry in entries:
        told = sorted(entry["top_logprobs"], key=lambda one: -one["logprob"])[:num]
        logprobs = [one["logprob"] if one["logprob"] > IMPOSSIBLE_LOGPROB else -math.inf for one in told]
        places.append(([one["token_id"] for one in told], logprobs))
    return Alternatives.of(places)
