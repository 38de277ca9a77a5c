"""Command lines for every command of the parser, so that tests cover a new command before anyone names it there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from turnwise.cli import build_parser

COMMANDS: dict[str, argparse.ArgumentParser] = next(
    action.choices  # type: ignore[misc]
    for action in build_parser()._actions
    if isinstance(action, argparse._SubParsersAction)
)
READS = {
    "RECIPE": ("recipes",),
    "FILE|ENV": ("recipes",),
    "TARGET": ("recipes", "folders", "runs"),
    "SIDE": ("runs",),
    "RUN": ("runs",),
    "WHO": ("folders", "runs"),
}
"""Kinds of files and folders that an argument takes, by its name in the help; `folders` hold a model."""
_READING_OPTIONS = {("train", "config"), ("plan", "config"), ("doctor", "config"), ("convert", "file")}
"""Arguments named FILE that are read; the others are written."""
HARMLESS = {
    "ENV": "bandit",
    "NAME": "nothing",
    "N": "1",
    "N,N": "1",
    "X": "1",
    "K": "1",
    "C": "noisy",
    "S": "eval",
    "H": "127.0.0.1",
    "ADDRESS": "127.0.0.1",
    "EPISODE": "1:1",
    "DIR": "made",
    "FILE": "made.txt",
    "PROGRAM": sys.executable,
    "PLACE": "#/",
    "SIDE": "nothing",
    "bash|zsh": "bash",
    "credit": "credit",
}
"""Values of the other arguments. A new kind of argument belongs here or, where it is read, into READS."""


@dataclass(frozen=True, slots=True)
class Way:
    """One argument through which a command reads files: a command line with a gap for it."""

    command: str
    before: tuple[str, ...]
    kinds: tuple[str, ...]
    after: tuple[str, ...]

    def words(self, target: object, made: str = "made") -> list[str]:
        """The command line with this target; what the command writes goes to `made`."""
        return [*self.before, str(target), *(made if word == "made" else word for word in self.after)]


def arguments(command: str) -> list[argparse.Action]:
    return [action for action in COMMANDS[command]._actions if action.dest != "help"]


def ways_to_read(command: str, values: Mapping[str, str] = HARMLESS) -> Iterator[Way]:
    """Each argument of the command through which it reads files, beside the arguments that it requires."""
    actions = arguments(command)
    for chosen in actions:
        is_read = (command, chosen.dest) in _READING_OPTIONS
        kinds = ("recipes",) if is_read else READS.get(str(chosen.metavar), ())
        if not kinds:
            continue
        before: list[str] = []
        after: list[str] = []
        for action in actions:
            is_needed = action.required and (action.option_strings or action.nargs != "?")
            if action is not chosen and is_needed:
                words = [*action.option_strings[:1], values.get(str(action.metavar), "bandit")]
                (before if actions.index(action) < actions.index(chosen) else after).extend(words)
        if chosen.nargs == "+":
            # Such as the two sides of a comparison.
            after.append(values.get(str(chosen.metavar), "bandit"))
        yield Way(command, (command, *before, *chosen.option_strings[:1]), kinds, tuple(after))


def serves(command: str) -> bool:
    """Whether the command runs until it is interrupted."""
    return any(action.dest == "port" for action in arguments(command))
