"""A process that does a part of a run: only explore, or only evaluate. (Only train: a `Training` over stored data.)"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from turnwise.checks.episodes import FirstStepChecks
from turnwise.config.schema import OracleWarmStart, TurnwiseSettings
from turnwise.infra.atomic_files import encode_object, write_whole
from turnwise.infra.wait_tracking import show_waits
from turnwise.loop.build import build_explore, build_learn, build_play
from turnwise.loop.components import ExploreParts, close_part
from turnwise.loop.evaluate import Evaluation, evaluate_once
from turnwise.loop.policies import resolve_model
from turnwise.loop.split_processes import Shared, explore_alone
from turnwise.loop.step import Explored
from turnwise.loop.warm_start import warm_start
from turnwise.models.resolve import describe_set_up
from turnwise.protocols import PolicyMark
from turnwise.report.console import ProgressDisplay, phase, print_notice
from turnwise.report.metrics import JsonlSink, Sinks, Stopwatch, group_metrics
from turnwise.report.run_dir import RunDirectory
from turnwise.report.statistics import list_ends, show_share
from turnwise.report.trajectories import TrajectoryWriter
from turnwise.run.run_recorder import engine_metrics
from turnwise.run.run_setup import announce
from turnwise.run.training_run import short_path, told_by_env


class Exploring:
    """Plays and stores, until all rollouts are stored or the trainer has made all its updates."""

    def __init__(self, settings: TurnwiseSettings, directory: RunDirectory, console: Console) -> None:
        self._settings = settings
        self._directory = directory
        self._console = console

    async def run(self) -> None:
        announce(self._settings, self._console)
        shared = Shared.open(self._settings, self._directory)
        with phase(self._console, describe_set_up(self._settings.model.path)):
            model = resolve_model(self._settings)
            parts = build_explore(self._settings, model, run_path=self._directory.path)
        try:
            with show_waits(self._directory.waits):
                await self._explore(parts, shared, await self._start(parts, shared, model))
            num_waiting = len(parts.buffer)
        finally:
            await parts.close_play()
            close_part(parts.buffer)
        print_notice(
            self._console,
            f"explored {shared.explorer.read().step} rollouts; {num_waiting} experiences wait to be learnt from: "
            f"turnwise train --config {short_path(self._directory.config)} run.mode=train "
            f"--run-dir {short_path(self._directory.path)}",
        )

    async def _start(self, parts: ExploreParts, shared: Shared, model: str) -> PolicyMark:
        """The newest published policy; where there is none, the one that a trainer would start with."""
        if shared.mailbox.newest() is not None:
            start, weights = shared.mailbox.fetch()
            await parts.channel.publish(weights, start.policy_version)
            return start
        if isinstance(self._settings.warm_start, OracleWarmStart):
            with phase(self._console, "warm start from the oracle") as advance:
                # A learner for this lesson alone: the explorer that plays afterwards has none.
                pupil = build_learn(self._settings, model, run_path=self._directory.path)
                await warm_start(pupil, self._settings.warm_start, advance)
            await parts.channel.publish(pupil.learner.weights(), 0)
            pupil.close()
        return PolicyMark(0, 0)

    async def _explore(self, parts: ExploreParts, shared: Shared, start: PolicyMark) -> None:
        steps, report = self._settings.learn.steps, self._settings.report
        watch = Stopwatch()
        writer = TrajectoryWriter(self._directory.trajectories, max_per_step=max(report.trajectories_per_step, 1))
        title = f"exploring {self._settings.env.type}"
        first = shared.explorer.read().step
        with (
            closing(Sinks([JsonlSink(self._directory.explorer_metrics)])) as sinks,
            ProgressDisplay(steps, title, console=self._console, start_step=first) as display,
        ):

            def on_rollout(number: int, explored: Explored) -> None:
                metrics = {
                    **group_metrics(explored.played),
                    **explored.metrics,
                    "rollout/tokens_sampled": float(explored.tokens_sampled),
                    "sync/policy_version": float(parts.engine.policy_version),
                    "buffer/experiences_left": float(len(parts.buffer)),
                    **engine_metrics(parts),
                }
                sinks.write(number, metrics)
                shown = [t for group in explored.played for t in group.trajectories][: report.trajectories_per_step]
                if shown:
                    writer.write(number, shown)
                display.update(number, metrics, watch.time_split())

            look = FirstStepChecks(self._settings, parts.template, self._directory, self._console)
            watched = replace(parts, on_explored=look.after_rollout)
            await explore_alone(watched, shared, start=start, on_rollout=on_rollout)


async def evaluate_alone(
    settings: TurnwiseSettings, directory: RunDirectory, console: Console, policy: Path | None
) -> Evaluation:
    """Evaluate a policy folder, or the model as it is, and write `evaluation.json`."""
    parts = build_play(settings, policy or resolve_model(settings))
    with phase(console, f"evaluating on {len(parts.eval_tasks)} held-out episodes") as advance:
        result = await evaluate_once(parts, advance)
    told = {
        "policy": str(policy or settings.model.path),
        "env": result.env,
        "episodes": result.episodes,
        "success": result.success,
        "success_interval": list_ends(result.success_interval),
        "return": result.mean_return,
        "envs": told_by_env(result),
    }
    write_whole(directory.path / "evaluation.json", encode_object(told))
    shown = show_share(result.success, result.success_interval)
    print_notice(console, f"success {shown}, return {result.mean_return:.2f} ({told['policy']})")
    return result
