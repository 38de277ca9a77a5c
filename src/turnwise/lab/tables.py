"""Reports of the credit laboratory come in; rows for JSON, tables for a terminal and tables for a page go out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from turnwise.lab.credit import TRUTH, WorldReport
from turnwise.lab.score import Score

COLUMNS = {
    "cosine": "how well the gradient of one batch points along the true gradient: 1 is the same way, 0 is no help; the "
    "mean over the batches. Tables are sorted by it",
    "+/-": "the standard error of that mean",
    "correlation": "with the true advantage, over all sampled tokens",
    "sign": "share of tokens that are pushed the right way (those with a true advantage near 0 left out; not "
    "pushed at all counts as wrong)",
    "bias": "wrong on average, differently for the tokens that compete in one place: this turns the gradient, and more "
    "episodes do not help",
    "offset": "wrong on average by the same amount for all tokens of one place, as a missing baseline is: the gradient "
    "stays right on average and becomes noisier",
    "noise": "standard deviation of the estimates of one and the same token in one and the same state",
}
"""The columns of the tables, in plain words."""
_NOTHING = "-"


def to_rows(reports: Sequence[WorldReport]) -> list[dict[str, str | float | None]]:
    """One flat row per world and rule; errors are None where a rule has no scale."""
    return [
        {
            "world": report.world.name,
            "rule": rule,
            "cosine": score.cosine,
            "cosine_error": score.cosine_error,
            "correlation": score.correlation,
            "right_sign": score.right_sign,
            **{name: getattr(score.errors, name, None) for name in ("scale", "bias", "offset", "noise")},
        }
        for report in reports
        for rule, score in report.scores.items()
    ]


def to_table(report: WorldReport) -> Table:
    title = Text(report.world.name, style="bold").append(f"  {describe_world(report)}", style="not bold dim")
    table = Table(
        title=title, title_justify="left", box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column("rule", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for rule, score in report.scores.items():
        table.add_row(rule, *_words(score), style="dim" if rule == TRUTH else "")
    return table


def to_markdown(report: WorldReport) -> str:
    lines = [f"| rule | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for rule, score in report.scores.items():
        name = f"*{rule}*" if rule == TRUTH else f"`{rule}`"
        lines.append(f"| {name} | {' | '.join(_words(score))} |")
    return "\n".join(lines)


def describe_world(report: WorldReport) -> str:
    turns = "1 turn" if report.world.horizon == 1 else f"at most {report.world.horizon} turns"
    return f"{report.world.about}; {turns}, expected return {report.expected_return:.2f}"


def _words(score: Score) -> list[str]:
    """In the order of `COLUMNS`."""
    errors = score.errors
    parts = [_NOTHING] * 3 if errors is None else [f"{part:.2f}" for part in (errors.bias, errors.offset, errors.noise)]
    shown = [f"{score.cosine:.3f}", f"{score.cosine_error:.3f}", f"{score.correlation:.2f}", f"{score.right_sign:.0%}"]
    return [*shown, *parts]
