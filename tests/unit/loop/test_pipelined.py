"""Explorer and trainer at the same time: no staleness is the serial loop, more is bounded, failures end both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from tests.clock import HANG_S
from tests.small_run import SMALL_LAKE, build_components
from turnwise.checks.settings import check_settings, find_unused_settings
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, LearnError, SyncError
from turnwise.hooks import TrainStep
from turnwise.loop import pipelined
from turnwise.loop.components import TrainComponents
from turnwise.loop.evaluate import evaluate_policy, is_evaluation_due
from turnwise.loop.pipelined import train_pipelined
from turnwise.loop.policies import resolve_model
from turnwise.loop.serial import train_serial
from turnwise.models.load import load_model
from turnwise.report.metrics import Stopwatch

pytestmark = pytest.mark.slow

STYLES = ("fixed", "dynamic_by_explorer", "dynamic_by_trainer")
OVERLAP = {"sync/version_lag", "sync/explorer_wait_s", "sync/trainer_wait_s"}


def parts_of(*overrides: str) -> TrainComponents:
    settings = load_settings("frozenlake", [*SMALL_LAKE, "learn.steps=4", "loop.type=pipelined", *overrides])
    check_settings(settings)
    torch.manual_seed(0)
    return build_components(settings)


def run(loop: Any, components: TrainComponents, *, start_step: int = 0) -> list[TrainStep]:
    steps: list[TrainStep] = []

    async def on_step(step: TrainStep) -> None:
        if is_evaluation_due(components.settings, step.step):
            await evaluate_policy(components.explorer.rollout)
        steps.append(step)

    async def bounded() -> None:
        await asyncio.wait_for(loop(components, Stopwatch(), start_step=start_step, on_step=on_step), HANG_S)

    asyncio.run(bounded())
    return steps


def versions(step: TrainStep) -> list[int]:
    return [turn.policy_version for group in step.rollout.played for t in group.trajectories for turn in t.turns]


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("further", [[], ["buffer.train_batch_size=4", "eval.every=1"]], ids=["plain", "leftovers"])
def test_without_staleness_it_is_the_serial_loop(style: str, further: list[str]) -> None:
    serial, overlapped = (parts_of("sync.max_staleness=0", f"sync.style={style}", *further) for _ in range(2))
    expected, got = run(train_serial, serial), run(train_pipelined, overlapped)
    assert [step.step for step in got] == [1, 2, 3, 4]
    for a, b in zip(expected, got, strict=True):
        assert {k: v for k, v in b.metrics.items() if k not in OVERLAP} == a.metrics
        assert (b.rollout.tokens_sampled, b.tokens_trained, b.task_state) == (
            a.rollout.tokens_sampled,
            a.tokens_trained,
            a.task_state,
        )
        assert b.metrics["sync/version_lag"] == 0
    theirs = serial.trainer.learner.weights()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in overlapped.trainer.learner.weights().items())


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("bound", [1, 2])
def test_rollouts_begin_ahead_within_the_bound(style: str, bound: int) -> None:
    components = parts_of("learn.steps=8", f"sync.max_staleness={bound}", f"sync.style={style}")
    steps = run(train_pipelined, components)
    assert components.trainer.learner.policy_version == 8
    assert len({str(t.id) for s in steps for g in s.rollout.played for t in g.trajectories}) == 8 * 3 * 2
    # The first rollouts all begin before the first update is done.
    assert all(max(versions(step)) <= step.step - 1 for step in steps)
    assert min(versions(steps[bound])) == 0
    for step in steps:
        assert min(versions(step)) >= step.step - 1 - bound
        assert step.metrics["sync/staleness_max"] <= bound
        assert step.metrics["sync/staleness_mean"] <= step.metrics["sync/staleness_max"]


def test_an_explorer_that_is_one_ahead_is_one_update_behind() -> None:
    steps = run(train_pipelined, parts_of("learn.steps=5"))
    assert [step.metrics["sync/staleness_max"] for step in steps[1:]] == [1] * 4
    assert [step.metrics["sync/staleness_max"] for step in run(train_serial, parts_of("learn.steps=5"))] == [0] * 5


def test_interval_and_offset_decide_when_weights_are_loaded() -> None:
    steps = run(train_pipelined, parts_of("learn.steps=6", "sync.interval=2", "sync.offset=0"))
    assert [max(versions(step)) for step in steps] == [0, 0, 2, 2, 4, 4]
    steps = run(train_pipelined, parts_of("learn.steps=6", "sync.interval=1", "sync.offset=2"))
    assert [min(versions(step)) for step in steps] == [0, 0, 0, 1, 2, 3]


def test_a_filter_that_drops_everything_ends_the_run_with_its_reason() -> None:
    never = ["reward.filter.type=threshold", "reward.filter.above=99", "reward.filter.max_rounds=1", "learn.steps=9"]
    for bound in (0, 2):
        with pytest.raises(LearnError, match=r"no group has passed reward\.filter in 5 steps"):
            run(train_pipelined, parts_of(*never, f"sync.max_staleness={bound}"))


def test_a_failing_update_ends_the_explorer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LearnError("the update broke")

    monkeypatch.setattr(pipelined, "update_policy", fail)
    with pytest.raises(LearnError, match="the update broke"):
        run(train_pipelined, parts_of("sync.max_staleness=2"))


def test_a_failing_rollout_ends_the_run_with_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the rollout broke")

    monkeypatch.setattr(pipelined, "collect", fail)
    with pytest.raises(RuntimeError, match="the rollout broke"):
        run(train_pipelined, parts_of())


def test_weights_that_cannot_be_loaded_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    components = parts_of()

    async def refuse(*_: object) -> int:
        raise SyncError("no room for weights")

    monkeypatch.setattr(type(components.explorer.rollout.publisher), "publish", refuse)
    with pytest.raises(SyncError, match="no room for weights"):
        run(train_pipelined, components)


def test_a_rollout_that_never_ends_is_named_when_the_deadline_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(pipelined, "collect", hang)
    with pytest.raises(SyncError, match=r"the trainer has waited \d+ s for rollout 1.*sync\.timeout_s is 0\.2"):
        run(train_pipelined, parts_of("sync.timeout_s=0.2"))


def test_a_resumed_loop_plays_what_had_not_been_learnt_from() -> None:
    steps = run(train_pipelined, parts_of("sync.max_staleness=2"))
    resumed = parts_of("sync.max_staleness=2")
    resumed.explorer.tasks.restore(steps[1].task_state)
    again = run(train_pipelined, resumed, start_step=2)
    assert [[g.task for g in s.rollout.played] for s in again] == [
        [g.task for g in s.rollout.played] for s in steps[2:]
    ]


def test_a_bound_below_what_interval_and_offset_need_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sync.max_staleness: 1 given; sync.interval = 2 and sync.offset = 1"):
        parts_of("sync.max_staleness=1", "sync.interval=2", "sync.offset=1")
    parts_of("sync.max_staleness=2", "sync.interval=2", "sync.offset=1")
    with pytest.raises(ConfigError, match=r"sync.max_staleness: 0 given"):
        parts_of("sync.max_staleness=0", "sync.interval=2")


def test_settings_of_the_other_loop_are_named() -> None:
    serial = load_settings("frozenlake", ["sync.offset=1", "sync.style=dynamic_by_trainer"])
    notes = " ".join(find_unused_settings(serial))
    assert "sync.offset has no effect with loop.type 'serial'" in notes
    assert "sync.style has no effect with loop.type 'serial'" in notes
    dynamic = load_settings("frozenlake", ["loop.type=pipelined", "sync.offset=1", "sync.style=dynamic_by_trainer"])
    assert "sync.offset has no effect with sync.style 'dynamic_by_trainer'." in find_unused_settings(dynamic)


@pytest.mark.slow
def test_every_turn_was_sampled_by_the_version_it_names() -> None:
    components = parts_of(
        "learn.steps=6", "sync.max_staleness=2", "sync.style=dynamic_by_trainer", "learn.optim.lr=0.05"
    )
    weights = {0: {name: tensor.clone() for name, tensor in components.trainer.learner.weights().items()}}
    steps: list[TrainStep] = []

    async def keep(step: TrainStep) -> None:
        steps.append(step)
        weights[step.step] = {name: tensor.clone() for name, tensor in components.trainer.learner.weights().items()}

    asyncio.run(train_pipelined(components, Stopwatch(), start_step=0, on_step=keep))
    model, num_told_apart = load_model(resolve_model(components.settings)), 0
    for trajectory in (t for step in steps for group in step.rollout.played for t in group.trajectories):
        for turn in trajectory.turns:
            segment = trajectory.segments[turn.segment_index]
            for version, tensors in weights.items():
                model.load_state_dict(tensors)
                with torch.no_grad():
                    logits = model(torch.tensor(segment.token_ids[None].astype("int64"))).logits[0, :-1]
                ids = torch.tensor(segment.token_ids[1:].astype("int64"))
                scored = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0].numpy()
                gap = abs(scored - segment.behavior_logprobs[1:])[segment.loss_mask[1:]].max()
                if version == turn.policy_version:
                    assert gap < 1e-4
                else:
                    num_told_apart += gap > 1e-2
    assert num_told_apart > 0
