"""The end of a run: its summary, its plots, one episode to look at, and the closing words."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from turnwise.app.eval_report import Figures, worlds_told
from turnwise.config.load import load_settings
from turnwise.config.recipes import list_recipes
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import Finding
from turnwise.loop.evaluate import Evaluation
from turnwise.report.console import print_outcome, print_trajectory
from turnwise.report.evaluation import results_of, write_eval
from turnwise.report.manifest import HIDDEN, Manifest
from turnwise.report.plots import plot_learning_curve, plot_training_health
from turnwise.report.run_dir import RunDirectory, Summary, step_name
from turnwise.report.statistics import list_ends
from turnwise.report.trajectories import TrajectoryWriter
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
        "worlds": worlds_told(settings),
        **Figures.of(tasks).to_dict(),
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


def told(finding: Finding) -> dict[str, str | int]:
    return {"step": finding.step, "kind": finding.kind, "message": finding.message}


def told_by_env(result: Evaluation) -> dict[str, dict[str, float | list[float] | None]]:
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
