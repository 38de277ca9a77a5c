"""A run's status and an episode come in; lines for a terminal go out.

Text from models and environments is shown as it is: never as markup, never as terminal commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnwise.infra.untrusted import show_success
from turnwise.report.console import format_duration, print_trajectory, printable
from turnwise.report.token_log_reader import RecordedToken
from turnwise.types import Trajectory
from turnwise.view.token_texts import TokenTexts

_STATE_STYLES = {"running": "bold cyan", "ended": "bold green", "collapsed": "bold red", "killed": "bold yellow"}


def print_status(console: Console, status: Mapping[str, Any]) -> None:
    """How a run stands: one line each."""
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    for name, value in _facts(status):
        facts.add_row(name, value)
    console.print(facts)


def _facts(status: Mapping[str, Any]) -> list[tuple[str, Text]]:
    state = status["state"]
    facts = [
        ("run", Text(status["run"])),
        ("recipe", Text(printable(f"{status['recipe']} on {status['env']}, seed {status['seed']}"))),
        ("state", Text(state, style=_STATE_STYLES[state]).append(_silence(status), style="not bold dim")),
        ("step", Text(f"{status['step']} of {status['steps']}{_taken(status)}")),
        *[(name, Text(show_success(value, ".4g"))) for name, value in status["latest"].items()],
        ("checkpoints", Text(", ".join(map(str, status["checkpoints"][-5:])) or "none yet")),
    ]
    facts += [("works", Text(printable(describe_worker(one)))) for one in status["workers"] if one["is_there"]]
    facts += [("waits", Text(describe_wait(wait), style="yellow")) for wait in status["waits"]]
    facts += [("failed", Text(printable(f"{n} episodes: {why}"))) for why, n in status["failures"].items()]
    facts += [
        ("finding", Text(printable(f"step {found.get('step')}, {found.get('kind')}: {found.get('message')}")))
        for found in status["findings"]
    ]
    return facts


def _silence(status: Mapping[str, Any]) -> str:
    if status["state"] not in ("running", "killed"):
        return ""
    return f"  nothing written for {format_duration(status['silent_s'])}"


def _taken(status: Mapping[str, Any]) -> str:
    return "" if status["time_s"] is None else f", after {format_duration(status['time_s'])}"


def describe_worker(worker: Mapping[str, Any]) -> str:
    """`trainer: process 12 on host, since …`."""
    known = [f"process {worker['pid']}" if worker["pid"] else "", f"on {worker['host']}" if worker["host"] else ""]
    since = f", since {worker['since']}" if worker["since"] else ""
    return f"{worker['role']}: {' '.join(filter(None, known)) or 'a process'}{since}"


def describe_wait(wait: Mapping[str, Any]) -> str:
    """`the trainer waits for experiences, for 12 s of 600 s`."""
    waited = f", for {format_duration(wait['waited_s'])}" if "waited_s" in wait else ""
    deadline = wait.get("deadline_s")
    bound = f" of {format_duration(deadline)}" if isinstance(deadline, int | float) else ""
    return printable(f"{wait.get('who')} waits for {wait.get('for')}{waited}{bound}")


def print_episode(console: Console, trajectory: Trajectory, learnt: Sequence[RecordedToken], texts: TokenTexts) -> None:
    """Turn by turn, and below what was learnt from each sampled token, where that is on record."""
    print_trajectory(console, trajectory)
    sampled = [token for token in learnt if token.is_sampled]
    if not sampled:
        return
    names = ("turn", "token", "log-prob", "entropy", "value", "return", "advantage", "ratio", "clipped")
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name == "token" else "right", no_wrap=True)
    for token in sampled:
        numbers = (token.behavior_logprob, token.entropy, token.value, token.return_)
        table.add_row(
            str(token.turn + 1),
            Text(repr(texts.of(token.token_id)), style="cyan"),
            *(f"{number:.3f}" for number in numbers),
            Text(f"{token.advantage:+.3f}", style="green" if token.advantage > 0 else "red"),
            f"{token.last_ratio:.3f}",
            "clipped" if token.is_clipped else "",
        )
    console.print()
    console.print(table)
