"""The course of a run: set up, warm start, evaluate, train, evaluate, write it all down.

In: settings and a run directory. Out: the same directory, filled. A failure in learning or sync ends it with
everything finished on disk; a checkpoint goes on where the run stopped. A collapse ends it with an earlier policy,
where `watch.stop` asks for that.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from turnwise.app.keeper import CollapsedError, Keeper
from turnwise.app.models import resolve_model
from turnwise.app.plan import judge_path
from turnwise.config.checks import find_no_effect
from turnwise.config.recipes import list_recipes
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.sections.warm_start import OracleWarmStart
from turnwise.errors import SyncError
from turnwise.experience.store import ExperienceStore
from turnwise.learn.checkpoint import load_checkpoint, restore_learner, resumed_model, save_checkpoint
from turnwise.learn.memory import describe_in_one_line, report_memory
from turnwise.loop.build import TrainParts, build_train
from turnwise.loop.evaluate import Evaluation, evaluate_policy, is_evaluation_due, measure_baselines
from turnwise.loop.pipelined import train_pipelined
from turnwise.loop.separate import Shared, train_from_buffer
from turnwise.loop.serial import LoopStep, train_serial
from turnwise.loop.warm_start import mix_in_demonstrations, warm_start
from turnwise.protocols import Buffer, Sink
from turnwise.report.console import ProgressDisplay, phase, print_notice, print_outcome, print_trajectory
from turnwise.report.failures import count_failures
from turnwise.report.metrics import JsonlSink, Sinks, Stopwatch
from turnwise.report.plots import plot_learning_curve, plot_training_health
from turnwise.report.run_dir import RunDirectory
from turnwise.report.summary import Summary
from turnwise.report.tensorboard import TensorboardSink
from turnwise.report.trajectories import TrajectoryWriter
from turnwise.report.watch import Finding
from turnwise.sync.checkpoint import CheckpointMailbox
from turnwise.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a checkpoint keeps of the loop, beside the learner's own state."""

    step: int = 0
    tokens_sampled: int = 0
    tokens_trained: int = 0
    wall_s: float = 0.0
    tasks: Mapping[str, Any] = field(default_factory=dict)
    """The state of the task source."""
    warm_start: Mapping[str, float] | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    """Episodes that failed so far, by cause."""


