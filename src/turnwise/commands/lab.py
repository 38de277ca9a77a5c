"""`turnwise lab credit`: from command-line arguments to tables."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

from rich.console import Console

from turnwise.lab import estimator_benchmark as tables
from turnwise.lab.estimator_benchmark import CreditStudy, check_page, make_rules, run_study, write_page
from turnwise.report.console import phase


def run_experiment(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
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
