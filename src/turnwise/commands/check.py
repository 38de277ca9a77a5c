"""`turnwise check`, `plan` and `doctor`: a set-up before it runs.

A file that is only checked runs nothing that it names, unless it is trusted.
"""

from __future__ import annotations

import json as json_lib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from turnwise.commands import (
    OVERRIDES_HELP,
    ConfigFile,
    ConfigName,
    Option,
    Python,
    RecipeName,
    Target,
    Trust,
    choose_recipe,
    command,
)
from turnwise.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from turnwise.config.schema import TurnwiseSettings

_PASSED = {True: "yes", False: "NO", None: "not made"}
"""Result of one check of an environment."""


@command("check", help="Check a config file, or an environment against its contract", epilog=OVERRIDES_HELP)
def check(
    target: Annotated[str, Target("FILE|ENV", "recipe, YAML file or environment", complete="files")],
    python: Python = None,
    json: bool = False,
    trust: Trust = False,
    overrides: Sequence[str] = (),
) -> int:
    from turnwise.config.component import ENVS
    from turnwise.config.recipes import list_recipes
    from turnwise.config.trust import block_untrusted_imports

    if _names_environment(target, overrides):
        return _check_env(target, python, overrides, json=json)
    if python is not None:
        raise ConfigError("--python goes with an environment; in a recipe, set rollout.isolation.python.")
    known = [*list_recipes(), *ENVS]
    if target not in known and not Path(target).suffix and not Path(target).exists():
        raise ConfigError(f"there is no recipe, file or environment named '{target}'. {did_you_mean(target, known)}")
    with block_untrusted_imports(trusts=trust) as not_imported:
        return _check_file(target, overrides, not_imported, json=json)


def _names_environment(target: str, overrides: Sequence[str]) -> bool:
    """A name of both means the recipe if an override is none of the environment's."""
    from turnwise.config.component import ENVS
    from turnwise.config.recipes import list_recipes
    from turnwise.config.schema import TurnwiseSettings

    sections = {word.partition("=")[0].partition(".")[0] for word in overrides}
    if target in list_recipes() and not sections.isdisjoint(TurnwiseSettings.model_fields):
        return False
    return target in ENVS or (":" in target and not Path(target).exists())


def _check_env(target: str, python: str | None, overrides: Sequence[str], *, json: bool) -> int:
    from turnwise.config.load import parse_params
    from turnwise.envs.base import make_env
    from turnwise.envs.check import check_env
    from turnwise.envs.isolation import check_in_process
    from turnwise.report.document import Document, Table, show

    params = parse_params(list(overrides))
    if python is None:
        report = check_env(lambda: make_env(target, **params))
    else:
        report = check_in_process(python, target, params)
    rows = [(check.name, _PASSED[check.passed], check.detail) for check in report.checks]
    show(Document(tables=[Table(("check", "passed", "detail"), rows)]), json=json)
    return 0 if report.ok else 2


def _check_file(target: str, overrides: Sequence[str], not_imported: Mapping[str, object], *, json: bool) -> int:
    from rich.console import Console

    from turnwise.checks.setup import validate_run
    from turnwise.config.load import dump_settings, load_recipe, translate_file
    from turnwise.config.recipes import find_recipe
    from turnwise.convert.load import describe_translation, to_translation_rows
    from turnwise.report.document import Document, show
    from turnwise.rollout.env_specs import resolve_total_steps

    console = Console()
    translation = translate_file(target, list(overrides))
    if translation is not None and not json:
        console.print(describe_translation(translation), soft_wrap=True)
    loaded = load_recipe(target, list(overrides))
    found = validate_run(loaded.settings)
    settings = loaded.settings if not_imported else resolve_total_steps(loaded.settings)
    notes = [each.text for each in found if each.level == "warning"]
    notes += _notes_on_model(settings, not_imported)
    notes += [f"'{name}' was not imported. Review it, then pass --trust." for name in not_imported]
    file = find_recipe(target)
    if json:
        keys = {}
        if translation is not None:
            keys = {"dialect": translation.format_name, "keys": to_translation_rows(translation)}
        data = {"file": str(file), "settings": settings.model_dump(mode="json"), "notes": notes}
        return show(Document(data={**data, "not_looked_at": list(not_imported), **keys}), json=True)
    console.print(dump_settings(settings, loaded.pretrained), markup=False, highlight=False)
    verdict = "is valid (untrusted code not checked)" if not_imported else "is valid"
    return show(Document(notes=[*(f"note: {note}" for note in notes), f"{file} {verdict}."]))


