"""What each command of the command line does, on top of the loop.

Each command imports what it needs when it is called: whoever asks for a list, or has made a mistake in the settings, is
answered at once, without loading torch.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from turnwise.checks.setup import validate_run
from turnwise.config.component import ENVS
from turnwise.config.load import load_recipe, load_settings, parse_params, translate_file
from turnwise.config.recipes import find_named, refuse_endless_name
from turnwise.config.trust import only_looking
from turnwise.convert.load import default_recipe, to_recipe, to_translation_rows
from turnwise.envs.base import make_env
from turnwise.envs.safe_calls import closing_env
from turnwise.errors import ConfigError
from turnwise.infra.atomic_files import write_whole
from turnwise.report.document import show_rows
from turnwise.rollout.env_specs import settle_length

_MAX_ACTIONS = 6
"""Of an environment, in a list of environments."""


def run(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Dispatch a parsed command; returns the exit code."""
    for given in vars(options).values():
        if isinstance(given, str):
            refuse_endless_name(given)
    return _COMMANDS[options.command](options, list(overrides), Console())


def _train(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    if options.resume:
        if options.recipe or options.config or options.config_name or overrides:
            raise ConfigError(
                "--resume goes on with the settings of the run; give no recipe and no overrides beside it."
            )
        from turnwise.run.api import resume

        resume(options.resume, console=console)
    else:
        loaded = load_recipe(*_recipe_and_overrides(options, overrides))
        from turnwise.run.api import train_loaded

        train_loaded(loaded, run_dir=options.run_dir, console=console)
    return 0


def _recipe_and_overrides(options: argparse.Namespace, overrides: list[str]) -> tuple[str, list[str]]:
    """The recipe may be named in three ways, once; `train learn.steps=3` is the default recipe with an override."""
    if options.recipe and "=" in options.recipe:
        options.recipe, overrides = None, [options.recipe.lstrip("+"), *overrides]
    given = [name for name in (options.recipe, options.config, options.config_name) if name]
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(given)} given; expected one recipe: RECIPE, --config FILE or --config-name NAME."
        )
    if options.config and not Path(options.config).is_file():
        raise ConfigError(f"--config: file '{options.config}' does not exist.")
    if options.config_name:
        given = [str(find_named(options.config_name))]
    return (given[0] if given else default_recipe(overrides)), overrides


