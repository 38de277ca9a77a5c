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
from collections.abc import Callable, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qsl

from turnwise.config.settings import require_package
from turnwise.errors import ConfigError, RunError, TurnwiseError, did_you_mean
from turnwise.view.episode_index import EpisodeFilter, EpisodeIndex, Order, parse_int
from turnwise.view.episodes import TokenTexts, describe_episode, describe_plays
from turnwise.view.policy_query import (
    PolicyBackend,
    StepCredit,
    compute_credit,
    describe_credit,
    find_policies,
    query_policy,
)
from turnwise.view.run_files import RunFiles, setting
from turnwise.view.status import describe_status, with_last_evaluation

SCRIPTS = (
    "dom.js",
    "api.js",
    "colours.js",
    "calls.js",
    "shop.js",
    "household.js",
    "worlds.js",
    "charts.js",
    "runs.js",
    "curves.js",
    "episodes.js",
    "tokens.js",
    "policy.js",
    "episode.js",
    "task.js",
    "system.js",
    "main.js",
)
"""In an order in which each needs only those before it."""
STYLES = ("vendor/uPlot.min.css", "page.css")
CHARTS = "vendor/uPlot.iife.min.js"
ASSETS = frozenset((*SCRIPTS, *STYLES, CHARTS))


def read_asset(name: str) -> str:
    return files("turnwise.view").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


Words = Mapping[str, str]


def runs(shelf: RunCollection, words: Words) -> dict[str, Any]:
    """The table of runs."""
    return {"runs": [run.describe() for run in shelf.runs()]}


def changes(shelf: RunCollection, words: Words) -> dict[str, Any]:
    """A short text per run that differs whenever something has been written: what to look at again."""
    return {"runs": {run.name: _fingerprint(run) for run in shelf.runs()}}


def metrics(shelf: RunCollection, words: Words) -> dict[str, Any]:
    """The columns that are asked for, as `names=a,b`, over the steps of a run; and its findings."""
    run = _run(shelf, words)
    names = [name for name in words.get("names", "").split(",") if name]
    rows = with_last_evaluation(run.files.metrics, run.files.summary)
    return {
        "steps": [row.get("step") for row in rows],
        "time_s": [row.get("time_s") for row in rows],
        "columns": {name: [row.get(name) for row in rows] for name in names},
        "findings": run.files.findings,
    }


def status(shelf: RunCollection, words: Words) -> dict[str, Any]:
    """How a run stands. Before its first checkpoint, failures are those of the episodes that were kept."""
    run = _run(shelf, words)
    found = describe_status(run.files)
    if not found["failures"]:
        run.refresh_episodes()
        found["failures"] = run.episodes.failures()
    return found


def episodes(shelf: RunCollection, words: Words) -> dict[str, Any]:
    """A page of episodes."""
    run = _run(shelf, words)
    run.refresh_episodes()
    found = run.episodes.find(EpisodeFilter.parse(words), Order.parse(words))
    return {**found, "facets": run.episodes.facets(), "num_files_left": run.episodes.num_files_left}


def episode(shelf: RunCollection, words: Words) -> dict[str, Any]:
    """One episode with its tokens."""
    return _episode(_run(shelf, words), words)


def credit(shelf: RunCollection, words: Words) -> dict[str, Any]:
    """The advantages of an episode under every credit rule."""
    run, step, name = _run(shelf, words), _step(words), words.get("id", "")
    found = describe_credit(run.credit(step), run.files.tokens(step), name)
    if found is None:
        raise RunError(f"step {step} has no trajectory '{name}' in its learning record.")
    return found


def evaluated(shelf: RunCollection, words: Words) -> dict[str, Any]:
    """The plays of a task in a saved evaluation of a run."""
    run = _run(shelf, words)
    return describe_plays(run.files, words.get("eval", ""), words.get("task", ""), run.texts)


def checkpoints(shelf: RunCollection, words: Words) -> dict[str, Any]:
    """Whom one can ask what they would say, beside the policy that said it."""
    return {"checkpoints": [policy.describe() for policy in find_policies(_run(shelf, words).files)]}


def policy(shelf: RunCollection, words: Words) -> dict[str, Any]:
    """What a checkpoint would say at a place of an episode: asked live, and answered in its own time."""
    run = _run(shelf, words)
    return query_policy(shelf.voice, run.files, _episode(run, words), run.texts, words)


def _fingerprint(run: ViewedRun) -> str:
    directory = run.files.directory
    places = (directory.metrics, directory.findings, directory.summary, directory.trajectories, directory.path)
    times = [place.stat().st_mtime_ns if place.exists() else 0 for place in places]
    return f"{run.files.state}-{len(run.files.metrics)}-{sum(times)}"


def _run(shelf: RunCollection, words: Words) -> ViewedRun:
    return shelf.get(words.get("run", ""))


def _episode(run: ViewedRun, words: Words) -> dict[str, Any]:
    step, name, is_eval = _step(words), words.get("id", ""), words.get("is_eval") == "1"
    record = run.episodes.read(step, name, is_eval=is_eval)
    return describe_episode(run.files, record, step=step, is_eval=is_eval, texts=run.texts, name=name)


def _step(words: Words) -> int:
    try:
        return parse_int(words.get("step", ""))
    except ValueError as error:
        raise RunError(f"step: '{words.get('step', '')}' given; expected a number.") from error


ANSWERS: dict[str, Callable[[RunCollection, Words], dict[str, Any]]] = {
    "runs": runs,
    "changes": changes,
    "metrics": metrics,
    "status": status,
    "episodes": episodes,
    "episode": episode,
    "credit": credit,
    "evaluated": evaluated,
    "checkpoints": checkpoints,
    "policy": policy,
}


