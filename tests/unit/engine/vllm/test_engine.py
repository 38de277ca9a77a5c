"""Many servers as one engine: who is asked, what becomes of a dead one, and how weights change under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.clock import HANG_S
from turnwise.deps import EngineSite
from turnwise.engine import VllmEngineParams
from turnwise.engine.vllm import VllmEngine
from turnwise.engine.vllm_client import ServerClient
from turnwise.engine.vllm_servers import ServerProcess
from turnwise.errors import EngineError, SyncError
from turnwise.protocols import ChatTemplate, Weights
from turnwise.types import Completion, GenerateRequest, Sampling

from .fake_server import STOP, FakeVllm


class Words:
    stop_ids = frozenset({STOP})


def site(**also: Any) -> EngineSite:
    return EngineSite(model_path="a/model", dtype="float32", template=cast(ChatTemplate, Words()), **also)


@pytest.fixture
def servers() -> Iterator[list[FakeVllm]]:
    made = [FakeVllm().start() for _ in range(3)]
    yield made
    for server in made:
        server.die()


@pytest.fixture
def engine(servers: list[FakeVllm]) -> VllmEngine:
    return open_engine(servers)


def open_engine(servers: list[FakeVllm], **settings: Any) -> VllmEngine:
    params = VllmEngineParams(urls=[server.url for server in servers], start_timeout_s=HANG_S, **settings)
    return VllmEngine.open(params, site(policy_version=2))


def request(seed: int = 0, *, key: str | None = None, new: int = 2) -> GenerateRequest:
    prompt = np.asarray([1, 2, 3], dtype=np.int32)
    return GenerateRequest(prompt_ids=prompt, sampling=Sampling(max_new_tokens=new), seed=seed, cache_key=key)


def weights(number: float) -> Weights:
    shared = torch.full((2, 2), number)
    return {"embed.weight": shared, "head.weight": shared, "bias": torch.full((3,), number)}


def num_requests(servers: list[FakeVllm]) -> list[int]:
    return [server.calls.count("/inference/v1/generate") for server in servers]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not is_so():
            await asyncio.sleep(0.005)


def run(work: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(HANG_S):
            return await work

    return asyncio.run(limited())


# --- who is asked ----------------------------------------------------------------------------------------------------


def test_new_conversations_go_to_the_least_loaded_and_stay_there(servers: list[FakeVllm], engine: VllmEngine) -> None:
    async def play() -> None:
        for server in servers:
            server.may_answer.clear()
        running = [asyncio.create_task(engine.generate(request(n, key=f"game {n}"))) for n in range(6)]
        await until(lambda: sum(server.num_running for server in servers) == 6)
        assert [server.num_running for server in servers] == [2, 2, 2]
        assert engine.state()["running"] == 6
        for server in servers:
            server.may_answer.set()
        await asyncio.gather(*running)
        before = num_requests(servers)
        for _ in range(4):
            await engine.generate(request(key="game 1"))
        assert [after - first for after, first in zip(num_requests(servers), before, strict=True)] == [0, 4, 0]

    run(play())
    assert (engine.state()["running"], engine.state()["kept_rows"]) == (0, 6)
    engine.release("game 0")
    assert engine.state()["kept_rows"] == 5


def test_a_reply_is_the_servers_with_its_stop_and_version(servers: list[FakeVllm], engine: VllmEngine) -> None:
    stopped, short = run(_ask(engine, request(new=9), request(new=2)))
    assert (stopped.finish_reason, stopped.token_ids.tolist()[-1]) == ("stop", STOP)
    assert (short.finish_reason, len(short.token_ids)) == ("length", 2)
    assert (engine.policy_version, stopped.policy_version) == (2, 2)


async def _ask(engine: VllmEngine, *requests: GenerateRequest) -> list[Completion]:
    return await asyncio.gather(*map(engine.generate, requests))


def test_a_cancelled_request_no_longer_counts(servers: list[FakeVllm], engine: VllmEngine) -> None:
    async def play() -> None:
        servers[0].may_answer.clear()
        running = asyncio.create_task(engine.generate(request()))
        await until(lambda: servers[0].num_running == 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert engine.state()["running"] == 0

    run(play())


# --- a server dies ---------------------------------------------------------------------------------------------------


def test_requests_of_a_server_that_dies_are_asked_of_another(servers: list[FakeVllm], engine: VllmEngine) -> None:
    async def play() -> list[Completion]:
        servers[0].may_answer.clear()
        running = [asyncio.create_task(engine.generate(request(n, key=str(n)))) for n in range(3)]
        await until(lambda: servers[0].num_running == 1)
        servers[0].die()
        return await asyncio.gather(*running)

    expected = [[(6 + n + place) % 5 for place in range(2)] for n in range(3)]
    assert [completion.token_ids.tolist() for completion in run(play())] == expected
    assert engine.state()["servers_up"] == 2


def test_where_none_is_left_requests_and_syncs_fail_and_say_why(servers: list[FakeVllm]) -> None:
    engine = open_engine(servers[:1])
    run(engine.generate(request()))
    servers[0].die()
    engine._pool._start_timeout_s = 0.01
    with pytest.raises(EngineError, match=r"no vLLM server is left: .*engine\.start_timeout_s.*engine\.urls"):
        run(engine.generate(request()))
    with pytest.raises(SyncError, match="no vLLM server is left"):
        run(engine.update_weights(weights(1.0), 3))


@pytest.mark.parametrize("path", ["/pause", "/update_weights", "/resume"])
def test_one_that_comes_back_has_the_newest_weights_before_it_serves(servers: list[FakeVllm], path: str) -> None:
    engine = open_engine(servers[:2])
    run(engine.update_weights(weights(0.5), 3))
    lost = servers[1]
    lost.is_healthy, lost.refused[path] = False, 500

    async def play() -> None:
        await engine.update_weights(weights(0.75), 4)
        assert (servers[0].version, engine.state()["servers_up"]) == ("4", 1)
        lost.number = 9.0
        assert len(await engine.score(np.asarray([1, 2], dtype=np.int32))) == 1
        lost.is_healthy = True
        lost.refused.clear()
        await engine._pool.settle()

    run(play())
    assert (lost.version, lost.number, engine.state()["servers_up"]) == ("4", 0.75, 2)


def test_one_that_is_on_its_way_back_while_weights_change_has_the_newest(servers: list[FakeVllm]) -> None:
    engine = open_engine(servers[:2])
    run(engine.update_weights(weights(0.5), 3))
    late = servers[1]
    late.is_healthy, late.refused["/pause"] = False, 500

    async def play() -> None:
        await engine.update_weights(weights(0.75), 4)
        late.may_load.clear()
        late.is_healthy = True
        late.refused.clear()
        await until(lambda: late.calls[-1] == "/update_weights")
        await engine.update_weights(weights(0.25), 5)
        late.may_load.set()
        await engine._pool.settle()

    run(play())
    assert (late.version, late.number, late.is_paused) == ("5", 0.25, False)
    assert engine.state()["servers_up"] == 2


def hold(patch: pytest.MonkeyPatch, client: ServerClient, method: str) -> tuple[asyncio.Event, asyncio.Event]:
    """What it is asked has been done, and is told when the second event is set."""
    is_done, may_tell, plain = asyncio.Event(), asyncio.Event(), getattr(client, method)

    async def ask(*given: Any) -> Any:
        answer = await plain(*given)
        is_done.set()
        await may_tell.wait()
        return answer

    patch.setattr(client, method, ask)
    return is_done, may_tell


@pytest.mark.parametrize("method", ["set_version", "resume"])
def test_one_that_is_almost_back_when_weights_change_has_the_newest(
    servers: list[FakeVllm], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    engine = open_engine(servers[:2])
    run(engine.generate(request()))
    late = engine._pool.servers[1]
    if method == "resume":
        run(engine.update_weights(weights(0.5), 3))
    engine._pool.lose(late, EngineError("gone"))
    # One of ours that is there again, and has had no weights yet, is told which it has.
    late.process = cast(ServerProcess, object()) if method == "set_version" else None

    async def play() -> None:
        is_done, may_tell = hold(monkeypatch, late.client, method)
        await engine.generate(request())
        await is_done.wait()
        await engine.update_weights(weights(0.75), 4)
        may_tell.set()
        await engine._pool.settle()

    run(play())
    assert (servers[1].version, servers[1].number, engine.state()["servers_up"]) == ("4", 0.75, 2)


# --- somebody else starts a server again -----------------------------------------------------------------------------


@pytest.fixture
def restart(servers: list[FakeVllm]) -> Callable[[int], FakeVllm]:
    """As a supervisor does: another process at the same address, with the weights of its model folder."""

    def restart(number: int) -> FakeVllm:
        servers[number].die()
        servers[number] = FakeVllm(port=int(servers[number].url.rpartition(":")[2])).start()
        return servers[number]

    return restart


@pytest.mark.parametrize("num_servers", [1, 2])
def test_one_that_was_started_again_unnoticed_samples_nothing_before_it_has_the_newest_weights(
    servers: list[FakeVllm], restart: Callable[[int], FakeVllm], num_servers: int
) -> None:
    engine = open_engine(servers[:num_servers])
    run(engine.update_weights(weights(0.5), 3))
    again = restart(0)

    async def play() -> list[Completion]:
        first = await engine.generate(request())
        await engine._pool.settle()
        return [first, await engine.generate(request())]

    for completion in run(play()):
        assert completion.policy_version == 3
        assert completion.behavior_logprobs == pytest.approx([-0.6, -0.6])
    assert (again.version, again.number, engine.state()["servers_up"]) == ("3", 0.5, num_servers)
    # What it had computed by other weights is forgotten with the pause.
    assert again.calls[:3] == ["/inference/v1/generate", "/init_weight_transfer_engine", "/pause"]


def test_one_that_was_gone_for_a_while_has_the_newest_weights_before_it_serves(
    servers: list[FakeVllm], restart: Callable[[int], FakeVllm]
) -> None:
    engine = open_engine(servers[:1])
    run(engine.update_weights(weights(0.5), 3))
    servers[0].die()

    async def play() -> Completion:
        asking = asyncio.create_task(engine.generate(request()))
        await until(lambda: engine.state()["servers_up"] == 0)
        restart(0)
        return await asking

    assert run(play()).behavior_logprobs == pytest.approx([-0.6, -0.6])
    assert servers[0].calls[0] == "/init_weight_transfer_engine"


def test_replies_from_before_it_had_weights_do_not_lose_it_again(
    servers: list[FakeVllm], restart: Callable[[int], FakeVllm], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(servers[:1])
    run(engine.update_weights(weights(0.5), 3))
    restart(0)
    server = engine._pool.servers[0]

    async def play() -> list[Completion]:
        with monkeypatch.context() as patch:
            is_done, may_tell = hold(patch, server.client, "generate")
            late = asyncio.create_task(engine.generate(request(1)))
            await is_done.wait()
        early = await engine.generate(request(0))
        may_tell.set()
        return [early, await late]

    assert [completion.policy_version for completion in run(play())] == [3, 3]
    assert server.num_losses == 1


def test_where_weights_cannot_be_sent_again_it_stays_out(
    servers: list[FakeVllm], restart: Callable[[int], FakeVllm], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(servers[:2])
    run(engine.update_weights(weights(0.5), 3))
    monkeypatch.setattr(engine._transfer, "can_repeat", False)
    for number, (num_up, version) in enumerate([(1, 3), (0, None)]):
        restart(number)
        replies = run(_try_all(engine, [request(seed) for seed in range(4)]))
        assert {getattr(reply, "policy_version", None) for reply in replies} == {version}
        assert engine.state()["servers_up"] == num_up
    with pytest.raises(EngineError, match=r"no vLLM server is left: .*is back, and engine\.transfer .*cannot send it"):
        run(engine.generate(request()))


async def _try_all(engine: VllmEngine, requests: list[GenerateRequest]) -> list[Any]:
    return await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)


# --- weights ---------------------------------------------------------------------------------------------------------


def test_weights_reach_every_server_between_a_pause_and_a_resume(servers: list[FakeVllm], engine: VllmEngine) -> None:
    run(engine.update_weights(weights(0.5), 7))
    for server in servers:
        assert server.calls == [
            "/init_weight_transfer_engine",
            "/pause",
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/resume",
        ]
        assert (server.number, server.version, server.is_paused) == (0.5, "7", False)
    (completion,) = run(_ask(engine, request()))
    assert (engine.policy_version, completion.policy_version) == (7, 7)
    assert completion.behavior_logprobs == pytest.approx([-0.6, -0.6])
    run(engine.update_weights(weights(0.25), 8))
    assert servers[0].calls.count("/init_weight_transfer_engine") == 1
    assert [scores.tolist() for scores in run(engine.score(np.asarray([1, 2], dtype=np.int32)))] == [[-0.25]] * 3


def test_large_weights_go_in_parts(servers: list[FakeVllm], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.engine.vllm_transfer._PART_BYTES", 20)
    engine = open_engine(servers[:1])
    run(engine.update_weights(weights(0.5), 1))
    assert servers[0].calls.count("/update_weights") == 2
    assert servers[0].number == 0.5
    run(engine.close())


@pytest.mark.parametrize("first", ["2", "default"])
@pytest.mark.parametrize(
    ("in_flight", "version", "num_asked"),
    [("wait", 2, 1), ("keep", 2, 1), ("abort", 3, 2)],
)
def test_running_requests_end_go_on_or_are_asked_again(
    servers: list[FakeVllm], in_flight: str, version: int, num_asked: int, first: str
) -> None:
    server = servers[0]
    engine = open_engine(servers[:1], in_flight=in_flight)
    server.version = first

    async def play() -> Completion:
        server.may_answer.clear()
        running = asyncio.create_task(engine.generate(request()))
        await until(lambda: server.num_running == 1)
        update = asyncio.create_task(engine.update_weights(weights(0.5), 3))
        await until(lambda: server.is_paused)
        if in_flight == "wait":
            assert server.version == first
            server.may_answer.set()
        await update
        server.may_answer.set()
        return await running

    completion = run(play())
    assert (completion.policy_version, server.version) == (version, "3")
    assert num_requests(servers)[0] == num_asked
    assert ("/reset_prefix_cache" in server.calls) == (in_flight == "keep")
    assert run(engine.generate(request())).policy_version == 3


def test_a_request_that_is_always_broken_off_fails_and_says_why(servers: list[FakeVllm]) -> None:
    engine = open_engine(servers[:1], in_flight="abort")
    servers[0].aborts_all = True
    with pytest.raises(EngineError, match=r"8 times.*weights change.*engine\.in_flight"):
        run(engine.generate(request()))
    assert num_requests(servers)[0] == 8
    assert engine.state()["running"] == 0


@pytest.mark.parametrize("path", ["/pause", "/update_weights", "/resume"])
def test_a_server_that_refuses_weights_ends_the_run(servers: list[FakeVllm], path: str) -> None:
    engine = open_engine(servers[:2])
    run(engine.generate(request()))
    servers[1].refused[path] = 404
    with pytest.raises(SyncError, match=rf"version 5: .*{path}.* says 404.*VLLM_SERVER_DEV_MODE=1.*shared_memory"):
        run(engine.update_weights(weights(1.0), 5))


@pytest.mark.parametrize("in_flight", ["wait", "keep"])
@pytest.mark.parametrize("path", ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update"])
def test_after_a_failed_sync_no_server_is_paused_and_the_version_is_that_before(
    servers: list[FakeVllm], path: str, in_flight: str
) -> None:
    engine = open_engine(servers[:2], in_flight=in_flight)
    run(engine.update_weights(weights(0.5), 4))
    servers[1].refused[path] = 400
    with pytest.raises(SyncError, match=rf"version 5: .*{path}.* says 400"):
        run(engine.update_weights(weights(1.0), 5))
    assert [server.is_paused for server in servers[:2]] == [False, False]
    assert engine.policy_version == 4
    servers[1].refused.clear()

    async def sync_again() -> None:
        await engine.update_weights(weights(0.25), 6)
        await engine._pool.settle()

    run(sync_again())
    assert [(server.version, server.number) for server in servers[:2]] == [("6", 0.25)] * 2
    assert engine.policy_version == 6


def test_an_interrupted_sync_leaves_no_server_paused(servers: list[FakeVllm]) -> None:
    engine = open_engine(servers[:2])
    servers[1].may_load.clear()

    async def play() -> None:
        update = asyncio.create_task(engine.update_weights(weights(0.5), 3))
        await until(lambda: "/update_weights" in servers[1].calls)
        update.cancel()
        await asyncio.gather(update, return_exceptions=True)
        assert update.cancelled()

    run(play())
    servers[1].may_load.set()
    assert [server.is_paused for server in servers[:2]] == [False, False]
    assert engine.policy_version == 2


def test_one_that_comes_back_and_refuses_the_weights_is_left_running(servers: list[FakeVllm]) -> None:
    engine = open_engine(servers[:2])
    run(engine.update_weights(weights(0.5), 3))
    late = servers[1]
    late.is_healthy, late.refused["/pause"] = False, 500

    async def play() -> None:
        await engine.update_weights(weights(0.75), 4)
        late.refused = {"/update_weights": 400}
        late.is_healthy = True
        await engine._pool.settle()

    run(play())
    assert (engine.state()["servers_up"], late.calls.count("/pause") > 1, late.is_paused) == (1, True, False)


def test_it_outlives_an_event_loop_in_which_servers_were_on_their_way(servers: list[FakeVllm]) -> None:
    engine = open_engine(servers[:1])
    servers[0].is_healthy = False

    async def give_up_early() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await engine.generate(request())

    run(give_up_early())
    servers[0].is_healthy = True
    assert len(run(engine.generate(request())).token_ids) == 2
