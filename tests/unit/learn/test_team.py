"""What ranks share and sum, told without starting any."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.errors import ConfigError
from turnwise.learn import parallel_context as devices
from turnwise.learn.pack import blank_micro_batch
from turnwise.learn.parallel_context import ParallelContext, rank_devices, shard_rows, threads_per_rank
from turnwise.learn.policy import zero_loss_pass
from turnwise.learn.update import MetricAccumulator, UpdateTracer
from turnwise.learn.workers import ReceivedWeights, send_weights

from .parts import CPU, make_batch, make_model, make_trainer


class SecondOfTwo(ParallelContext):
    """A rank whose partner has said what it has to say."""

    rank, size = 1, 2

    def __init__(self, numbers: Mapping[str, float] | None = None, array: Any = None) -> None:
        super().__init__(CPU)
        self.numbers, self.array = numbers or {}, array

    def sum_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        return {name: numbers.get(name, 0.0) + self.numbers.get(name, 0.0) for name in {**self.numbers, **numbers}}

    def sum_array(self, array: Any) -> Any:
        return array + self.array


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 5))
def test_every_row_is_somebodys_and_nobody_has_much_more_than_another(lengths: list[int], num_ranks: int) -> None:
    rows = np.arange(len(lengths))[::-1] * 3
    sizes = dict(zip(rows.tolist(), lengths, strict=True))
    shares = [
        shard_rows(np.array(lengths, dtype=np.int64), rows, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)
    ]
    assert sorted(np.concatenate(shares).tolist()) == sorted(rows.tolist())
    for share in shares:
        # In the order of the mini-batch, so that one rank alone has exactly what one process has.
        assert share.tolist() == [row for row in rows.tolist() if row in share]
    loads = [sum(sizes[row] for row in share.tolist()) for share in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)


def test_what_all_ranks_know_is_counted_once_and_shares_are_summed() -> None:
    meter = MetricAccumulator(SecondOfTwo({"loss": 2.0, "grad_norm": 5.0, "gap": 0.5}))
    meter.add_share("loss", torch.tensor(6.0), 2)
    meter.note("gap", 0.5)
    meter.note_share("own", 1.0)
    meter.count_step(torch.tensor(5.0))
    assert meter.means() == {"loss": 5.0, "grad_norm": 5.0, "gap": 0.5, "own": 1.0}


def test_a_token_that_no_rank_has_met_stays_unknown() -> None:
    batch = make_batch(num_rows=2)
    sampled = np.flatnonzero(batch.loss_mask)
    partner = np.zeros((2, 7, len(batch.token_ids)), dtype=np.float32)
    partner[0, :, sampled[0]], partner[1, :, sampled[0]] = -1.5, 1
    trace = UpdateTracer(batch, num_epochs=1).finish(SecondOfTwo(array=partner))
    assert trace.proximal_logprobs[sampled[0]] == -1.5
    assert np.isnan(trace.proximal_logprobs[sampled[1:]]).all()
    assert not trace.proximal_logprobs[~batch.loss_mask].any()


def test_a_blank_pass_reaches_every_weight_and_moves_none() -> None:
    trainer = make_trainer(critic={"type": "value_head"})
    micro = blank_micro_batch(CPU)
    zero_loss_pass(micro, trainer.actor.score(micro), trainer.critic)
    for parameter in [*trainer.model.parameters(), *trainer.critic.parameters()]:
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_weights_arrive_as_they_were_sent_and_what_they_share_is_sent_once() -> None:
    weights = make_model().state_dict() | {
        "number": torch.tensor(3),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "turned": torch.arange(6.0).view(2, 3).t(),
    }
    received, sent = ReceivedWeights(), []

    def note(*told: Any) -> None:
        sent.append(told[0] if isinstance(told[1], np.ndarray) else None)
        received.hear(*pickle.loads(pickle.dumps(told)))

    send_weights(weights, note)
    assert received.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(received[name], tensor)
        assert received[name].dtype == tensor.dtype
    assert sent.count(None) == 1
    assert received["lm_head.weight"] is received["model.embed_tokens.weight"]


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_devices("cpu", 3) == ["cpu"] * 3
    monkeypatch.setattr(devices, "chosen_device", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert rank_devices("auto", 2) == ["cuda:0", "cuda:1"]
    with pytest.raises(ConfigError, match=r"learn.parallel.ranks: 3 given; this machine has 2 GPUs"):
        rank_devices("auto", 3)


def test_cores_are_divided_and_nobody_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [threads_per_rank(ranks) for ranks in (1, 2, 3, 16)] == [8, 4, 2, 1]
