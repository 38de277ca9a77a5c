"""`turnwise lab scale`: how fast a run would be with more explorers and learners, and what would hold it up.

In: a finished run, or constants as `name=value`. Out: forecasts, one for each number of explorers and learners. How a
cluster is simulated is `lab/scale.py`'s business; here its rules are those of the run's settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError
from turnwise.lab.scale import Lever, Placement, calibrate, find_levers, simulate
from turnwise.lab.scale_constants import Constants, measured_step_s, read_constants, read_numbers
from turnwise.lab.scale_tables import Row
from turnwise.report.run_dir import RunDirectory
from turnwise.sync.styles import SyncRules, rules_of

_RUNNING_UNBOUNDED = 2
"""As `loop/separate.py` plays where nothing bounds staleness."""
_FAR = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleStudy:
    """What is asked for."""

    run: str | None = None
    explorers: tuple[int, ...] = (1, 2, 4, 8)
    learners: tuple[int, ...] = (1,)
    env_s: float | None = None
    """How long the world is waited for in each turn; None: as in the run."""
    run_env_s: float = 0.0
    """The same in the run itself: where others play meanwhile, its metrics do not say."""
    max_staleness: int | None = None
    """None: as in the run."""
    cores: float = _FAR
    constants: tuple[str, ...] = ()
    """`name=value`, over what the run tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleReport:
    constants: Constants
    rows: tuple[Row, ...]


def study_scale(study: ScaleStudy) -> ScaleReport:
    if study.run is None:
        bound = study.max_staleness or 0
        constants, own = Constants(), Placement(rules=_bounded(bound), max_running=bound + 1, is_engine_apart=True)
    else:
        directory = RunDirectory.open(Path(study.run))
        settings = load_settings(str(directory.config), ["context.template=null"])
        constants = measure(directory, settings, env_s=study.run_env_s, cores=study.cores)
        own = place(settings, max_staleness=study.max_staleness)
    if study.env_s is not None:
        constants = replace(constants, env_s=study.env_s)
    constants = read_numbers(study.constants, constants)
    rows = [
        _forecast(
            constants,
            replace(
                own,
                explorers=explorers,
                learners=learners,
                cores=study.cores,
                # Whoever has others beside it is a process of its own.
                is_one_process=explorers == learners == 1,
            ),
        )
        for learners in study.learners
        for explorers in study.explorers
    ]
    return ScaleReport(constants=constants, rows=tuple(rows))


def measure(
    directory: RunDirectory, settings: TurnwiseSettings, *, env_s: float, cores: float, known: Sequence[str] = ()
) -> Constants:
    """The constants of a run, some `known` as `name=value`; what no metric tells explains the rest of a step."""
    constants = read_numbers(known, read_constants(directory, settings, env_s=env_s))
    placement = replace(place(settings), cores=cores)
    # What one learner takes is not measured where several shared the work.
    constants = replace(constants, learn_s=constants.learn_s * placement.learners)
    return calibrate(constants, placement, step_s=measured_step_s(directory))


def place(settings: TurnwiseSettings, *, max_staleness: int | None = None) -> Placement:
    """Where the parts of a run are, and when its weights move."""
    cluster: Any = getattr(settings, "cluster", None)
    parallel: Any = getattr(settings.learn, "parallel", None)
    is_alone = settings.run.mode != "both"
    if max_staleness is not None:
        rules, max_running = _bounded(max_staleness, settings.sync.style, settings.sync.interval), max_staleness + 1
    elif settings.loop.type == "serial" and not is_alone:
        rules, max_running = _bounded(0, interval=settings.sync.interval), 1
    else:
        rules = rules_of(settings.sync, is_alone=is_alone)
        max_running = _RUNNING_UNBOUNDED if rules.max_staleness is None else rules.max_staleness + 1
    return Placement(
        rules=rules,
        max_running=max_running,
        explorers=getattr(cluster, "explorers", 1),
        learners=getattr(parallel, "ranks", 1),
        is_one_process=not is_alone and getattr(cluster, "type", "none") == "none",
        # Any other is taken for a server.
        is_engine_apart=settings.engine.type != "local",
    )


def _bounded(max_staleness: int, style: Any = "fixed", interval: int = 1) -> SyncRules:
    needed = max(max_staleness, interval - 1)
    return SyncRules(style=style, interval=interval, offset=needed - interval + 1, max_staleness=needed)


def _forecast(constants: Constants, placement: Placement) -> Row:
    forecast = simulate(constants, placement)
    levers = find_levers(constants, placement, forecast)
    instead = {
        "twice the explorers": replace(placement, explorers=2 * placement.explorers, is_one_process=False),
        "twice the learners": replace(placement, learners=2 * placement.learners, is_one_process=False),
        **_one_staler(placement),
    }
    choices = [
        Lever(name=name, gain=forecast.step_s / simulate(constants, other).step_s - 1)
        for name, other in instead.items()
    ]
    return Row(
        explorers=placement.explorers,
        learners=placement.learners,
        forecast=forecast,
        levers=tuple(levers),
        choices=tuple(sorted(choices, key=lambda lever: -lever.gain)),
    )


def _one_staler(placement: Placement) -> dict[str, Placement]:
    rules = placement.rules
    if not isinstance(rules, SyncRules) or rules.max_staleness is None:
        return {}
    staler = rules.max_staleness + 1
    changed = _bounded(staler, rules.style, rules.interval)
    return {f"sync.max_staleness={staler}": replace(placement, rules=changed, max_running=placement.max_running + 1)}


def read_counts(text: str, option: str) -> tuple[int, ...]:
    """`1,2,4` as numbers."""
    try:
        counts = tuple(int(word) for word in text.split(","))
    except ValueError:
        counts = (0,)
    if min(counts) < 1:
        raise ConfigError(f"{option}: '{text}' given; expected numbers above 0 with commas between, such as 1,2,4.")
    return counts