def _eval(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    from turnwise.commands.eval import run_eval

    return run_eval(options, overrides, console)


def _compare(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    _refuse(overrides)
    from turnwise.report.comparison import run_compare

    return run_compare(options, console)


def _play(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    from turnwise.run.play import play_in_terminal

    play_in_terminal(
        console,
        options.env,
        agent=options.agent,
        seed=options.seed,
        split=options.split,
        words=overrides,
    )
    return 0


def _envs(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    _refuse(overrides)
    rows = [_describe_env(name) for name in sorted(ENVS)]
    if not options.json:
        # Settings and texts have pages of their own; a terminal is narrow.
        rows = [{key: text for key, text in row.items() if key not in ("settings", "about")} for row in rows]
    show_rows(console, rows, as_json=options.json)
    if not options.json:
        adapters = ", ".join(f"{prefix}:NAME" for prefix in ENVS.adapters)
        console.print(f"Worlds of other packages: {adapters}. Your own: package.module:Class.", markup=False)
    return 0


def _describe_env(name: str) -> dict[str, Any]:
    with closing_env(make_env(name)) as env:
        env.reset(seed=0)
        actions = env.action_names
    shown = "any text" if actions is None else ", ".join(actions[:_MAX_ACTIONS])
    return {
        "env": name,
        "about": env.instructions,
        "actions": shown + (", ..." if actions is not None and len(actions) > _MAX_ACTIONS else ""),
        "rewards": env.rewards,
        "splits": ", ".join(env.splits),
        "oracle": "yes" if env.has_oracle else "no",
        "data": env.data,
        "settings": ", ".join(env.Params.model_fields),
    }


def _check(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    from turnwise.commands.check import check

    return check(options, overrides, console)


def _convert(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    _refuse(overrides)
    translation = translate_file(options.file)
    if translation is None:
        raise ConfigError(f"'{options.file}' is written in the words of turnwise already; there is nothing to convert.")
    # Loaded as `train` would, but for code that the file names: what is written out has been understood.
    with only_looking(trusts=options.trust):
        validate_run(load_settings(options.file))
    text = to_recipe(translation, Path(options.file).name)
    if options.json:
        shown = {"dialect": translation.format_name, "keys": to_translation_rows(translation), "recipe": text}
        console.print_json(json.dumps(shown))
    elif options.out:
        write_whole(Path(options.out), text)
        console.print(f"wrote {options.out}; train it with: turnwise train --config {options.out}", markup=False)
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True, end="")
    return 0


def _plan(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    recipe, overrides = _recipe_and_overrides(options, overrides)
    with only_looking(trusts=options.trust) as unseen:
        loaded = load_recipe(recipe, overrides)
        validate_run(loaded.settings)
    if unseen:
        named = " and ".join(f"'{name}'" for name in unseen)
        raise ConfigError(f"a plan of this file would run {named}, which it names. Read it, then give --trust.")
    if options.model is not None or options.gpus is not None:
        return _plan_on_gpus(options, recipe, overrides, console)
    from turnwise.checks.model import describe_preview, make_preview
    from turnwise.checks.plan import describe_plan, make_plan
    from turnwise.report.console import phase

    settings = settle_length(loaded.settings)
    plan = make_plan(settings, loaded.pretrained)
    if not options.json:
        console.print(describe_plan(plan), markup=False, highlight=False, soft_wrap=True)
    # Progress on the console would stand in front of the JSON.
    with phase(Console(quiet=True) if options.json else console, "asking the model for one reply"):
        preview = make_preview(settings)
    if options.json:
        console.print_json(json.dumps({**plan.to_dict(), **preview.to_dict()}))
    else:
        console.print(describe_preview(preview), markup=False, highlight=False, soft_wrap=True)
    return 0


def _plan_on_gpus(options: argparse.Namespace, recipe: str, overrides: list[str], console: Console) -> int:
    from turnwise.models.gpus import describe_on_gpus, plan_on_gpus, to_rows

    # Such a model was trained before: the recipe's section for those counts, unless another model is named.
    settings = load_recipe(recipe, [f"model.path={json.dumps(str(options.model))}", *overrides]).settings
    plans = plan_on_gpus(settings, options.model or "", options.gpus)
    if options.json:
        console.print_json(json.dumps(to_rows(plans)))
    else:
        console.print(describe_on_gpus(plans), markup=False, highlight=False, soft_wrap=True)
    return 0


def _doctor(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    recipe, overrides = _recipe_and_overrides(options, overrides)
    from turnwise.checks.doctor import run_doctor, show_report
    from turnwise.report.console import phase

    # Progress on the console would stand in front of the JSON.
    told = Console(quiet=True) if options.json else console
    report = run_doctor(recipe, overrides, lambda text: phase(told, text))
    if options.json:
        console.print_json(json.dumps(report.to_dict()))
    else:
        show_report(console, report)
    return 0 if report.ok else 2


def _explorers(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    _refuse(overrides)
    from turnwise.cluster.explorer_pool import write_wanted
    from turnwise.report.run_dir import RunDirectory

    directory = RunDirectory.open(Path(options.run))
    if load_settings(str(directory.config)).cluster.type == "none":
        raise ConfigError(f"{directory.path} has cluster.type 'none': it explores in its own process.")
    if options.number < 1:
        raise ConfigError(f"N: {options.number} given; expected at least 1 explorer.")
    write_wanted(directory.path, options.number)
    console.print(f"{directory.path} is to have {options.number} explorers", markup=False, highlight=False)
    return 0


def _export(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    _refuse(overrides)
    from turnwise.experience.codec import write_experiences
    from turnwise.experience.store import ExperienceStore
    from turnwise.report.run_dir import RunDirectory

    directory = RunDirectory.open(Path(options.run))
    if not directory.experience.is_file():
        raise ConfigError(f"{directory.path} has no experience.db; it is kept by runs with buffer.type=sqlite.")
    out = Path(options.out) if options.out else directory.path / "experience.parquet"
    count = write_experiences(ExperienceStore(directory.experience).read_groups(), out)
    console.print(f"written: {out} ({count} experiences)", markup=False, highlight=False, soft_wrap=True)
    return 0


def _export_model(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    _refuse(overrides)
    from turnwise.run.export_model import export_model

    folder = export_model(options.run, options.dir, step=options.step, push=options.push)
    pushed = f", and uploaded as {options.push}" if options.push else ""
    console.print(f"written: {folder}{pushed}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _lab(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    from turnwise.commands.lab import run_experiment

    return run_experiment(options, overrides, console)


def _serve(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    from turnwise.run.serving import serve

    serve(
        options.target,
        console,
        port=options.port,
        host=options.host,
        recipe=options.recipe,
        overrides=overrides,
    )
    return 0


def _audit(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    _refuse(overrides)
    from turnwise.commands.audit import run_audit

    return run_audit(options.run, console, seeds_faults=options.seed_faults, as_json=options.json)


def _replay(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    from turnwise.run.replay import replay

    result = replay(options.run, options.step, overrides)
    if options.json:
        console.print_json(json.dumps(result.to_dict()))
    else:
        words = {True: "identical", False: "DIFFERENT", None: "not on record"}
        show_rows(console, [{"part": name, "is": words[same]} for name, same in result.parts.items()], as_json=False)
        if result.other:
            recorded, replayed = result.other["recorded"], result.other["replayed"]
            names = [name for name in recorded if name in replayed]
            rows = [{"number": name, "was": recorded[name], "would be": replayed[name]} for name in names]
            show_rows(console, rows, as_json=False)
    return 0 if result.identical else 1


def _look_after(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    _refuse(overrides)
    from turnwise.commands.inspect import LOOKS

    return LOOKS[options.command](options, console)


def _refuse(overrides: Sequence[str]) -> None:
    if overrides:
        raise ConfigError(f"'{overrides[0]}' is not understood here.")


def _serve_env(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    from turnwise.commands.serve import ServedEnv, serve_env

    served = ServedEnv(
        name=options.env,
        params=parse_params(overrides),
        python=options.python,
        host=options.host,
        port=options.port,
        max_sessions=options.max_sessions,
    )
    serve_env(served, console)
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace, list[str], Console], int]] = {
    "train": _train,
    "eval": _eval,
    "compare": _compare,
    "play": _play,
    "envs": _envs,
    "check": _check,
    "convert": _convert,
    "plan": _plan,
    "doctor": _doctor,
    "explorers": _explorers,
    "export": _export,
    "export-model": _export_model,
    "lab": _lab,
    "serve": _serve,
    "serve-env": _serve_env,
    "audit": _audit,
    "replay": _replay,
    "show": _look_after,
    "status": _look_after,
    "view": _look_after,
    "report": _look_after,
}
