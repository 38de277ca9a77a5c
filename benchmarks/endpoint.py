"""Calls a second through the endpoint with the scripted engine, many agents at once, and memory over a long run.

The server has one process, and so one core; the clients have another. Each agent holds a conversation of some turns
over a connection of its own, sends its reward and begins anew, over raw sockets, so that the clients do not measure
themselves. Memory is the server's resident set after a tenth of the calls and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing as mp
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from turnwise.config.schema import ContextSettings
from turnwise.context.template import HFChatTemplate
from turnwise.engine.scripted import ScriptedEngine
from turnwise.models.tiny import fit_tokenizer
from turnwise.rollout.model_handle import ModelHandle
from turnwise.serve.recorder import ChatEndpoint, EpisodeRecorder
from turnwise.types import Completion, GenerateRequest, Group, Sampling, Task, Trajectory, TrajectoryId

_KEY = "key"
_TURNS = 5
"""Of a conversation; each sends all that was said before."""


def run(num_agents: int = 500, num_calls: int = 20_000) -> dict[str, object]:
    here, there = mp.Pipe()
    server = mp.get_context("spawn").Process(target=_serve, args=(there,))
    server.start()
    port = here.recv()
    asyncio.run(_ask(port, num_agents, max(num_agents, num_calls // 10)))
    here.send("memory")
    first_mib = here.recv()
    started = time.perf_counter()
    made = asyncio.run(_ask(port, num_agents, num_calls))
    spent_s = time.perf_counter() - started
    here.send("memory")
    last_mib = here.recv()
    here.send("cpu")
    server_cpu_s = here.recv()
    here.send("end")
    server.join()
    return {
        "benchmark": "endpoint",
        "agents": num_agents,
        "calls": made,
        "calls_per_s": round(made / spent_s, 1),
        "server_cpu_ms_per_call": round(1000 * server_cpu_s / (made + num_calls // 10), 4),
        "server_mib": {"early": round(first_mib, 1), "end": round(last_mib, 1)},
    }


# --- the server ------------------------------------------------------------------------------------------------------


class _Forgetful(ScriptedEngine):
    """Keeps no record of its own."""

    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await super().generate(request)
        self.requests.clear()
        self.completions.clear()
        self.released.clear()
        return completion


class _NoJournal:
    def append(self, trajectory: Trajectory) -> None: ...

    def remove(self) -> None: ...


def _serve(pipe: Connection) -> None:
    asyncio.run(_serve_until_told(pipe))


async def _serve_until_told(pipe: Connection) -> None:
    template = HFChatTemplate(fit_tokenizer(["the lake is frozen and the goal is near"], 400))
    reply = [*template.encode_text("the lake is frozen").tolist(), template.end_of_turn_id]
    engine = _Forgetful(lambda _: reply, stop_ids=template.stop_ids)
    numbers = iter(range(10**9))

    def open_model(trajectory: TrajectoryId) -> ModelHandle:
        sampling = Sampling(max_new_tokens=32)
        return ModelHandle(engine, template, sampling=sampling, max_tokens=2048, seed=0, name=str(trajectory))

    def save(group: Group) -> None:
        """Nobody learns from it."""

    recorder = EpisodeRecorder(
        open_model,
        lambda: (0, Task(tag="words", seed=next(numbers))),
        save,
        context=ContextSettings(max_response_tokens=32),
        journal=_NoJournal(),
    )
    endpoint = ChatEndpoint(recorder, token=_KEY, model_name="scripted")
    await endpoint.start()
    started_s = time.process_time()
    pipe.send(int(endpoint.address.rpartition(":")[2]))
    while (asked := await asyncio.to_thread(pipe.recv)) != "end":
        pipe.send(_resident_mib() if asked == "memory" else time.process_time() - started_s)
    await endpoint.close()


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


# --- the clients -----------------------------------------------------------------------------------------------------


async def _ask(port: int, num_agents: int, num_calls: int) -> int:
    """All agents at once; each makes its share of the calls. Returns how many were made."""
    num_episodes = max(1, num_calls // num_agents // _TURNS)
    made = await asyncio.gather(*(_be_an_agent(port, num_episodes) for _ in range(num_agents)))
    return sum(made)


async def _be_an_agent(port: int, num_episodes: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    made = 0
    for _ in range(num_episodes):
        begun = await _post(reader, writer, "/v1/episodes", {})
        messages: list[dict[str, Any]] = []
        for turn in range(_TURNS):
            messages.append({"role": "user", "content": f"turn {turn} on the lake"})
            path = f"/episodes/{begun['id']}/v1/chat/completions"
            reply = await _post(reader, writer, path, {"model": "policy", "messages": messages})
            messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
            made += 1
        await _post(reader, writer, f"/episodes/{begun['id']}/reward", {"reward": 1})
    writer.close()
    return made


async def _post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: object) -> Any:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {_KEY}\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    answer = await reader.readuntil(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer.decode())
    length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return json.loads(await reader.readexactly(length))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--calls", type=int, default=20_000, help="100000 for the long run")
    options = parser.parse_args(words)
    print(json.dumps(run(options.agents, options.calls), indent=2))


if __name__ == "__main__":
    main()
