"""OpenAI-compatible endpoints as tests want them: what they are asked is written down, what they say is the test's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Answer: TypeAlias = tuple[int, object] | tuple[int, object, dict[str, str]]
"""Status, body (JSON, or bytes as they are) and headers."""
AT_ONCE = {"retry-after-ms": "1"}
"""What a client waits before it asks again."""


def said(text: object, finish_reason: str = "stop") -> Answer:
    """A reply as endpoints give one."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish_reason,
        "logprobs": None,
    }
    return 200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def refusal(status: int, message: str = "no", **words: str) -> Answer:
    return status, {"error": {"message": message, "type": "error", "code": None, "param": None, **words}}, AT_ONCE


@dataclass
class FakeEndpoint:
    """`answer` is asked for every chat; `models` are listed, None: it does not list them."""

    answer: Callable[[dict[str, Any]], Answer]
    models: list[str] | None = field(default_factory=lambda: ["m"])
    listing: Answer | None = None
    """Instead of the models."""
    chats: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    url: str = ""

    def reply(self, path: str, body: bytes) -> Answer:
        if path.endswith("/models"):
            if self.listing is not None:
                return self.listing
            if self.models is None:
                return refusal(404)
            return 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
        chat = json.loads(body)
        self.chats.append(chat)
        return self.answer(chat)


@contextmanager
def serving(endpoint: FakeEndpoint) -> Iterator[FakeEndpoint]:
    """The endpoint on a port of its own, in threads of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["content-length"])))

        def _answer(self, body: bytes) -> None:
            endpoint.keys.append(self.headers.get("authorization", ""))
            status, content, *more = endpoint.reply(self.path, body)
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            try:
                self.send_response(status)
                for name, value in {"content-type": "application/json", **(more[0] if more else {})}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)
            except OSError:
                # Whoever asked did not wait.
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
