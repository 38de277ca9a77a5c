"""Trajectories and outcomes come in; what a person reads on the terminal goes out.

Text from models and environments is shown as it is: never as markup, never as terminal commands. Refuses to know how
anything was computed and where to write it: the caller brings the console.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from turnwise.infra.untrusted import UNKNOWN, show_success
from turnwise.report.progress import Advance, ProgressDisplay, format_count, format_duration, phase
from turnwise.report.summary import Summary
from turnwise.types import Trajectory, Turn

__all__ = ["Advance", "ProgressDisplay", "phase", "print_notice", "print_outcome", "print_trajectory", "printable"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_OUTCOMES = {
    True: ("success", "bold green"),
    False: ("no success", "bold red"),
    None: (f"success {UNKNOWN}", "bold yellow"),
}
_SIDE_BY_SIDE_COLUMNS = 100
"""From this width on, observation and response stand beside each other."""


def print_notice(console: Console, text: str) -> None:
    """Something to know that is not an error."""
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_row(Text("note", style="bold yellow"), _as_is(text))
    console.print(line)


# --- a trajectory ---------------------------------------------------------------------------------------------------


def print_trajectory(console: Console, trajectory: Trajectory) -> None:
    """Turn by turn: what the model saw, what it said, what that earned; then how it ended."""
    console.print(Text(str(trajectory.id), style="bold"))
    for turn in trajectory.turns:
        console.print(Rule(_turn_title(turn, len(trajectory.turns)), align="left", style="bright_black"))
        observation, response = _as_is(turn.observation), _as_is(turn.response_text, style="cyan")
        is_wide = console.width >= _SIDE_BY_SIDE_COLUMNS
        console.print(_beside(observation, response) if is_wide else _stacked(observation, response))
    console.print(Rule(style="bright_black"))
    if trajectory.final_observation:
        console.print(_as_is(trajectory.final_observation))
    console.print(_ending(trajectory))


def _turn_title(turn: Turn, num_turns: int) -> Text:
    title = Text(f"turn {turn.index + 1} of {num_turns}", style="bold")
    title.append(f"  {', '.join(map(printable, turn.actions)) or 'no action'}", style="not bold cyan")
    title.append(f"  reward {turn.reward:g}", style=f"not bold {_sign_style(turn.reward)}")
    if not turn.is_valid:
        title.append("  not understood", style="not bold yellow")
    if turn.penalty:
        title.append(f"  penalty {turn.penalty:g}", style="not bold red")
    return title


def _beside(observation: Text, response: Text) -> RenderableType:
    table = Table(box=None, expand=True, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("observation", ratio=1)
    table.add_column("response", ratio=1)
    table.add_row(observation, response)
    return table


def _stacked(observation: Text, response: Text) -> RenderableType:
    return Group(Text("observation", style="dim"), observation, Text("response", style="dim"), response)


def _ending(trajectory: Trajectory) -> Text:
    line = Text(*_OUTCOMES[trajectory.is_success])
    line.append(f"  return {trajectory.episode_return:g}", style="default not bold")
    line.append(f"  {len(trajectory.turns)} turns  ended: {trajectory.stop_reason}", style="default not bold dim")
    if trajectory.failure:
        line.append(f"\n{printable(trajectory.failure)}", style="not bold red")
    return line


def _sign_style(number: float) -> str:
    return "green" if number > 0 else "red" if number < 0 else "dim"


def _as_is(text: str, *, style: str = "") -> Text:
    """Text that rich neither parses nor strips; too long lines are folded, line breaks stay."""
    return Text(printable(text), style=style, overflow="fold")


def printable(text: str) -> str:
    """The text with every character that a terminal would obey written out."""
    # A model can emit escape sequences that move the cursor or rename the window; show them instead of obeying them.
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))


# --- the outcome ----------------------------------------------------------------------------------------------------


def print_outcome(
    console: Console, summary: Summary, *, run_dir: Path, plot_path: Path | None, next_commands: Sequence[str]
) -> None:
    """The closing words of a run: what changed, against what, where it is, and what to do next."""
    columns = [_result(summary, arrow="->" if console.options.ascii_only else "→")]
    if summary.baselines:
        columns.append(_baseline_table(summary))
    body = Table.grid(padding=(0, 5))
    body.add_row(*columns)
    if summary.stopped is None:
        title, colour = Text(f"{summary.recipe} is trained", style="bold"), "green"
    else:
        title, colour = Text(f"{summary.recipe} was stopped", style="bold"), "yellow"
    console.print(Panel(body, title=title, title_align="left", border_style=colour, padding=(1, 2), expand=False))
    for cause, count in sorted(summary.failures.items(), key=lambda item: -item[1]):
        _print_entry(console, "failed", f"{count} episodes: {cause}", style="yellow")
    # Outside the panel and never cut, so that paths and commands can be copied.
    _print_entry(console, "run", str(run_dir))
    if plot_path is not None:
        _print_entry(console, "curve", str(plot_path))
    for number, command in enumerate(next_commands):
        _print_entry(console, "next" if number == 0 else "", command, style="cyan")


def _result(summary: Summary, *, arrow: str) -> RenderableType:
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim")
    if summary.success_after is not None and summary.return_after is not None:
        facts.add_row("return", _change(summary.return_before, summary.return_after, arrow, ".2f"))
    elif summary.return_after is not None:
        facts.add_row("success", f"{UNKNOWN}: nobody says it")
    for tag, outcome in summary.envs.items() if len(summary.envs) > 1 else ():
        share = outcome["success"] if isinstance(outcome["success"], int | float) else None
        facts.add_row(tag, f"success {show_success(share, '.1%')}, return {outcome['return']:.2f}")
    facts.add_row("steps", str(summary.steps))
    if summary.stopped is not None:
        facts.add_row("stopped", f"{summary.stopped['kind']} at step {summary.stopped['step']}")
    if summary.findings:
        facts.add_row("findings", f"{len(summary.findings)}, in findings.jsonl")
    facts.add_row("time", f"{format_duration(summary.wall_s)} (set-up {format_duration(summary.setup_s)})")
    facts.add_row(
        "tokens", f"{format_count(summary.tokens_sampled)} sampled, {format_count(summary.tokens_trained)} trained"
    )
    return Group(_headline(summary, arrow), Text(), facts)


def _headline(summary: Summary, arrow: str) -> Text:
    """Success, or the return where nobody says what a success is."""
    if summary.success_after is not None:
        name, before, after, form = "success", summary.success_before, summary.success_after, ".1%"
    elif summary.return_after is not None:
        name, before, after, form = "return", summary.return_before, summary.return_after, ".3f"
    else:
        return Text("trained, not evaluated", style="bold")
    style = "bold green" if after > (before or 0.0) else "bold red"
    headline = Text(f"{name}  ").append(_change(before, after, arrow, form), style=style)
    if summary.success_after_interval:
        low, high = summary.success_after_interval
        headline.append(f" ({low:.1%} to {high:.1%})", style="dim")
    return headline.append(f"\non {summary.eval_episodes} held-out episodes", style="dim")


def _change(before: float | None, after: float, arrow: str, form: str) -> str:
    return format(after, form) if before is None else f"{before:{form}} {arrow} {after:{form}}"


def _baseline_table(summary: Summary) -> RenderableType:
    """Who else played these episodes, worst first, with the trained policy in its place."""
    rows = [(value, name.replace("_", " "), "") for name, value in summary.baselines.items()]
    if summary.success_after is not None:
        rows.append((summary.success_after, "this run", "bold green"))
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("same episodes")
    table.add_column("success", justify="right")
    for value, name, style in sorted(rows):
        table.add_row(Text(name), f"{value:.1%}", style=style)
    if summary.success_after is None and summary.return_after is not None:
        table.add_row(Text("this run"), UNKNOWN, style="bold yellow")
    return table


def _print_entry(console: Console, name: str, value: str, *, style: str = "") -> None:
    console.print(Text(f"{name:7}", style="dim").append(value, style=f"not dim {style}"), soft_wrap=True)
