"""`turnwise`: finds the command in the source, parses its arguments, calls it.

Exit codes: 0 success; 2 a mistake of the user, reported in one message without a traceback; 1 a run that failed; 130
interrupted; 143 ended by SIGTERM, with everything saved as after an interruption.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

from turnwise import __version__, commands
from turnwise.commands import REGISTERED, Command, Target, command
from turnwise.errors import (
    ClusterError,
    ConfigError,
    EngineError,
    LearnError,
    SyncError,
    TurnwiseError,
    did_you_mean,
)
from turnwise.infra.atomic_files import describe_os_error
from turnwise.infra.process_state import limit_spin_wait
from turnwise.infra.threads import Terminated
from turnwise.infra.untrusted import find_user_frame, format_error

_DECLARATION = re.compile(r'^@command\(\s*"([\w-]+)",\s*help="([^"]+)"', re.MULTILINE)
_FIRST = ("train", "eval", "play", "check", "inspect")
"""Modules whose commands stand first in the help."""


class Declared(NamedTuple):
    """A command whose module may not be imported yet."""

    help: str
    module: str


def find_commands() -> dict[str, Declared]:
    """Return all commands by name: those of `turnwise.commands`, read from the source, and of installed packages.

    Another package adds one by an entry point of the group `turnwise.commands`: `count = "my_package.commands"`.
    """
    files = [file for folder in commands.__path__ for file in Path(folder).glob("*.py")]
    files.sort(key=lambda file: (_FIRST.index(file.stem) if file.stem in _FIRST else len(_FIRST), file.stem))
    found = {
        name: Declared(text, f"{commands.__name__}.{file.stem}")
        for file in files
        for name, text in _DECLARATION.findall(file.read_text("utf-8"))
    }
    for entry in entry_points(group=commands.__name__):
        found.setdefault(entry.name, Declared(f"Command of {entry.module}", entry.module))
    return {**found, "completion": Declared(REGISTERED["completion"].help, __name__)}


def load_command(name: str, declared: Declared) -> Command:
    import_module(declared.module)
    if name not in REGISTERED:
        raise ConfigError(f"{declared.module} does not register the command '{name}'. Use @command(\"{name}\", ...).")
    return REGISTERED[name]


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors, the closest command, exit code 2, and settings between the arguments."""

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and self.prog == "turnwise":
            given = message.split("'")[1]
            message = f"unknown command '{given}'. {did_you_mean(given, find_commands())}"
        self.exit(2, f"turnwise: {message}\nSee '{self.prog} --help'.\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Settings are taken out first: argparse would read the value of `--learn.steps 3` as a recipe."""
        if self._subparsers is not None or args is None:
            return super().parse_known_args(args, namespace)
        known, settings = self._split(list(args))
        options, rest = super().parse_known_args(known, namespace)
        self._refuse_empty(vars(options))
        return options, [*settings, *rest]

    def _refuse_empty(self, given: dict[str, Any]) -> None:
        """An empty argument is a shell variable that was not set; it never means the default."""
        for action in self._actions:
            found = given.get(action.dest)
            values = found if isinstance(found, list) else [found]
            if any(isinstance(value, str) and not value.strip() for value in values):
                name = action.option_strings[0] if action.option_strings else action.metavar
                is_needed = action.required and not action.option_strings
                self.error(f"{name} must not be empty.{'' if is_needed else ' Omit it to use the default.'}")

    def _split(self, waiting: list[str]) -> tuple[list[str], list[str]]:
        """Arguments of this command, and `--key value` or `--key=value` for keys that are none of its options."""
        known: list[str] = []
        settings: list[str] = []
        while waiting:
            word = waiting.pop(0)
            option = self._option_string_actions.get(word.partition("=")[0])
            is_setting = option is None and word.startswith("--")
            target = settings if is_setting else known
            target.append(word)
            takes_value = is_setting or (option is not None and option.nargs != 0)
            if takes_value and "=" not in word and waiting and not waiting[0].startswith("--"):
                target.append(waiting.pop(0))
        return known, settings


def build_parser(names: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Build the parser of all commands; only the modules of the commands in `names` are imported (None: all)."""
    parser = _Parser(prog="turnwise", description="Train language-model agents over many turns.")
    parser.add_argument("--version", action="version", version=f"turnwise {__version__}")
    group = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, declared in find_commands().items():
        is_chosen = names is None or name in names
        loaded = load_command(name, declared) if is_chosen else None
        own = group.add_parser(
            name,
            help=declared.help,
            description=f"{loaded.help if loaded else declared.help}.",
            epilog=loaded.epilog if loaded else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for parameter in loaded.parameters() if loaded else []:
            parameter.add_to(own)
    return parser


def call_command(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Call the function of a parsed command; returns the exit code."""
    from turnwise.config.recipes import check_name_length  # noqa: PLC0415 - loads pydantic

    given = vars(options)
    for value in given.values():
        if isinstance(value, str):
            check_name_length(value)
    return REGISTERED[options.command].run(given, overrides)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `turnwise` command."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        options, rest = build_parser(arguments).parse_known_args(arguments)
        if options.command == "completion":
            return call_command(options, parse_overrides(rest))
        limit_spin_wait()
        return call_command(options, parse_overrides(rest))
    except (LearnError, SyncError, ClusterError) as error:
        return _fail(1, f"the run failed: {error}")
    except EngineError as error:
        return _fail(1, str(error))
    except TurnwiseError as error:
        return _fail(2, str(error))
    except Terminated:
        return _fail(143, "ended by SIGTERM; continue with 'turnwise train --resume RUN'")
    except Exception as error:
        # A traceback is for errors of this library; for the code of users, the line that failed is named.
        line = find_user_frame(error)
        if line is None and (trouble := describe_os_error(error)) is not None:
            return _fail(2, trouble)
        if line is None:
            raise
        return _fail(1, f"your code failed: {line}\n  {format_error(error)}")
    except KeyboardInterrupt:
        return _fail(130, "interrupted; continue with 'turnwise train --resume RUN'")


def _fail(code: int, problem: str) -> int:
    sys.stderr.write(f"turnwise: {problem}\n")
    return code


def parse_overrides(words: Sequence[str]) -> list[str]:
    """`key=value`, `+key=value`, `--key=value` and `--key value` become `key=value`; a lone `--key` means true."""
    overrides: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--") or "=" in word:
            overrides.append(word.removeprefix("--").lstrip("+"))
        elif waiting and not waiting[0].startswith("--"):
            overrides.append(f"{word[2:]}={waiting.pop(0)}")
        else:
            overrides.append(f"{word[2:]}=true")
    return overrides


@command(
    "completion",
    help="Print the shell completion script",
    epilog='bash: eval "$(turnwise completion bash)" in ~/.bashrc\n'
    "zsh:  turnwise completion zsh > a file named _turnwise in a folder of $fpath",
)
def completion(shell: Annotated[str, Target("bash|zsh", "shell", choices=("bash", "zsh"))]) -> int:
    import shtab  # noqa: PLC0415 - needed here only

    from turnwise.commands.eval import SUITES  # noqa: PLC0415
    from turnwise.config.component import ENVS  # noqa: PLC0415
    from turnwise.config.recipes import list_recipes  # noqa: PLC0415

    parser = build_parser()
    for action, kind in _completed_actions(parser):
        functions = dict.fromkeys(("bash", "zsh"), f"_turnwise_{kind}")
        # shtab reads this attribute of argparse's own object.
        action.complete = shtab.FILE if kind == "files" else functions  # type: ignore[attr-defined]
    words = {"recipes": list_recipes(), "envs": sorted(ENVS), "suites": sorted(SUITES)}
    preamble = {
        "bash": "\n".join(
            f'_turnwise_{k}() {{ compgen -W "{" ".join(v)}" -- "$1"; compgen -f -- "$1"; }}' for k, v in words.items()
        ),
        "zsh": "\n".join(f"_turnwise_{k}() {{ compadd -- {' '.join(v)}; _files; }}" for k, v in words.items()),
    }
    # Its annotation has one text for all shells; its documentation one for each.
    sys.stdout.write(shtab.complete(parser, shell=shell, preamble=preamble))  # type: ignore[arg-type]
    return 0


def _completed_actions(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.Action, str]]:
    """Yield the actions of all commands for which a shell can offer something, and what."""
    for group in parser._actions:
        for name, own in group.choices.items() if isinstance(group, argparse._SubParsersAction) else []:
            kinds = {parameter.name: parameter.complete for parameter in REGISTERED[name].parameters()}
            yield from ((action, kinds[action.dest]) for action in own._actions if kinds.get(action.dest))
