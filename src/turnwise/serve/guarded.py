"""uvicorn's connections, with deadlines: nobody holds one without sending a head, or without taking a reply.

uvicorn ends an idle connection after its first reply alone; one that never sends a whole head, or never reads what it
asked for, it would keep for ever.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from turnwise.config.settings import require_package
from turnwise.errors import ServeError

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object

_QUIET = logging.getLogger("turnwise.serve.uvicorn")
"""What a client does wrong is told to the client, and not to whoever watches the run."""
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What a client may take."""

    max_head_bytes: int = 64 * 1024
    max_body_bytes: int = 8 * 1024 * 1024
    idle_s: float = 75.0
    """From one request to the whole head of the next."""
    transfer_s: float = 30.0
    """For a body to arrive, and for a reply to be read."""


def error_content(error: ServeError) -> dict[str, Any]:
    """In the shape that clients of OpenAI's APIs read, and of Anthropic's."""
    told = {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}
    # The outer type is where clients of Anthropic's API look.
    return {"type": "error", "error": told}


def too_long_head(limits: HttpLimits) -> ServeError:
    return ServeError(
        f"the head of the request is longer than {limits.max_head_bytes} bytes.",
        status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    )


@cache
def guarded_protocol(limits: HttpLimits, asked_by: str) -> Callable[..., Any]:
    """uvicorn's protocol class within these limits; made when it is needed, since uvicorn is an extra."""
    require_package("httptools", extra="serve", asked_by=asked_by)
    module: Any = require_package("uvicorn.protocols.http.httptools_impl", extra="serve", asked_by=asked_by)
    return type("GuardedProtocol", (_Guard, module.HttpToolsProtocol), {"limits": limits})


class _Guard(_Base):
    """Stands before uvicorn's class, which hears of everything after it."""

    limits: HttpLimits

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.logger = _QUIET
        self._is_in_head = True
        self._num_head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._set_deadline(self.limits.idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._num_head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._num_head_bytes > self.limits.max_head_bytes and not self.transport.is_closing():
            self._refuse(too_long_head(self.limits))

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._clear_deadline()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head, self._num_head_bytes = True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Where the next head is here already, its deadline is over.
        if self.cycle.response_complete and not self.transport.is_closing():
            self._set_deadline(self.limits.idle_s)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_deadline(self.limits.transfer_s)

    def resume_writing(self) -> None:
        self._clear_deadline()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ServeError("no HTTP request given; expected one such as 'GET /v1/models HTTP/1.1'."))

    def _refuse(self, error: ServeError) -> None:
        body = json.dumps(error_content(error)).encode()
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        # Whoever does not read would otherwise be waited for even while the connection closes.
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
