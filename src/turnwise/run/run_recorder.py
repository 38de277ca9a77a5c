"""Hooks that evaluate and write while a run trains: metrics, trajectories, the token log, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeAlias

from rich.console import Console

from turnwise.config.schema import TurnwiseSettings
from turnwise.hooks import Hook, LogValue, TrainStep, UpdateResult, sort_log_values
from turnwise.infra.untrusted import success_flags
from turnwise.loop.evaluate import Evaluation
from turnwise.protocols import Engine, Sink
from turnwise.report.console import ProgressDisplay
from turnwise.report.metrics import JsonlSink, Sinks, Stopwatch, reward_sources
from turnwise.report.run_dir import RunDirectory
from turnwise.report.token_log import TokenLogWriter
from turnwise.report.token_log_codec import UpdateRecord
from turnwise.report.trackers import TensorboardSink, TrackerSite, open_trackers
from turnwise.report.trajectories import TrajectoryWriter
from turnwise.run.run_setup import Evaluator
from turnwise.types import Metrics

ShowPhase: TypeAlias = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]

_COUNTED = ("passes", "rows", "rows_squared", "busy_s", "busy_row_s")
"""What `benchmarks/scaling_sim.py` reads the cost of a forward pass from."""


class RunRecorder(Hook):
    """Writes every step of one run and shows its progress. Use as a context manager."""

    def __init__(
        self,
        settings: TurnwiseSettings,
        directory: RunDirectory,
        console: Console,
        watch: Stopwatch,
        *,
        start_step: int,
        start_s: float,
    ) -> None:
        """`start_s` is how long a resumed run has taken before."""
        self._settings = settings
        self._watch = watch
        sinks: list[Sink] = [JsonlSink(directory.metrics, time_offset_s=start_s)]
        if settings.report.tensorboard:
            sinks.append(TensorboardSink(directory.tensorboard, resumed_step=start_step or None))
        sinks += open_trackers(settings.report.trackers, _tracker_site(settings, directory))
        self._sinks = Sinks(sinks)
        shown = max(settings.report.trajectories_per_step, 1)
        self._trajectories = TrajectoryWriter(directory.trajectories, max_per_step=shown)
        self._token_log = TokenLogWriter(directory.learning_record, settings.report.tokens)
        title = f"{settings.recipe} on {settings.env.type}"
        self.display = ProgressDisplay(settings.learn.steps, title, console=console, start_step=start_step)

    def __enter__(self) -> RunRecorder:
        self.display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.display.__exit__(kind, error, trace)
        self._sinks.close()

    def write_start(self, before: Evaluation | None) -> None:
        if before is not None:
            self._sinks.write(0, evaluation_metrics(before))

    async def on_step(self, step: TrainStep, metrics: Mapping[str, LogValue]) -> None:
        numbers, histograms, texts = sort_log_values(metrics)
        batch = logged_batch(step.update)
        self._sinks.write(step.step, numbers)
        self._sinks.draw(step.step, {**_spreads(step), **histograms}, {**_one_episode(step), **texts})
        if shown := step.rollout.trajectories[: self._settings.report.trajectories_per_step]:
            self._trajectories.write(step.step, shown)
        if batch is not None:
            self._token_log.write(step.step, batch)
        self.display.update(step.step, numbers, self._watch.time_split())


class StepTimes:
    """Where the time of each step went, and how fast tokens were sampled."""

    def __init__(self, settings: TurnwiseSettings, watch: Stopwatch) -> None:
        self._settings = settings
        self._watch = watch
        self._last: Mapping[str, float] = {}

    def metrics(self, step: TrainStep) -> dict[str, float]:
        """Since the last call."""
        rollout = step.rollout
        split = self._watch.time_split()
        spent = {name: seconds - self._last.get(name, 0.0) for name, seconds in split.items()}
        self._last = split
        # If both run at the same time, episodes are played during the whole step.
        played_s = spent["rollout"] + spent["env"] if self._settings.loop.is_in_turns else sum(spent.values())
        return {
            "rollout/env_steps": float(sum(len(trajectory.turns) for trajectory in rollout.trajectories)),
            "rollout/tokens_per_s": rollout.tokens_sampled / max(played_s, 1e-9),
            **{f"time/{name}_s": seconds for name, seconds in spent.items()},
        }


class Evaluations(Hook):
    """Evaluates the policy every `eval.every` steps."""

    def __init__(self, evaluator: Evaluator, show: ShowPhase, on_result: Callable[[Evaluation], object]) -> None:
        """`show` displays the progress; `on_result` receives every evaluation."""
        self._evaluator = evaluator
        self._show = show
        self._on_result = on_result

    async def compute_metrics(self, step: TrainStep, metrics: Metrics) -> Mapping[str, LogValue]:
        if not self._evaluator.is_due(step.step):
            return {}
        with self._show("evaluating") as advance:
            result = await self._evaluator.evaluate(advance)
        self._on_result(result)
        return evaluation_metrics(result)


def logged_batch(update: UpdateResult) -> UpdateRecord | None:
    """Return what was trained, token by token; None if there was nothing."""
    inputs, report = update.inputs, update.report
    if inputs is None or report is None:
        return None
    return UpdateRecord.of(inputs.samples, inputs.batch, report, annotated=inputs.rows, annotations=inputs.annotations)


def _tracker_site(settings: TurnwiseSettings, directory: RunDirectory) -> TrackerSite:
    told: dict[str, object] = {}

    def flatten(values: Mapping[str, object], prefix: str) -> None:
        for key, value in values.items():
            if isinstance(value, Mapping):
                flatten(value, f"{prefix}{key}.")
            else:
                told[f"{prefix}{key}"] = value

    flatten(settings.model_dump(mode="json"), "")
    return TrackerSite(run_path=directory.path, settings=told)


def _spreads(step: TrainStep) -> dict[str, object]:
    """Return the returns of episodes and the advantages of tokens, as histograms."""
    spreads: dict[str, object] = {}
    if step.rollout.played:
        spreads["rollout/returns"] = [trajectory.episode_return for trajectory in step.rollout.trajectories]
    if step.update.inputs is not None:
        batch = step.update.inputs.batch
        spreads["learn/advantages"] = batch.advantages[batch.loss_mask]
    return spreads


def _one_episode(step: TrainStep) -> dict[str, str]:
    """Return the first episode of a step as Markdown, indented so that nothing in it is markup."""
    for trajectory in step.rollout.trajectories[:1]:
        lines = [f"{trajectory.id}: {trajectory.stop_reason}, return {trajectory.episode_return:.3f}", ""]
        for turn in trajectory.turns:
            lines += [f"    {line}" for line in (turn.observation + "\n> " + turn.response_text).split("\n")]
        return {"rollout/episode": "\n".join(lines)}
    return {}


def engine_metrics(engine: Engine) -> dict[str, float]:
    """Return what the engine has computed since it was opened, if it counts that."""
    counted = engine.state()
    return {f"time/engine_{name}": counted[name] for name in _COUNTED if name in counted}


def evaluation_metrics(result: Evaluation) -> dict[str, float]:
    """The whole, each environment where there are several, who gave the rewards, and what environments say."""
    by_tag = result.by_tag()
    metrics = {"eval/return": result.mean_return, **_told("eval/success", result.success)}
    if unknown := success_flags(result.trajectories).count(None):
        metrics["eval/success_unknown"] = unknown / result.episodes
    metrics |= {f"eval/reward/{source}": amount for source, amount in reward_sources(result.trajectories).items()}
    for tag, outcome in by_tag.items():
        if len(by_tag) > 1:
            metrics |= {f"eval/return/{tag}": outcome.mean_return, **_told(f"eval/success/{tag}", outcome.success)}
        metrics |= {f"eval/env/{tag}/{name}": value for name, value in outcome.told.items()}
    return metrics


def _told(name: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {name: value}
