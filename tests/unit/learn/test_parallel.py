"""Several ranks make the update of one process: gradients, weights, metrics, the record of every token, and files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from turnwise.learn.local_launcher import RankProcesses
from turnwise.models.load import load_model
from turnwise.protocols import SFTConfig, Weights
from turnwise.types import StepReport

from .parts import make_batch, make_experience, make_model
from .ranks import open_in, open_one, open_plain, start

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks")]

KL = {"kl": {"type": "loss", "coef": 0.1}}
LORA = {"model_settings": {"lora": {"type": "lora", "rank": 2}}}
CASES: dict[str, dict[str, Any]] = {
    "actor": {},
    "cut into passes": {"micro_batch_tokens": 1, "entropy_coef": 0.02},
    "trajectories weigh alike": {"aggregation": "seq_mean_token_mean"},
    "value head": {"critic": {"type": "value_head"}},
    "critic's own model": {"critic": {"type": "model", "lr": 1e-3}, "micro_batch_tokens": 20},
    "critic alone": {"critic": {"type": "value_head", "warmup_steps": 5}},
    "reference": KL,
    "reference in the reward": {"kl": {"type": "reward", "coef": 0.1, "target": 0.1, "horizon": 10}},
    "adapters": LORA | KL,
    "correction": {"correction": {"type": "truncated", "cap": 1.5}},
    "ptx": {"ptx": {"type": "oracle", "coef": 0.5, "batch_rows": 3}},
    "layers computed again": {"model_settings": {"gradient_checkpointing": True}},
    "all at once": LORA
    | KL
    | {"critic": {"type": "model", "lr": 1e-3}, "correction": {"type": "masked"}, "ptx": {"type": "oracle"}},
}
SHOWN = [make_experience(np.random.default_rng(7), number) for number in range(5)]
every_kind = pytest.mark.parametrize("kind", ["ddp", "fsdp"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[RankProcesses]:
    hosts = start(2)
    yield hosts
    hosts.stop()


@pytest.fixture(scope="module")
def one_rank() -> Iterator[RankProcesses]:
    hosts = start(1)
    yield hosts
    hosts.stop()


def assert_near(found: Weights, wanted: Weights, *, atol: float = 1e-9) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_report(found: StepReport, wanted: StepReport) -> None:
    assert found.policy_version == wanted.policy_version
    assert found.metrics == pytest.approx(wanted.metrics, abs=1e-6)
    assert wanted.trace is not None
    assert found.trace is not None
    for name, column in asdict(wanted.trace).items():
        np.testing.assert_allclose(getattr(found.trace, name), column, atol=1e-6, err_msg=name)


# --- one update ------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_one_process(case: str, kind: str, two_ranks: RankProcesses, model: Path) -> None:
    batch = make_batch(num_rows=7)
    one, many = open_one(model, **CASES[case]), open_in(two_ranks, model, kind, **CASES[case])
    if "ptx" in CASES[case]:
        one.supervise(SHOWN)
        many.supervise(SHOWN)
    wanted = one.gradients(batch)
    assert max(gradient.abs().max().item() for gradient in wanted.values()) > 1e-3
    assert_near(two_ranks.call("gradients", batch), wanted)


@every_kind
@pytest.mark.parametrize("case", CASES)
def test_updates_are_those_of_one_process(case: str, kind: str, two_ranks: RankProcesses, model: Path) -> None:
    """Weights, metrics and what is recorded of each token, over several optimizer steps with clipped gradients."""
    how = CASES[case] | {"epochs": 2, "minibatches": 2, "optim": {"grad_clip": 0.05}}
    one, many = open_one(model, **how), open_in(two_ranks, model, kind, **how)
    for seed in (1, 2):
        for learner in (one, many):
            learner.supervise(SHOWN)
        told, wanted = many.annotate(SHOWN), one.annotate(SHOWN)
        for name, rows in asdict(wanted).items():
            assert (rows is None) == (getattr(told, name) is None)
            for row, own in zip(rows or (), getattr(told, name) or (), strict=True):
                np.testing.assert_allclose(own, row, atol=1e-6)
        assert_same_report(many.step(make_batch(seed=seed)), one.step(make_batch(seed=seed)))
    assert many.policy_version == 2
    assert_near(many.weights(), one.weights())


@every_kind
def test_a_rank_without_rows_takes_part(kind: str, two_ranks: RankProcesses, model: Path) -> None:
    how = {"minibatches": 3, "critic": {"type": "value_head"}, **KL}
    one, many = open_one(model, **how), open_in(two_ranks, model, kind, **how)
    for num_rows in (1, 3):
        batch = make_batch(num_rows=num_rows)
        assert_same_report(many.step(batch), one.step(batch))
    assert_near(many.weights(), one.weights())


@every_kind
def test_an_update_without_credit_is_skipped_by_all(kind: str, two_ranks: RankProcesses, model: Path) -> None:
    one, many = open_one(model), open_in(two_ranks, model, kind)
    report = many.step(make_batch(advantages=0.0))
    assert report == one.step(make_batch(advantages=0.0))
    assert report.metrics["learn/skipped"] == 1
    assert_near(many.weights(), one.weights(), atol=0)


@every_kind
@pytest.mark.parametrize("more", [{}, KL, LORA, LORA | KL], ids=["plain", "reference", "adapters", "folded"])
def test_a_warm_start_is_that_of_one_process(
    kind: str, more: dict[str, Any], two_ranks: RankProcesses, model: Path
) -> None:
    how, heard = SFTConfig(steps=4, batch_rows=3, lr=1e-2), []
    one, many = open_one(model, **more), open_in(two_ranks, model, kind, **more)
    wanted = one.imitate(SHOWN, how, lambda *done: None)
    assert many.imitate(SHOWN, how, lambda *done: heard.append(done)) == pytest.approx(wanted, abs=1e-9)
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert_near(many.weights(), one.weights())
    # What is frozen at that moment shows in what is told afterwards.
    assert_same_report(many.step(make_batch()), one.step(make_batch()))
    told, wanted_rows = many.annotate(SHOWN).reference_logprobs, one.annotate(SHOWN).reference_logprobs
    for own, row in zip(told or (), wanted_rows or (), strict=True):
        np.testing.assert_allclose(own, row, atol=1e-6)
    assert_near(many.weights(), one.weights())


def test_shards_are_pieces_and_replicas_are_whole(two_ranks: RankProcesses, model: Path) -> None:
    whole = sum(p.numel() for p in make_model().parameters())
    open_in(two_ranks, model, "ddp")
    assert two_ranks.call("num_own_numbers") == whole
    open_in(two_ranks, model, "fsdp")
    assert two_ranks.call("num_own_numbers") == pytest.approx(whole / 2, rel=0.05)


def test_offloaded_pieces_make_the_same_update(two_ranks: RankProcesses, model: Path) -> None:
    one, many = open_one(model), open_in(two_ranks, model, "fsdp", parallel={"cpu_offload": True})
    assert_same_report(many.step(make_batch()), one.step(make_batch()))
    assert_near(many.weights(), one.weights())


@pytest.mark.parametrize(("kind", "tolerance"), [("ddp", 1e-3), ("fsdp", 0.03)])
def test_half_precision_computes_and_full_precision_is_kept(
    kind: str, tolerance: float, two_ranks: RankProcesses, model: Path
) -> None:
    """Pieces are sent in bfloat16, so that there is its rounding between layers, where one process keeps float32."""
    how = KL | {"type": "ppo", "critic": {"type": "value_head"}, "model_settings": {"dtype": "bfloat16"}}
    exact, one = (open_plain(model, **(how | more)) for more in ({"model_settings": {}}, {}))
    many = open_in(two_ranks, model, kind, **how)
    batch = make_batch()
    wanted, found = one.step(batch).metrics, many.step(batch).metrics
    for name in ("policy_loss", "value_loss", "entropy", "grad_norm", "reference_kl"):
        assert found[f"learn/{name}"] == pytest.approx(wanted[f"learn/{name}"], rel=tolerance), name
    assert found["learn/entropy"] != exact.step(batch).metrics["learn/entropy"]
    assert {tensor.dtype for tensor in many.weights().values()} == {torch.float32}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_adapters_beside_a_half_precise_model_learn_alike(kind: str, two_ranks: RankProcesses, model: Path) -> None:
    how = KL | {"type": "ppo", "model_settings": {"dtype": "bfloat16", "lora": {"type": "lora", "rank": 2}}}
    one, many, batch = open_plain(model, **how), open_in(two_ranks, model, kind, **how), make_batch()
    wanted, found = one.step(batch).metrics, many.step(batch).metrics
    for name in ("policy_loss", "entropy", "grad_norm"):
        assert found[f"learn/{name}"] == pytest.approx(wanted[f"learn/{name}"], rel=0.03), name
    assert {tensor.dtype for tensor in many.weights().values()} == {torch.bfloat16}


def test_weights_share_what_the_model_shares(two_ranks: RankProcesses, model: Path) -> None:
    for kind in ("ddp", "fsdp"):
        weights = open_in(two_ranks, model, kind).weights()
        assert weights["lm_head.weight"].data_ptr() == weights["model.embed_tokens.weight"].data_ptr()


# --- the way back ----------------------------------------------------------------------------------------------------

EVERYTHING = {
    "models": KL | {"critic": {"type": "model", "lr": 1e-3}},
    "adapters": LORA | KL | {"critic": {"type": "value_head"}},
}


@pytest.mark.parametrize("case", EVERYTHING)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2 fsdp", "none"),
        ("none", "2 fsdp"),
        ("2 fsdp", "1 fsdp"),
        ("1 fsdp", "2 fsdp"),
        ("2 ddp", "2 fsdp"),
        ("2 fsdp", "1 ddp"),
        ("none", "2 ddp"),
    ],
)
def test_a_run_goes_on_with_other_ranks(
    case: str,
    before: str,
    after: str,
    two_ranks: RankProcesses,
    one_rank: RankProcesses,
    model: Path,
    tmp_path: Path,
) -> None:
    how = EVERYTHING[case] | {"minibatches": 2}

    def open_as(words: str) -> Any:
        if words == "none":
            return open_one(model, **how)
        count, kind = words.split()
        return open_in(two_ranks if count == "2" else one_rank, model, kind, int(count), **how)

    unbroken, first = open_one(model, **how), open_as(before)
    for learner in (unbroken, first):
        learner.imitate(SHOWN, SFTConfig(steps=2, batch_rows=3, lr=1e-2), lambda *done: None)
        learner.step(make_batch(seed=1))
    first.save_state(tmp_path)
    assert_near(load_model(tmp_path / "policy", dtype=torch.float64).state_dict(), dict(unbroken.weights()))
    second = open_as(after)
    second.load_state(tmp_path)
    assert second.policy_version == 1
    assert_same_report(second.step(make_batch(seed=2)), unbroken.step(make_batch(seed=2)))
    assert_near(dict(second.weights()), dict(unbroken.weights()))
