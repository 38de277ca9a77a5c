"""`turnwise completion`: what a shell needs to complete words of the command line.

In: the parser of the command line. Out: a script for bash or zsh. Names of recipes, environments and suites are those
of the moment when it is written; everything else that is typed is a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import shtab

from turnwise.app.suites import SUITES
from turnwise.config.recipes import list_recipes
from turnwise.config.registry import ENVS

SHELLS = ("bash", "zsh")
_NAMES = {"recipe": "recipes", "config_name": "recipes", "env": "envs", "suite": "suites"}
"""Options and places whose words are known."""
_FILES = frozenset({"target", "run", "dir", "file", "config", "run_dir", "resume", "out", "markdown", "sides", "agent"})


def write_completion(parser: argparse.ArgumentParser, shell: str) -> str:
    for action in _actions(parser):
        if action.dest in _NAMES:
            _complete(action, dict.fromkeys(SHELLS, f"_turnwise_{_NAMES[action.dest]}"))
        elif action.dest in _FILES:
            _complete(action, shtab.FILE)
    words = {"recipes": list_recipes(), "envs": sorted(ENVS), "suites": sorted(SUITES)}
    preamble = {
        "bash": "\n".join(_bash_function(name, " ".join(known)) for name, known in words.items()),
        "zsh": "\n".join(_zsh_function(name, " ".join(known)) for name, known in words.items()),
    }
    # Its annotation knows a text for all shells alone; a text for each is what its documentation says.
    return shtab.complete(parser, shell=shell, preamble=preamble)  # type: ignore[arg-type]


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of a parser and of all its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action


def _complete(action: argparse.Action, how: Any) -> None:
    # The way in which shtab is told: an attribute of argparse's own object.
    action.complete = how  # type: ignore[attr-defined]


def _bash_function(name: str, words: str) -> str:
    return f'_turnwise_{name}() {{ compgen -W "{words}" -- "$1"; compgen -f -- "$1"; }}'


def _zsh_function(name: str, words: str) -> str:
    return f"_turnwise_{name}() {{ compadd -- {words}; _files; }}"
