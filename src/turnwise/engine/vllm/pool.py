"""The servers of an engine: which of them are up, who is asked next, and what becomes of one that is gone.

A conversation stays with the server that has its prefix; a new one goes to the least loaded. A server that is gone is
started again if it is ours, and serves again once it has the newest weights; meanwhile the others do its work.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from turnwise.engine.vllm.client import ServerClient
from turnwise.engine.vllm.process import ServerProcess
from turnwise.errors import EngineError, TurnwiseError

log = logging.getLogger(__name__)

_POLL_S = 0.25
_TELL_S = 30.0
"""How often a long start is told of."""
_MAX_VAIN_LIVES = 4
"""In a row, of one server: what has died so often before its first answer will not serve. More than one request has
tries, so that one that kills servers does not end them all."""


@dataclass(slots=True, eq=False)
class Server:
    """One server, as far as it is known here."""

    number: int
    client: ServerClient
    process: ServerProcess | None = None
    """None where somebody else has started it."""
    is_up: bool = False
    num_running: int = 0
    version: int | None = None
    """Of its weights in this life, as far as they came from here."""
    needs_start: bool = False
    num_starts: int = 0
    num_losses: int = 0
    """By which one who asked it knows whether it is still in the same life."""
    num_vain_lives: int = 0
    """In a row, that ended before an answer."""
    has_answered: bool = False
    """In this life."""
    failure: str = ""
    """Why it is given up."""
    raising: asyncio.Task[None] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"vLLM server {self.number} ({self.client.url})"


class ServerPool:
    """Waits for servers only where none is up; `prepare` gives one that is healthy what it must have before it serves.

    Owns: one task for each server that is on its way up. Every such task ends within `start_timeout_s`.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        prepare: Callable[[Server], Awaitable[None]],
        new_client: Callable[[str, str], ServerClient],
        start_timeout_s: float,
    ) -> None:
        """`new_client` connects to an address with a key: one that is started again has another address."""
        self.servers = servers
        self._prepare = prepare
        self._new_client = new_client
        self._start_timeout_s = start_timeout_s
        self._homes: dict[str, Server] = {}
        self._has_settled = False

    @property
    def up(self) -> list[Server]:
        return [server for server in self.servers if server.is_up]

    @property
    def num_homes(self) -> int:
        return len(self._homes)

    async def choose(self, key: str | None) -> Server:
        """The server for a request of the conversation `key`; an EngineError where none will ever be up."""
        await self.be_ready()
        home = self._homes.get(key) if key is not None else None
        if home is None or not home.is_up:
            home = min(self.up, key=lambda server: (server.num_running, self._num_guests(server), server.number))
            if key is not None:
                self._homes[key] = home
        return home

    def release(self, key: str) -> None:
        self._homes.pop(key, None)

    def lose(self, server: Server, why: Exception) -> None:
        """It does not answer: nobody is sent there until it is back, and never where it dies before every answer."""
        if not server.is_up:
            return
        log.warning("%s is gone: %s", server, why)
        server.is_up = False
        # Also where somebody else starts it again: it then has the weights of its model folder.
        server.version = None
        server.num_losses += 1
        server.needs_start = server.process is not None
        server.num_vain_lives = 0 if server.has_answered else server.num_vain_lives + 1
        server.has_answered = False
        if server.num_vain_lives == _MAX_VAIN_LIVES:
            self._give_up(
                server,
                f"{server} came up {_MAX_VAIN_LIVES} times and was gone each time before it had answered a request. "
                f"{self._where_to_look(server)} Its last error: {self._last_error(server) or why}",
            )

    def _give_up(self, server: Server, why: str) -> None:
        server.failure = why
        log.warning("given up: %s", why)

    async def be_ready(self) -> None:
        """Return when a server is up, the first time when all are; the others come back meanwhile."""
        if not self._has_settled:
            # Or all conversations would live on the first one that is up.
            await self.settle()
        self._raise_all()
        while not self.up:
            await self._wait_for_any()

    async def settle(self) -> None:
        """Wait until every server is up or given up; an EngineError where none is up."""
        self._raise_all()
        await asyncio.gather(*self._on_their_way())
        self._has_settled = True
        if not self.up:
            raise EngineError(self._describe_failures())

    def _num_guests(self, server: Server) -> int:
        return sum(home is server for home in self._homes.values())

    def _raise_all(self) -> None:
        for server in self.servers:
            if not server.is_up and not server.failure and (server.raising is None or server.raising.done()):
                server.raising = asyncio.create_task(self._raise(server))

    async def _wait_for_any(self) -> None:
        self._raise_all()
        waiting = self._on_their_way()
        if not waiting:
            raise EngineError(self._describe_failures())
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def _on_their_way(self) -> list[asyncio.Task[None]]:
        raising = [server.raising for server in self.servers if server.raising is not None]
        return [task for task in raising if not task.done()]

    async def _raise(self, server: Server) -> None:
        try:
            if server.process is not None and server.needs_start:
                # Stopping what is left of it may take a while.
                await asyncio.to_thread(server.process.stop)
                server.client = self._new_client(server.process.start(), server.process.api_key)
                server.needs_start = False
                server.num_starts += 1
            await self._wait_until_healthy(server)
            await self._prepare(server)
        except TurnwiseError as error:
            self._give_up(server, str(error))
        except (OSError, subprocess.SubprocessError) as error:
            # Or it would be tried again at once, and for ever.
            self._give_up(server, f"{server} cannot be started again: {error}")
        else:
            server.is_up = True

    async def _wait_until_healthy(self, server: Server) -> None:
        started_s, told_s = time.monotonic(), 0.0
        while not await server.client.is_healthy():
            waited_s = time.monotonic() - started_s
            if server.process is not None and not server.process.is_running:
                raise EngineError(f"{server} did not start: {server.process.describe_end()}")
            if waited_s > self._start_timeout_s:
                raise EngineError(
                    f"{server} has not answered for {waited_s:.0f} s, and engine.start_timeout_s is "
                    f"{self._start_timeout_s:g}. {self._where_to_look(server)}"
                )
            if waited_s - told_s >= _TELL_S:
                told_s = waited_s
                log.warning("waiting for %s for %.0f s. %s", server, waited_s, self._where_to_look(server))
            await asyncio.sleep(_POLL_S)

    def _last_error(self, server: Server) -> str:
        return server.process.last_error() if server.process is not None else ""

    def _where_to_look(self, server: Server) -> str:
        if server.process is not None:
            return f"Its log is {server.process.log}."
        return "Is it running, and is the address in engine.urls right?"

    def _describe_failures(self) -> str:
        return "no vLLM server is left: " + "; ".join(server.failure for server in self.servers)