def _notes_on_model(settings: TurnwiseSettings, not_imported: Mapping[str, object]) -> list[str]:
    """The built-in model is made to fit, so there is nothing to check, and no reason to import torch."""
    if settings.model.path == "tiny" or not_imported:
        return []
    from turnwise.models.resolve import note_on

    return list(filter(None, [note_on(settings.model.path)]))


@command("plan", help="Describe what a recipe will do: steps, episodes, memory, first prompt", epilog=OVERRIDES_HELP)
def plan(
    recipe: RecipeName = None,
    config: ConfigFile = None,
    config_name: ConfigName = None,
    model: Annotated[
        str | None, Option("NAME", "plan for qwen2.5-0.5b, qwen2.5-7b or qwen2.5-32b on GPUs instead")
    ] = None,
    gpus: Annotated[int | None, Option(help="number of GPUs, with --model (default: 1, 8 and 64)")] = None,
    json: bool = False,
    trust: Trust = False,
    overrides: Sequence[str] = (),
) -> int:
    from turnwise.checks.setup import validate_run
    from turnwise.config.load import load_recipe
    from turnwise.config.trust import block_untrusted_imports

    name, overrides = choose_recipe(recipe, config, config_name, overrides)
    with block_untrusted_imports(trusts=trust) as not_imported:
        loaded = load_recipe(name, overrides)
        validate_run(loaded.settings)
    if not_imported:
        modules = " and ".join(f"'{module}'" for module in not_imported)
        raise ConfigError(f"planning needs {modules}, which the file names. Review the code, then pass --trust.")
    if model is not None or gpus is not None:
        return _plan_on_gpus(name, overrides, model, gpus, json=json)
    from rich.console import Console

    from turnwise.checks.model import describe_preview, make_preview
    from turnwise.checks.plan import describe_plan, make_plan
    from turnwise.report.console import phase
    from turnwise.report.document import Document, show
    from turnwise.rollout.env_specs import resolve_total_steps

    settings = resolve_total_steps(loaded.settings)
    made = make_plan(settings, loaded.pretrained)
    if not json:
        show(Document(notes=[describe_plan(made)]))
    with phase(Console(quiet=json), "asking the model for one reply"):
        preview = make_preview(settings)
    return show(Document(notes=[describe_preview(preview)], data={**made.to_dict(), **preview.to_dict()}), json=json)


def _plan_on_gpus(recipe: str, overrides: Sequence[str], model: str | None, gpus: int | None, *, json: bool) -> int:
    from turnwise.config.load import load_recipe
    from turnwise.models.gpus import describe_on_gpus, plan_on_gpus, to_rows
    from turnwise.report.document import Document, show

    # Such a model is pretrained: the recipe's section for those applies, unless an override names another model.
    settings = load_recipe(recipe, [f"model.path={json_lib.dumps(str(model))}", *overrides]).settings
    plans = plan_on_gpus(settings, model or "", gpus)
    return show(Document(notes=[describe_on_gpus(plans)], data=to_rows(plans)), json=json)


@command(
    "doctor",
    help="Check a whole setup and try it: packages, settings, models, data, sixteen episodes",
    epilog=OVERRIDES_HELP,
)
def doctor(
    recipe: RecipeName = None,
    config: ConfigFile = None,
    config_name: ConfigName = None,
    json: bool = False,
    overrides: Sequence[str] = (),
) -> int:
    from rich.console import Console

    from turnwise.checks.doctor import run_doctor
    from turnwise.report.console import phase
    from turnwise.report.document import show

    name, overrides = choose_recipe(recipe, config, config_name, overrides)
    console = Console(quiet=json)
    report = run_doctor(name, overrides, lambda text: phase(console, text))
    show(report.to_document(), json=json)
    return 0 if report.ok else 2
