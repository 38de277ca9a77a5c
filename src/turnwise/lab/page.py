"""Reports of the credit laboratory come in; a page with its picture goes out, for people.

What is measured stands between two marks. Running again replaces what is between them and leaves the rest of the page,
which people write, as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from turnwise.errors import ConfigError
from turnwise.infra.atomic_files import read_text, write_whole
from turnwise.lab.credit import TRUTH, CreditStudy, WorldReport
from turnwise.lab.policy import NUM_TOKENS
from turnwise.lab.tables import COLUMNS, describe_world, to_markdown
from turnwise.report.plots import HeatMap, HeatRow, plot_heat_map

_BEGIN = "<!-- measured: begin. `turnwise lab credit` rewrites everything down to the next mark. -->"
_END = "<!-- measured: end -->"
_TITLE = "# Credit rules against the truth\n"
_PICTURED = "key_door"
"""Of several worlds: here one late reward is to be shared out among many turns."""


def write_page(reports: Sequence[WorldReport], study: CreditStudy, overrides: Sequence[str], folder: Path) -> Path:
    """`credit_lab.md` and `credit_lab.png` in a folder; returns the page."""
    page, picture = folder / "credit_lab.md", folder / "credit_lab.png"
    text = _place(_describe(reports, study, _command(study, overrides, folder), picture.name), page)
    pictured = next((report for report in reports if report.world.name == _PICTURED), reports[0])
    plot_heat_map(_draw_episode(pictured), picture)
    write_whole(page, text)
    return page


def check_page(folder: Path) -> None:
    """Refuse, before anything is computed, to write over a page that the laboratory has not made."""
    _place("", folder / "credit_lab.md")


def _place(measured: str, page: Path) -> str:
    """The text of the page with `measured` between the marks."""
    block = f"{_BEGIN}\n\n{measured}\n\n{_END}\n"
    if not page.exists():
        return f"{_TITLE}\n{block}"
    before, begin, rest = read_text(page).partition(_BEGIN)
    _, end, after = rest.partition(f"{_END}\n")
    if not begin or not end:
        raise ConfigError(
            f"--out: {page} exists and has no marks around what was measured. Remove it or choose another folder."
        )
    return before + block + after


def _describe(reports: Sequence[WorldReport], study: CreditStudy, command: str, picture: str) -> str:
    critic = (
        "with the exact values"
        if not study.noise
        else f"with a fixed random error in every state, {study.noise:g} times the typical true advantage in size"
    )
    played = (
        f"Every rule is given the same {study.batches} batches of {study.episodes} episodes in groups of "
        f"{study.group_size}, seed {study.seed}; a reply is two tokens, which together spell an action. The true "
        f"advantage of every token is computed exactly. Rules with a critic are given one {critic}."
    )
    columns = "\n".join(f"- *{name}*: {text}." for name, text in COLUMNS.items())
    units = (
        "Bias, offset and noise are measured after the rule's own scale is taken out, in units of the typical true "
        "advantage: 1 is an error as large as what is to be estimated. Their squares add up. Bias and offset are 0 "
        "where they do not stand out from the noise; a dash stands where a rule tells so little that it has no scale. "
        f"The row *{TRUTH}* shows what the luck of sampling leaves to the best of rules."
    )
    parts = [f"Made with:\n\n```\n{command}\n```", played, columns, units]
    for report in reports:
        parts.append(f"## {report.world.name}\n\n{_sentence(describe_world(report))}\n\n{to_markdown(report)}")
    parts.append(f"![One episode as each rule sees it]({picture})")
    return "\n\n".join(parts)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _command(study: CreditStudy, overrides: Sequence[str], folder: Path) -> str:
    """What to type to make this page again."""
    words = ["turnwise lab credit"]
    for field in fields(study):
        value = getattr(study, field.name)
        if value != field.default:
            words.append(f"--{field.name.replace('_', '-')} {value}")
    return " ".join([*words, *overrides, f"--out {folder}"])


def _draw_episode(report: WorldReport) -> HeatMap:
    example = report.example
    names = [TRUTH, *(name for name in report.scores if name != TRUTH)]
    return HeatMap(
        title=f"Who deserves the credit? One episode in {report.world.name}",
        subtitle=f"return {example.episode_return:g}; each rule in its fitted scale, best gradient first",
        turns=tuple(f"{state}\n{action}" for state, action in example.turns),
        tokens_per_turn=NUM_TOKENS,
        tokens=tuple(map(str, example.tokens)),
        rows=tuple(_heat_row(report, name) for name in names),
        note_title="gradient\ncosine",
    )


def _heat_row(report: WorldReport, name: str) -> HeatRow:
    score = report.scores[name]
    estimates = report.example.estimates[name]
    values = np.full_like(estimates, np.nan) if score.errors is None else score.errors.scale * estimates
    return HeatRow(name=name, values=values, note=f"{score.cosine:.2f}")
