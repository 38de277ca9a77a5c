"""The command line: reads words and calls the rooms. No logic of its own.

Exit codes: 0 done; 2 a user's mistake, said in one message without a traceback; 1 a run that failed; 130 interrupted;
143 ended by SIGTERM, with everything saved as after an interruption.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from turnwise.command_words import build_parser
from turnwise.errors import ClusterError, EngineError, LearnError, SyncError, TurnwiseError
from turnwise.floor.async_calls import Terminated
from turnwise.floor.files import tell_trouble
from turnwise.floor.outsiders import tell_error
from turnwise.floor.thread_waits import wait_briefly
from turnwise.floor.users_code import find_users_line


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `turnwise` command."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    options, rest = parser.parse_known_args(words)
    if options.command == "completion":
        return _print_completion(parser, options.shell)
    wait_briefly()
    try:
        # Imported after parsing: help and mistakes in the words answer at once, without loading torch.
        from turnwise.app import commands  # noqa: PLC0415

        return commands.run(options, parse_overrides(rest))
    except (LearnError, SyncError, ClusterError) as error:
        _tell(f"the run failed: {error}")
        return 1
    except EngineError as error:
        _tell(str(error))
        return 1
    except TurnwiseError as error:
        _tell(str(error))
        return 2
    except Terminated:
        _tell("ended by SIGTERM; go on with 'turnwise train --resume RUN'")
        return 143
    except Exception as error:
        # A traceback is for mistakes of ours; whoever wrote the line that failed is told which one it is.
        line = find_users_line(error)
        if line is None and (trouble := tell_trouble(error)) is not None:
            _tell(trouble)
            return 2
        if line is None:
            raise
        _tell(f"your code failed: {line}\n  {tell_error(error)}")
        return 1
    except KeyboardInterrupt:
        _tell("interrupted; go on with 'turnwise train --resume RUN'")
        return 130


def _print_completion(parser: argparse.ArgumentParser, shell: str) -> int:
    from turnwise.app.completion import write_completion  # noqa: PLC0415 - as above

    sys.stdout.write(write_completion(parser, shell))
    return 0


def _tell(problem: str) -> None:
    """Why the command ends, for people and for whoever reads its errors from a pipe."""
    sys.stderr.write(f"turnwise: {problem}\n")


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
