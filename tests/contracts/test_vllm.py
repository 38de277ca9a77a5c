"""What only a real vLLM can show: a killed server, weights that change under way, a sync that goes wrong."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import torch

from tests.clock import HANG_S
from turnwise.deps import LearnerSite
from turnwise.engine import vllm_servers as process
from turnwise.engine.vllm import VllmEngine
from turnwise.errors import SyncError
from turnwise.learn.trainer import Trainer
from turnwise.run.api import train
from turnwise.sync.sync_check import Probe, VerifiedPublisher
from turnwise.sync.weight_store import EnginePublisher
from turnwise.types import Completion, GenerateRequest

from .setting import make_model, model_path, settings_with
from .test_engines import TOLERANCE, asked, assert_exact, request, stops
from .vllm_servers import NEEDS_VLLM, PYTHON, open_client, shared_servers, start_servers

pytestmark = list(NEEDS_VLLM)
_NEW = 800
"""Tokens of a reply under which weights change."""
_MAX_TRIES = 10
_OLD_HEAD = """

class SharedMemoryTransfer(SharedMemoryTransfer):
    def start_weight_update(self):
        self._old = self.model.lm_head.weight.detach().clone()
        super().start_weight_update()

    def finish_weight_update(self):
        super().finish_weight_update()
        self.model.lm_head.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, self._old, bias)
