"""`turnwise lab credit`: benchmark of advantage estimators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from turnwise.commands import Option, Target, command


@command(
    "lab",
    help="Benchmark advantage estimators on MDPs with known advantages",
    epilog="settings of an estimator can be changed with NAME.setting=value\n  turnwise lab credit gae.lam=0.9",
)
def lab(
    experiment: Annotated[str, Target("credit", "credit", choices=("credit",))],
    world: Annotated[str | None, Option("NAME", "one MDP: bandit, corridor, key_door or lake (default: all)")] = None,
    critic: Annotated[str | None, Option("C", "noisy (true values with an error) or exact (default: noisy)")] = None,
    critic_noise: Annotated[float | None, Option("X", "that error, in typical advantages (default: 1)")] = None,
    episodes: Annotated[int | None, Option(help="episodes per batch (default: 48)")] = None,
    group_size: Annotated[int | None, Option(help="rollouts per group (default: 8)")] = None,
    batches: Annotated[int | None, Option(help="independent batches to average over (default: 100)")] = None,
    seed: Annotated[int | None, Option(help="seed of policy, critic and episodes (default: 0)")] = None,
    out: Annotated[Path | None, Option("DIR", "also write credit_lab.md and credit_lab.png there")] = None,
    json: bool = False,
    overrides: Sequence[str] = (),
) -> int:
    from rich.console import Console

    from turnwise.lab.estimator_benchmark import (
        CreditStudy,
        check_page,
        make_rules,
        run_study,
        to_rows,
        to_table,
        write_page,
    )
    from turnwise.report.console import phase
    from turnwise.report.document import Document, show

    given = {
        "world": world,
        "critic": critic,
        "critic_noise": critic_noise,
        "episodes": episodes,
        "group_size": group_size,
        "batches": batches,
        "seed": seed,
    }
    study = CreditStudy(**{name: value for name, value in given.items() if value is not None})
    rules = make_rules(overrides)
    if out:
        check_page(out)
    with phase(Console(quiet=json), "comparing advantage estimators") as advance:
        reports = run_study(study, rules, advance)
    page = write_page(reports, study, overrides, out) if out else None
    document = Document(
        tables=[to_table(report) for report in reports],
        notes=[f"written: {page}"] if page else [],
        data=to_rows(reports),
    )
    return show(document, json=json)
