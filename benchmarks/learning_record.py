"""The learning record: what it costs of a step of the default recipe, how large it is, and how fast it is read.

One rollout of the default recipe is learnt from again and again, with and without tracing and writing, one after the
other and in turns of order; beside the difference, which is small against its noise, stands the time spent inside the
components that record. Times are CPU times, so that other work on the machine counts little, and medians. A step is the
rollout and the update without a record.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.buffer import NUM_TOKENS, make_experiences
from turnwise.config.load import load_settings
from turnwise.config.schema import OracleWarmStart, TurnwiseSettings
from turnwise.experience.build import build_experiences
from turnwise.learn import trainer as trainer_module
from turnwise.learn.pack import pack
from turnwise.learn.parallel_context import ParallelContext
from turnwise.learn.update import UpdateTracer
from turnwise.loop.build import open_components
from turnwise.loop.components import TrainComponents
from turnwise.loop.policies import resolve_model
from turnwise.loop.serial import update_policy
from turnwise.loop.step import collect
from turnwise.loop.warm_start import warm_start
from turnwise.report.token_log import TokenLog, TokenLogWriter
from turnwise.report.token_log_codec import UpdateRecord
from turnwise.run.run_recorder import logged_batch
from turnwise.types import Annotations, Experience, FloatArray, Sample, StepReport, UpdateTrace


class TimedTracer(UpdateTracer):
    """Counts the time it takes."""

    seconds = 0.0

    def note(self, *args: Any) -> None:
        TimedTracer.seconds += _seconds(lambda: super(TimedTracer, self).note(*args))

    def finish(self, team: ParallelContext) -> UpdateTrace:
        started = time.process_time()
        trace = super().finish(team)
        TimedTracer.seconds += time.process_time() - started
        return trace


class NoTracer:
    """In the tracer's place where nothing is recorded."""

    num_steps = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def begin_epoch(self, _: int) -> None: ...

    def note(self, *_: object) -> None: ...

    def note_losses(self, *_: object) -> None: ...

    def end_minibatch(self, _: object) -> None:
        self.num_steps += 1

    def finish(self, _: object) -> None: ...


def run(pairs: int = 40, recipe: str = "frozenlake", overrides: Sequence[str] = ()) -> dict[str, object]:
    # One batch is learnt from again and again, which an audit would not let pass.
    components = _build(load_settings(recipe, [*overrides, "audit.is_on=false"]))
    rollout_s, experiences = asyncio.run(_play(components))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learning_record.bin"
        recorder = TokenLogWriter(path, "all")
        times = _learn_in_pairs(components, experiences, recorder, pairs)
        off_s = statistics.median(times["off"])
        added = [1e3 * (on - off) for on, off in zip(times["on"], times["off"], strict=True)]
        trace_s, write_s = statistics.median(times["trace"]), statistics.median(times["write"])
        return {
            "benchmark": "learning_record",
            "recipe": recipe,
            "pairs": pairs,
            "rollout_ms": round(1e3 * rollout_s, 1),
            "update_ms": round(1e3 * off_s, 1),
            "with_minus_without_ms": {
                "median": round(statistics.median(added), 1),
                "mean": round(statistics.mean(added), 1),
                "standard_error": round(statistics.stdev(added) / len(added) ** 0.5, 1),
            },
            "tracing_ms": round(1e3 * trace_s, 2),
            "writing_ms": round(1e3 * write_s, 2),
            "tracing_and_writing_share": round((trace_s + write_s) / (rollout_s + off_s), 4),
            **_sizes(path),
            "at_the_bound": _write_at_the_bound(Path(folder) / "bound.bin"),
        }


def _build(settings: TurnwiseSettings) -> TrainComponents:
    components = open_components(settings, resolve_model(settings))
    if isinstance(settings.warm_start, OracleWarmStart):
        template = components.explorer.rollout.template
        asyncio.run(warm_start(components.trainer, template, settings.warm_start, lambda _done, _all: None))
    return components


