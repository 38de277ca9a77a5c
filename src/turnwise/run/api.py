"""From Python: train a recipe, go on with a run, look at what came out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from turnwise.checks.setup import validate_run
from turnwise.config.load import Change, Loaded, dump_settings, load_recipe, load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.trust import find_secrets, is_hidden
from turnwise.errors import ConfigError
from turnwise.hooks import Callback
from turnwise.infra.atomic_files import read_text
from turnwise.infra.parsing import parse_yaml
from turnwise.infra.threads import run_async
from turnwise.loop.evaluate import Evaluation, evaluate_once
from turnwise.loop.policies import find_policy, newest_checkpoint, open_policy
from turnwise.models.resolve import check_hub_access
from turnwise.report.console import phase, print_notice
from turnwise.report.manifest import collect_manifest
from turnwise.report.run_dir import RunDirectory, Summary, new_run_path
from turnwise.report.token_log import TokenLog
from turnwise.report.token_log_reader import StepTokens
from turnwise.rollout.env_specs import resolve_total_steps
from turnwise.run.checkpoints import find_valid_checkpoint
from turnwise.run.cluster_run import ClusterTraining
from turnwise.run.explorer_process import Exploring, evaluate_alone
from turnwise.run.training_run import TrainingRun
from turnwise.sync.role_locks import ROLES, acquire_roles

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """A run on disk."""

    path: Path

    @property
    def summary(self) -> Summary:
        return RunDirectory.open(self.path).read_summary()

    @property
    def settings(self) -> TurnwiseSettings:
        return load_settings(str(RunDirectory.open(self.path).config))

    @property
    def policy(self) -> Path:
        """The Hugging Face folder of the newest checkpoint."""
        return newest_checkpoint(RunDirectory.open(self.path)) / "policy"

    def metrics(self) -> list[dict[str, float]]:
        return RunDirectory.open(self.path).read_metrics()

    def tokens(self, step: int) -> StepTokens:
        """What was learnt from each token in a step: ids, log-probs, advantages, ratios, …; also while it runs."""
        return TokenLog(RunDirectory.open(self.path).learning_record).read(step)

    def recorded_steps(self) -> list[int]:
        """The steps whose tokens are on record."""
        return TokenLog(RunDirectory.open(self.path).learning_record).steps()


def open_run(path: str | Path) -> Run:
    """A run that was made before, or is being made."""
    return Run(RunDirectory.open(Path(path)).path)


def train(
    recipe: str | Path | Mapping[str, object] = "frozenlake",
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    run_dir: str | Path | None = None,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a recipe (name, file or mapping) with overrides; returns the finished Run. `callbacks` hear of it all."""
    return train_loaded(load_recipe(recipe, overrides), run_dir=run_dir, console=console, callbacks=callbacks)


