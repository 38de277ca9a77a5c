"""A training run from settings to summary: set up, evaluate, train with a list of hooks, evaluate, close.

A failure in learning or sync ends the run with everything finished on disk; it resumes from its newest checkpoint. A
collapse ends it with an earlier policy if `watch.stop` asks for that.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from turnwise.checks.episodes import FirstStepChecks
from turnwise.checks.health import HealthMonitor, TrainingCollapsedError
from turnwise.checks.stages import report_findings
from turnwise.config.load import load_settings
from turnwise.config.recipes import list_recipes
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import Finding, SyncError
from turnwise.hooks import Callback, Hooks, TrainStep, open_callbacks
from turnwise.infra.wait_tracking import write_waits_file
from turnwise.loop.build import find_loop
from turnwise.loop.components import TrainerComponents
from turnwise.loop.evaluate import Evaluation, baseline_intervals, measure_baselines
from turnwise.loop.split_processes import Shared, train_from_buffer
from turnwise.loop.step import STAGES, Stages
from turnwise.report.console import phase, print_notice, print_outcome, print_trajectory
from turnwise.report.evaluation import results_of, write_eval
from turnwise.report.manifest import HIDDEN, Manifest
from turnwise.report.metrics import Stopwatch, reward_sources
from turnwise.report.plots import plot_learning_curve, plot_training_health
from turnwise.report.run_dir import RunDirectory, Summary, step_name
from turnwise.report.statistics import list_ends, recorded_interval
from turnwise.report.trajectories import EpisodeJournal, TrajectoryWriter
from turnwise.run.checkpoints import Checkpoints, Progress
from turnwise.run.evaluation import EvalStats, env_settings
from turnwise.run.run_recorder import Evaluations, RunRecorder, StepTimes, engine_metrics
from turnwise.run.run_setup import Evaluator, RunComponents, RunStart, open_run_components, set_up
from turnwise.types import Trajectory


def close_run(
    settings: TurnwiseSettings,
    directory: RunDirectory,
    console: Console,
    summary: Summary,
    trajectories: Sequence[Trajectory],
) -> None:
    """Write down what came out, and say it; `trajectories` are those of the last evaluation."""
    directory.write_summary(summary)
    metrics = directory.read_metrics()
    curve = directory.plots / "learning_curve.png"
    plot_learning_curve(metrics, summary, curve)
    plot_training_health(metrics, directory.plots / "training_health.png", directory.read_findings())
    if trajectories:
        TrajectoryWriter(directory.trajectories / "eval").write(summary.steps, trajectories[:16])
        _write_last_eval(settings, directory, summary, trajectories)
        print_trajectory(console, _most_telling(trajectories))
    turnwise, run = command("turnwise"), short_path(directory.path)
    print_outcome(
        console,
        summary,
        run_dir=run,
        plot_path=short_path(curve),
        next_commands=[
            f"{turnwise} view {run}",
            f"{turnwise} eval {run}",
            f"{turnwise} play {summary.env} --agent {run}",
            f"{turnwise} train {_train_words(settings, directory)} run.seed={summary.seed + 1}",
            *(
                [f"{command('tensorboard')} --logdir {short_path(directory.tensorboard)}"]
                if directory.tensorboard.is_dir()
                else []
            ),
        ],
    )


def _write_last_eval(
    settings: TurnwiseSettings, directory: RunDirectory, summary: Summary, trajectories: Sequence[Trajectory]
) -> None:
    """How every held-out task came out and was played, for `turnwise compare` and where its links lead."""
    tasks, folder = results_of(trajectories), directory.evals / step_name(summary.steps)
    told = {
        "target": str(directory.path),
        "recipe": summary.recipe,
        "seed": summary.seed,
        "env": summary.env,
        "step": summary.steps,
        "worlds": env_settings(settings),
        **EvalStats.of(tasks).to_dict(),
    }
    TrajectoryWriter(folder, max_per_step=len(trajectories)).write(0, trajectories)
    write_eval(folder, told, tasks)


def command(name: str) -> str:
    """How a command of this environment is typed from here: by its name alone where the shell would find it."""
    own = Path(sys.executable).parent
    if not (own / name).exists() or str(own) in os.environ.get("PATH", "").split(os.pathsep):
        return name
    return os.path.relpath(own / name) if own.is_relative_to(Path.cwd()) else str(own / name)


def short_path(path: Path) -> Path:
    """Relative to the working directory where it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def finding_to_dict(finding: Finding) -> dict[str, str | int]:
    return {"step": finding.step, "kind": finding.kind, "message": finding.text}


def results_by_env(result: Evaluation) -> dict[str, dict[str, float | list[float] | None]]:
    """The outcome of each environment, with the numbers that it reports itself."""
    return {
        tag: {
            **outcome.told,
            "episodes": outcome.episodes,
            "success": outcome.success,
            "success_interval": list_ends(outcome.success_interval),
            "return": outcome.mean_return,
        }
        for tag, outcome in result.by_tag().items()
    }


