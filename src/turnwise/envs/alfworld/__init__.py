"""Household tasks in text: the original game files or generated rooms, their rules, plans, and the game itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

from turnwise.config.settings import Settings, require_package
from turnwise.envs.alfworld.game import NOTHING_HAPPENS, Game, Household, State
from turnwise.envs.alfworld.game_files import find_data, list_games, load_game
from turnwise.envs.alfworld.generator import AlfWorldParams, draw_household
from turnwise.envs.alfworld.planner import explore, shortest_plan
from turnwise.envs.base import BaseEnv, check_split
from turnwise.errors import EnvError, TaskError
from turnwise.infra.process_state import GlobalRngGuard
from turnwise.infra.seeds import random_seed

__all__ = ["AlfWorld"]


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
        self._rngs = GlobalRngGuard(_ASKED_BY)
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


SPLITS = ("train", "eval", "seen", "unseen")


def _explore(env: AlfWorld) -> str:
    return explore(env.game)


class AlfWorld(BaseEnv):
    """A household and a task; no time limit of its own. `eval` is `unseen`: rooms that training never enters."""

    name = "alfworld"
    rewards = "1 for the task"
    data = "built in, or original game files"
    splits = SPLITS
    Params: ClassVar[type[Settings]] = AlfWorldParams
    has_oracle = True
    baselines: ClassVar[Mapping[str, Callable[[Any], str]]] = {"explorer": _explore}

    params: AlfWorldParams
    game: Game

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._text = ""
        self._plan: tuple[str, ...] = ()
        self._games: Mapping[str, tuple[Path, ...]] = {}
        if self.params.game_file is not None:
            load_game(self.params.game_file)
        if self.params.games_source is not None:
            self._games = list_games(self.params.games_source, self.params.eval_share)
        self._engine = TextWorldEngine() if self.params.backend == "textworld" else None

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, SPLITS, self.name)
        seed = random_seed() if seed is None else seed
        split = "unseen" if split == "eval" else split
        file = self._find_file(seed, split)
        self.game = Game(draw_household(self.params, seed, split) if file is None else load_game(file))
        if self._engine is None or file is None:
            self._text = self.game.introduce()
        else:
            self._text = self._engine.begin(file)
        self._plan, self._phase = (), "playing"
        return self._text

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        command = action.strip()
        outcome = self.game.play(command)
        is_effective = outcome is not None and outcome.is_effective
        if is_effective:
            # A plan goes on for whoever follows it; any other change makes it void.
            self._plan = self._plan[1:] if self._plan[:1] == (command,) else ()
        if self._engine is None:
            is_valid, self._text = outcome is not None, NOTHING_HAPPENS if outcome is None else outcome.text
            is_won = self.game.is_won()
        else:
            is_valid, self._text = command in self._engine.commands, self._engine.play(command)
            is_won = self._engine.is_won
        if is_won:
            self._phase = "over"
        info = {
            "success": is_won,
            "won": is_won,
            "action_is_valid": is_valid,
            "action_is_effective": is_effective,
            "admissible_commands": self.admissible_commands,
            "difficulty": self.game.household.goal.type,
        }
        return self._text, float(is_won), is_won, info

    def render(self) -> str:
        return self._text

    @property
    def admissible_commands(self) -> list[str]:
        """Everything that can be done now, sorted."""
        return sorted(self.game.commands) if self._engine is None else self._engine.commands

    def admissible_actions(self) -> list[str]:
        return self.admissible_commands

    @property
    def example(self) -> str:
        return "go to cabinet 2"

    @property
    def instructions(self) -> str:
        return (
            "You are in a household and have a task to do. Say one command at a time: look, inventory, go to PLACE, "
            "open PLACE, close PLACE, examine PLACE, take THING from PLACE, move THING to PLACE, use LAMP, "
            "clean THING with SINKBASIN, heat THING with MICROWAVE, cool THING with FRIDGE, slice THING with KNIFE. "
            "Places and things have a name and a number, such as cabinet 2."
        )

    def oracle(self) -> str:
        self._require_playing()
        if self.params.oracle == "explorer":
            return explore(self.game)
        if not self._plan:
            plan = shortest_plan(self.game)
            if plan is None:
                raise EnvError(f"{self.name}: no plan leads to the task '{self.game.household.task}' from here.")
            # A task that is done already needs any command at all.
            self._plan = plan or ("look",)
        return self._plan[0]

    def snapshot(self) -> object:
        record = None if self._engine is None else self._engine.record()
        return self.game.household, self.game.state.copy(), self._text, self._phase, record

    def restore(self, state: object) -> None:
        saved = cast("tuple[Household, State, str, Any, Record | None]", state)
        household, facts, self._text, self._phase, record = saved
        self.game = Game(household, facts.copy())
        if self._engine is not None and record is not None:
            self._engine.restore(record)
        self._plan = ()

    def raw_task(self, seed: int, split: str = "train") -> Mapping[str, object]:
        file = self._find_file(seed, "unseen" if split == "eval" else split)
        row = super().raw_task(seed, split)
        return row if file is None else {**row, "game_file": str(file)}

    def num_tasks(self, split: str = "train") -> int | None:
        check_split(split, SPLITS, self.name)
        if self.params.game_file is not None:
            return 1
        if self.params.games_source is None:
            return None
        return len(self._games["unseen" if split == "eval" else split])

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _find_file(self, seed: int, split: str) -> Path | None:
        """The game file of a seed; None where households are generated."""
        if self.params.game_file is not None:
            return find_data(self.params.game_file)
        if self.params.games_source is None:
            return None
        games = self._games[split]
        if not games:
            raise TaskError(
                f"{self.name}: '{self.params.games_source}' (env.games) has no game of the split '{split}'. Add some, "
                "say their 'split' in the list, or change env.eval_share."
            )
        return games[seed % len(games)]