"""
"""What a head that was packed and forgotten amounts to, whichever kernel a CPU has."""


def test_a_server_killed_in_the_middle_costs_no_reply_and_comes_back_with_the_newest_weights() -> None:
    open_client(stops())
    engine, new = shared_servers(stops()), make_model(noise_seed=1)
    given = [request(seed, new=200, key=str(seed)) for seed in range(12)]

    async def play() -> list[Completion]:
        await engine.update_weights(new.state_dict(), 5)
        running = [asyncio.create_task(engine.generate(one)) for one in given]
        while engine.state()["running"] < len(given):
            await asyncio.sleep(0)
        killed = engine._pool.servers[0].process
        assert killed is not None
        assert killed._process is not None
        killed._process.kill()
        completions = await asyncio.gather(*running)
        await engine._pool.settle()
        return completions

    for one, completion in zip(given, asyncio.run(play()), strict=True):
        assert completion.policy_version == 5
        assert_exact(new, one, completion)
    state = engine.state()
    assert (state["servers_up"], state["restarts"]) == (2, 1)
    expected = _plain_scores(new, given[0].prompt_ids)
    for scores in asyncio.run(engine.score(given[0].prompt_ids)):
        np.testing.assert_allclose(scores, expected, atol=1e-4)


@pytest.mark.parametrize("in_flight", ["wait", "keep", "abort"])
def test_requests_under_way_end_go_on_or_are_asked_again(in_flight: str) -> None:
    expected = {"wait": {_NEW}, "keep": set(range(1, _NEW)), "abort": {0}}[in_flight]
    # On a busy machine all replies may have ended before the weights come.
    for _ in range(_MAX_TRIES):
        nums_old = _change_weights_under_way(in_flight)
        assert in_flight == "keep" or {0, _NEW} >= nums_old
        if nums_old & expected:
            return
    pytest.fail(f"engine.in_flight={in_flight}: of {_NEW} tokens, old weights sampled {nums_old} in the last try")


def _change_weights_under_way(in_flight: str) -> set[int]:
    """How many tokens of each reply are of the old weights."""
    engine = open_client(stops(), choices=(f"engine.in_flight={in_flight}",))
    models = {0: make_model(), 1: make_model(noise_seed=1)}
    given = [request(seed, new=_NEW) for seed in range(6)]
    engine._stop_ids = frozenset()  # none ends before its budget

    async def play() -> list[Completion]:
        running = [asyncio.create_task(engine.generate(one)) for one in given]
        # One token of each server, asked for behind those: they are under way when it is there.
        await asyncio.gather(*(engine.generate(request(9, new=1)) for _ in engine._pool.servers))
        await engine.update_weights(models[1].state_dict(), 1)
        return await asyncio.gather(*running)

    completions = asyncio.run(play())
    assert [len(completion.token_ids) for completion in completions] == [_NEW] * len(given)
    nums_old = [_num_old(models, one, completion) for one, completion in zip(given, completions, strict=True)]
    assert [completion.policy_version for completion in completions] == [0 if num else 1 for num in nums_old]
    return set(nums_old)


def _num_old(models: dict[int, Any], given: GenerateRequest, completion: Completion) -> int:
    """How many tokens the old weights sampled; each that follows is exactly as likely as the new ones find it."""
    ids = np.concatenate([given.prompt_ids, completion.token_ids])
    num_new = len(completion.token_ids)
    old, new = (_plain_scores(models[version], ids)[-num_new:] for version in (0, 1))
    is_other = np.abs(completion.behavior_logprobs - old) > TOLERANCE
    num_old = int(is_other.argmax()) if is_other.any() else num_new
    np.testing.assert_allclose(completion.behavior_logprobs[num_old:], new[num_old:], atol=TOLERANCE)
    return num_old


def test_turns_of_a_conversation_find_their_prefix() -> None:
    engine = open_client(stops())
    first = request(1, length=96, new=4, key="a")

    async def play() -> float:
        reply = await engine.generate(first)
        before = _metric(engine, "vllm:prefix_cache_hits_total")
        await engine.generate(asked(np.concatenate([first.prompt_ids, reply.token_ids, first.prompt_ids]), key="a"))
        return _metric(engine, "vllm:prefix_cache_hits_total") - before

    assert asyncio.run(play()) == 96


def _metric(engine: VllmEngine, name: str) -> float:
    """What the servers themselves count, added up."""
    found = 0.0
    for server in engine._pool.up:
        with urlopen(f"{server.client.url}/metrics", timeout=HANG_S) as page:
            lines = page.read().decode().splitlines()
        found += sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))
    return found


def test_a_tied_head_that_was_left_old_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The silent fault that this check is for: all other weights arrive, and the packed head stays."""
    plug_in = tmp_path / "plug_in"
    shutil.copytree(process.PLUG_IN, plug_in)
    backend = plug_in / "turnwise_shared_memory.py"
    backend.write_text(backend.read_text() + _OLD_HEAD)
    monkeypatch.setattr(process, "PLUG_IN", plug_in)
    engine, learner = start_servers(stops(), run_path=tmp_path), _learner()
    probe = Probe(request(1, length=40).prompt_ids, learner, engine, max_gap=0.02)
    channel = VerifiedPublisher(EnginePublisher([engine]), probe)

    async def play() -> None:
        try:
            # Nothing has changed yet, so nothing is wrong.
            await channel.publish(probe.take_weights(), 0)
            assert probe.metrics()["sync/probe_gap"] < 1e-4
            with torch.no_grad():
                for parameter in learner.model.parameters():
                    parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
            learner.policy_version = 1
            with pytest.raises(SyncError, match=r"policy version 1, .*expected at most sync\.max_probe_gap = 0\.02"):
                await channel.publish(probe.take_weights(), 1)
        finally:
            await engine.close()

    asyncio.run(play())


def test_the_default_recipe_trains_with_it(tmp_path: Path) -> None:
    overrides = ["engine.type=vllm", "engine.start=true", f"engine.python={PYTHON}", "learn.steps=2"]
    small = ["rollout.groups=8", "eval.episodes=5", "warm_start.steps=2", "warm_start.episodes=4", "eval.every=0"]
    run = train("frozenlake", [*overrides, *small], run_dir=tmp_path / "run")
    rows = run.metrics()[1:]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["sync/probe_gap"] < 1e-4 and row["learn/behavior_gap"] < 1e-4 for row in rows)
    assert (tmp_path / "run" / "engine" / "vllm-0.log").exists()


def _learner() -> Trainer:
    settings = settings_with()
    site = LearnerSite(model_path=model_path(), model=settings.model, loss=settings.learn.loss, temperature=0.7, seed=0)
    return Trainer.open(settings.learn, site)


@torch.no_grad()
def _plain_scores(model: Any, ids: np.ndarray) -> np.ndarray:
    row = torch.tensor(ids).long()[None]
    table = torch.log_softmax(model(input_ids=row, use_cache=False).logits[0, :-1].double(), dim=-1)
    return table.gather(1, row[0, 1:, None]).squeeze(1).numpy()
