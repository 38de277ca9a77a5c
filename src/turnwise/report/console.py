"""Trajectories and outcomes come in; what a person reads on the terminal goes out.

Text from models and environments is shown as it is: never as markup, never as terminal commands. Refuses to know how
anything was computed and where to write it: the caller brings the console.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from turnwise.infra.untrusted import UNKNOWN, format_success_rate
from turnwise.report.run_dir import TIME_SECTIONS, Summary
from turnwise.types import Metrics, Trajectory, Turn

Advance: TypeAlias = Callable[[int, int], None]
"""Called as `advance(num_done, num_total)` while a phase goes on."""

_WINDOW = 10
"""Steps over which success and pace are averaged."""
_SECTION_STYLES = dict(zip(TIME_SECTIONS, ("blue", "cyan", "yellow", "magenta", "bright_black"), strict=True))


def is_live(console: Console) -> bool:
    """Whether lines may be redrawn."""
    # FORCE_COLOR makes rich believe in a terminal where a log is written, so the file is asked too.
    return console.is_interactive and console.file.isatty()


def format_duration(seconds: float) -> str:
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest_s:02d}s" if minutes else f"{rest_s}s"


def format_count(count: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{suffix}"
    return f"{count:.0f}"


@contextmanager
def phase(console: Console, text: str, *, interval_s: float = 5.0) -> Iterator[Advance]:
    """Show that something longer goes on, such as an evaluation; the caller may say how far it is.

    While a `ProgressDisplay` is open, use its own `phase`: a terminal has one live display at a time.
    """
    line = _PhaseLine(text, console)
    if is_live(console):
        with Live(line, console=console, transient=True, refresh_per_second=8):
            yield line.advance
    else:
        _print_plain(console, f"{text} ...")
        pace = _Pace(interval_s)
        yield lambda num_done, num_total: pace.run(lambda: _print_plain(console, f"{text}: {num_done}/{num_total}"))


class ProgressDisplay:
    """The state of a run in two lines. Use as a context manager and call `update` after each step.

    Reads `rollout/success`, `rollout/return` and `rollout/tokens_per_s` where a step has them.
    """

    def __init__(
        self,
        total_steps: int,
        title: str,
        *,
        console: Console | None = None,
        start_step: int = 0,
        interval_s: float = 5.0,
    ) -> None:
        """`start_step` is the last finished step of a resumed run; `interval_s` the pause between plain lines."""
        self._console = console or Console()
        self._title = title
        self._total_steps = total_steps
        self._step = start_step
        self._successes: deque[float] = deque(maxlen=_WINDOW)
        self._finished_s: deque[float] = deque(maxlen=_WINDOW + 1)
        self._metrics: Metrics = {}
        self._time_split: Mapping[str, float] = {}
        self._phase: _PhaseLine | None = None
        self._pace = _Pace(interval_s)
        live = is_live(self._console)
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4) if live else None

    def __enter__(self) -> ProgressDisplay:
        self._finished_s.append(time.monotonic())
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def update(self, step: int, metrics: Metrics, time_split: Mapping[str, float]) -> None:
        """`time_split` holds seconds, of this step or of the whole run; only their shares are shown."""
        self._step, self._metrics, self._time_split = step, metrics, time_split
        self._finished_s.append(time.monotonic())
        if "rollout/success" in metrics:
            self._successes.append(metrics["rollout/success"])
        if self._live:
            self._live.refresh()
        else:
            self._pace.run(self._print_line, is_due=step >= self._total_steps)

    @contextmanager
    def phase(self, text: str) -> Iterator[Advance]:
        """Like the function `phase`, inside this display."""
        if not self._live:
            with phase(self._console, text) as advance:
                yield advance
            return
        self._phase = _PhaseLine(text, self._console)
        try:
            yield self._phase.advance
        finally:
            self._phase = None

    def _print_line(self) -> None:
        facts = "  ".join(f"{name} {value}".strip() for name, value in self._facts())
        shares = "  ".join(f"{name} {share:.0%}" for name, share in _shares(self._time_split).items())
        line = f"{self._title}  step {self._step}/{self._total_steps}  {facts}"
        _print_plain(self._console, f"{line}  |  {shares}" if shares else line)

    def _facts(self) -> list[tuple[str, str]]:
        facts: list[tuple[str, str]] = []
        if self._successes or "rollout/return" in self._metrics:
            mean = sum(self._successes) / len(self._successes) if self._successes else None
            facts.append(("success", format_success_rate(mean)))
        if "rollout/return" in self._metrics:
            facts.append(("return", f"{self._metrics['rollout/return']:.2f}"))
        if "rollout/tokens_per_s" in self._metrics:
            facts.append(("", f"{format_count(self._metrics['rollout/tokens_per_s'])} tok/s"))
        if (left_s := self._seconds_left()) is not None:
            facts.append(("eta", format_duration(left_s)))
        return facts

    def _seconds_left(self) -> float | None:
        num_timed = len(self._finished_s) - 1
        if num_timed < 1 or self._step >= self._total_steps:
            return None
        return (self._finished_s[-1] - self._finished_s[0]) / num_timed * (self._total_steps - self._step)

    def _render(self) -> RenderableType:
        first = Table.grid(padding=(0, 2, 0, 0), expand=True)
        first.add_column(no_wrap=True, overflow="ellipsis", max_width=max(10, self._console.width // 8))
        first.add_column(ratio=1)
        first.add_column(no_wrap=True)
        bar = ProgressBar(total=max(1, self._total_steps), completed=self._step)
        facts = Text(f"{self._step}/{self._total_steps}", style="bold")
        for name, value in self._facts():
            facts.append(f"  {name} " if name else "  ", style="dim").append(value)
        first.add_row(Text(self._title, style="bold"), bar, facts)
        lines = Table.grid(expand=True)
        lines.add_row(first)
        lines.add_row(_render_shares(self._time_split))
        if self._phase:
            lines.add_row(self._phase)
        return lines


class _PhaseLine:
    """A spinner with a text and, once known, how much is done."""

    def __init__(self, text: str, console: Console) -> None:
        self._text = text
        self._progress = ""
        self._spinner = Spinner("line" if console.options.ascii_only else "dots", style="cyan")

    def advance(self, num_done: int, num_total: int) -> None:
        self._progress = f"  {num_done}/{num_total}"

    def __rich__(self) -> RenderableType:
        self._spinner.text = Text(self._text).append(self._progress, style="dim")
        return self._spinner


class _Pace:
    """Lets something happen at once, and then at most every `interval_s` seconds."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = 0.0

    def run(self, action: Callable[[], None], *, is_due: bool = False) -> None:
        if is_due or time.monotonic() >= self._next_s:
            action()
            self._next_s = time.monotonic() + self._interval_s


