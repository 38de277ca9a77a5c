"""A frozen policy as the other player of a game: an earlier run's, or any model.

In come a path and what a game tells; out come moves, sampled as the run sampled while exploring, in its own format. It
is loaded once per process and shares nothing with the policy that learns. It refuses runs that are not finished: their
policy still changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from turnwise.app.run import Run, run_async
from turnwise.config.load import load_settings
from turnwise.config.sections.context import ContextSettings
from turnwise.context.manager import ContextManager
from turnwise.context.template import LearnedTemplate
from turnwise.engine.local import LocalEngine
from turnwise.envs.adapters.textarena_settings import TextArenaParams
from turnwise.errors import ConfigError, EngineError, EnvError, TurnwiseError
from turnwise.exchange import EnvDescription, EnvOutput, HistoryEntry, LmOutput
from turnwise.floor.seeds import derive_seed
from turnwise.loop.build import build_engine
from turnwise.report.run_dir import RunDirectory
from turnwise.types import GenerateRequest, Sampling

_TAG = "opponent"


@dataclass(frozen=True, slots=True)
class _Policy:
    """What all games against the same policy share; nobody else has its weights."""

    template: LearnedTemplate
    engine: LocalEngine
    context: ContextSettings
    temperature: float


class FrozenPolicy:
    """An `Opponent` that answers with a language model, one conversation per episode."""

    def __init__(self, params: TextArenaParams, label: str) -> None:
        self._label = label
        try:
            self._policy = _load_once(*_find(params.opponent_path or "", label))
        except TurnwiseError as error:
            raise ConfigError(f"env.opponent_path: '{params.opponent_path}' cannot play. {error}") from error
        self._context = ContextManager(self._policy.template, self._policy.context)
        self._about = EnvDescription()
        self._history: list[HistoryEntry] = []
        self._seed = 0

    def begin(self, about: EnvDescription, seed: int) -> None:
        self._about, self._history = about, []
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self._seed = seed

    def choose_move(self, text: str, offered: Sequence[str]) -> str:
        self._history.append(HistoryEntry(state=text, actions_left=1))
        output = EnvOutput(env_id=0, group_id=0, tag=_TAG, history=tuple(self._history), penalty=0.0, about=self._about)
        (lm_input,) = self._context.get_lm_inputs([output])
        request = GenerateRequest(
            prompt_ids=lm_input.prompt_ids,
            sampling=Sampling(temperature=self._policy.temperature, max_new_tokens=lm_input.max_new_tokens),
            seed=derive_seed(_TAG, self._seed, len(self._history)),
        )
        try:
            completion = run_async(self._policy.engine.generate(request))
        except EngineError as error:
            raise EnvError(f"{self._label}: the opponent cannot answer: {error}") from error
        (reply,) = self._context.get_env_inputs([LmOutput(env_id=0, completion=completion)])
        # A reply without an answer is played as it is: the game says what it thinks of it.
        return reply.actions[0] if reply.actions else reply.llm_response


def _find(path: str, game: str) -> tuple[str, str, str]:
    """The model's folder or name, and the settings file of its run or, for a model without one, the game."""
    folder = Path(path).expanduser()
    if (folder / "config.yaml").is_file():
        if not RunDirectory.open(folder).summary.exists():
            raise ConfigError(
                "The run is not finished, so its policy still changes. Name a checkpoint's policy folder."
            )
        return str(Run(folder).policy), str(folder / "config.yaml"), ""
    if not folder.is_dir():
        return path, "", game
    # RUN/checkpoints/step-000040/policy
    config = folder.absolute().joinpath("..", "..", "..", "config.yaml").resolve()
    return (str(folder), str(config), "") if config.is_file() else (str(folder), "", game)


@lru_cache(maxsize=4)
def _load_once(model: str, config: str, game: str) -> _Policy:
    settings = load_settings(config or {"env": {"type": game}})
    _, template, engine = build_engine(settings, model)
    return _Policy(template, engine, settings.context, settings.rollout.temperature)
