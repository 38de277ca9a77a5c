"""Weights on their way: in memory that has no name, or through vLLM's own sender, here a stand-in for it."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from turnwise.engine.vllm_transfer import SharedMemoryTransfer, VllmTransfer
from turnwise.errors import ConfigError


class Recorder:
    """A client that writes down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.loaded: dict[str, torch.Tensor] = {}

    async def num_workers(self) -> int:
        return 2

    async def init_transfer(self, info: Any) -> None:
        self.calls.append(("init", dict(info)))

    async def start_update(self) -> None:
        self.calls.append(("start", None))

    async def update(self, info: Any) -> None:
        self.calls.append(("update", dict(info)))
        if "path" in info:
            self.loaded |= load_file(info["path"])

    async def finish_update(self, version: int) -> None:
        self.calls.append(("finish", version))


def num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- shared memory ---------------------------------------------------------------------------------------------------


def test_weights_are_a_copy_in_the_engines_number_type_and_can_be_sent_again() -> None:
    shared = torch.randn(3, 2)
    weights, clients = {"embed": shared, "head": shared, "norm": torch.randn(2)}, [Recorder(), Recorder()]
    expected = {name: tensor.bfloat16() for name, tensor in weights.items()}
    transfer = SharedMemoryTransfer(torch.bfloat16)

    async def play() -> None:
        await transfer.prepare(weights)
        shared.zero_()
        await transfer.send(clients[:1], weights, 3)
        await transfer.repeat(clients[1], 3)

    asyncio.run(play())
    for client in clients:
        assert [name for name, _ in client.calls] == ["start", "update", "finish"]
        assert client.loaded.keys() == expected.keys()
        assert all(torch.equal(client.loaded[name], expected[name]) for name in expected)
    transfer.close()


def test_nothing_is_left_open_or_grows() -> None:
    before, transfer = num_files(), SharedMemoryTransfer(torch.float32)
    for _ in range(3):
        asyncio.run(transfer.prepare({"a": torch.ones(4)}))
        assert num_files() == before + 1
    transfer.close()
    assert num_files() == before


def test_a_failure_at_one_server_is_told_beside_the_others() -> None:
    class Broken(Recorder):
        async def update(self, info: Any) -> None:
            raise OSError("no")

    transfer = SharedMemoryTransfer(torch.float32)

    async def play() -> list[BaseException | None]:
        await transfer.prepare({"a": torch.ones(4)})
        return await transfer.send([Broken(), Recorder()], {}, 1)  # type: ignore[list-item]

    first, second = asyncio.run(play())
    assert isinstance(first, OSError)
    assert second is None
    transfer.close()


# --- vLLM's own ------------------------------------------------------------------------------------------------------


@dataclass
class Meta:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass
class InitInfo:
    made: ClassVar[list[InitInfo]] = []
    rank: int
    master_address: str = ""
    master_port: int = 0
    world_size: int = 0

    def __post_init__(self) -> None:
        self.made.append(self)


class Sender:
    """Calls its client as vLLM's senders do: from other threads, in this order."""

    def __init__(self, info: InitInfo, client: Any, source: Any) -> None:
        self.client, self.source = client, source
        client.init_weight_transfer_engine({"rank_offset": 1, "world_size": info.world_size})

    def send_weights(self) -> None:
        names = [meta.name for meta in self.source.metadata()]
        assert names == [name for name, _ in self.source]
        self.client.start_weight_update()
        self.client.update_weights({"names": names})
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        pass


class Factory:
    @staticmethod
    def trainer_init(info: InitInfo, *, client: Any, source: Any) -> Sender:
        return Sender(info, client, source)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    root = "vllm.distributed.weight_transfer"
    contents = {
        "base": {"ParamMeta": Meta},
        "factory": {"WeightTransferTrainerFactory": Factory},
        "nccl_engine": {"NCCLTrainerInitInfo": InitInfo},
    }
    for name in ("vllm", "vllm.distributed", root):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, attributes in contents.items():
        module = ModuleType(f"{root}.{name}")
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("vllm")
def test_workers_of_all_servers_meet_the_sender_once_and_get_every_version() -> None:
    clients, transfer = [Recorder(), Recorder()], VllmTransfer()
    weights = {"a": torch.ones(2), "b": torch.ones(1)}

    async def play() -> None:
        for version in (1, 2):
            await transfer.send(clients, weights, version)  # type: ignore[arg-type]

    asyncio.run(play())
    assert InitInfo.made[-1].world_size == 5
    update = {"names": ["a", "b"]}
    for number, client in enumerate(clients):
        assert client.calls == [
            ("init", {"rank_offset": 1 + 2 * number, "world_size": 5}),
            *(("start", None), ("update", update), ("finish", 1)),
            *(("start", None), ("update", update), ("finish", 2)),
        ]
    transfer.close()


def test_without_vllm_here_its_own_ways_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"engine\.transfer: 'nccl' given; .*engine\.transfer=shared_memory"):
        VllmTransfer()
