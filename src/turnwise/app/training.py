"""The course of a run: set up, evaluate, train, evaluate, close.

In: settings and a run directory. Out: the same directory, filled. A failure in learning or sync ends it with
everything finished on disk; a checkpoint goes on where the run stopped. A collapse ends it with an earlier policy,
where `watch.stop` asks for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from turnwise.app.checkpointer import Checkpointer
from turnwise.app.closing import close_run, short_path, told, told_by_env, with_warm_start
from turnwise.app.progress import Progress
from turnwise.app.recording import RunRecorder, engine_metrics, evaluation_metrics
from turnwise.app.set_up import Start, Workers, open_workers, set_up
from turnwise.checks.episodes import FirstLook
from turnwise.checks.health import CollapsedError, Watcher
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import Finding, SyncError
from turnwise.hooks import Callback, open_callbacks
from turnwise.infra.wait_tracking import show_waits
from turnwise.loop.build import find_loop
from turnwise.loop.components import TrainParts
from turnwise.loop.evaluate import Evaluation, baseline_intervals, is_evaluation_due, measure_baselines
from turnwise.loop.serial import LoopStep
from turnwise.loop.split_processes import Shared, train_from_buffer
from turnwise.loop.step import STAGES, Explored, Stages
from turnwise.report.console import phase, print_notice
from turnwise.report.metrics import Stopwatch, reward_sources
from turnwise.report.run_dir import RunDirectory, Summary
from turnwise.report.statistics import list_ends, recorded_interval


class Training:
    """One run, from its settings to its summary."""

    def __init__(
        self,
        settings: TurnwiseSettings,
        directory: RunDirectory,
        console: Console,
        checkpoint: Path | None = None,
        *,
        workers: Workers | None = None,
        stages: Stages = STAGES,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """`workers`, where they are open already; `stages`, where a trainer has its own; `callbacks` beside those of
        `report.callbacks`.
        """
        self._callbacks = open_callbacks(settings.report.callbacks, callbacks)
        self._settings = settings
        self._directory = directory
        self._console = console
        self._checkpoint = checkpoint
        self._workers = workers
        self._stages = stages
        self._progress = Progress()
        self._started_s = time.perf_counter()
        self._watch = Stopwatch()
        self._stopped: Mapping[str, str | int] | None = None

    async def run(self) -> None:
        if self._settings.run.mode != "train":
            loop = find_loop(self._settings)
            await self._run(loop if self._stages is STAGES else partial(loop, stages=self._stages))
            return
        shared = Shared.open(self._settings, self._directory)
        await self._run(partial(train_from_buffer, shared=shared, stages=self._stages))

    async def _run(self, loop: Callable[..., Awaitable[None]]) -> None:
        workers = self._workers or open_workers(
            self._settings, self._directory, self._console, self._checkpoint, self._stages
        )
        with show_waits(self._directory.waits):
            start = await set_up(workers, self._directory, self._console, self._checkpoint)
            try:
                await self._play_and_learn(start, loop)
            finally:
                self._callbacks.close()
                await start.close()

    async def _play_and_learn(self, start: Start, loop: Callable[..., Awaitable[None]]) -> None:
        self._directory, self._progress = start.directory, start.progress
        self._started_s -= start.progress.wall_s
        baselines = self._measure_baselines(start)
        before = self._recorded_start() or await self._evaluate(start)
        setup_s = time.perf_counter() - self._started_s
        self._watch = Stopwatch()
        await self._train(start, loop, before)
        time_split = self._watch.time_split()
        after = await self._evaluate(start)
        summary = self._summarise(before, after, baselines, time_split, setup_s)
        close_run(self._settings, self._directory, self._console, summary, after.trajectories if after else ())

    # --- before and after ----------------------------------------------------------------------------------------

    def _measure_baselines(self, start: Start) -> dict[str, float]:
        if not start.evaluator.is_wanted:
            print_notice(self._console, "the policy is not evaluated: eval.episodes is 0")
            return {}
        play = start.evaluator.play
        return measure_baselines(self._settings, play.eval_tasks, play.judging)

    def _recorded_start(self) -> Evaluation | None:
        """How good a resumed run's policy was before its first update; None where that is not on record."""
        rows = self._directory.read_metrics() if self._checkpoint is not None else []
        if not rows or "eval/return" not in rows[0] or rows[0]["step"] != 0:
            return None
        success, mean_return = rows[0].get("eval/success"), rows[0]["eval/return"]
        return Evaluation(env=self._settings.env.type, success=success, mean_return=mean_return, trajectories=())

    async def _evaluate(self, start: Start) -> Evaluation | None:
        if not start.evaluator.is_wanted:
            return None
        with phase(self._console, f"evaluating on {len(start.evaluator.play.eval_tasks)} held-out episodes") as advance:
            return self._heard(await start.evaluator.evaluate(advance))

    def _heard(self, result: Evaluation) -> Evaluation:
        self._callbacks.on_eval(self._progress.step, result.trajectories)
        return result

    def _summarise(
        self,
        before: Evaluation | None,
        after: Evaluation | None,
        baselines: Mapping[str, float],
        time_split: Mapping[str, float],
        setup_s: float,
    ) -> Summary:
        progress = self._progress
        yardsticks = with_warm_start(baselines, before.success if before and progress.warm_start else None)
        tasks = list(dict.fromkeys(trajectory.task for trajectory in after.trajectories)) if after else []
        return Summary(
            recipe=self._settings.recipe,
            env=self._settings.env.type,
            seed=self._settings.run.seed,
            steps=progress.step,
            wall_s=time.perf_counter() - self._started_s,
            setup_s=setup_s,
            success_before=before.success if before else None,
            success_after=after.success if after else None,
            return_before=before.mean_return if before else None,
            return_after=after.mean_return if after else None,
            eval_episodes=after.episodes if after else 0,
            baselines=yardsticks,
            tokens_sampled=progress.tokens_sampled,
            tokens_trained=progress.tokens_trained,
            time_split=time_split,
            policy_version=progress.policy_version,
            warm_start=progress.warm_start,
            failures=progress.failures,
            envs=told_by_env(after) if after else {},
            rewards=reward_sources(after.trajectories) if after else {},
            findings=[told(finding) for finding in self._directory.read_findings()],
            stopped=self._stopped,
            # Both play the same tasks; a resumed run has only the number of the first evaluation on record.
            success_before_interval=self._interval_before(before, len(tasks)) if before else None,
            success_after_interval=list_ends(after.success_interval) if after else None,
            baseline_intervals={name: list(ends) for name, ends in baseline_intervals(yardsticks, tasks).items()},
        )

    def _interval_before(self, before: Evaluation, num_tasks: int) -> list[float] | None:
        if before.trajectories:
            return list_ends(before.success_interval)
        return list_ends(recorded_interval(self._directory.read_metrics()[0], num_tasks))

    # --- training ------------------------------------------------------------------------------------------------

    async def _train(self, start: Start, loop: Callable[..., Awaitable[None]], before: Evaluation | None) -> None:
        settings, first = self._settings, self._progress.step
        watcher = Watcher(settings, self._directory, self._console)
        look = FirstLook(settings, start.parts.template, self._directory, self._console)
        checkpointer = Checkpointer(settings, self._directory, start.parts)
        with RunRecorder(
            settings,
            self._directory,
            self._console,
            self._watch,
            start_step=first,
            start_s=self._progress.wall_s,
        ) as recorder:
            if first == 0 and not self._directory.read_metrics():
                recorder.write_start(before)
            if first == 0 and self._checkpoint is None and checkpointer.is_due(0):
                self._save(checkpointer)

            async def on_step(step: LoopStep) -> None:
                self._progress = self._progress.after(step)
                metrics = recorder.metrics_of(step) | engine_metrics(start.parts)
                if is_evaluation_due(settings, step.step):
                    with recorder.display.phase("evaluating") as advance:
                        metrics |= evaluation_metrics(self._heard(await start.evaluator.evaluate(advance)))
                look.after_update(step.step, metrics)
                found = watcher.look(step.step, metrics)
                metrics["watch/findings"] = float(len(found))
                recorder.write(step, metrics, self._callbacks.on_step(step.step, metrics))
                watcher.check(found)
                if checkpointer.is_due(step.step):
                    self._save(checkpointer)
                    checkpointer.prune(watcher.watch)

            parts = replace(start.parts, on_batch=self._callbacks.on_batch)
            if isinstance(parts, TrainParts):
                parts = replace(parts, on_explored=partial(self._after_rollout, look))
            try:
                await loop(parts, self._watch, start_step=first, on_step=on_step)
            except SyncError:
                # The other side is gone; what was learnt from what it left must not go with it.
                self._save_last_step(checkpointer, start)
                raise
            except asyncio.CancelledError:
                self._save_interrupted(checkpointer, start)
                raise
            except CollapsedError as collapsed:
                self._go_back(checkpointer, collapsed.finding)
        if not checkpointer.has_saved(self._progress.step):
            self._save(checkpointer)
        if isinstance(start.parts, TrainParts) and start.parts.journals is not None:
            start.parts.journals.forget_covered()

    def _after_rollout(self, look: FirstLook, step: int, explored: Explored) -> None:
        look.after_rollout(step, explored)
        self._callbacks.on_rollout(step, explored.played)

    def _save(self, checkpointer: Checkpointer) -> None:
        checkpointer.save(self._now())
        self._callbacks.on_checkpoint(self._progress.step, self._directory.step_checkpoint(self._progress.step))

    def _now(self) -> Progress:
        return replace(self._progress, wall_s=time.perf_counter() - self._started_s)

    def _save_interrupted(self, checkpointer: Checkpointer, start: Start) -> None:
        """Ctrl-C, or a system that ends its jobs."""
        step, path = self._progress.step, short_path(self._directory.path)
        self._save_last_step(checkpointer, start)
        print_notice(self._console, f"interrupted after step {step}; go on with: turnwise train --resume {path}")

    def _save_last_step(self, checkpointer: Checkpointer, start: Start) -> None:
        """Nothing, where a step was broken off behind its update: nobody could go on with a learner that is ahead."""
        is_whole = start.parts.learner.policy_version == self._progress.policy_version
        if is_whole and not checkpointer.has_saved(self._progress.step):
            self._save(checkpointer)

    def _go_back(self, checkpointer: Checkpointer, collapse: Finding) -> None:
        """The learner, and what is reported, are those of the checkpoint; the metrics of the collapse stay on disk."""
        self._progress = checkpointer.go_back(collapse)
        self._stopped = {**told(collapse), "returned_to_step": self._progress.step}
        print_notice(
            self._console,
            f"stopped at step {collapse.step} ({collapse.kind}); the result is the policy of step "
            f"{self._progress.step}. Resuming would repeat the collapse: start anew with other settings.",
        )
