"""How weights reach vLLM servers: by vLLM's own weight-transfer calls, with one of several backends behind them.

`shared_memory` is ours and works on any machine that the servers share with this process; the plug-in of the servers
reads it. `nccl` is vLLM's own, between GPUs; its sender then runs in this process. Servers are paused by whoever calls.
vLLM's `ipc` is not offered: its servers unpickle what is sent to them.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from safetensors.torch import save
from torch import Tensor

from turnwise.engine.vllm_client import ServerClient
from turnwise.errors import ConfigError
from turnwise.protocols import Weights

_PART_BYTES = 64 << 20
"""Of weights that are copied at once."""


class Transfer(Protocol):
    """A way of weights to servers."""

    can_repeat: bool
    """Whether a server that comes back can have the newest weights at once, or must wait for the next ones."""

    async def prepare(self, weights: Weights) -> None:
        """Take a copy of what will be sent, where one is kept."""
        ...

    async def send(self, clients: Sequence[ServerClient], weights: Weights, version: int) -> list[BaseException | None]:
        """Bring the weights to all of them; returns what went wrong with each."""
        ...

    async def greet(self, client: ServerClient) -> None:
        """A server is there for the first time, or anew."""
        ...

    async def repeat(self, client: ServerClient, version: int) -> None:
        """Send the newest weights once more, to one that came back."""
        ...

    def close(self) -> None: ...


# --- through the memory of this machine ------------------------------------------------------------------------------


class SharedMemoryTransfer:
    """Weights as safetensors files in memory, which servers open through this process's own entry in /proc.

    They have no name in any folder and are gone with this process, however it ends. The newest stay, for servers that
    come back.
    """

    can_repeat = True

    def __init__(self, dtype: torch.dtype) -> None:
        if not hasattr(os, "memfd_create"):
            raise ConfigError("engine.transfer: 'shared_memory' given; it needs Linux. Choose nccl.")
        self._dtype = dtype
        self._files: list[int] = []

    async def prepare(self, weights: Weights) -> None:
        written = await asyncio.to_thread(_write, weights, self._dtype)
        # At once, so that nobody is sent parts of both.
        self.close()
        self._files = written

    async def send(self, clients: Sequence[ServerClient], weights: Weights, version: int) -> list[BaseException | None]:
        return await asyncio.gather(*(self.repeat(client, version) for client in clients), return_exceptions=True)

    async def greet(self, client: ServerClient) -> None:
        await client.init_transfer({})

    async def repeat(self, client: ServerClient, version: int) -> None:
        await client.start_update()
        for file in list(self._files):
            await client.update({"path": f"/proc/{os.getpid()}/fd/{file}"})
        await client.finish_update(version)

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []


def _write(weights: Weights, dtype: torch.dtype) -> list[int]:
    files = []
    for part in _parts(weights, dtype):
        files.append(os.memfd_create("turnwise-weights"))
        with open(files[-1], "wb", closefd=False) as memory:
            memory.write(save(part))
    return files


def _parts(weights: Weights, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """The weights in lots, so that merged ones are never all in memory twice."""
    part: dict[str, Tensor] = {}
    num_bytes = 0
    for name in weights:
        # Cloned: tied weights share memory, which the format refuses.
        tensor = weights[name].detach().to("cpu", dtype).contiguous().clone()
        part[name] = tensor
        num_bytes += tensor.nbytes
        if num_bytes >= _PART_BYTES:
            yield part
            part, num_bytes = {}, 0
    if part:
        yield part


# --- vLLM's own way between GPUs -------------------------------------------------------------------------------------


class VllmTransfer:
    """`nccl`: the trainer's side of vLLM, which needs vLLM in this process's environment as well."""

    can_repeat = False

    def __init__(self) -> None:
        self._vllm = _import_sender()
        self._sender: Any = None
        self._source = _Source(self._vllm)
        self._calls = _Calls()

    async def prepare(self, weights: Weights) -> None:
        """Nothing is kept: they go from one GPU to the other."""

    async def send(self, clients: Sequence[ServerClient], weights: Weights, version: int) -> list[BaseException | None]:
        self._source.weights = weights
        self._calls.begin(clients, version)
        if self._sender is None:
            workers = [await client.num_workers() for client in clients]
            self._calls.offsets = [1 + sum(workers[:number]) for number in range(len(workers))]
            info = self._init_info(1 + sum(workers))
            factory = self._vllm["factory"].WeightTransferTrainerFactory
            self._sender = await asyncio.to_thread(
                lambda: factory.trainer_init(info, client=self._calls, source=self._source)
            )
        await asyncio.to_thread(self._sender.send_weights)
        return [None] * len(clients)

    async def greet(self, client: ServerClient) -> None:
        """All are greeted together, with the first weights."""

    async def repeat(self, client: ServerClient, version: int) -> None:
        raise NotImplementedError("nothing is kept to be sent again")

    def close(self) -> None:
        if self._sender is not None:
            self._sender.shutdown()
            self._sender = None

    def _init_info(self, world_size: int) -> Any:
        host = socket.gethostbyname(socket.gethostname())
        with socket.socket() as probe:
            probe.bind((host, 0))
            port = probe.getsockname()[1]
        make = self._vllm["nccl_engine"].NCCLTrainerInitInfo
        return make(master_address=host, master_port=port, world_size=world_size, rank=0)


class _Source:
    """vLLM's `WeightSource` over the weights of a learner."""

    def __init__(self, vllm: Mapping[str, Any]) -> None:
        self._make_meta = vllm["base"].ParamMeta
        self.weights: Weights = {}

    def metadata(self) -> list[Any]:
        return [self._make_meta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.weights.items():
            yield name, tensor.detach()


class _Calls:
    """vLLM's `VLLMWeightSyncClient`: its sender speaks from threads of its own; all servers are asked at once."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        """The place of each server's first worker among all that take part; the sender is number 0."""
        self._clients: Sequence[ServerClient] = ()
        self._version = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, clients: Sequence[ServerClient], version: int) -> None:
        self._clients, self._version, self._loop = clients, version, asyncio.get_running_loop()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._ask_all(lambda client, number: client.init_transfer(init_info | {"rank_offset": self.offsets[number]}))

    def start_weight_update(self) -> None:
        self._ask_all(lambda client, _: client.start_update())

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._ask_all(lambda client, _: client.update(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._ask_all(lambda client, _: client.finish_update(self._version))

    def _ask_all(self, ask: Callable[[ServerClient, int], Awaitable[None]]) -> None:
        async def together() -> None:
            await asyncio.gather(*(ask(client, number) for number, client in enumerate(self._clients)))

        assert self._loop is not None, "begin comes first"
        asyncio.run_coroutine_threadsafe(together(), self._loop).result()


def _import_sender() -> dict[str, Any]:
    names = ("base", "factory", "nccl_engine")
    try:
        return {name: importlib.import_module(f"vllm.distributed.weight_transfer.{name}") for name in names}
    except ImportError as error:
        raise ConfigError(
            "engine.transfer: 'nccl' given; vLLM's own sender runs in this process, and vLLM cannot be imported "
            f"here ({error}). Install vllm into this environment too, or set engine.transfer=shared_memory."
        ) from error
