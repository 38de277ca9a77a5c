"""`engine.type: vllm`: requests are spread over vLLM servers, and new weights reach all of them.

In: requests, whenever they come. Out: completions, with the version of the weights that the server itself names. A
request whose server dies, or was started anew by somebody else, is asked again of another one. It loads no model and
knows nothing of text.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from turnwise.deps import EngineSite
from turnwise.engine import VllmEngineParams
from turnwise.engine.vllm_client import Reply, ServerClient, ServerRequestError, ServerUnavailableError
from turnwise.engine.vllm_servers import LaunchConfig, Server, ServerPool, ServerProcess
from turnwise.engine.vllm_transfer import SharedMemoryTransfer, Transfer, VllmTransfer
from turnwise.errors import EngineError, SyncError
from turnwise.infra.digests import complete
from turnwise.models.load import torch_dtype
from turnwise.protocols import Weights
from turnwise.types import Completion, FinishReason, FloatArray, GenerateRequest, IntArray, Metrics

_MAX_TRIES = 3
"""Of one request, where servers die under it."""
_MAX_ABORTS = 8
"""Of one request: weights change faster than it is answered, or something else aborts requests."""
_RESUME_S = 10.0
"""Longest wait for servers to go on after a sync that failed."""


class VllmEngine:
    """A client of servers; see the module's text.

    Consumes: requests and weights. Produces: completions. Waits for: servers, each within a deadline of the settings.
    """

    Params = VllmEngineParams
    samples_in_place: ClassVar[bool] = False

    @classmethod
    def open(cls, settings: Any, site: EngineSite) -> VllmEngine:
        """Servers are started here and waited for when they are first needed, so that both sides load at once."""
        return cls(settings, site)

    def __init__(self, settings: VllmEngineParams, site: EngineSite) -> None:
        self._settings = settings
        self._stop_ids = site.template.stop_ids
        self._policy_version = self._newest_version = self._first_version = site.policy_version
        self._has_sent = False
        """Whether `_newest_version` is of weights that were sent, and not of those that servers were started with."""
        self._transfer = _open_transfer(settings, site)
        self._pool = ServerPool(
            self._make_servers(site),
            prepare=self._prepare,
            new_client=self._new_client,
            start_timeout_s=settings.start_timeout_s,
        )
        # Whoever forgets to close it, or is interrupted, leaves no servers behind.
        processes = [server.process for server in self._pool.servers if server.process is not None]
        self._stop_servers = weakref.finalize(self, _stop_all, processes)

    @property
    def policy_version(self) -> int:
        return self._policy_version

    def state(self) -> Metrics:
        servers = self._pool.servers
        return {
            "running": float(sum(server.num_running for server in servers)),
            "waiting": 0.0,
            "servers_up": float(len(self._pool.up)),
            "restarts": float(sum(max(server.num_starts - 1, 0) for server in servers)),
            "kept_rows": float(self._pool.num_homes),
        }

    async def close(self) -> None:
        for server in self._pool.servers:
            if server.raising is not None and not server.raising.done():
                server.raising.cancel()
                await asyncio.gather(server.raising, return_exceptions=True)
            await server.client.close()
        self._transfer.close()
        await asyncio.to_thread(self._stop_servers)

    # --- tokens --------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> Completion:
        if len(request.prompt_ids) == 0:
            raise EngineError("a request needs at least one prompt token")
        num_tries, num_aborts = 0, 0
        while num_aborts < _MAX_ABORTS:
            server = await self._pool.choose(request.cache_key)
            given, num_losses = server.version, server.num_losses
            server.num_running += 1
            try:
                reply = await server.client.generate(request, self._stop_ids)
                self._check_version(server, reply, given)
            except ServerUnavailableError as error:
                # Requests that it took before it was lost must not lose it again.
                if server.num_losses == num_losses:
                    self._pool.lose(server, error)
                num_tries += 1
                if num_tries == _MAX_TRIES:
                    raise EngineError(f"{num_tries} servers died under one request; the last: {error}") from error
                continue
            finally:
                server.num_running -= 1
            server.has_answered = True
            if not reply.is_aborted:
                return self._complete(request, reply)
            num_aborts += 1
        raise EngineError(
            f"vLLM aborted one request {num_aborts} times: weights change faster than it is answered, or another "
            f"program aborts requests. engine.in_flight is '{self._settings.in_flight}'; with wait and keep, a change "
            "of weights aborts none."
        )

    def release(self, cache_key: str) -> None:
        self._pool.release(cache_key)

    async def score(self, token_ids: IntArray) -> list[FloatArray]:
        """How likely each server finds each token after the first, at temperature 1."""
        while True:
            await self._pool.be_ready()
            servers = self._pool.up
            answers = await asyncio.gather(
                *(server.client.score(token_ids) for server in servers), return_exceptions=True
            )
            for server, answer in zip(servers, answers, strict=True):
                self._judge(server, answer if isinstance(answer, BaseException) else None)
            if scores := [answer for answer in answers if not isinstance(answer, BaseException)]:
                return scores

    def _check_version(self, server: Server, reply: Reply, given: int | None) -> None:
        """One that somebody has started again has the weights of its model folder, and no number for them.

        Another number than `given` is no lie: others may have come meanwhile, also from another process of the run.
        """
        if given is None or reply.is_aborted:
            return
        if not reply.versions or not all(name.isdecimal() for name in reply.versions):
            raise ServerUnavailableError(
                f"{server.client.url} was given the weights of version {given} and answers with those of version "
                f"'{', '.join(reply.versions)}': it was started again."
            )

    def _complete(self, request: GenerateRequest, reply: Reply) -> Completion:
        # The oldest, where a reply went on over a change of weights; "default" before a server was told a version.
        versions = [int(name) if name.isdecimal() else self._first_version for name in reply.versions]
        reason = FinishReason.STOP if reply.is_stopped else FinishReason.LENGTH
        version = min(versions, default=self._first_version)
        return complete(
            "vllm",
            request,
            reply.token_ids,
            reply.logprobs,
            reason,
            policy_version=version,
            alternatives=reply.alternatives,
        )

    # --- weights -------------------------------------------------------------------------------------------------

    async def update_weights(self, weights: Weights, policy_version: int) -> None:
        """Pause all servers, bring them the weights, let them go on; one that is gone gets them when it is back.

        A server that refuses them ends the run: what it would sample is not the policy. Where the sync fails or is
        cancelled, no server stays paused, and `policy_version` is that of the last sync that was right.
        """
        await self._be_ready()
        await self._transfer.prepare(weights)
        # In one step with the weights: a server that is on its way back takes both from here.
        self._newest_version, self._has_sent = policy_version, True
        paused = self._pool.up
        try:
            servers = await self._each(paused, lambda server: server.client.pause(self._settings.in_flight))
            failures = await self._transfer.send([server.client for server in servers], weights, policy_version)
            await self._each(self._take_over(servers, failures, policy_version), self._resume)
        except BaseException:
            await self._resume_anyway(paused)
            raise
        await self._be_ready()
        self._policy_version = policy_version

    def _take_over(
        self, servers: Sequence[Server], failures: Sequence[BaseException | None], version: int
    ) -> list[Server]:
        """Those that have the weights. One that refuses them may have parts of them, and is asked for nothing more."""
        for server, failure in zip(servers, failures, strict=True):
            if failure is None:
                server.version = version
            elif isinstance(failure, EngineError):
                self._pool.lose(server, failure)
        for server, failure in zip(servers, failures, strict=True):
            self._judge(server, failure)
        return [server for server in servers if server.is_up]

    async def _resume(self, server: Server) -> None:
        try:
            if self._settings.in_flight == "keep":
                await server.client.reset_prefix_cache()
        finally:
            await server.client.resume()

    async def _resume_anyway(self, servers: Sequence[Server]) -> None:
        """After a failure, which is what is reported: servers of `engine.urls` also serve others."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_RESUME_S):
                await asyncio.gather(*map(self._resume, servers), return_exceptions=True)

    async def _be_ready(self) -> None:
        try:
            await self._pool.be_ready()
        except EngineError as error:
            raise SyncError(str(error)) from error

    async def _each(self, servers: Sequence[Server], ask: Any) -> list[Server]:
        """Ask all of them at once; returns those that are still there."""
        answers = await asyncio.gather(*map(ask, servers), return_exceptions=True)
        for server, answer in zip(servers, answers, strict=True):
            self._judge(server, answer)
        return [server for server in servers if server.is_up]

    def _judge(self, server: Server, failure: BaseException | None) -> None:
        if isinstance(failure, ServerUnavailableError):
            self._pool.lose(server, failure)
        elif isinstance(failure, EngineError):
            raise SyncError(
                f"{server} did not take the weights of version {self._newest_version}: {failure} A server of your own "
                f"needs VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config "
                f'\'{{"backend": "{self._settings.transfer}"}}\' (docs/vllm.md).'
            ) from failure
        elif failure is not None:
            raise failure

    # --- servers -------------------------------------------------------------------------------------------------

    async def _prepare(self, server: Server) -> None:
        """What a healthy server must have before it serves: the newest weights, and their number."""
        await self._transfer.greet(server.client)
        if not self._has_sent and server.process is not None:
            await server.client.set_version(self._newest_version)
        # Looked at again: the first weights may have been sent to the others meanwhile.
        if self._has_sent and not self._transfer.can_repeat:
            raise EngineError(
                f"{server} is back, and engine.transfer '{self._settings.transfer}' cannot send it weights"
            )
        while self._has_sent and server.version != self._newest_version:
            await self._catch_up(server)

    async def _catch_up(self, server: Server) -> None:
        version = self._newest_version
        try:
            # It may have been there all the time: at work, with prefixes of other weights, or still paused.
            await server.client.pause(self._settings.in_flight)
            await self._transfer.repeat(server.client, version)
        except BaseException as error:
            # Newer weights may have taken the place of these while they were on their way.
            if isinstance(error, ServerRequestError) and version != self._newest_version:
                return
            await self._resume_anyway([server])
            raise
        await self._resume(server)
        server.version = version

    def _make_servers(self, site: EngineSite) -> list[Server]:
        settings = self._settings
        if not settings.start:
            key = os.environ.get("VLLM_API_KEY")
            return [Server(number, self._new_client(url, key)) for number, url in enumerate(settings.urls)]
        folder = site.run_path / "engine" if site.run_path else Path(tempfile.mkdtemp(prefix="turnwise-vllm-"))
        servers = []
        for number in range(settings.servers):
            process = ServerProcess(LaunchConfig.of(settings, site, number, folder))
            servers.append(Server(number, self._new_client(process.start(), process.api_key), process, num_starts=1))
        return servers

    def _new_client(self, url: str, api_key: str | None) -> ServerClient:
        return ServerClient(url, api_key=api_key, timeout_s=self._settings.request_timeout_s)


def _open_transfer(settings: VllmEngineParams, site: EngineSite) -> Transfer:
    if settings.transfer == "shared_memory":
        return SharedMemoryTransfer(torch_dtype(site.dtype))
    return VllmTransfer()


def _stop_all(processes: Sequence[ServerProcess]) -> None:
    for process in processes:
        process.stop()
