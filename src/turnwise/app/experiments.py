"""`turnwise lab`: the experiments of the laboratory, from the words of the command line to what is shown."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

from rich.console import Console

from turnwise.app.scaling import ScaleStudy, read_counts, study_scale
from turnwise.errors import ConfigError
from turnwise.lab import scale_tables, tables
from turnwise.lab.credit import CreditStudy, make_rules, run_study
from turnwise.lab.page import check_page, write_page
from turnwise.report.progress import phase


def run_experiment(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    is_setting = options.experiment == "credit" or ("=" in (options.run or "") and not Path(options.run).exists())
    if options.run is not None and is_setting:
        # The first word after the experiment may be a setting as well.
        overrides, options.run = [options.run, *overrides], None
    _refuse_of_other_experiment(options)
    experiments = {"credit": _study_credit, "scale": _study_scale}
    return experiments[options.experiment](options, overrides, console)


def _refuse_of_other_experiment(options: argparse.Namespace) -> None:
    own = {
        "credit": ("world", "critic", "critic_noise", "episodes", "group_size", "batches", "seed", "out"),
        "scale": ("explorers", "learners", "env_seconds", "run_env_seconds", "max_staleness", "cores"),
    }
    for experiment, names in own.items():
        given = [name for name in names if getattr(options, name) is not None]
        if experiment != options.experiment and given:
            word = given[0].replace("_", "-")
            raise ConfigError(f"--{word} goes with 'lab {experiment}', not with 'lab {options.experiment}'.")


def _study_scale(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    counts = {
        name: read_counts(text, f"--{name}")
        for name in ("explorers", "learners")
        if (text := getattr(options, name)) is not None
    }
    numbers = {"env_s": options.env_seconds, "run_env_s": options.run_env_seconds, "cores": options.cores}
    for name, number in {**numbers, "max_staleness": options.max_staleness}.items():
        if number is not None and (number < 0 or (name == "cores" and number == 0)):
            raise ConfigError(f"{name}: {number:g} given; expected a number that is not below 0.")
    given = {name: number for name, number in numbers.items() if number is not None}
    study = ScaleStudy(
        run=options.run, max_staleness=options.max_staleness, constants=tuple(overrides), **counts, **given
    )
    with nullcontext() if options.json else phase(console, "simulating"):
        report = study_scale(study)
    if options.json:
        rows = [row.to_dict() for row in report.rows]
        console.print_json(json.dumps({"constants": scale_tables.to_numbers(report.constants), "rows": rows}))
        return 0
    for line in scale_tables.describe_constants(report.constants):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print("", scale_tables.to_table(report.rows), "")
    for row in report.rows:
        console.print(scale_tables.describe_row(row), soft_wrap=True)
    return 0


def _study_credit(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    given = {field.name: value for field in fields(CreditStudy) if (value := getattr(options, field.name)) is not None}
    study, rules = CreditStudy(**given), make_rules(overrides)
    folder = Path(options.out) if options.out else None
    if folder:
        check_page(folder)
    # Progress on the console would stand in front of the JSON.
    quiet = nullcontext(lambda num_done, num_total: None)
    with quiet if options.json else phase(console, "comparing credit rules") as advance:
        reports = run_study(study, rules, advance)
    page = write_page(reports, study, overrides, folder) if folder else None
    if options.json:
        console.print_json(json.dumps(tables.to_rows(reports)))
        return 0
    for report in reports:
        console.print(tables.to_table(report), "")
    if page:
        console.print(f"written: {page}", markup=False, highlight=False, soft_wrap=True)
    return 0
