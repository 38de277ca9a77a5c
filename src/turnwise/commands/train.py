"""`turnwise train`, and the number of explorers of a run on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from turnwise.commands import (
    OVERRIDES_HELP,
    ConfigFile,
    ConfigName,
    Option,
    RecipeName,
    Target,
    choose_recipe,
    command,
)
from turnwise.errors import ConfigError


@command("train", help="Train a recipe", epilog=OVERRIDES_HELP)
def train(
    recipe: RecipeName = None,
    config: ConfigFile = None,
    config_name: ConfigName = None,
    run_dir: Annotated[Path | None, Option("DIR", "directory of the run (default: a new one in runs/)")] = None,
    resume: Annotated[Path | None, Option("RUN", "continue an interrupted run")] = None,
    overrides: Sequence[str] = (),
) -> int:
    from rich.console import Console

    if resume:
        if recipe or config or config_name or overrides:
            raise ConfigError("--resume continues with the settings of the run; omit the recipe and overrides.")
        from turnwise.run import api

        api.resume(resume, console=Console())
        return 0
    from turnwise.config.load import load_recipe

    # A mistake in the settings is reported before torch is imported.
    loaded = load_recipe(*choose_recipe(recipe, config, config_name, overrides))
    from turnwise.run import api

    api.train_loaded(loaded, run_dir=run_dir, console=Console())
    return 0


@command("explorers", help="Change the number of explorers of a run on a cluster, while it runs")
def explorers(
    run: Annotated[Path, Target("RUN", "run with cluster.type ray")],
    number: Annotated[int, Target("N", "number of explorers, at least 1")],
) -> int:
    from turnwise.cluster.explorer_pool import write_target
    from turnwise.config.load import load_settings
    from turnwise.report.document import Document, show
    from turnwise.report.run_dir import RunDirectory

    directory = RunDirectory.open(run)
    if load_settings(str(directory.config)).cluster.type == "none":
        raise ConfigError(f"{directory.path} has cluster.type 'none': it has no explorers of its own.")
    if number < 1:
        raise ConfigError(f"N must be at least 1, got {number}.")
    write_target(directory.path, number)
    return show(Document(notes=[f"Target number of explorers for {directory.path} set to {number}."]))
