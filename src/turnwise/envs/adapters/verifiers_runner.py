"""A stage for the package verifiers: its episodes run in a loop of their own, and ask for each reply from outside.

In come the name of an environment, tasks and replies; out come what the model is asked, and at the end what the episode
was worth. The package plays an episode by letting a program, its harness, call a model. Here the harness is the plain
chat loop inside this process, and the model is an address on this machine that waits for the next reply. Prompts,
tools, users, stops and rewards are the package's. It refuses to know who replies, and what the texts are for.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import multiprocessing
import os
import queue
import random
import resource
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from turnwise.config.settings import require_in_env_python
from turnwise.errors import ConfigError, EnvError

_LISTEN_S = 60.0
"""A program may prepare itself before it listens; the package waits longer, in steps of a second."""
_POLL_S = 0.01
_WATCH_S = 1.0
_PR_SET_PDEATHSIG = 1


class ToolProcessPool:
    """A process that only forks: the parent of all programs of tools of this one, with which they end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, theirs = multiprocessing.Pipe()
        if os.fork() == 0:
            _fork_on_request(theirs)
        theirs.close()

    def start(self, module: str, folder: str, log: str, env: Mapping[str, str]) -> int:
        """The id of the new process."""
        limit = resource.getrlimit(resource.RLIMIT_AS)
        request = [module, folder, log, dict(env), random.getrandbits(32), limit]
        with self._lock:
            self._control.send_bytes(json.dumps(request).encode())
            return json.loads(self._control.recv_bytes())


