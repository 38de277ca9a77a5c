"""Questions of a browser on this machine come in; the page and its answers go out. Nobody else is answered.

It listens on loopback. The address that is printed holds a random token; the browser that opens it gets a cookie, and
without cookie or token no question is answered. Requests under any other name of the host are refused, so that no page
of the internet can ask in a browser's name. The page may run its own scripts and nothing else: whatever a model has
said is text.
"""

from __future__ import annotations

import hmac
import json
import mimetypes
import secrets
import socket
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl

from turnwise.config.settings import require_package
from turnwise.errors import ConfigError, RunError, TurnwiseError, did_you_mean
from turnwise.view.answers import ANSWERS
from turnwise.view.assets import ASSETS, read_asset
from turnwise.view.shelf import Shelf

HOST = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SHUTDOWN_S = 2
"""For answers under way when the page is ended; a model that thinks is not waited for."""
_STRANGER = "This page is for the person who started it: open the address that `turnwise view` has printed.\n"


class ViewServer:
    """One page over a shelf of runs. Make it, tell its `address`, and `run` it until it is interrupted."""

    def __init__(self, shelf: Shelf, *, port: int = 0) -> None:
        self._token = secrets.token_urlsafe(24)
        uvicorn = _require("uvicorn")
        _require("starlette.applications")
        self._socket = _listen(port)
        self.port: int = self._socket.getsockname()[1]
        app = make_app(shelf, token=self._token, port=self.port)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=_SHUTDOWN_S
        )
        self._server = uvicorn.Server(config)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/?token={self._token}"

    def run(self) -> None:
        """Answer until the process is interrupted or `stop` is called."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True


def make_app(shelf: Shelf, *, token: str, port: int) -> Any:
    """The page as an ASGI application."""
    applications, routing = (_require(f"starlette.{part}") for part in ("applications", "routing"))
    door = _Door(token, port)

    def page(request: Any) -> Any:
        return door.let_in(request) or door.refusal(request) or _reply(read_asset("index.html"), "text/html")

    def asset(request: Any) -> Any:
        return door.refusal(request) or _asset(request.path_params["name"])

    def answer(request: Any) -> Any:
        words = dict(parse_qsl(request.url.query))
        return door.refusal(request) or _answer(shelf, request.path_params["name"], words)

    return applications.Starlette(
        routes=[
            routing.Route("/", page),
            routing.Route("/page/{name:path}", asset),
            routing.Route("/api/{name}", answer),
        ]
    )


class _Door:
    """Who may come in: whoever opened the printed address in a browser, or gives the token with each question."""

    def __init__(self, token: str, port: int) -> None:
        self._token = token
        self._cookie = f"turnwise_view_{port}"
        self._names = {f"{host}:{port}" for host in (HOST, "localhost")}

    def let_in(self, request: Any) -> Any | None:
        """The token in the address becomes a cookie, and leaves the address."""
        given = dict(parse_qsl(request.url.query)).get("token", "")
        if not self._is_ours(given) or request.headers.get("host", "") not in self._names:
            return None
        let_in = _require("starlette.responses").RedirectResponse("/", status_code=303, headers=_HEADERS)
        let_in.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
        return let_in

    def refusal(self, request: Any) -> Any | None:
        if request.headers.get("host", "") not in self._names:
            return _reply(_STRANGER, "text/plain", 421)
        given = _cookie(request.headers.get("cookie", ""), self._cookie) or request.headers.get("x-turnwise-token", "")
        return None if self._is_ours(given) else _reply(_STRANGER, "text/plain", 403)

    def _is_ours(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _answer(shelf: Shelf, asked: str, words: Mapping[str, str]) -> Any:
    try:
        if asked not in ANSWERS:
            raise RunError(f"there is no answer to '{asked}'. {did_you_mean(asked, ANSWERS)}")
        found, status = ANSWERS[asked](shelf, words), 200
    except TurnwiseError as error:
        found, status = {"error": str(error)}, 404
    return _reply(json.dumps(found, allow_nan=False, separators=(",", ":")), "application/json", status)


def _asset(name: str) -> Any:
    if name not in ASSETS:
        return _reply(f"there is no {name}\n", "text/plain", 404)
    return _reply(read_asset(name), mimetypes.guess_type(name)[0] or "text/plain")


def _reply(content: str, kind: str, status: int = 200) -> Any:
    return _require("starlette.responses").Response(content, status_code=status, media_type=kind, headers=_HEADERS)


def _require(module: str) -> Any:
    return require_package(module, extra="serve", asked_by="`turnwise view`")


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _listen(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        # Whoever is told the address before the server is up waits a moment instead of being refused.
        listening.listen(64)
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigError(
            f"--port: {port} given, and nothing can listen there ({error}). Leave it out for a free port."
        ) from error
    return listening
