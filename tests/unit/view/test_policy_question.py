"""What a checkpoint is asked: the ids that stood before a token, of the weights nearest to those that sampled it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from turnwise.errors import EngineError, RunError
from turnwise.view.policy_query import PolicyPrediction, PolicyQuery
from turnwise.view.server import ANSWERS, RunCollection

from .made_run import FakeVoice, add_checkpoint, make_run

NAME = "2/frozen_lake/train/200/1"
"""Its tokens were sampled by version 1."""


@pytest.fixture
def voice() -> FakeVoice:
    return FakeVoice()


@pytest.fixture
def shelf(tmp_path: Path, voice: FakeVoice) -> RunCollection:
    run = make_run(tmp_path / "run")
    for step, version in ((0, 0), (2, 1), (4, 3)):
        add_checkpoint(run, step, policy_version=version)
    return RunCollection([tmp_path], voice=voice)


def ask(shelf: RunCollection, place: object, **words: object) -> Any:
    given = {"run": "run", "step": 2, "id": NAME, "place": place, **words}
    answer = ANSWERS["policy"](shelf, {key: str(value) for key, value in given.items()})
    return json.loads(json.dumps(answer, allow_nan=False))


def test_the_prefix_is_exactly_what_stood_before_the_token_on_record(shelf: RunCollection, voice: FakeVoice) -> None:
    ids = [token.token_id for token in shelf.get("run").files.tokens(2).of(NAME)]
    for place in (1, 4, len(ids) - 1):
        answer = ask(shelf, place)
        assert voice.asked[-1].prefix_ids == tuple(ids[:place])
        assert answer["said"] == ids[place]


def test_the_nearest_weights_at_or_before_are_asked_and_named(shelf: RunCollection, voice: FakeVoice) -> None:
    answer = ask(shelf, 4)
    assert answer["checkpoint"] == {"step": 2, "policy_version": 1}
    assert answer["sampled_by"] == 1
    assert voice.asked[-1].folder.name == "step-000002"
    # Those of step 3 were sampled by version 2, which is not on disk.
    later = ask(shelf, 4, step=3, id=NAME.replace("2/", "3/", 1).replace("/200/", "/300/"))
    assert (later["checkpoint"]["policy_version"], later["sampled_by"]) == (1, 2)
    assert ask(shelf, 4, checkpoint=4)["checkpoint"] == {"step": 4, "policy_version": 3}
    assert ask(shelf, 0 + 1)["sampled_by"] is None


def test_where_all_checkpoints_are_later_the_first_is_asked(tmp_path: Path, voice: FakeVoice) -> None:
    add_checkpoint(make_run(tmp_path / "run"), 3, policy_version=3)
    assert ask(RunCollection([tmp_path], voice=voice), 4)["checkpoint"]["policy_version"] == 3


def test_what_cannot_be_drawn_is_left_out_and_ids_become_texts(shelf: RunCollection) -> None:
    answer = ask(shelf, 4)
    assert [one["token_id"] for one in answer["alternatives"]] == [7, 8]
    assert answer["alternatives"][0] == {"token_id": 7, "text": "#7", "logprob": math.log(0.75)}
    assert answer["continuation"] == ["#7", "#2"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"place": -1}, "place: '-1' given"),
        ({"place": 10**6}, "expected a number from 0"),
        ({"place": "x"}, "place: 'x' given"),
        ({"place": 0}, "nothing stands before the first token"),
        ({"place": 4, "checkpoint": 3}, "there are those of steps 0, 2, 4"),
        ({"place": 4, "checkpoint": "../../etc"}, "checkpoint: '../../etc' given"),
        ({"place": 4, "new": 1000}, "new: '1000' given"),
    ],
)
def test_questions_out_of_bounds_are_refused_before_anybody_is_asked(
    shelf: RunCollection, voice: FakeVoice, words: dict[str, Any], expected: str
) -> None:
    with pytest.raises(RunError, match=expected.replace("(", r"\(").replace("..", r"\.\.")):
        ask(shelf, **words)
    assert voice.asked == []


def test_a_run_without_checkpoints_and_a_page_without_a_voice_say_so(tmp_path: Path, voice: FakeVoice) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(RunError, match="no checkpoint on disk"):
        ask(RunCollection([tmp_path], voice=voice), 4)
    add_checkpoint(run, 1, policy_version=1)
    with pytest.raises(RunError, match="turnwise view"):
        ask(RunCollection([tmp_path]), 4)


def test_why_not_reaches_the_page(shelf: RunCollection) -> None:
    class Mute:
        def ask(self, question: PolicyQuery) -> PolicyPrediction:
            raise EngineError("no answer within 1 seconds")

    shelf.voice = Mute()
    assert ask(shelf, 4) == {"why_not": "no answer within 1 seconds"}
