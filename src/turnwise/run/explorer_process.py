"""A process that does a part of a run: only explore, or only evaluate. `TrainingRun` does the third, only train."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rich.console import Console

from turnwise.checks.episodes import FirstStepChecks
from turnwise.config.schema import OracleWarmStart, TurnwiseSettings
from turnwise.hooks import RolloutResult
from turnwise.infra.atomic_files import atomic_write, encode_object
from turnwise.infra.wait_tracking import write_waits_file
from turnwise.loop.build import open_buffer, open_explorer, open_rollout, open_trainer
from turnwise.loop.components import ExplorerComponents, RolloutComponents, close_component
from turnwise.loop.evaluate import Evaluation, evaluate_once
from turnwise.loop.policies import resolve_model
from turnwise.loop.split_processes import Shared, explore_alone
from turnwise.loop.warm_start import warm_start
from turnwise.models.resolve import describe_set_up
from turnwise.protocols import Buffer, PolicyVersion
from turnwise.report.console import ProgressDisplay, phase, print_notice
from turnwise.report.metrics import JsonlSink, Sinks, Stopwatch, group_metrics
from turnwise.report.run_dir import RunDirectory
from turnwise.report.statistics import format_proportion, list_ends
from turnwise.report.trajectories import TrajectoryWriter
from turnwise.run.run_recorder import engine_metrics
from turnwise.run.run_setup import announce
from turnwise.run.training_run import results_by_env, short_path


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
            path = self._directory.path
            explorer = open_explorer(open_rollout(self._settings, model, run_path=path), run_path=path)
            buffer = open_buffer(self._settings, path)
        try:
            with write_waits_file(self._directory.waits):
                await self._explore(explorer, buffer, shared, await self._start(explorer.rollout, shared, model))
            num_waiting = len(buffer)
        finally:
            await explorer.close()
            close_component(buffer)
        print_notice(
            self._console,
            f"explored {shared.explorer.read().step} rollouts; {num_waiting} experiences wait to be learnt from: "
            f"turnwise train --config {short_path(self._directory.config)} run.mode=train "
            f"--run-dir {short_path(self._directory.path)}",
        )

    async def _start(self, rollout: RolloutComponents, shared: Shared, model: str) -> PolicyVersion:
        """The newest published policy; where there is none, the one that a trainer would start with."""
        if shared.mailbox.newest() is not None:
            start, weights = shared.mailbox.fetch()
            await rollout.publisher.publish(weights, start.policy_version)
            return start
        if isinstance(self._settings.warm_start, OracleWarmStart):
            with phase(self._console, "warm start from the oracle") as advance:
                # A learner for the warm start alone: the explorer that plays afterwards has none.
                trainer = open_trainer(self._settings, model, run_path=self._directory.path)
                await warm_start(trainer, rollout.template, self._settings.warm_start, advance)
            await rollout.publisher.publish(trainer.learner.weights(), 0)
            close_component(trainer.learner)
        return PolicyVersion(0, 0)

    async def _explore(
        self, explorer: ExplorerComponents, buffer: Buffer, shared: Shared, start: PolicyVersion
    ) -> None:
        steps, report, engine = self._settings.learn.steps, self._settings.report, explorer.rollout.engine
        watch = Stopwatch()
        writer = TrajectoryWriter(self._directory.trajectories, max_per_step=max(report.trajectories_per_step, 1))
        title = f"exploring {self._settings.env.type}"
        first = shared.explorer.read().step
        with (
            closing(Sinks([JsonlSink(self._directory.explorer_metrics)])) as sinks,
            ProgressDisplay(steps, title, console=self._console, start_step=first) as display,
        ):

            def on_rollout(number: int, rollout: RolloutResult) -> None:
                metrics = {
                    **group_metrics(rollout.played),
                    **rollout.metrics,
                    "rollout/tokens_sampled": float(rollout.tokens_sampled),
                    "sync/policy_version": float(engine.policy_version),
                    "buffer/experiences_left": float(len(buffer)),
                    **engine_metrics(engine),
                }
                sinks.write(number, metrics)
                if shown := rollout.trajectories[: report.trajectories_per_step]:
                    writer.write(number, shown)
                display.update(number, metrics, watch.time_split())

            first_step = FirstStepChecks(self._settings, explorer.rollout.template, self._directory, self._console)
            await explore_alone(explorer, buffer, shared, start=start, hooks=[first_step], on_rollout=on_rollout)


async def evaluate_alone(
    settings: TurnwiseSettings, directory: RunDirectory, console: Console, policy: Path | None
) -> Evaluation:
    """Evaluate a policy folder, or the model as it is, and write `evaluation.json`."""
    rollout = open_rollout(settings, policy or resolve_model(settings))
    with phase(console, f"evaluating on {len(rollout.eval_tasks)} held-out episodes") as advance:
        result = await evaluate_once(rollout, advance)
    told = {
        "policy": str(policy or settings.model.path),
        "env": result.env,
        "episodes": result.episodes,
        "success": result.success,
        "success_interval": list_ends(result.success_interval),
        "return": result.mean_return,
        "envs": results_by_env(result),
    }
    atomic_write(directory.path / "evaluation.json", encode_object(told))
    shown = format_proportion(result.success, result.success_interval)
    print_notice(console, f"success {shown}, return {result.mean_return:.2f} ({told['policy']})")
    return result
