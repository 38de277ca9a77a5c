"""What is written while a run goes on: metrics, trajectories, the learning record, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, TracebackType

from rich.console import Console

from turnwise.config.schema import TurnwiseSettings
from turnwise.hooks import Figure, sort_figures
from turnwise.infra.untrusted import tell_successes
from turnwise.loop.components import PlayParts
from turnwise.loop.evaluate import Evaluation
from turnwise.loop.serial import LoopStep
from turnwise.protocols import Sink
from turnwise.report.console import ProgressDisplay
from turnwise.report.metrics import JsonlSink, Sinks, Stopwatch, reward_sources
from turnwise.report.run_dir import RunDirectory
from turnwise.report.token_log import LearningRecorder
from turnwise.report.trackers import TensorboardSink, TrackerSite, open_trackers
from turnwise.report.trajectories import TrajectoryWriter
from turnwise.types import Metrics

_COUNTED = ("passes", "rows", "rows_squared", "busy_s", "busy_row_s")
"""What `benchmarks/scaling_sim.py` reads the cost of a forward pass from."""


class RunRecorder:
    """Writes down every step of one run. Use as a context manager."""

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
        """`start_s` is what the run has taken before, where it is resumed."""
        self._settings = settings
        self._watch = watch
        self._last_split: Mapping[str, float] = {}
        sinks: list[Sink] = [JsonlSink(directory.metrics, time_offset_s=start_s)]
        if settings.report.tensorboard:
            sinks.append(TensorboardSink(directory.tensorboard, resumed_step=start_step or None))
        sinks += open_trackers(settings.report.trackers, _tracker_site(settings, directory))
        self._sinks = Sinks(sinks)
        shown = max(settings.report.trajectories_per_step, 1)
        self._trajectories = TrajectoryWriter(directory.trajectories, max_per_step=shown)
        self._learning = LearningRecorder(directory.learning_record, settings.report.tokens)
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

    def metrics_of(self, step: LoopStep) -> dict[str, float]:
        """The metrics of a step, and where its time went."""
        split = self._watch.time_split()
        spent = {name: seconds - self._last_split.get(name, 0.0) for name, seconds in split.items()}
        self._last_split = split
        # Where both run at the same time, episodes are played during the whole step.
        played_s = spent["rollout"] + spent["env"] if self._settings.loop.is_in_turns else sum(spent.values())
        return {
            **step.metrics,
            "rollout/env_steps": float(sum(len(t.turns) for group in step.groups for t in group.trajectories)),
            "rollout/tokens_per_s": step.tokens_sampled / max(played_s, 1e-9),
            **{f"time/{name}_s": seconds for name, seconds in spent.items()},
        }

    def write(self, step: LoopStep, metrics: Metrics, own: Mapping[str, Figure] = MappingProxyType({})) -> None:
        """`own` is what callbacks have to say."""
        numbers, histograms, texts = sort_figures(own)
        metrics = {**metrics, **numbers}
        self._sinks.write(step.step, metrics)
        self._sinks.draw(step.step, {**_spreads(step), **histograms}, {**_one_episode(step), **texts})
        num_shown = self._settings.report.trajectories_per_step
        shown = [t for group in step.groups for t in group.trajectories][:num_shown]
        if shown:
            self._trajectories.write(step.step, shown)
        if step.learnt.batch is not None:
            self._learning.write(step.step, step.learnt.batch)
        self.display.update(step.step, metrics, self._watch.time_split())


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


def _spreads(step: LoopStep) -> dict[str, object]:
    """How returns of episodes and advantages of tokens are spread."""
    spreads: dict[str, object] = {}
    if step.groups:
        spreads["rollout/returns"] = [t.episode_return for group in step.groups for t in group.trajectories]
    if step.learnt.batch is not None:
        batch = step.learnt.batch.batch
        spreads["learn/advantages"] = batch.advantages[batch.loss_mask]
    return spreads


def _one_episode(step: LoopStep) -> dict[str, str]:
    """The first of a step, as Markdown, with all that was said indented: nothing of it is markup."""
    for trajectory in (t for group in step.groups for t in group.trajectories):
        lines = [f"{trajectory.id}: {trajectory.stop_reason}, return {trajectory.episode_return:.3f}", ""]
        for turn in trajectory.turns:
            lines += [f"    {line}" for line in (turn.observation + "\n> " + turn.response_text).split("\n")]
        return {"rollout/episode": "\n".join(lines)}
    return {}


def engine_metrics(parts: object) -> dict[str, float]:
    """What the engine of this process has computed since it was opened, where there is one that counts it."""
    counted = parts.engine.state() if isinstance(parts, PlayParts) else {}
    return {f"time/engine_{name}": counted[name] for name in _COUNTED if name in counted}


def evaluation_metrics(result: Evaluation) -> dict[str, float]:
    """The whole, each environment where there are several, who gave the rewards, and what environments say."""
    by_tag = result.by_tag()
    metrics = {"eval/return": result.mean_return, **_told("eval/success", result.success)}
    if unknown := tell_successes(result.trajectories).count(None):
        metrics["eval/success_unknown"] = unknown / result.episodes
    metrics |= {f"eval/reward/{source}": amount for source, amount in reward_sources(result.trajectories).items()}
    for tag, outcome in by_tag.items():
        if len(by_tag) > 1:
            metrics |= {f"eval/return/{tag}": outcome.mean_return, **_told(f"eval/success/{tag}", outcome.success)}
        metrics |= {f"eval/env/{tag}/{name}": value for name, value in outcome.told.items()}
    return metrics


def _told(name: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {name: value}