def with_warm_start(baselines: Mapping[str, float], warm_start_success: float | None) -> dict[str, float]:
    """The yardsticks from weakest to strongest, the oracle last."""
    everything = dict(baselines)
    if warm_start_success is not None:
        everything["warm_start"] = warm_start_success
    return dict(sorted(everything.items(), key=lambda item: (item[0] == "oracle", item[1])))


def _train_words(settings: TurnwiseSettings, directory: RunDirectory) -> str:
    """How this run is called again, overrides included; one that was not typed lives on in its settings."""
    given = Manifest.read(directory.manifest).command
    is_typed = len(given) > 1 and given[0] in ("turnwise", "__main__.py") and given[1] == "train"
    if is_typed and not any(HIDDEN in word or word.startswith("--resume") for word in given):
        return shlex.join(_without(given[2:], "--run-dir", "run.seed", "--run.seed"))
    is_plain = settings == load_settings(settings.recipe) if settings.recipe in list_recipes() else False
    return settings.recipe if is_plain else f"--config {short_path(directory.config)}"


def _without(words: Sequence[str], *names: str) -> list[str]:
    """The words of a command without some options and their values."""
    kept: list[str] = []
    skips_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skips_value:
            skips_value = False
        elif name.lstrip("+") in names:
            skips_value = not equals
        else:
            kept.append(word)
    return kept


def _most_telling(trajectories: Sequence[Trajectory]) -> Trajectory:
    """A success in as many turns as there are; where nobody says what one is, what earned most; or the first."""
    if all(trajectory.is_success is None for trajectory in trajectories):
        return max(trajectories, key=lambda t: t.episode_return)
    successes = [t for t in trajectories if t.is_success]
    return max(successes or trajectories[:1], key=lambda t: len(t.turns))


