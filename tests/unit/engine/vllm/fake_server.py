"""A stand-in for a vLLM server: its calls over HTTP, and a model of one number.

The number is the mean of the weights it was sent; replies follow from prompt and seed, log-probs from the number. It is
served from a thread of the test, or as a program in place of vLLM's: then it loads general plug-ins as vLLM does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

STOP = 7
"""What a reply ends with where its request names it as a stop token."""


class FakeVllm:
    """One server; what it does next is set on it."""

    def __init__(self, *, port: int = 0) -> None:
        self.calls: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.number, self.version = 0.0, "default"
        self.loading: list[float] | None = None
        self.refused: dict[str, int] = {}
        """Paths that are answered with a status and no more."""
        self.is_healthy = True
        self.dies_at_requests = False
        """As a program: what it is asked to sample ends it."""
        self.aborts_all = False
        """Every request is broken off, without any change of weights."""
        self.may_answer = threading.Event()
        self.may_answer.set()
        """Cleared: requests run until it is set."""
        self.may_load = threading.Event()
        self.may_load.set()
        """Cleared: weights are under way until it is set."""
        self.is_paused = False
        self.num_running = 0
        self.num_aborts = 0
        self.changed = threading.Condition()
        self._sockets: list[Any] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                fake._sockets.append(self.connection)

            def handle(self) -> None:
                with suppress(OSError, ValueError):
                    super().handle()

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._reply(*fake.get(self.path))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                url = urlsplit(self.path)
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                self._reply(*fake.post(url.path, query, body))

            def _reply(self, status: int, answer: object) -> None:
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> FakeVllm:
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.02)

    def die(self) -> None:
        """As a killed process: connections break, nobody answers any more."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(2)
                connection.close()
        self.may_answer.set()

    # --- what it is asked ----------------------------------------------------------------------------------------

    def get(self, path: str) -> tuple[int, object]:
        if path == "/health":
            return (200, {}) if self.is_healthy else (503, {})
        return (200, {"world_size": 2}) if path == "/get_world_size" else (404, {})

    def post(self, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, object]:
        self.calls.append(path)
        self.bodies.append(body)
        if path in self.refused:
            return self.refused[path], {"error": f"{path} is refused"}
        if path == "/inference/v1/generate":
            if self.dies_at_requests:
                print("(Worker) ERROR [core.py:1] RuntimeError: Worker failed: no such head size")  # noqa: T201
                print("(Server) ERROR vllm.EngineDeadError: See above.", "ValueError happened.", sep="\n")  # noqa: T201
                print("(Server) WARNING ValueError: no tokenizer", flush=True)  # noqa: T201
                os._exit(4)
            return 200, self._generate(body["token_ids"], body["sampling_params"])
        answers = {
            "/pause": lambda: self._pause(query["mode"]),
            "/resume": lambda: self._set(is_paused=False),
            "/start_weight_update": lambda: self._set(loading=[]),
            "/update_weights": lambda: self._load(body["update_info"]),
            "/finish_weight_update": lambda: self._finish(body["weight_version"]),
            "/update_weight_version": lambda: self._set(version=body["new_version"]),
            "/reset_prefix_cache": lambda: None,
            "/init_weight_transfer_engine": lambda: None,
        }
        if path not in answers:
            return 404, {"error": "Not Found"}
        try:
            answers[path]()
        except OSError as error:
            return 500, {"error": str(error)}
        return 200, {}

    def _generate(self, prompt: list[int], params: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            self.changed.wait_for(lambda: not self.is_paused)
            self.num_running += 1
            num_aborts, first = self.num_aborts, (self.version, self.number)
            self.changed.notify_all()
        self.may_answer.wait()
        with self.changed:
            self.changed.wait_for(lambda: not self.is_paused or first[0] == self.version)
            versions = list(dict.fromkeys([first[0], self.version]))
            self.num_running -= 1
            is_aborted = self.aborts_all or num_aborts != self.num_aborts
            self.changed.notify_all()
        num_new = params["max_tokens"]
        ids = [(sum(prompt) + params.get("seed", 0) + place) % 5 for place in range(num_new)]
        is_stopped = STOP in params.get("stop_token_ids", ()) and num_new > 3
        ids = [*ids[:3], STOP] if is_stopped else ids
        reason = "abort" if is_aborted else "stop" if is_stopped else "length"
        choice = {
            "token_ids": ids,
            "finish_reason": reason,
            "logprobs": {"content": [self._told(token, params.get("logprobs", 0)) for token in ids]},
            "weight_versions": [{"version": version, "start": 0, "end": len(ids)} for version in versions],
        }
        scores = [None, *({str(token): {"logprob": -abs(self.number)}} for token in prompt[1:])]
        return {"choices": [choice], "prompt_logprobs": scores if "prompt_logprobs" in params else None}

    def _told(self, token: int, num: int) -> dict[str, Any]:
        """The sampled token is the third likeliest behind 90 and 91, and stands first wherever it belongs."""
        logprob = -abs(self.number) - 0.1
        own = {"token_id": token, "logprob": logprob}
        others = [{"token_id": 90 + n, "logprob": logprob + (0.02, 0.01, -9999.0)[min(n, 2)]} for n in range(num)]
        return own | {"top_logprobs": [own, *others][: max(num, 1)]}

    def _set(self, **values: Any) -> None:
        with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def _pause(self, mode: str) -> None:
        with self.changed:
            self.is_paused = True
            if mode == "wait":
                self.changed.wait_for(lambda: self.num_running == 0)
            if mode == "abort":
                self.num_aborts += 1
                self.may_answer.set()

    def _load(self, info: dict[str, Any]) -> None:
        from safetensors.numpy import load_file  # noqa: PLC0415 - the program starts faster without

        assert self.loading is not None, "an update begins with /start_weight_update"
        self.may_load.wait()
        self.loading += [float(tensor.mean()) for tensor in load_file(info["path"]).values()]

    def _finish(self, version: str) -> None:
        assert self.loading, "an update has weights"
        with self.changed:
            self.number, self.version, self.loading = sum(self.loading) / len(self.loading), version, None


def main(arguments: list[str]) -> None:
    """In place of `python -m vllm…api_server`."""
    if "--die-at-start" in arguments:
        print("no room for the model", flush=True)  # noqa: T201
        raise SystemExit(3)
    _load_plug_ins()
    server = FakeVllm(port=int(arguments[arguments.index("--port") + 1]))
    server.dies_at_requests = "--die-at-requests" in arguments
    server.serve()


def _load_plug_ins() -> None:
    class WeightTransferEngineFactory:
        @staticmethod
        def register_engine(*names: str) -> None:
            print("registered", *names, flush=True)  # noqa: T201

    stub = ModuleType("vllm.distributed.weight_transfer.factory")
    stub.WeightTransferEngineFactory = WeightTransferEngineFactory  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        sys.modules[name] = ModuleType(name)
    sys.modules[stub.__name__] = stub
    for plug_in in entry_points(group="vllm.general_plugins"):
        plug_in.load()()


if __name__ == "__main__":
    main(sys.argv[1:])