class _Program:
    """A program as the package holds those that it has started itself."""

    def __init__(self, process_id: int) -> None:
        self.pid = process_id

    @property
    def returncode(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    async def wait(self) -> int:
        while (code := self.returncode) is None:
            await asyncio.sleep(_POLL_S)
        return code


_PROGRAMS: dict[int, ToolProcessPool] = {}
"""Of this process, by its id; a process that was forked from it has none yet."""


def fork_tool_programs(runtime_class: Any) -> None:
    """Let `runtime_class`, which starts programs on this machine, fork those of tools from now on."""
    if threading.active_count() > 1 or os.getpid() in _PROGRAMS:
        return
    programs = _PROGRAMS[os.getpid()] = ToolProcessPool()
    run_anew = runtime_class.run_background

    async def run_background(self: Any, argv: Sequence[str], env: Mapping[str, str], log: str) -> None:
        port_file = env.get("MCP_PORT_FILE")
        if list(argv[:2]) != [sys.executable, "-m"] or len(argv) != 3 or port_file is None:
            await run_anew(self, argv, env, log)
            return
        kept = {name: value for name, value in os.environ.items() if "API_KEY" not in name.upper()}
        whole = kept | dict(self.process_env(env))
        program = _Program(programs.start(argv[2], str(self.workdir), log, whole))
        self._background.append(program)
        with suppress(TimeoutError):
            # Where it does not listen in time, or is gone, the package finds out and says what the program wrote.
            await asyncio.wait_for(_until_it_listens(program, Path(port_file)), _LISTEN_S)

    runtime_class.run_background = run_background


async def _until_it_listens(program: _Program, port_file: Path) -> None:
    while program.returncode is None:
        with suppress(OSError, ValueError):
            _, writer = await asyncio.open_connection("127.0.0.1", int(port_file.read_text()))
            writer.close()
            return
        await asyncio.sleep(_POLL_S)


# --- in the process that only forks -----------------------------------------------------------------------------------


def _fork_on_request(control: Connection) -> None:
    """Until the other side is gone; never returns."""
    try:
        # What else the parent has open is not ours to keep open when it ends.
        os.closerange(3, control.fileno())
        os.closerange(control.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        os.setsid()
        # Whoever has ended is forgotten at once, so that its id says that it is gone.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        own_id = os.getpid()
        while True:
            request = json.loads(control.recv_bytes())
            if process_id := os.fork():
                control.send_bytes(json.dumps(process_id).encode())
                continue
            _end_with(own_id)
            control.close()
            _run(*request)
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:  # noqa: BLE001 - nothing may go on behind a fork
        traceback.print_exc()
        os._exit(1)


def _end_with(parent: int) -> None:
    """This process ends with its parent: an environment that is killed cannot end its programs any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        # It was gone before it could be watched.
        os._exit(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(0)


def _run(module: str, folder: str, log: str, env: Mapping[str, str], seed: int, limit: tuple[int, int]) -> None:
    """What `python -m MODULE` does, here; never returns."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(env)
    resource.setrlimit(resource.RLIMIT_AS, limit)
    random.seed(seed)
    np.random.seed(seed)
    code = 0
    try:
        sys.argv = [module]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - nothing may go on behind a fork
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


PACKAGES = (
    *("verifiers.v1", "verifiers.v1.runtimes", "verifiers.v1.harnesses.utils.mcp", "verifiers.v1.dialects.chat"),
    *("openai", "aiohttp.web"),
)
LOADED_LATER = (
    *("verifiers.v1.tasksets", "openai.resources", "anyio._backends._asyncio", "httpcore"),
    *("mcp.server.mcpserver", "uvicorn.protocols.http.auto", "tenacity"),
)
"""What those import when they are first used: loaded before, a process that is forked from here need not."""
_HARNESS = "turnwise_harness"
"""The name under which the package finds our harness, as if it were an installed one."""
_CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The model is called: the whole conversation, and the tools it may use."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The episode is over."""

    reward: float
    is_truncated: bool
    metrics: Mapping[str, float]


Told = Asked | Outcome | Exception


class VerifiersStage:
    """One environment of the package; one episode at a time."""

    def __init__(self, name: str, options: Mapping[str, object], label: str, time_limit_s: float) -> None:
        self._label = label
        self._time_limit_s = time_limit_s
        self._vf, *_ = (require_in_env_python(module, asked_by=label) for module in PACKAGES)
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._episode: asyncio.Task[None] | None = None
        self._reply: asyncio.Future[Mapping[str, Any]] | None = None
        self._env = self._make(name, options)
        # Behind the taskset's own imports and before any thread: this is where programs of tools are forked from.
        fork_tool_programs(require_in_env_python("verifiers.v1.runtimes", asked_by=label).SubprocessRuntime)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name=label, daemon=True).start()
        self._closing = asyncio.Event()
        self._context: Any = None
        opened = self._loop.create_future()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(opened), self._loop)
        self._run(_result_of(opened), "opening its servers")

    @property
    def tasks(self) -> Any:
        return self._env.taskset

    def begin(self, task: Any) -> Asked | Outcome:
        """Start an episode; one that was not played to its end is given up."""
        self._told = queue.SimpleQueue()
        self._run(self._begin(task, self._told), "reset")
        return self._next("reset")

    def reply(self, message: Mapping[str, Any]) -> Asked | Outcome:
        """What the model said, as an assistant's message of the chat API."""
        self._loop.call_soon_threadsafe(self._give, message)
        return self._next("step")

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        try:
            self._serving.result(_CLOSE_S)
        except TimeoutError:
            self._serving.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)

    # --- outside the loop -------------------------------------------------------------------------------------------

    def _make(self, name: str, options: Mapping[str, object]) -> Any:
        """The package's environment, with our harness in its only seat."""
        sys.modules[_HARNESS] = _make_harness(self._vf)
        taskset = {"id": name, **options}
        try:
            seats = sorted(_seats(self._vf.env_config_type(name)))
            if len(seats) != 1:
                raise ConfigError(f"{self._label} has {len(seats)} agents ({', '.join(seats)}); expected one.")
            seat = {"harness": {"id": _HARNESS}, "runtime": {"type": "subprocess"}}
            return self._vf.load_environment(self._vf.resolve_env_config({"taskset": taskset, seats[0]: seat}))
        except ConfigError:
            raise
        except Exception as error:  # whatever the package objects to is a matter of the settings
            raise ConfigError(
                f"environment '{self._label}' cannot be made with the options {dict(options)}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _run(self, work: Any, what: str) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(self._time_limit_s)
        except TimeoutError:
            raise self._late(what) from None

    def _next(self, what: str) -> Asked | Outcome:
        try:
            told = self._told.get(timeout=self._time_limit_s)
        except queue.Empty:
            raise self._late(what) from None
        if isinstance(told, Exception):
            raise EnvError(f"{self._label}: {told}") from told
        return told

    def _late(self, what: str) -> EnvError:
        return EnvError(f"{self._label}: {what} took longer than env.time_limit_s = {self._time_limit_s:g}.")

    # --- inside the loop --------------------------------------------------------------------------------------------

    async def _serve(self, opened: asyncio.Future[None]) -> None:
        """Hold the package's servers and the model's address until the stage closes."""
        web = require_in_env_python("aiohttp.web", asked_by=self._label)
        app = web.Application()
        app.router.add_post("/chat/completions", self._answer)
        runner = web.AppRunner(app)
        try:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            address = f"http://127.0.0.1:{runner.addresses[0][1]}"
            client = self._vf.EvalClientConfig(base_url=address, api_key_var="TURNWISE_NO_KEY")
            self._context = self._vf.ModelContext(model="policy", client=client)
            async with self._env.serving():
                opened.set_result(None)
                await self._closing.wait()
                await self._give_up()
        except Exception as error:  # the boundary: an author's code may raise whatever it likes
            if opened.done():
                raise
            opened.set_exception(error)
        finally:
            await runner.cleanup()

    async def _begin(self, task: Any, told: queue.SimpleQueue[Told]) -> None:
        await self._give_up()
        self._episode = asyncio.create_task(self._play(task, told))

    async def _give_up(self) -> None:
        if self._reply is not None:
            self._reply.cancel()
            self._reply = None
        if self._episode is not None and not self._episode.done():
            self._episode.cancel()
            await asyncio.wait([self._episode])

    async def _play(self, task: Any, told: queue.SimpleQueue[Told]) -> None:
        try:
            told.put(_weigh(await self._env.run_episode(task, self._context)))
        except Exception as error:  # noqa: BLE001 - the boundary: an author's code may raise whatever it likes
            told.put(error)

    async def _answer(self, request: Any) -> Any:
        """A call of the model: hand it out, and wait for the reply as long as it takes."""
        web = require_in_env_python("aiohttp.web", asked_by=self._label)
        body = await request.json()
        self._reply = self._loop.create_future()
        self._told.put(Asked(body["messages"], body.get("tools") or ()))
        message = await self._reply
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        about = {"id": "policy", "object": "chat.completion", "created": 0, "model": body["model"]}
        return web.json_response({**about, "choices": [choice], "usage": usage})

    def _give(self, message: Mapping[str, Any]) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(message)


async def _result_of(future: asyncio.Future[None]) -> None:
    await future


def _seats(config_class: Any) -> list[str]:
    """The agents of an environment: the fields of its settings that are one."""
    agent = require_in_env_python("verifiers.v1", asked_by="verifiers").AgentConfig
    return [name for name, field in config_class.model_fields.items() if isinstance(field.default, agent)]


def _weigh(episode: Any) -> Outcome:
    """What a finished episode was worth; a fault of the environment is raised, and a limit is none."""
    traces = list(episode.traces)
    faults = [*episode.errors, *(fault for trace in traces if not trace.ok for fault in trace.errors)]
    if faults and not any(trace.is_timeout for trace in traces):
        raise EnvError(f"{faults[-1].type}: {faults[-1].message}")
    metrics: dict[str, float] = {}
    for trace in traces:
        metrics |= {f"reward_{name}": reward.value for name, reward in trace.rewards.items() if reward is not None}
        metrics |= {name: value for name, value in trace.metrics.items() if value is not None}
    is_truncated = any(trace.is_truncated or trace.is_timeout for trace in traces)
    return Outcome(sum(trace.reward for trace in traces), is_truncated, metrics)


def _make_harness(vf: Any) -> ModuleType:
    """The package's chat loop with the tools of a task, in this process instead of in one of its own."""
    tools: Any = require_in_env_python("verifiers.v1.harnesses.utils.mcp", asked_by="verifiers")
    chat: Any = require_in_env_python("verifiers.v1.dialects.chat", asked_by="verifiers")
    openai: Any = require_in_env_python("openai", asked_by="verifiers")

    class InProcessHarness(vf.Harness[vf.HarnessConfig]):
        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            messages = [] if system is None else [{"role": "system", "content": system}]
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            elif prompt is not None:
                messages += [chat.message_to_wire(message) for message in prompt]
            servers = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(
                    openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None)
                )
                known, places, connections = await tools.connect_mcp(servers, stack)
                try:
                    await _converse(client, ctx.model, messages, known, (tools.call_mcp, connections, places))
                except openai.APIStatusError as error:
                    # A stop of the task refuses the next call; the trace then says which, and this is no fault.
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=str(error))
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    module = ModuleType(_HARNESS)
    module.__dict__.update(InProcessHarness=InProcessHarness, __all__=["InProcessHarness"])
    InProcessHarness.__module__ = _HARNESS
    return module


async def _converse(
    client: Any, model: str, messages: list[Any], tools: list[Any], calling: tuple[Any, Any, Mapping[str, Any]]
) -> None:
    """Replies and tool results in turns, until a reply calls no tool."""
    call_tool, connections, places = calling
    while True:
        asked = {"model": model, "messages": messages, **({"tools": tools} if tools else {})}
        message = (await client.chat.completions.create(**asked)).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            name, arguments = call.function.name, json.loads(call.function.arguments)
            told = await call_tool(connections, places, name, arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "name": name, "content": told})