class Session:
    """One run, from its settings to its summary."""

    def __init__(
        self, settings: TurnwiseSettings, directory: RunDirectory, console: Console, checkpoint: Path | None = None
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._console = console
        self._checkpoint = checkpoint
        self._progress = Progress()
        self._started_s = time.perf_counter()
        self._watch = Stopwatch()
        self._last_split: Mapping[str, float] = {}
        self._shared: Shared | None = None
        """Set where the explorer is a process of its own."""
        self._stopped: Mapping[str, str | int] | None = None

    async def run(self) -> None:
        if self._settings.run.mode == "train":
            self._shared = Shared.open(self._directory)
            self._shared.trainer.claim()
        try:
            await self._run()
        finally:
            if self._shared is not None:
                self._shared.trainer.leave()

    async def _run(self) -> None:
        for warning in find_no_effect(self._settings):
            print_notice(self._console, warning)
        if self._settings.learn.num_threads is not None:
            torch.set_num_threads(self._settings.learn.num_threads)
        torch.manual_seed(self._settings.run.seed)
        with phase(self._console, "setting up the model"):
            model = resumed_model(self._checkpoint) if self._checkpoint else None
            parts = build_train(self._settings, model or resolve_model(self._settings), run_path=self._directory.path)
        shape = parts.learner.actor.model.config
        memory = report_memory(shape, self._settings.model, self._settings.learn, judge_path=judge_path(self._settings))
        print_notice(self._console, describe_in_one_line(memory))
        await self._prepare(parts)
        baselines = measure_baselines(self._settings, parts.eval_tasks, parts.judging)
        before = self._recorded_start() or await self._evaluate(parts)
        setup_s = time.perf_counter() - self._started_s
        self._watch = Stopwatch()
        await self._train(parts, before)
        time_split = self._watch.time_split()
        # With sync.interval above 1 the last updates may not have been published yet.
        await parts.channel.publish(parts.learner.weights(), parts.learner.policy_version)
        after = await self._evaluate(parts)
        self._finish(self._summary(parts, before, after, baselines, time_split, setup_s), after.trajectories)

    # --- before and after ----------------------------------------------------------------------------------------

    async def _prepare(self, parts: TrainParts) -> None:
        """Start the policy: from a checkpoint, from demonstrations, or as it is."""
        if self._checkpoint is not None:
            self._progress = Progress(**load_checkpoint(self._checkpoint, parts.learner))
            self._started_s -= self._progress.wall_s
            parts.tasks.restore(self._progress.tasks)
            _rewind(parts.buffer, self._progress.step, plays_again=self._shared is None)
            self._directory = RunDirectory.reopen(self._directory.path, step=self._progress.step)
        elif isinstance(self._settings.warm_start, OracleWarmStart):
            with phase(self._console, "warm start from the oracle") as advance:
                done = warm_start(parts, self._settings.warm_start, advance)
            self._progress = replace(self._progress, warm_start=done)
        mix_in_demonstrations(parts)
        await parts.channel.publish(parts.learner.weights(), parts.learner.policy_version)

    def _recorded_start(self) -> Evaluation | None:
        """How good a resumed run's policy was before its first update; None where that is not on record."""
        rows = self._directory.read_metrics() if self._checkpoint is not None else []
        if not rows or not {"eval/success", "eval/return"} <= rows[0].keys() or rows[0]["step"] != 0:
            return None
        success, mean_return = rows[0]["eval/success"], rows[0]["eval/return"]
        return Evaluation(env=self._settings.env.type, success=success, mean_return=mean_return, trajectories=())

    async def _evaluate(self, parts: TrainParts) -> Evaluation:
        with phase(self._console, f"evaluating on {len(parts.eval_tasks)} held-out episodes") as advance:
            return await evaluate_policy(parts, advance)

    def _summary(
        self,
        parts: TrainParts,
        before: Evaluation,
        after: Evaluation,
        baselines: Mapping[str, float],
        time_split: Mapping[str, float],
        setup_s: float,
    ) -> Summary:
        return Summary(
            recipe=self._settings.recipe,
            env=self._settings.env.type,
            seed=self._settings.run.seed,
            steps=self._progress.step,
            wall_s=time.perf_counter() - self._started_s,
            setup_s=setup_s,
            success_before=before.success,
            success_after=after.success,
            return_before=before.mean_return,
            return_after=after.mean_return,
            eval_episodes=after.episodes,
            baselines=_with_warm_start(baselines, before.success if self._progress.warm_start else None),
            tokens_sampled=self._progress.tokens_sampled,
            tokens_trained=self._progress.tokens_trained,
            time_split=time_split,
            policy_version=parts.learner.policy_version,
            warm_start=self._progress.warm_start,
            failures=self._progress.failures,
            findings=[_told(finding) for finding in self._directory.read_findings()],
            stopped=self._stopped,
        )

    def _finish(self, summary: Summary, trajectories: Sequence[Trajectory]) -> None:
        self._directory.write_summary(summary)
        metrics = self._directory.read_metrics()
        curve = self._directory.plots / "learning_curve.png"
        plot_learning_curve(metrics, summary, curve)
        health = self._directory.plots / "training_health.png"
        plot_training_health(metrics, health, self._directory.read_findings())
        TrajectoryWriter(self._directory.trajectories / "eval").write(summary.steps, trajectories[:16])
        print_trajectory(self._console, _most_telling(trajectories))
        run = self._directory.path
        print_outcome(
            self._console,
            summary,
            run_dir=run,
            plot_path=curve,
            next_commands=[
                f"turnwise eval {run}",
                f"turnwise play {summary.env} --agent {run}",
                f"turnwise train {self._recipe_words()} run.seed={summary.seed + 1}",
                f"tensorboard --logdir {self._directory.tensorboard}",
            ],
        )

    def _recipe_words(self) -> str:
        """How this recipe is called again; one that was given as a file or mapping lives on in the run."""
        return (
            self._settings.recipe if self._settings.recipe in list_recipes() else f"--config {self._directory.config}"
        )

    # --- the loop, and what is written while it runs -------------------------------------------------------------

    async def _train(self, parts: TrainParts, before: Evaluation) -> None:
        start_step, report = self._progress.step, self._settings.report
        sinks = Sinks(self._make_sinks(start_step))
        writer = TrajectoryWriter(self._directory.trajectories, max_per_step=max(report.trajectories_per_step, 1))
        keeper = Keeper(self._settings, self._directory, self._console)
        self._progress = replace(self._progress, tasks=parts.tasks.state())
        if start_step == 0:
            sinks.write(0, {"eval/success": before.success, "eval/return": before.mean_return})
            if keeper.is_save_due(0):
                self._save(parts)
        title = f"{self._settings.recipe} on {self._settings.env.type}"
        with ProgressDisplay(
            self._settings.learn.steps, title, console=self._console, start_step=start_step
        ) as display:

            async def on_step(step: LoopStep) -> None:
                self._count(step)
                metrics = self._step_metrics(step)
                if is_evaluation_due(self._settings, step.step):
                    with display.phase("evaluating") as advance:
                        between = await evaluate_policy(parts, advance)
                    metrics |= {"eval/success": between.success, "eval/return": between.mean_return}
                found = keeper.look(step.step, metrics)
                sinks.write(step.step, metrics | {"watch/findings": float(len(found))})
                shown = [t for group in step.groups for t in group.trajectories][: report.trajectories_per_step]
                if shown:
                    writer.write(step.step, shown)
                display.update(step.step, metrics, self._watch.time_split())
                keeper.check(found)
                if keeper.is_save_due(step.step):
                    self._save(parts)
                    keeper.prune()

            try:
                await self._loop()(parts, self._watch, start_step=start_step, on_step=on_step)
            except SyncError:
                # The other side is gone; what was learnt from what it left must not go with it.
                self._save(parts)
                raise
            except CollapsedError as collapsed:
                self._go_back(parts, collapsed.finding, keeper.go_back(collapsed.finding))
        sinks.close()
        if self._directory.latest_checkpoint() != self._directory.step_checkpoint(self._progress.step):
            self._save(parts)

    def _loop(self) -> Callable[..., Awaitable[None]]:
        """The loop of this run's settings; all have the signature of `train_serial`."""
        if self._shared is not None:
            return partial(train_from_buffer, shared=self._shared)
        if self._settings.loop.type == "serial":
            return train_serial
        if self._settings.sync.method == "memory":
            return train_pipelined
        return partial(train_pipelined, make_mailbox=partial(CheckpointMailbox, self._directory.path / "weights"))

    def _go_back(self, parts: TrainParts, collapse: Finding, checkpoint: Path) -> None:
        """The learner, and what is reported, are those of the checkpoint; the metrics of the collapse stay on disk."""
        self._progress = Progress(**restore_learner(checkpoint, parts.learner))
        self._stopped = {**_told(collapse), "returned_to_step": self._progress.step}
        print_notice(
            self._console,
            f"stopped at step {collapse.step} ({collapse.kind}); the result is the policy of step "
            f"{self._progress.step}. Resuming would repeat the collapse: start anew with other settings.",
        )

    def _make_sinks(self, start_step: int) -> list[Sink]:
        sinks: list[Sink] = [JsonlSink(self._directory.metrics, time_offset_s=self._progress.wall_s)]
        if self._settings.report.tensorboard:
            sinks.append(TensorboardSink(self._directory.tensorboard, resumed_step=start_step or None))
        return sinks

    def _count(self, step: LoopStep) -> None:
        self._progress = replace(
            self._progress,
            step=step.step,
            tokens_sampled=self._progress.tokens_sampled + step.tokens_sampled,
            tokens_trained=self._progress.tokens_trained + step.tokens_trained,
            tasks=step.tasks,
            failures=count_failures(step.groups, self._progress.failures),
        )

    def _step_metrics(self, step: LoopStep) -> dict[str, float]:
        split = self._watch.time_split()
        spent = {name: seconds - self._last_split.get(name, 0.0) for name, seconds in split.items()}
        self._last_split = split
        # Where both run at the same time, episodes are played during the whole step.
        played_s = sum(spent.values()) if self._settings.loop.type == "pipelined" else spent["rollout"] + spent["env"]
        return {
            **step.metrics,
            "rollout/env_steps": float(sum(len(t.turns) for group in step.groups for t in group.trajectories)),
            "rollout/tokens_per_s": step.tokens_sampled / max(played_s, 1e-9),
            **{f"time/{name}_s": seconds for name, seconds in spent.items()},
        }

    def _save(self, parts: TrainParts) -> None:
        folder = self._directory.step_checkpoint(self._progress.step)
        folder.parent.mkdir(parents=True, exist_ok=True)
        now = replace(self._progress, wall_s=time.perf_counter() - self._started_s)
        save_checkpoint(folder, parts.learner, parts.tokenizer, asdict(now))


def _rewind(buffer: Buffer, step: int, *, plays_again: bool) -> None:
    """A durable buffer as it was after a step; a loop that plays the rollouts after it again has them forgotten."""
    if isinstance(buffer, ExperienceStore):
        buffer.restore(step)
        if plays_again:
            buffer.forget_rollouts(after=step)


def _told(finding: Finding) -> dict[str, str | int]:
    return {"step": finding.step, "kind": finding.kind, "message": finding.message}


def _with_warm_start(baselines: Mapping[str, float], warm_start_success: float | None) -> dict[str, float]:
    """The yardsticks from weakest to strongest, the oracle last."""
    everything = dict(baselines)
    if warm_start_success is not None:
        everything["warm_start"] = warm_start_success
    return dict(sorted(everything.items(), key=lambda item: (item[0] == "oracle", item[1])))


def _most_telling(trajectories: Sequence[Trajectory]) -> Trajectory:
    """A success in as many turns as there are, or the first trajectory."""
    successes = [t for t in trajectories if t.is_success]
    return max(successes or trajectories[:1], key=lambda t: len(t.turns))