async def _play(components: TrainComponents) -> tuple[float, list[Experience]]:
    """The CPU time of a rollout, and what it brought; the first rollout warms everything up."""
    await components.publish(0)
    seconds, experiences = [], []
    for number in range(1, 4):
        started = time.process_time()
        explored = await collect(components.explorer, number, components.hooks)
        seconds.append(time.process_time() - started)
        experiences = build_experiences(explored.kept)
    return statistics.median(seconds[1:]), experiences


def _learn_in_pairs(
    components: TrainComponents, experiences: list[Experience], recorder: TokenLogWriter, pairs: int
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"on": [], "off": [], "trace": [], "write": []}

    def learn(step: int, *, is_recorded: bool) -> None:
        def work() -> None:
            learnt = logged_batch(update_policy(components.trainer, experiences, components.hooks))
            assert isinstance(learnt, UpdateRecord)
            if is_recorded:
                times["write"].append(_seconds(lambda: recorder.write(step, learnt)))

        TimedTracer.seconds = 0.0
        with patch.object(trainer_module, "UpdateTracer", TimedTracer if is_recorded else NoTracer):
            times["on" if is_recorded else "off"].append(_seconds(work))
        if is_recorded:
            times["trace"].append(TimedTracer.seconds)

    for step in range(pairs + 1):
        for is_recorded in (True, False) if step % 2 else (False, True):
            learn(step, is_recorded=is_recorded)
    # The first pair is slower on both sides.
    return {name: values[1:] for name, values in times.items()}


def _sizes(path: Path) -> dict[str, object]:
    record = TokenLog(path)
    steps = record.steps()
    tokens = [record.read(step) for step in steps]
    num_tokens, sampled = (sum(map(len, tokens)), sum(int(np.count_nonzero(t.batch.loss_mask)) for t in tokens))
    read_s = _seconds(lambda: [record.read(step).to_arrays() for step in steps])
    iterated_s = _seconds(lambda: sum(1 for step in steps for _ in record.read(step)))
    return {
        "tokens_per_step": num_tokens // len(steps),
        "sampled_per_step": sampled // len(steps),
        "bytes_per_token": round(path.stat().st_size / num_tokens, 2),
        "bytes_per_sampled_token": round(path.stat().st_size / sampled, 2),
        "million_tokens_read_per_s": round(num_tokens / read_s / 1e6, 2),
        "million_tokens_iterated_per_s": round(num_tokens / iterated_s / 1e6, 2),
    }


def _write_at_the_bound(path: Path) -> dict[str, object]:
    """An update with twice as many tokens as the default keeps; numbers are random, so that little can be saved."""
    bound = load_settings("frozenlake").report.tokens
    assert isinstance(bound, int)
    experiences, rng = make_experiences(2 * bound // NUM_TOKENS), np.random.default_rng(0)

    def column(experience: Experience) -> FloatArray:
        return np.where(experience.segment.loss_mask, rng.normal(size=NUM_TOKENS), 0).astype(np.float32)

    samples = [
        Sample(experience=e, advantages=column(e), returns=column(e), values=column(e), reference_logprobs=column(e))
        for e in experiences
    ]
    batch = pack(samples)
    columns = [np.concatenate([column(e) for e in experiences]) for _ in range(4)]
    trace = UpdateTrace(
        proximal_logprobs=columns[0],
        proximal_steps=np.zeros(batch.num_rows, dtype=np.int32),
        first_ratios=columns[1],
        last_ratios=columns[2],
        entropies=columns[3],
        is_clipped=columns[1] > 1,
    )
    known = Annotations(values=(), reference_logprobs=())
    report = StepReport(policy_version=1, metrics={}, trace=trace)
    learnt = UpdateRecord.of(samples, batch, report, annotated=experiences, annotations=known)
    recorder = TokenLogWriter(path, bound)
    seconds = [_seconds(lambda step=step: recorder.write(step, learnt)) for step in range(1, 6)]
    return {
        "tokens_trained": len(batch.token_ids),
        "tokens_written": len(TokenLog(path).read(1)),
        "writing_ms": round(1e3 * statistics.median(seconds), 1),
        "megabytes": round(path.stat().st_size / 5e6, 2),
    }


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    print(run())