def _shares(time_split: Mapping[str, float]) -> dict[str, float]:
    total_s = sum(time_split.values())
    return {name: time_split.get(name, 0.0) / total_s for name in TIME_SECTIONS} if total_s > 0 else {}


def _render_shares(time_split: Mapping[str, float]) -> Text:
    line = Text("time", style="dim", no_wrap=True)
    for name, share in _shares(time_split).items():
        line.append("  ").append(name, style=_SECTION_STYLES[name]).append(f" {share:.0%}")
    return line


def _print_plain(console: Console, line: str) -> None:
    # Soft wrap: a log line stays one line, however narrow rich believes the log to be.
    console.print(Text(line), soft_wrap=True)


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
    """Print the final panel of a run: results, baselines, run directory and next commands."""
    columns = [_result(summary, arrow="->" if console.options.ascii_only else "→")]
    if summary.baselines:
        columns.append(_baseline_table(summary))
    body = Table.grid(padding=(0, 5))
    body.add_row(*columns)
    if summary.stopped is None:
        title, colour = Text(f"Training finished: {summary.recipe}", style="bold"), "green"
    else:
        title, colour = Text(f"Training stopped: {summary.recipe}", style="bold"), "yellow"
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
        facts.add_row("success", f"{UNKNOWN}: not reported by the workflow")
    for tag, outcome in summary.envs.items() if len(summary.envs) > 1 else ():
        share = outcome["success"] if isinstance(outcome["success"], int | float) else None
        facts.add_row(tag, f"success {format_success_rate(share, '.1%')}, return {outcome['return']:.2f}")
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
    """Success, or the return if success is not reported."""
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
