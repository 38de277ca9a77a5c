"""The original's engine: game files played by TextWorld itself, in the names that ALFWorld gives to things.

In come a game file and commands; out come the engine's own answers, possible commands and verdicts. The packages are
optional and imported when they are chosen. It refuses to plan and to know seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.config.settings import require_package
from turnwise.errors import EnvError
from turnwise.infra.process_state import OwnGlobalRngs

_ASKED_BY = "env.backend 'textworld'"


class Record(NamedTuple):
    """What leads to where a game is: the engine leaves nothing to chance."""

    file: Path
    commands: tuple[str, ...]


class TextWorldEngine:
    """One game at a time; the same file is loaded once in a row."""

    def __init__(self) -> None:
        self._textworld = require_package("textworld", extra="alfworld", asked_by=_ASKED_BY)
        require_package("fast_downward", extra="alfworld", asked_by=_ASKED_BY)
        wrappers = require_package("alfworld.agents.environment.alfred_tw_env", extra="alfworld", asked_by=_ASKED_BY)
        self._name_things = wrappers.AlfredDemangler
        self._rngs = OwnGlobalRngs(_ASKED_BY)
        self._game: Any = None
        self._file: Path | None = None
        self._played: list[str] = []
        self._commands: list[str] = []
        self._is_won = False

    def begin(self, file: Path) -> str:
        """The first text of the game."""
        with self._contained():
            if file != self._file:
                self.close()
                wanted = self._textworld.EnvInfos(feedback=True, won=True, admissible_commands=True)
                self._game = self._textworld.start(str(file), request_infos=wanted, wrappers=[self._name_things()])
                self._file = file
            state = self._game.reset()
        self._played = []
        return self._read(state)

    def play(self, command: str) -> str:
        """The answer to a command, possible or not."""
        with self._contained():
            state, _, _ = self._game.step(command)
        self._played.append(command)
        return self._read(state)

    @property
    def commands(self) -> list[str]:
        """Everything that can be done now, sorted."""
        return list(self._commands)

    @property
    def is_won(self) -> bool:
        return self._is_won

    def record(self) -> Record:
        assert self._file is not None
        return Record(self._file, tuple(self._played))

    def restore(self, record: Record) -> None:
        """Play what was played."""
        self.begin(record.file)
        for command in record.commands:
            self.play(command)

    def close(self) -> None:
        if self._game is not None:
            self._game.close()
        self._game = self._file = None

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """Global generators stay untouched, and a game that stumbled is not played on."""
        try:
            with self._rngs.inside():
                yield
        except Exception:
            self._game = self._file = None
            raise

    def _read(self, state: Any) -> str:
        text, is_won, commands = state["feedback"], state["won"], state["admissible_commands"]
        if not isinstance(text, str) or not isinstance(is_won, bool) or not isinstance(commands, list):
            raise EnvError(
                f"TextWorld answered with feedback {type(text).__name__}, won {is_won!r} and commands "
                f"{type(commands).__name__}; expected a text, true or false, and a list."
            )
        self._is_won, self._commands = is_won, sorted(commands)
        return text
