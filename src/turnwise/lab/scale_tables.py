"""Forecasts come in; rows for JSON, a table for a terminal and sentences about bottlenecks go out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from rich.table import Table
from rich.text import Text

from turnwise.lab.scale import Forecast, Lever
from turnwise.lab.scale_constants import Constants

_SMALL_GAIN = 0.02
"""Below that, nothing stands in the way by itself."""
_WORDS = {
    "explorer": "the explorers: what they compute for each turn",
    "environment": "the environments: what they are waited for",
    "learner": "the learners: the update itself",
    "sync": "moving weights from the trainer to the engines",
    "buffer": "storing experience and taking it out",
    "report": "writing down what a step did",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One placement, what it would do, and what would help it."""

    explorers: int
    learners: int
    forecast: Forecast
    levers: tuple[Lever, ...]
    """Parts that would be twice as fast; what helps most stands first."""
    choices: tuple[Lever, ...]
    """Settings that could be chosen instead; what helps most stands first."""

    @property
    def bottleneck(self) -> str:
        return self.levers[0].name if self.levers and self.levers[0].gain > _SMALL_GAIN else "none alone"

    def to_dict(self) -> dict[str, object]:
        gains = {lever.name: lever.gain for lever in (*self.levers, *self.choices)}
        return {
            "explorers": self.explorers,
            "learners": self.learners,
            "steps_per_s": self.forecast.steps_per_s,
            **asdict(self.forecast),
            "bottleneck": self.bottleneck,
            "gains": gains,
        }


def to_table(rows: Sequence[Row]) -> Table:
    """N explorers and M learners; shares are of the time in which learners learn, and explorers compute."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("N x M", "step s", "tokens/s", "speed", "staleness", "learner", "explorer"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bottleneck", no_wrap=True)
    for row in rows:
        told = row.forecast
        table.add_row(
            f"{row.explorers} x {row.learners}",
            f"{told.step_s:.3g}",
            f"{told.tokens_per_s:,.0f}",
            f"{rows[0].forecast.step_s / told.step_s:.2f}",
            f"{told.staleness_mean:.2f} ({told.staleness_max})",
            f"{told.learn_share:.0%}",
            f"{told.engine_share:.0%}",
            row.bottleneck,
        )
    return table


def describe_row(row: Row) -> Text:
    """Where the bottleneck is, and what would help, in plain words."""
    who = f"{_count(row.explorers, 'explorer')}, {_count(row.learners, 'learner')}: "
    text = Text(who, style="bold")
    if row.bottleneck == "none alone":
        text.append("no part holds up the others by itself.", style="not bold")
    else:
        gain = f"twice as fast, there would be {row.levers[0].gain:.0%} more steps"
        text.append(f"the bottleneck is {_WORDS[row.bottleneck]}; {gain}.", style="not bold")
    helping = [f"{lever.name} ({lever.gain:+.0%})" for lever in row.choices if lever.gain > _SMALL_GAIN]
    text.append(f" What helps: {', '.join(helping)}." if helping else "", style="not bold")
    return text


def describe_constants(constants: Constants) -> list[str]:
    """What the forecast is made from, one line each."""
    speeds = ", ".join(f"{_tokens_per_s(constants, rows)} tokens/s with {rows}" for rows in (1, 16, 128))
    weights = f"{constants.sync_bytes / 1e6:.2f} MB, {constants.post_s:.2g} s to publish"
    stored = f"{constants.experiences:.0f} experiences of {constants.experience_bytes:,.0f} bytes"
    played = f"{constants.turns:.1f} turns with {constants.reply_tokens:.1f} tokens"
    passes = f"{1e3 * constants.pass_s:.2f} ms a pass and {1e3 * constants.row_s:.3f} ms for each row"
    told = {
        "rollout": f"{constants.episodes} episodes of {played}",
        "engine": f"{passes}: {speeds}",
        "explorer": f"{1e3 * constants.turn_s:.2f} ms of its own for each turn",
        "world": f"{1e3 * constants.env_s:.0f} ms waited for in each turn",
        "learner": f"{constants.learn_s:.3g} s an update",
        "sync": f"{weights}, {constants.load_s:.2g} s to load",
        "buffer": f"{stored} a step, {constants.buffer_s:.2g} s",
        "report": f"{constants.other_s:.2g} s a step",
    }
    return [f"{name:10}{words}" for name, words in told.items()]


def to_numbers(constants: Constants) -> dict[str, object]:
    """The constants for JSON; recorded lengths are told by their mean."""
    return {field.name: getattr(constants, field.name) for field in fields(Constants) if field.name != "turn_counts"}


def _tokens_per_s(constants: Constants, rows: int) -> str:
    pass_s = constants.pass_s + rows * constants.row_s
    return f"{rows / pass_s:,.0f}" if pass_s else "unknown"


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
