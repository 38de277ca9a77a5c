"""A teacher for the house, behind an OpenAI-compatible endpoint: it knows which tool comes next.

A model that was never trained calls no tools, and what is never tried cannot be rewarded. So it first imitates a few
episodes of somebody who can: the same unmodified agent plays them, and only the replies come from here. Any endpoint
that calls tools can stand in its place; this one is a rule, so that the example needs no other model.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def next_reply(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that goes on with a conversation about the house."""
    heard = str(messages[-1].get("content"))
    if "The door is open." in heard:
        # Some frameworks want the end of an episode as a call.
        is_called = any(tool["function"]["name"] == "final_answer" for tool in tools)
        return _call("final_answer", answer="open") if is_called else {"role": "assistant", "content": "It is open."}
    if "You have the key." in heard:
        return _call("open_door")
    key = re.search(r"There is a key: (\w+)", heard)
    return _call("take", place=key[1]) if key else _call("look")


def _call(name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


@contextmanager
def teaching() -> Iterator[str]:
    """The teacher on a port of its own; gives its base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "teacher", "object": "model"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        choice = {"index": 0, "message": next_reply(asked["messages"], asked.get("tools", ())), "finish_reason": "stop"}
        self._send({"id": "1", "object": "chat.completion", "created": 0, "model": "teacher", "choices": [choice]})

    def _send(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: there are hundreds of requests."""
