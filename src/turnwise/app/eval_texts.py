"""A report of an evaluation comes in; what a person reads goes out, on the terminal and as Markdown.

Text of models and environments is shown as it is: never as markup, and fenced in Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnwise.app.eval_report import EvalReport, Figures, SampleReply
from turnwise.infra.untrusted import UNKNOWN

_SHOWN_CHARACTERS = 600
"""Of a prompt or a reply; JSON and the saved trajectories have them whole."""


def show_report(console: Console, report: EvalReport) -> None:
    """One target in one setting, in full."""
    lines = [_title(report), f"success  {_success(report.figures)}{_reach(report.figures)}"]
    if report.samples > 1:
        lines += _pass_lines(report.figures)
    lines.append(f"return   {_interval(report.figures.mean_return, report.figures.return_interval, digits=3)}")
    if report.invalid is not None:
        lines.append(f"invalid  {report.invalid:.0%} of all turns were not understood")
    lines.append("ended    " + ", ".join(f"{name} {count}" for name, count in report.stop_reasons.items()))
    if report.cost is not None:
        lines.append(f"tokens   {_cost_words(report)}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    for title, parts in _breakdowns(report):
        _show_breakdown(console, title, parts)
    for number, sample in enumerate(report.replies, start=1):
        _show_sample(console, number, sample)
    for reason in report.reasons:
        console.print(Text("reason   ", style="bold yellow").append(reason, style="not bold default"), soft_wrap=True)
    if report.folder is not None:
        console.print(Text(f"saved    {report.folder}"), soft_wrap=True)


def show_suite(console: Console, reports: Sequence[EvalReport]) -> None:
    """One line for each setting; the whole of each is in its folder."""
    table = Table(show_edge=False, pad_edge=False)
    for name in _COLUMNS[1:]:
        table.add_column(name, no_wrap=True)
    for report in reports:
        table.add_row(*map(Text, _suite_cells(report)[1:]))
    console.print(Text(f"{reports[0].target}, split {reports[0].split}"), soft_wrap=True)
    console.print(table)
    for report in reports:
        for reason in report.reasons:
            console.print(Text(f"{report.env}: {reason}"), soft_wrap=True)
        if report.folder is not None:
            console.print(Text(f"saved    {report.folder}"), soft_wrap=True)


def to_markdown(reports: Sequence[EvalReport]) -> str:
    """A page: a table over all reports, and each in full below."""
    head = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    rows = ["| " + " | ".join(map(_cell, _suite_cells(report))) + " |" for report in reports]
    sections = [line for report in reports for line in _section(report)]
    return "\n".join(["# Evaluation", "", *head, *rows, "", *sections])


_COLUMNS = ("target", "env", "episodes", "success (95 %)", "return", "invalid", "tokens")


def _suite_cells(report: EvalReport) -> list[str]:
    return [
        report.target,
        report.env,
        f"{report.episodes}",
        _success(report.figures),
        f"{report.mean_return:.3f}",
        "" if report.invalid is None else f"{report.invalid:.0%}",
        "" if report.cost is None else f"{report.cost.sampled_per_episode:.0f}",
    ]


def _section(report: EvalReport) -> list[str]:
    lines = [f"## {_plain(_title(report))}", ""]
    if report.samples > 1:
        lines += [f"- {' '.join(line.split())}" for line in _pass_lines(report.figures)]
    ended = ", ".join(f"{name} {count}" for name, count in report.stop_reasons.items())
    lines.append(f"- return {_interval(report.figures.mean_return, report.figures.return_interval, digits=3)}")
    lines.append(f"- ended: {ended}")
    if report.cost is not None:
        lines.append(f"- tokens: {_cost_words(report)}")
    lines += [f"- reason for no success: {_plain(reason)}" for reason in report.reasons]
    lines.append("")
    for title, parts in _breakdowns(report):
        lines += [f"| {title} | episodes | success (95 %) | return |", "|---|---|---|---|"]
        for name, own in parts.items():
            lines.append(f"| {_cell(name)} | {own.episodes} | {_success(own)} | {own.mean_return:.3f} |")
        lines.append("")
    for number, sample in enumerate(report.replies, start=1):
        lines += [f"Reply {number} ({_sample_words(sample)}):", "", *_fenced(sample.reply), ""]
    return lines


def _breakdowns(report: EvalReport) -> list[tuple[str, Mapping[str, Figures]]]:
    """By environment where there are several, and by difficulty where any is said."""
    found = [("environment", report.by_tag)] if len(report.by_tag) > 1 else []
    return [*found, *([("difficulty", report.by_difficulty)] if report.by_difficulty else [])]


def _show_breakdown(console: Console, title: str, parts: Mapping[str, Figures]) -> None:
    table = Table(show_edge=False, pad_edge=False)
    for name in (title, "episodes", "success", "return"):
        table.add_column(name)
    for name, own in parts.items():
        cells = (name, str(own.episodes), _success(own), f"{own.mean_return:.3f}")
        table.add_row(*map(Text, cells))
    console.print(table)


def _title(report: EvalReport) -> str:
    if report.samples == 1:
        plays = f"{report.episodes} episodes"
    else:
        plays = f"{report.figures.tasks} tasks, {report.samples} plays of each"
    how = {None: "", 0.0: ", greedy"}.get(report.temperature, f", sampled at temperature {report.temperature}")
    return f"{report.target} on {report.env}, split {report.split}, {plays}{how}"


def _pass_lines(figures: Figures) -> list[str]:
    """`success` is average@k already."""
    return [
        f"pass@{k:<3} {_interval(value, figures.pass_at_intervals[k])}" for k, value in figures.pass_at.items() if k > 1
    ]


def _cost_words(report: EvalReport) -> str:
    cost = report.cost
    assert cost is not None, "asked only where a model played"
    words = f"{cost.sampled} sampled ({cost.sampled_per_episode:.1f} an episode), {cost.read} read"
    return words if cost.sampled_per_success is None else f"{words}, {cost.sampled_per_success:.1f} sampled a success"


def _success(figures: Figures) -> str:
    if figures.success is None or figures.success_interval is None:
        return UNKNOWN
    return _interval(figures.success, figures.success_interval)


def _reach(figures: Figures) -> str:
    """How far the share can be relied on."""
    if figures.success is None:
        return ": the workflow does not say it (is_success), so the return tells how well it plays"
    told = f", over the {figures.episodes - figures.unknown} episodes that say it" if figures.unknown else ""
    return f", 95 % interval{told}"


def _interval(value: float, ends: tuple[float, float], *, digits: int = 2) -> str:
    """`0.58 (0.48 to 0.67)`."""
    return f"{value:.{digits}f} ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"


def _sample_words(sample: SampleReply) -> str:
    ended = "cut at context.max_response_tokens" if sample.cut else "ended by itself"
    verdict = f"understood as {', '.join(sample.actions)}" if sample.understood else "not understood"
    return f"{sample.tokens} tokens, {ended}, {_plain(verdict)}"


def _show_sample(console: Console, number: int, sample: SampleReply) -> None:
    title = f"reply {number}: {_sample_words(sample)}"
    console.print(Text(title, style="bold" if sample.understood else "bold yellow"), soft_wrap=True)
    for text, style in ((sample.observation, "dim"), (sample.reply, "cyan")):
        console.print(Text("\n".join(f"  {line}" for line in _short(text).splitlines()), style=style))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"


def _fenced(text: str) -> list[str]:
    """A fence longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *_short(text).splitlines(), fence]


def _plain(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")