class TrainingRun:
    """One run, from its settings to its summary."""

    def __init__(
        self,
        settings: TurnwiseSettings,
        directory: RunDirectory,
        console: Console,
        checkpoint: Path | None = None,
        *,
        components: RunComponents | None = None,
        stages: Stages = STAGES,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Args:
        components: those of the run if they are open already.
        stages: the trainer, if it overrides stages.
        callbacks: besides those of `report.callbacks`.
        """
        self._callbacks = open_callbacks(settings.report.callbacks, callbacks)
        self._settings = settings
        self._directory = directory
        self._console = console
        self._checkpoint = checkpoint
        self._components = components
        self._stages = stages
        self._progress = Progress()
        self._started_s = time.perf_counter()
        self._watch = Stopwatch()
        self._stopped: Mapping[str, str | int] | None = None

    async def run(self) -> None:
        components = self._components or open_run_components(
            self._settings, self._directory, self._console, self._checkpoint, self._stages
        )
        with write_waits_file(self._directory.waits):
            start = await set_up(components, self._directory, self._console, self._checkpoint)
            try:
                await self._train_and_evaluate(start)
            finally:
                self._callbacks.close()
                await components.close()

    async def _train_and_evaluate(self, start: RunStart) -> None:
        self._directory, self._progress = start.directory, start.progress
        self._started_s -= start.progress.wall_s
        evaluator = start.components.evaluator
        baselines = self._measure_baselines(evaluator)
        before = self._recorded_start() or await self._evaluate(evaluator)
        setup_s = time.perf_counter() - self._started_s
        self._watch = Stopwatch()
        await self._train(start.components, before)
        time_split = self._watch.time_split()
        after = await self._evaluate(evaluator)
        summary = self._summarise(before, after, baselines, time_split, setup_s)
        close_run(self._settings, self._directory, self._console, summary, after.trajectories if after else ())

    # --- before and after ----------------------------------------------------------------------------------------

    def _measure_baselines(self, evaluator: Evaluator) -> dict[str, float]:
        if not evaluator.is_wanted:
            print_notice(self._console, "the policy is not evaluated: eval.episodes is 0")
            return {}
        return measure_baselines(self._settings, evaluator.rollout.eval_tasks, evaluator.rollout.scoring)

    def _recorded_start(self) -> Evaluation | None:
        """How good a resumed run's policy was before its first update; None where that is not on record."""
        rows = self._directory.read_metrics() if self._checkpoint is not None else []
        if not rows or "eval/return" not in rows[0] or rows[0]["step"] != 0:
            return None
        success, mean_return = rows[0].get("eval/success"), rows[0]["eval/return"]
        return Evaluation(env=self._settings.env.type, success=success, mean_return=mean_return, trajectories=())

    async def _evaluate(self, evaluator: Evaluator) -> Evaluation | None:
        if not evaluator.is_wanted:
            return None
        title = f"evaluating on {len(evaluator.rollout.eval_tasks)} held-out episodes"
        with phase(self._console, title) as advance:
            result = await evaluator.evaluate(advance)
        self._on_evaluation(result)
        return result

    def _on_evaluation(self, result: Evaluation) -> None:
        self._callbacks.on_eval(self._progress.step, result.trajectories)

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
            envs=results_by_env(after) if after else {},
            rewards=reward_sources(after.trajectories) if after else {},
            findings=[finding_to_dict(finding) for finding in self._directory.read_findings()],
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

    async def _train(self, components: RunComponents, before: Evaluation | None) -> None:
        settings, directory, console = self._settings, self._directory, self._console
        trainer, first = components.trainer, self._progress.step
        journal = EpisodeJournal(directory, resumes_rollouts=settings.cluster.type != "none")
        health = HealthMonitor.of_run(settings, directory, lambda found: report_findings(found, directory, console))
        self._callbacks.start(trainer.learner.policy_version)
        recorder = RunRecorder(
            settings, directory, console, self._watch, start_step=first, start_s=self._progress.wall_s
        )
        checkpoints = Checkpoints(
            directory,
            trainer,
            components.tokenizer,
            components.buffer,
            progress=self._now,
            health=health,
            on_saved=self._callbacks.on_checkpoint,
        )
        hooks = Hooks(
            [
                *components.hooks.hooks,  # the audit
                *([] if components.training is None else [journal]),
                FirstStepChecks(settings, components.template, directory, console),
                Evaluations(components.evaluator, recorder.display.phase, self._on_evaluation),
                recorder,
                health,  # after the recorder: a collapse is written before it ends the run
                self._callbacks,  # after whatever computes metrics: callbacks receive all of them
                checkpoints,
            ]
        )
        with recorder:
            if first == 0 and not directory.read_metrics():
                recorder.write_start(before)
            if first == 0 and self._checkpoint is None and checkpoints.is_due(0):
                checkpoints.save()
            try:
                await self._run_loop(components, hooks, first)
            except SyncError:
                # The other side is gone; what was trained on what it left must not go with it.
                self._save_last_step(checkpoints, trainer)
                raise
            except asyncio.CancelledError:
                self._save_interrupted(checkpoints, trainer)
                raise
            except TrainingCollapsedError as collapsed:
                self._rollback(checkpoints, collapsed.finding)
        if not checkpoints.has_saved(self._progress.step):
            checkpoints.save()
        # On a cluster it is done when nothing can be lost any more.
        if components.training is not None and settings.cluster.type == "none":
            journal.remove_covered()

    async def _run_loop(self, components: RunComponents, hooks: Hooks, first: int) -> None:
        settings, training, times = self._settings, components.training, StepTimes(self._settings, self._watch)

        async def on_step(step: TrainStep) -> None:
            self._progress = self._progress.after(step)
            metrics = {**step.metrics, **times.metrics(step)}
            if training is not None:
                metrics |= engine_metrics(training.explorer.rollout.engine)
            await hooks.on_step(step, await hooks.compute_metrics(step, metrics))

        if training is None:
            shared = Shared.open(settings, self._directory)
            await train_from_buffer(
                components.trainer,
                components.buffer,
                self._watch,
                start_step=first,
                on_step=on_step,
                shared=shared,
                hooks=hooks,
                stages=self._stages,
            )
            return
        # A loop of one's own may take no `stages`.
        stages = {} if self._stages is STAGES else {"stages": self._stages}
        loop = find_loop(settings)
        await loop(replace(training, hooks=hooks), self._watch, start_step=first, on_step=on_step, **stages)

    def _now(self) -> Progress:
        return replace(self._progress, wall_s=time.perf_counter() - self._started_s)

    def _save_interrupted(self, checkpoints: Checkpoints, trainer: TrainerComponents) -> None:
        """Ctrl-C, or a system that ends its jobs."""
        step, path = self._progress.step, short_path(self._directory.path)
        self._save_last_step(checkpoints, trainer)
        print_notice(self._console, f"interrupted after step {step}; go on with: turnwise train --resume {path}")

    def _save_last_step(self, checkpoints: Checkpoints, trainer: TrainerComponents) -> None:
        """Nothing if a step was interrupted after its update: no run can resume from a learner that is ahead."""
        is_complete = trainer.learner.policy_version == self._progress.policy_version
        if is_complete and not checkpoints.has_saved(self._progress.step):
            checkpoints.save()

    def _rollback(self, checkpoints: Checkpoints, collapse: Finding) -> None:
        """Restore learner and progress from a checkpoint; the metrics of the collapse stay on disk."""
        self._progress = checkpoints.rollback(collapse)
        self._stopped = {**finding_to_dict(collapse), "returned_to_step": self._progress.step}
        print_notice(
            self._console,
            f"stopped at step {collapse.step} ({collapse.kind}); the result is the policy of step "
            f"{self._progress.step}. Resuming would repeat the collapse: start anew with other settings.",
        )
