"""A frozen policy as the other player of a game: an earlier run's, or any model, or one of a league of them.

In come a path and what a game tells; out come moves, sampled as the run sampled while exploring, in its own format. It
is loaded once per process and shares nothing with the policy that learns. It refuses runs that are not finished: their
policy still changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from turnwise.app.run import Run
from turnwise.config.load import load_settings
from turnwise.config.schema import ContextSettings
from turnwise.context.answer import parse_answer, show_history
from turnwise.context.recorder import Recorder
from turnwise.envs.adapters.textarena_env import TextArenaParams
from turnwise.errors import ConfigError, EngineError, EnvError, TurnwiseError
from turnwise.infra.seeds import derive_seed, make_rng
from turnwise.infra.threads import run_async
from turnwise.loop.build import load_words, open_engine
from turnwise.models.resolve import resolve_path
from turnwise.protocols import ChatTemplate, Engine
from turnwise.report.run_dir import RunDirectory, settings_file_of
from turnwise.rollout_io import EnvDescription, HistoryEntry
from turnwise.types import GenerateRequest, Sampling


@dataclass(frozen=True, slots=True)
class _Policy:
    """What all games against the same policy share; nobody else has its weights."""

    template: ChatTemplate
    engine: Engine
    context: ContextSettings
    temperature: float


class FrozenPolicy:
    """An `Opponent` that answers with a language model, one conversation per episode."""

    def __init__(self, params: TextArenaParams, label: str) -> None:
        self._label = label
        try:
            self._policy = self._choose(params.opponent_path or "")
        except TurnwiseError as error:
            raise ConfigError(f"env.opponent_path: '{params.opponent_path}' cannot play. {error}") from error
        self._recorder = self._new_recorder()
        self._about = EnvDescription()
        self._history: list[HistoryEntry] = []
        self._seed = 0

    def begin(self, about: EnvDescription, seed: int) -> None:
        self._about, self._history, self._recorder = about, [], self._new_recorder()
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self._seed = seed

    def choose_move(self, text: str, offered: Sequence[str]) -> str:
        policy, context = self._policy, self._policy.context
        now = HistoryEntry(state=text, actions_left=1)
        prompt = self._recorder.prompt(
            show_history(self._about, [*self._history, now], context),
            max_new_tokens=context.max_response_tokens,
            prefix=context.answer.forced_prefix,
        )
        request = GenerateRequest(
            prompt_ids=prompt.ids,
            sampling=Sampling(temperature=policy.temperature, max_new_tokens=context.max_response_tokens),
            seed=derive_seed("opponent", self._seed, len(self._history) + 1),
        )
        try:
            completion = run_async(policy.engine.generate(request))
        except EngineError as error:
            raise EnvError(f"{self._label}: the opponent cannot answer: {error}") from error
        reply = self._recorder.record(prompt, completion).response_text
        self._history.append(replace(now, llm_response=reply))
        # A reply without an answer is played as it is: the game says what it thinks of it.
        actions = parse_answer(reply, context.answer).actions
        return actions[0] if actions else reply

    def _choose(self, path: str) -> _Policy:
        return _load_once(*_find(path, self._label))

    def _new_recorder(self) -> Recorder:
        return Recorder(self._policy.template, max_tokens=self._policy.context.max_tokens)


class League(FrozenPolicy):
    """One of several frozen policies, drawn anew for every task: siblings meet the same one."""

    def begin(self, about: EnvDescription, seed: int) -> None:
        self._policy = super()._choose(make_rng("league", seed).choice(self._members))
        super().begin(about, seed)

    def _choose(self, path: str) -> _Policy:
        """The first member, so that a league that cannot play is told at once."""
        self._members = _find_members(path)
        return super()._choose(self._members[0])


def _find_members(path: str) -> list[str]:
    """The policies of a run's checkpoints, oldest first, or all model folders in a folder, by name."""
    folder = Path(path).expanduser()
    if (folder / "config.yaml").is_file():
        _require_finished(folder)
        folder /= "checkpoints"
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    models = [model for each in inner for model in (each / "policy", each) if (model / "config.json").is_file()]
    if not models:
        raise ConfigError("It holds no models; expected a run with checkpoints, or a folder of model folders.")
    return list(map(str, models))


def _require_finished(run: Path) -> None:
    if not RunDirectory.open(run).summary.exists():
        raise ConfigError("The run is not finished, so its policy still changes. Name a checkpoint's policy folder.")


def _find(path: str, game: str) -> tuple[str, str, str]:
    """The model's folder or name, and the settings file of its run or, for a model without one, the game."""
    folder = Path(path).expanduser()
    if (folder / "config.yaml").is_file():
        _require_finished(folder)
        return str(Run(folder).policy), str(folder / "config.yaml"), ""
    if not folder.is_dir():
        return resolve_path(path), "", game
    config = settings_file_of(folder)
    return (str(folder), "", game) if config is None else (str(folder), str(config), "")


@lru_cache(maxsize=8)
def _load_once(model: str, config: str, game: str) -> _Policy:
    # The tokenizer of a checkpoint has the run's chat template already.
    settings = load_settings(config, ["context.template=null"]) if config else load_settings({"env": {"type": game}})
    words = load_words(settings, model)
    return _Policy(words.template, open_engine(words, model), settings.context, settings.rollout.temperature)
