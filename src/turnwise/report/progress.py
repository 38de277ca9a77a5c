"""Steps and numbers come in while a run goes on; a live line on a terminal, or plain lines in a log, go out.

Without a terminal one line is printed every few seconds, so that logs and CI stay readable. Refuses to know what is
being trained, and measures no time but its own pace.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TypeAlias

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from turnwise.infra.untrusted import show_success
from turnwise.report.summary import TIME_SECTIONS
from turnwise.types import Metrics

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
            facts.append(("success", show_success(mean)))
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
