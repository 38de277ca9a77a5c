"""`turnwise audit`: faults put into small runs, or a finished run directory held against its own digests.

In: a run directory, or nothing. Out: what was found, as a table or as JSON, and an exit code: 0 where nothing is wrong,
1 otherwise. Nothing is written.
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from turnwise.audit.records import describe
from turnwise.errors import ConfigError
from turnwise.run.run_audit import Outcome, audit_run, seed_faults


def run_audit(run: str | None, console: Console, *, seeds_faults: bool, as_json: bool) -> int:
    if (run is None) is not seeds_faults:
        raise ConfigError("expected a run directory or --seed-faults, one of them.")
    if run is None:
        return _seed(console, as_json=as_json)
    counts, breaches = audit_run(Path(run))
    if as_json:
        found = [breach.details for breach in breaches]
        console.print_json(json.dumps({"run": run, "checked": counts, "breaches": found}))
    else:
        console.print(", ".join(f"{count} {name}" for name, count in counts.items()) + " checked", highlight=False)
        for breach in breaches:
            console.print(describe(breach), markup=False, highlight=False, soft_wrap=True)
        console.print(f"{len(breaches)} breaches", highlight=False)
    return 1 if breaches else 0


def _seed(console: Console, *, as_json: bool) -> int:
    table = Table("fault", "room", "caught", "in step", "by", show_edge=False, pad_edge=False)

    def add(outcome: Outcome) -> None:
        steps = "" if outcome.after_steps is None else str(outcome.after_steps)
        table.add_row(outcome.name, outcome.room, "yes" if outcome.caught else "NO", steps, outcome.by or "")

    outcomes = seed_faults(on_outcome=add)
    if as_json:
        console.print_json(json.dumps({"faults": [outcome.to_dict() for outcome in outcomes]}))
    else:
        console.print(table)
        console.print(f"{sum(o.caught for o in outcomes)} of {len(outcomes)} caught", highlight=False)
    return 0 if all(outcome.caught for outcome in outcomes) else 1
