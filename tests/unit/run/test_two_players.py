"""Games of two policies with a model that lies on this machine: what is played before a run seats both players."""

from __future__ import annotations

import asyncio
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the openai package is not installed; it is part of the extras openai and dev")

from turnwise.checks.model import make_preview
from turnwise.checks.setup import find_errors
from turnwise.config.load import load_settings
from turnwise.loop.build import load_words, open_trainer
from turnwise.loop.policies import resolve_model
from turnwise.loop.warm_start import warm_start
from turnwise.types import Experience

from ...endpoints import FakeEndpoint, said, serving
from ...small_run import SMALL_MODEL

pytestmark = pytest.mark.slow

GAMES = Path(__file__).resolve().parents[3] / "examples" / "self_play"
sys.path.append(str(GAMES))
Nim: Any = importlib.import_module("nim").Nim
LEAGUE = ["rollout.workflow=league", "rollout.workflow_args.past_selves=1", "report.checkpoint_every=5"]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")


@pytest.fixture(scope="module")
def model() -> str:
    return resolve_model(load_settings(str(GAMES / "nim.yaml"), SMALL_MODEL))


def load_nim(model: str, *words: str) -> Any:
    return load_settings(str(GAMES / "nim.yaml"), [f"model.path={model}", *words])


@pytest.mark.parametrize("words", [[], LEAGUE], ids=["self_play", "league"])
def test_a_game_of_two_policies_is_not_refused_and_its_first_prompt_is_shown(model: str, words: list[str]) -> None:
    assert find_errors(load_nim(model, *words)) == []
    preview = make_preview(load_nim(model, *words, "engine.type=scripted", 'engine.replies=["2"]'))
    assert preview.prompt is not None
    assert "heap" in preview.prompt
    assert (preview.reply, preview.is_understood) == ("2", True)


class SecondBegins(Nim):
    def deal(self, seed: int, split: str, dynamics_seed: int) -> None:
        super().deal(seed, split, dynamics_seed)
        self._mover = 1


def test_the_reply_is_that_of_the_player_who_was_asked(model: str) -> None:
    words = [f"env.type={__name__}:SecondBegins", "engine.type=scripted", 'engine.replies=["2"]']
    assert make_preview(load_nim(model, *words)).reply == "2"


def test_a_prompt_of_a_game_that_does_not_fit_is_refused_with_the_reason(model: str) -> None:
    (told,) = find_errors(load_nim(model, "context.max_tokens=4", "context.max_response_tokens=3"))
    assert "do not fit into context.max_tokens = 4" in told.message


class Pupil:
    """A learner that only writes down what it is to imitate."""

    def __init__(self) -> None:
        self.rows: list[Experience] = []

    def imitate(self, demonstrations: list[Experience], *_: Any) -> float:
        self.rows = demonstrations
        return 0.0


def test_an_endpoint_teaches_a_game_by_playing_both_sides(model: str) -> None:
    with serving(FakeEndpoint(lambda _: said("1"))) as endpoint:
        words = ["warm_start.type=endpoint", f"warm_start.url={endpoint.url}", "warm_start.episodes=3"]
        settings = load_nim(model, *words, "warm_start.keep=all")
        pupil = Pupil()
        trainer, template = replace(open_trainer(settings, model), learner=pupil), load_words(settings, model).template
        told = asyncio.run(warm_start(trainer, template, settings.warm_start, lambda *_: None))
    assert (told["played"], told["demonstrations"]) == (6, 6)
    assert {row.id.trajectory.sibling for row in pupil.rows} == {0, 1}