def train_loaded(
    loaded: Loaded,
    *,
    run_dir: str | Path | None = None,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """The same, for a recipe that was loaded already."""
    settings, pretrained = check_start(loaded.settings), loaded.pretrained
    console = console or Console(quiet=True)
    _tell_secrets(settings, console)
    if settings.run.mode == "both":
        directory = new_directory(settings, run_dir, pretrained=pretrained)
        with acquire_roles(directory.path, *ROLES):
            run_async(_whole(settings, directory, console, callbacks=callbacks).run())
        return Run(directory.path)
    if settings.run.mode == "train" and run_dir is None and settings.buffer.offline is None:
        raise ConfigError("run.mode: 'train' given without --run-dir; expected the run directory of an explorer.")
    directory = new_directory(settings, run_dir, is_shared=True, pretrained=pretrained)
    _run_part(settings, directory, console, callbacks)
    return Run(directory.path)


def check_start(settings: TurnwiseSettings) -> TurnwiseSettings:
    """Raise a ConfigError with every reason against a new run, before its directory is made; return what will run."""
    validate_run(settings)
    check_hub_access(settings.model.path)
    return resolve_total_steps(settings)


def _tell_secrets(settings: TurnwiseSettings, console: Console) -> None:
    for path, variable in find_secrets(settings.model_dump(mode="json")).items():
        if variable not in os.environ:
            print_notice(console, f"{path} is a secret and not written down; to go on later, export it as {variable}")


def new_directory(
    settings: TurnwiseSettings,
    run_dir: str | Path | None,
    *,
    is_shared: bool = False,
    pretrained: Sequence[Change] = (),
) -> RunDirectory:
    """The directory of a run that begins; one that several processes share may be there already."""
    path = Path(run_dir) if run_dir is not None else new_run_path(Path(settings.run.root), settings.recipe)
    make = RunDirectory.join if is_shared else RunDirectory.create
    manifest = collect_manifest(settings.recipe, settings.run.seed)
    return make(path, config_yaml=dump_settings(settings, pretrained), manifest=manifest)


def _run_part(
    settings: TurnwiseSettings, directory: RunDirectory, console: Console, callbacks: Sequence[Callback] = ()
) -> None:
    """A process that explores, trains or evaluates in a run that others may be at work in."""
    if settings.run.mode == "eval":
        checkpoint = directory.latest_checkpoint()
        run_async(evaluate_alone(settings, directory, console, checkpoint / "policy" if checkpoint else None))
        return
    _refuse_other_settings(settings, directory)
    if settings.run.mode == "explore":
        with acquire_roles(directory.path, "explorer"):
            run_async(Exploring(settings, directory, console).run())
        return
    with acquire_roles(directory.path, "trainer"):
        checkpoint = _find_start(directory, console, has_played=False)
        run_async(TrainingRun(settings, directory, console, checkpoint, callbacks=callbacks).run())


def _find_start(directory: RunDirectory, console: Console, *, has_played: bool = True) -> Path | None:
    """The checkpoint that a run goes on from; None where it was killed before its first, and begins once more."""
    checkpoint = find_valid_checkpoint(directory, partial(print_notice, console))
    if checkpoint is None and directory.read_metrics():
        print_notice(console, f"{directory.path} has no checkpoint yet: it begins once more, as it began before")
        RunDirectory.reopen(directory.path, step=-1, has_played=has_played)
    return checkpoint


def _refuse_other_settings(settings: TurnwiseSettings, directory: RunDirectory) -> None:
    """Both processes of a run have the same settings, `run.mode` aside."""
    # As they are written down: a secret is in nobody's file, and need not be exported to be compared.
    ours, theirs = _flatten(parse_yaml(dump_settings(settings))), _flatten(_read_written(directory))
    others = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    others = [key for key in others if not (is_hidden(ours.get(key)) and is_hidden(theirs.get(key)))]
    if differing := [key for key in others if key != "run.mode"]:
        first = differing[0]
        raise ConfigError(
            f"{first}: {ours.get(first)!r} given; {directory.config} has {theirs.get(first)!r}, and all processes of a "
            f"run share their settings ({len(differing)} differ). Start with --config {directory.config} and run.mode "
            "alone, or choose another --run-dir."
        )


def _read_written(directory: RunDirectory) -> Mapping[str, Any]:
    """The settings of a run as its file has them, and what it does not name as it is by default."""
    try:
        written = parse_yaml(read_text(directory.config))
    except ValueError as error:
        raise ConfigError(f"{directory.config} is damaged: {error}. Choose another --run-dir.") from error
    hidden = {path: "" for path, value in _flatten(written).items() if is_hidden(value)}
    # The rest is understood as ever; a file of an older version lacks what is new.
    plain = parse_yaml(dump_settings(load_settings(str(directory.config), hidden)))
    for path in hidden:
        *sections, name = path.split(".")
        place = plain
        for section in sections:
            place = place[section]
        place[name] = "${oc.env:}"
    return plain


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def resume(run: str | Path, *, console: Console | None = None) -> Run:
    """Go on with an interrupted run from its newest checkpoint, or from its start where there is none yet."""
    directory, console = RunDirectory.open(Path(run)), console or Console(quiet=True)
    settings = load_settings(str(directory.config))
    validate_run(settings, is_resumed=directory.latest_checkpoint() is not None)
    # A run that was killed in its first moments has none.
    directory.write_manifest(collect_manifest(settings.recipe, settings.run.seed))
    if settings.run.mode != "both":
        _run_part(settings, directory, console)
        return Run(directory.path)
    with acquire_roles(directory.path, *ROLES):
        run_async(_whole(settings, directory, console, _find_start(directory, console)).run())
    return Run(directory.path)


def _whole(
    settings: TurnwiseSettings,
    directory: RunDirectory,
    console: Console,
    checkpoint: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainingRun | ClusterTraining:
    """A run that explores and trains, in this process or on a cluster."""
    kind = TrainingRun if settings.cluster.type == "none" else ClusterTraining
    return kind(settings, directory, console, checkpoint, callbacks=callbacks)


def evaluate(
    target: Run | str | Path,
    episodes: int | None = None,
    *,
    recipe: str | None = None,
    split: str = "eval",
    console: Console | None = None,
    overrides: Sequence[str] = (),
) -> Evaluation:
    """Play held-out episodes with a run's newest policy, or with a model in the setting of a recipe."""
    words = [*overrides, *([] if episodes is None else [f"eval.episodes={episodes}"])]
    found = find_policy(target.path if isinstance(target, Run) else target, words, recipe=recipe)
    parts = open_policy(found, split=split)
    label = f"evaluating on {len(parts.eval_tasks)} episodes"
    with phase(console or Console(quiet=True), label) as advance:
        return run_async(evaluate_once(parts, advance))
