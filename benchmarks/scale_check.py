"""Forecasts of `benchmarks.scaling_sim` against runs that were made: seconds per step, predicted and measured.

    python -m benchmarks.scale_check SOURCE RUN [RUN …] [--cores 2]

SOURCE is the run whose constants are measured: one explorer, one learner, best in the serial loop and with worlds that
answer at once. Of every RUN only the settings (loop, sync, explorers, ranks, `env.train.step_s` or `env.step_s`) and
what was played (how many turns, how many tokens) are read for the forecast: the simulator says how long that takes, and
not what is learnt. Runs of a cluster are read the same way.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.report.run_dir import RunDirectory

from .scaling_sim import (
    Constants,
    measure,
    measured_staleness,
    measured_step_s,
    measured_tokens,
    place,
    read_constants,
    simulate,
)

BAR = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One run against its forecast."""

    run: str
    explorers: int
    learners: int
    env_s: float
    predicted_step_s: float
    measured_step_s: float
    predicted_staleness: float
    measured_staleness: float

    @property
    def error(self) -> float:
        return self.predicted_step_s / self.measured_step_s - 1


def check_runs(source: Path, runs: Sequence[Path], *, cores: float, known: Sequence[str] = ()) -> list[Check]:
    """What the constants of one run, some of them known as `name=value`, say about the others."""
    directory, settings = _open(source)
    constants = measure(directory, settings, env_s=_env_seconds(settings), cores=cores, known=known)
    trained = measured_tokens(directory)
    return [_check(constants, trained, path, cores) for path in runs]


def _check(constants: Constants, trained: float, path: Path, cores: float) -> Check:
    directory, settings = _open(path)
    own, env_s, placement = read_constants(directory, settings), _env_seconds(settings), place(settings)
    told = replace(
        constants,
        env_s=env_s,
        episodes=own.episodes,
        turns=own.turns,
        turn_counts=own.turn_counts,
        max_turns=own.max_turns,
        reply_tokens=own.reply_tokens,
        max_concurrent=own.max_concurrent,
        # An update takes as long as what it learns from is long.
        learn_s=constants.learn_s * measured_tokens(directory) / trained,
        # A serial loop samples from the learner's own weights: there is nothing to move, and nothing to measure.
        post_s=max(constants.post_s, own.post_s),
        load_s=max(constants.load_s, own.load_s),
    )
    forecast = simulate(told, replace(placement, cores=cores))
    return Check(
        run=path.name,
        explorers=placement.explorers,
        learners=placement.learners,
        env_s=env_s,
        predicted_step_s=forecast.step_s,
        measured_step_s=measured_step_s(directory),
        predicted_staleness=forecast.staleness_mean,
        measured_staleness=measured_staleness(directory),
    )


def _open(path: Path) -> tuple[RunDirectory, TurnwiseSettings]:
    directory = RunDirectory.open(path)
    return directory, load_settings(str(directory.config), ["context.template=null"])


def _env_seconds(settings: TurnwiseSettings) -> float:
    """Of worlds that wait on purpose, as those of `benchmarks.pipelined` do."""
    train = settings.env.model_dump().get("train") or {}
    return float(train.get("step_s", getattr(settings.env, "step_s", 0.0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--cores", type=float, default=float("inf"), help="that all share (default: each has its own)")
    parser.add_argument("--known", nargs="*", default=[], help="constants of the source that need no fit: pass_s=0.02")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    checks = check_runs(options.source, options.runs, cores=options.cores, known=options.known)
    if options.json:
        print(json.dumps([{**asdict(check), "error": check.error} for check in checks], indent=2))
        return
    print(f"{'run':24} {'N x M':>7} {'env s':>6} {'predicted s':>12} {'measured s':>11} {'error':>7}   staleness")
    for check in checks:
        print(
            f"{check.run:24} {f'{check.explorers} x {check.learners}':>7} {check.env_s:6.3f} "
            f"{check.predicted_step_s:12.3f} {check.measured_step_s:11.3f} {check.error:+7.0%}   "
            f"{check.predicted_staleness:.2f} / {check.measured_staleness:.2f}"
        )
    worst = max(abs(check.error) for check in checks)
    print(f"largest error {worst:.0%}; the bar is {BAR:.0%}")


if __name__ == "__main__":
    main()
