"""`turnwise audit --seed-faults`: every fault of the catalogue in a small run of its own, and whether it is found.

In: nothing but the catalogue. Out: one line for each fault. The runs are real: a model that samples, environments, a
buffer, credit and updates; a fault is put around one part, and all others are as always.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from turnwise.app.checkpointer import load_checkpoint, save_checkpoint
from turnwise.app.progress import Progress
from turnwise.audit import faults as engines
from turnwise.audit import faults as learning
from turnwise.audit import faults as records
from turnwise.audit.faults import Fault
from turnwise.config.load import load_settings
from turnwise.errors import AuditError, LearnError, SyncError
from turnwise.infra.threads import run_async
from turnwise.loop.build import build_explore, join, open_audit, open_credit, open_learner, open_proxies
from turnwise.loop.components import TrainParts
from turnwise.loop.policies import resolve_model
from turnwise.loop.serial import LoopStep, train_serial
from turnwise.report.metrics import Stopwatch
from turnwise.sync.weight_store import MemoryChannel

log = logging.getLogger(__name__)

CATALOGUE = (*engines.ENGINE_FAULTS, *records.RECORD_FAULTS, *learning.LEARNING_FAULTS)
_STEPS = 3
"""Of each run."""
_SETTING = [
    "model.tiny={hidden_size: 16, intermediate_size: 32, num_layers: 1, num_heads: 2}",
    f"learn.steps={_STEPS}",
    "learn.minibatches=1",
    "learn.epochs=1",
    "rollout={groups: 4, group_size: 2, max_turns: 4}",
    "warm_start={type: none}",
    "reward.shaping=turnwise.audit.faults:earn_by_words",
    "audit.rescored_tokens=4096",
    "report.tensorboard=false",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one fault."""

    name: str
    room: str
    caught: bool
    after_steps: int | None
    """The step in which it was found; None where it was not."""
    by: str | None
    """What found it: a check of the audit, or an error of another part."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def seed_faults(
    faults: Sequence[Fault] = CATALOGUE, on_outcome: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """One run for each fault."""
    outcomes = []
    for fault in faults:
        outcome = _try(fault)
        on_outcome(outcome)
        outcomes.append(outcome)
    return outcomes


def _try(fault: Fault) -> Outcome:
    done: list[int] = []

    async def on_step(step: LoopStep) -> None:
        done.append(step.step)

    by: str | None = None
    with tempfile.TemporaryDirectory() as folder, _patched(fault):
        try:
            parts = _open(fault, Path(folder))
            if fault.at_resume:
                run_async(_resume(parts, fault, Path(folder) / "step-1", on_step))
            else:
                run_async(_train(parts, 0, on_step))
        except AuditError as error:
            by = error.check
        except (LearnError, SyncError) as error:
            by = type(error).__name__
        except Exception as error:  # noqa: BLE001 - whatever falls over by accident has not been found
            log.warning("%s: the run fell over: %s: %s", fault.name, type(error).__name__, error)
    steps = len(done) + 1 if by is not None else None
    return Outcome(name=fault.name, room=fault.room, caught=by is not None, after_steps=steps, by=by)


async def _train(parts: TrainParts, start_step: int, on_step: Callable[[LoopStep], Any]) -> None:
    await parts.channel.publish(parts.take_weights(), parts.learner.policy_version)
    try:
        await train_serial(parts, Stopwatch(), start_step=start_step, on_step=on_step)
    finally:
        await parts.close_play()


async def _resume(parts: TrainParts, fault: Fault, folder: Path, on_step: Callable[[LoopStep], Any]) -> None:
    """A sound run until its checkpoint, then the fault."""
    await _train(parts, _STEPS - 1, on_step)
    assert fault.learner is not None
    save_checkpoint(folder, parts.learner, parts.tokenizer, Progress(step=1))
    load_checkpoint(folder, fault.learner(parts.learner))


def _open(fault: Fault, folder: Path) -> TrainParts:
    """The parts of a run in which engine and learner hold weights of their own, with the fault around one of them."""
    settings = load_settings("frozenlake", [*_SETTING, *fault.overrides])
    model = str(resolve_model(settings))
    explore = build_explore(settings, model, run_path=folder)
    engine = fault.engine(explore.engine) if fault.engine else explore.engine
    explore = replace(explore, engine=engine, channel=MemoryChannel([engine]))
    proxy, greedy = open_proxies(explore)
    explore = replace(
        explore,
        proxy=fault.collector(proxy) if fault.collector else proxy,
        greedy_proxy=greedy,
        buffer=fault.buffer(explore.buffer) if fault.buffer else explore.buffer,
    )
    credit, learner = open_credit(settings), open_learner(settings, model)
    if fault.learner and not fault.at_resume:
        learner = fault.learner(learner)
    audit = open_audit(settings, learner, None)
    credit = fault.credit(credit) if fault.credit else credit
    return join(explore, {"credit": credit, "learner": learner, "audit": audit})


@contextmanager
def _patched(fault: Fault) -> Iterator[None]:
    if fault.patch is None:
        yield
        return
    module_name, name, wrap = fault.patch
    module = importlib.import_module(module_name)
    sound = getattr(module, name)
    setattr(module, name, wrap(sound))
    try:
        yield
    finally:
        setattr(module, name, sound)