_KEPT_CREDITS = 4
"""Updates whose credit under every rule stays in memory."""


class ViewedRun:
    """A run on the shelf: its files, its episodes, its tokens as text."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.files = RunFiles(path)
        self.episodes = EpisodeIndex(self.files.directory.trajectories)
        self._texts: TokenTexts | None = None
        self._credits: dict[tuple[int, int], StepCredit] = {}
        self._lock = Lock()
        self._indexing: Thread | None = None

    @property
    def texts(self) -> TokenTexts:
        """Looked for again while there is no tokenizer: a run may not have written it yet."""
        if self._texts is None or not self._texts.is_known:
            self._texts = TokenTexts.open(self.files)
        return self._texts

    def refresh_episodes(self) -> None:
        """Bring the index up to date, beside whoever asks."""
        with self._lock:
            if self._indexing is not None and self._indexing.is_alive():
                return
            self._indexing = Thread(target=self.episodes.update, name=f"index of {self.name}", daemon=True)
            self._indexing.start()
        # A small run is indexed before its first page is asked for.
        self._indexing.join(timeout=0.15)

    def credit(self, step: int) -> StepCredit:
        """A step's tokens under every rule."""
        tokens = self.files.tokens(step)
        key = (step, id(tokens))
        with self._lock:
            if key not in self._credits:
                self._credits[key] = compute_credit(tokens, str(setting(self.files.settings, "credit.type", "")))
            while len(self._credits) > _KEPT_CREDITS:
                self._credits.pop(next(iter(self._credits)))
            return self._credits[key]

    def describe(self) -> dict[str, Any]:
        """One row of the table of runs."""
        files, summary = self.files, self.files.summary or {}
        rows = files.metrics
        learnt = [row for row in rows if row.get("step")]
        # Where the first evaluation said nothing, a later one is not what was before.
        before = next((row for row in rows if row.get("step") == 0), {})
        return {
            "name": self.name,
            "path": str(files.path),
            "recipe": files.settings.get("recipe"),
            "env": setting(files.settings, "env.type"),
            "seed": setting(files.settings, "run.seed"),
            "credit": setting(files.settings, "credit.type"),
            "model": setting(files.settings, "model.path"),
            "created": files.manifest.get("created"),
            "state": str(files.state),
            "step": rows[-1].get("step", 0) if rows else 0,
            "steps": setting(files.settings, "learn.steps"),
            "wall_s": summary.get("wall_s") or (rows[-1].get("time_s") if rows else None),
            "tokens_sampled": summary.get("tokens_sampled"),
            "success_before": summary.get("success_before", before.get("eval/success")),
            "success_before_interval": summary.get("success_before_interval"),
            "success_after": summary.get("success_after", _last(learnt, "eval/success")),
            "success_after_interval": summary.get("success_after_interval"),
            "success_now": _last(rows, "rollout/success"),
            "return_before": summary.get("return_before", before.get("eval/return")),
            "return_after": summary.get("return_after", _last(learnt, "eval/return")),
            "return_now": _last(rows, "rollout/return"),
            "baselines": summary.get("baselines") or {},
            "num_findings": len(files.findings),
            "stopped": summary.get("stopped"),
            "metric_names": sorted({name for row in (*rows[:3], *rows[-20:]) for name in row} - {"step"}),
        }


def _last(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((row[name] for row in reversed(rows) if row.get(name) is not None), None)


class RunCollection:
    """The runs that are looked at. A folder of runs may get more while the page is open."""

    def __init__(self, places: Sequence[Path], *, voice: PolicyBackend | None = None) -> None:
        """`voice` answers what a checkpoint would say; without it nobody does."""
        self.voice = voice
        self._places = [place.resolve() for place in places]
        self._runs: dict[str, ViewedRun] = {}
        self._lock = Lock()
        for place in self._places:
            if not _find_runs(place):
                raise RunError(
                    f"{place} is no run and has none in it: expected a folder that `turnwise train` made, or a folder "
                    "of such folders."
                )

    def runs(self) -> list[ViewedRun]:
        """All of them, newest first; one that was removed is gone."""
        with self._lock:
            found = [path for place in self._places for path in _find_runs(place)]
            known = {run.files.path: run for run in self._runs.values()}
            runs: dict[str, ViewedRun] = {}
            for path in dict.fromkeys(found):
                name = path.name if path.name not in runs else str(path)
                runs[name] = known.get(path) or ViewedRun(name, path)
                # Another run that has come or gone may have taken the name, or left it.
                runs[name].name = name
            self._runs = runs
            return sorted(runs.values(), key=lambda run: str(run.files.manifest.get("created")), reverse=True)

    def get(self, name: str) -> ViewedRun:
        if name not in self._runs:
            self.runs()
        if name not in self._runs:
            raise RunError(f"there is no run '{name}' here. {did_you_mean(name, self._runs)}")
        return self._runs[name]


def _find_runs(place: Path) -> list[Path]:
    """The place itself, or the runs that lie in it."""
    if (place / "config.yaml").is_file():
        return [place]
    return sorted(found.parent for found in place.glob("*/config.yaml"))


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

    def __init__(self, shelf: RunCollection, *, port: int = 0) -> None:
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


def make_app(shelf: RunCollection, *, token: str, port: int) -> Any:
    """The page as an ASGI application."""
    applications, routing = (_require(f"starlette.{part}") for part in ("applications", "routing"))
    door = _TokenAuth(token, port)

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


class _TokenAuth:
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


def _answer(shelf: RunCollection, asked: str, words: Mapping[str, str]) -> Any:
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
