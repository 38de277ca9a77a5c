"""`turnwise audit` and `turnwise replay`: the files of a run verified, a step computed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from turnwise.commands import Option, RunPath, Target, command
from turnwise.errors import ConfigError


@command("audit", help="Verify the files of a run, or run fault-injection tests")
def audit(
    run: Annotated[Path | None, Target("RUN", "run directory")] = None,
    seed_faults: Annotated[
        bool, Option(help="run a small training with each known fault, and show what finds it")
    ] = False,
    json: bool = False,
) -> int:
    from turnwise.audit.records import describe
    from turnwise.report.document import Document, show
    from turnwise.run.run_audit import audit_run

    if (run is None) is not seed_faults:
        raise ConfigError("either RUN or --seed-faults is required.")
    if run is None:
        return _inject_faults(json=json)
    counts, breaches = audit_run(run)
    checked = ", ".join(f"{count} {name}" for name, count in counts.items())
    notes = [f"{checked} checked", *map(describe, breaches), f"{len(breaches)} breaches"]
    data = {"run": str(run), "checked": counts, "breaches": [breach.details for breach in breaches]}
    show(Document(notes=notes, data=data), json=json)
    return 1 if breaches else 0


def _inject_faults(*, json: bool) -> int:
    from turnwise.report.document import Document, Table, show
    from turnwise.run.run_audit import inject_faults

    outcomes = inject_faults()
    rows = [(one.name, one.room, "yes" if one.caught else "NO", one.after_steps, one.by or "") for one in outcomes]
    num_caught = sum(one.caught for one in outcomes)
    table = Table(("fault", "package", "caught", "in step", "by"), rows)
    data = {"faults": [one.to_dict() for one in outcomes]}
    show(Document(tables=[table], notes=[f"{num_caught} of {len(outcomes)} caught"], data=data), json=json)
    return 0 if num_caught == len(outcomes) else 1


@command(
    "replay",
    help="Recompute a recorded step and compare it with the record",
    epilog="settings of credit and loss show what the step would have been with them, for example\n"
    "  turnwise replay runs/mine --step 7 credit.type=grpo",
)
def replay(
    run: RunPath,
    *,
    step: Annotated[int, Option(help="step to recompute, from 1")],
    json: bool = False,
    overrides: Sequence[str] = (),
) -> int:
    from turnwise.report.document import Document, Table, show
    from turnwise.run.replay import replay

    result = replay(run, step, overrides)
    words = {True: "identical", False: "DIFFERENT", None: "not on record"}
    tables = [Table(("part", "is"), [(name, words[same]) for name, same in result.parts.items()])]
    if result.other:
        recorded, replayed = result.other["recorded"], result.other["replayed"]
        rows = [(name, recorded[name], replayed[name]) for name in recorded if name in replayed]
        tables.append(Table(("number", "was", "would be"), rows))
    show(Document(tables=tables, data=result.to_dict()), json=json)
    return 0 if result.identical else 1
