"""What the page is answered: the numbers of the record, the episodes that fit, credit under every rule."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnwise.config.kinds import ADVANTAGE_ESTIMATORS
from turnwise.errors import RunError
from turnwise.report.run_dir import RunDirectory
from turnwise.report.token_log_reader import RecordedToken
from turnwise.view.server import ANSWERS, RunCollection

from .made_run import add_step, forget_success, make_run

NAME = "2/frozen_lake/train/200/1"


def ask(shelf: RunCollection, name: str, **words: object) -> Any:
    """Through JSON, as the page gets it."""
    answer = ANSWERS[name](shelf, {key: str(value) for key, value in words.items()})
    return json.loads(json.dumps(answer, allow_nan=False))


@pytest.fixture
def shelf(tmp_path: Path) -> RunCollection:
    make_run(tmp_path / "run", groups=3)
    return RunCollection([tmp_path / "run"])


# --- numbers are those of the record ---------------------------------------------------------------------------------


def test_a_thousand_random_tokens_are_on_the_page_as_they_are_on_record(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=6, groups=10, siblings=4, replies=["a", "b", "c"])
    shelf = RunCollection([tmp_path])
    rng = np.random.default_rng(0)
    record = shelf.get("run").files
    compared = 0
    while compared < 1000:
        step = int(rng.integers(1, 7))
        names = [str(name) for name in record.tokens(step).rows.trajectory_ids]
        name = names[rng.integers(len(names))]
        told = ask(shelf, "episode", run="run", step=step, id=name)["tokens"]
        for place, token in enumerate(record.tokens(step).of(name)):
            if rng.random() < 0.5:
                continue
            shown = RecordedToken(step, token.trajectory, *(told[field][place] for field in RecordedToken._fields[2:]))
            rounded = [np.float32(value) if isinstance(value, float) else value for value in shown]
            assert rounded == list(token)
            compared += 1


def test_numbers_that_are_not_known_are_null(tmp_path: Path) -> None:
    make_run(tmp_path / "run", has_trace=False)
    told = ask(RunCollection([tmp_path]), "episode", run="run", step=2, id=NAME)["tokens"]
    assert told["has_trace"] is False
    known = [value for value, is_sampled in zip(told["entropy"], told["is_sampled"], strict=True) if is_sampled]
    assert set(known) == {None}


def test_curves_are_the_metrics_and_end_with_the_last_evaluation(shelf: RunCollection) -> None:
    told = ask(shelf, "metrics", run="run", names="rollout/success,learn/entropy,eval/success,nothing")
    assert told["steps"] == [1, 2, 3]
    assert told["columns"]["learn/entropy"] == [1.0, 0.5, 1 / 3]
    assert told["columns"]["eval/success"] == [None, None, 0.75]
    assert told["columns"]["nothing"] == [None] * 3


# --- credit ----------------------------------------------------------------------------------------------------------


def test_credit_under_every_rule_is_what_the_rule_says(shelf: RunCollection) -> None:
    told = ask(shelf, "credit", run="run", step=2, id=NAME)
    tokens = shelf.get("run").files.tokens(2)
    assert told["trained_with"] == "gae"
    assert told["rules"].keys() | told["left_out"].keys() == set(ADVANTAGE_ESTIMATORS)
    recorded = [token.advantage for token in tokens.of(NAME)]
    assert np.float32(told["rules"]["gae"]).tolist() == recorded
    rule: Any = ADVANTAGE_ESTIMATORS.find("grpo")
    samples = rule()(tokens.experiences(), tokens.annotations())
    (own,) = (sample for sample in samples if str(sample.experience.id.trajectory) == NAME)
    assert np.float32(told["rules"]["grpo"]).tolist() == own.advantages.tolist()
    assert "greedy" in told["left_out"]["remax"]


def test_rules_that_compare_siblings_are_left_out_where_there_are_none(tmp_path: Path) -> None:
    make_run(tmp_path / "run", siblings=1)
    told = ask(RunCollection([tmp_path]), "credit", run="run", step=2, id="2/frozen_lake/train/200/0")
    assert "played every task once" in told["left_out"]["grpo"]
    assert "reinforce" in told["rules"]


# --- episodes --------------------------------------------------------------------------------------------------------


def names(answer: dict[str, Any]) -> list[str]:
    return [row["id"] for row in answer["episodes"]]


def test_episodes_come_newest_first_page_by_page(shelf: RunCollection) -> None:
    first = ask(shelf, "episodes", run="run", limit=4)
    second = ask(shelf, "episodes", run="run", limit=4, offset=4)
    assert first["total"] == 18
    assert [row["step"] for row in first["episodes"]] == [3, 3, 3, 3]
    assert not set(names(first)) & set(names(second))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"step_from": 2, "step_to": 2}, 6),
        ({"success": 1}, 15),
        ({"success": 0}, 3),
        ({"stop": "max_turns"}, 3),
        ({"return_from": 0.5}, 15),
        ({"turns_from": 3}, 0),
        ({"tag": "frozen_lake"}, 18),
        ({"tag": "sokoban"}, 0),
        ({"is_eval": 1}, 0),
        ({"failed": 1}, 0),
        ({"invalid": 0}, 18),
        ({"id": "train/201/"}, 2),
        ({"text": "i WALK"}, 18),
        ({"text": "swim"}, 0),
    ],
)
def test_episodes_are_filtered(shelf: RunCollection, asked: dict[str, object], expected: int) -> None:
    found = ask(shelf, "episodes", run="run", limit=100, **asked)
    assert (found["total"], len(found["episodes"])) == (expected, expected)


def test_an_evaluation_before_the_first_step_is_no_result_of_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", has_ended=False)
    metrics = RunDirectory.open(run).metrics
    before = json.dumps({"step": 0, "time_s": 0.0, "eval/success": 0.5, "eval/return": 0.5}) + "\n"
    metrics.write_text(before + metrics.read_text())
    (told,) = ask(RunCollection([run]), "runs")["runs"]
    assert (told["success_before"], told["success_after"], told["return_after"]) == (0.5, None, None)
    with metrics.open("a") as file:
        file.write(json.dumps({"step": 4, "time_s": 9.0, "eval/success": 0.75, "eval/return": 0.75}) + "\n")
    (told,) = ask(RunCollection([run]), "runs")["runs"]
    assert (told["success_before"], told["success_after"], told["return_after"]) == (0.5, 0.75, 0.75)


def test_a_first_evaluation_that_said_nothing_is_not_replaced_by_a_later_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", has_ended=False)
    metrics = RunDirectory.open(run).metrics
    first = {"step": 0, "time_s": 0.0, "eval/success": None, "eval/return": None}
    later = {"step": 4, "time_s": 9.0, "eval/success": 0.3, "eval/return": 0.4}
    metrics.write_text(json.dumps(first) + "\n" + metrics.read_text() + json.dumps(later) + "\n")
    (told,) = ask(RunCollection([run]), "runs")["runs"]
    assert (told["success_before"], told["return_before"]) == (None, None)
    assert (told["success_after"], told["return_after"]) == (0.3, 0.4)


def test_what_nobody_said_about_success_stays_unknown(tmp_path: Path) -> None:
    forget_success(make_run(tmp_path / "run", groups=3))
    shelf = RunCollection([tmp_path / "run"])
    found = ask(shelf, "episodes", run="run", limit=100)
    assert {row["is_success"] for row in found["episodes"]} == {None}
    assert [ask(shelf, "episodes", run="run", success=said)["total"] for said in (-1, 0, 1)] == [18, 0, 0]
    assert ask(shelf, "episode", run="run", step=2, id=NAME)["is_success"] is None
    (told,) = ask(shelf, "runs")["runs"]
    assert (told["success_after"], told["success_now"]) == (None, None)
    assert (told["return_before"], told["return_after"], told["return_now"]) == (0.25, 0.75, 1.0)
    latest = ask(shelf, "status", run="run")["latest"]
    assert (latest["rollout/success"], latest["eval/success"], latest["eval/return"]) == (None, None, 0.75)


def test_free_text_is_found_in_what_was_said_and_not_in_packed_tokens_or_keys(tmp_path: Path) -> None:
    make_run(tmp_path / "run", replies=('Grüße \\ "quoted"',))
    shelf = RunCollection([tmp_path])
    for said in ("grüße", '"QUOTED"', "\\"):
        assert ask(shelf, "episodes", run="run", text=said)["total"] > 0
    for unsaid in ("eJ", "response_text", "segments"):
        assert ask(shelf, "episodes", run="run", text=unsaid)["total"] == 0


def test_a_question_that_is_none_is_refused_in_words(shelf: RunCollection) -> None:
    with pytest.raises(RunError, match="step_from: 'x' given; expected a number"):
        ask(shelf, "episodes", run="run", step_from="x")
    with pytest.raises(RunError, match="sort: 'id; drop table' given"):
        ask(shelf, "episodes", run="run", sort="id; drop table")
    with pytest.raises(RunError, match=r"there is no run 'rum' here\. Did you mean 'run'"):
        ask(shelf, "episodes", run="rum")
    with pytest.raises(RunError, match="step: '' given"):
        ask(shelf, "episode", run="run")


def test_a_number_that_no_table_can_hold_is_refused_like_one_that_is_none(shelf: RunCollection) -> None:
    for huge in ("9" * 25, "-" + "9" * 25):
        for name in ("step_from", "turns_to", "success"):
            with pytest.raises(RunError, match=f"{name}: '{huge}' given; expected a number"):
                ask(shelf, "episodes", run="run", **{name: huge})
        for name in ("offset", "limit"):
            with pytest.raises(RunError, match="offset and limit: expected numbers"):
                ask(shelf, "episodes", run="run", **{name: huge})
        for question in ("episode", "credit"):
            with pytest.raises(RunError, match=f"step: '{huge}' given; expected a number"):
                ask(shelf, question, run="run", step=huge, id=NAME)
    for asked in ({}, {"text": "walk"}):
        assert ask(shelf, "episodes", run="run", offset=2**63 - 1, **asked)["episodes"] == []


def test_new_steps_are_found_and_forgotten_ones_are_gone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", has_ended=False)
    shelf = RunCollection([tmp_path])
    mark = ask(shelf, "changes")["runs"]["run"]
    assert ask(shelf, "episodes", run="run")["total"] == 12
    add_step(RunDirectory.open(run), 4)
    assert ask(shelf, "episodes", run="run")["total"] == 16
    assert ask(shelf, "changes")["runs"]["run"] != mark
    RunDirectory.reopen(run, step=1)
    assert ask(shelf, "episodes", run="run")["total"] == 4
    make_run(tmp_path / "another")
    assert {told["name"] for told in ask(shelf, "runs")["runs"]} == {"run", "another"}


def test_an_episode_without_kept_text_is_put_together_from_its_tokens(shelf: RunCollection) -> None:
    directory = shelf.get("run").files.directory
    (directory.trajectories / "step-000002.jsonl").unlink()
    told = ask(shelf, "episode", run="run", step=2, id=NAME)
    assert told["is_text_kept"] is False
    assert len(told["turns"]) == 2
    assert [turn["reward"] for turn in told["turns"]] == [0.0, 1.0]
    with pytest.raises(RunError, match="neither as text nor in its learning record"):
        ask(shelf, "episode", run="run", step=2, id="2/frozen_lake/train/200/9")


def test_an_episode_without_a_record_shows_the_tokens_it_was_played_with(shelf: RunCollection) -> None:
    directory = shelf.get("run").files.directory
    learnt = ask(shelf, "episode", run="run", step=2, id=NAME)["tokens"]
    directory.learning_record.unlink()
    played = ask(RunCollection([directory.path]), "episode", run="run", step=2, id=NAME)["tokens"]
    assert (learnt["source"], played["source"]) == ("learning record", "episode")
    assert played["behavior_logprob"] == learnt["behavior_logprob"]
    assert "advantage" not in played


def test_runs_of_one_name_are_told_apart_when_one_of_them_comes_or_goes(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "seed0", tmp_path / "b" / "seed0"
    make_run(tmp_path / "a" / "seed1")
    make_run(second)
    shelf = RunCollection([tmp_path / "a", tmp_path / "b"])

    def named() -> dict[str, str]:
        told = ask(shelf, "runs")["runs"]
        assert all(ask(shelf, "status", run=run["name"])["run"] == run["path"] for run in told)
        return {run["path"]: run["name"] for run in told if "seed0" in run["path"]}

    assert named() == {str(second): "seed0"}
    make_run(first)
    assert named() == {str(first): "seed0", str(second): str(second)}
    shutil.rmtree(first)
    assert named() == {str(second): "seed0"}


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no run and has none in it"):
        RunCollection([tmp_path])
