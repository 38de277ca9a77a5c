"""Runs whose rewards come from a judge: training, evaluation, yardsticks, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import turnwise as tw
from turnwise.checks.settings import check_settings, find_unused_settings
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, LearnError
from turnwise.loop.build import build_scorer, held_out_tasks, open_rollout
from turnwise.loop.evaluate import evaluate_scripted_policy, measure_baselines
from turnwise.loop.policies import resolve_model
from turnwise.report.trajectories import read_trajectories
from turnwise.run.api import Run, train

from ...small_run import SMALL, without_plots

RECIPE = {
    "env": {"type": "prompts"},
    "context": {"answer": {"type": "plain"}, "instructions": "none", "max_response_tokens": 6, "max_tokens": 64},
    "rollout": {"max_turns": 1},
    "credit": {"type": "grpo"},
}
FUNCTIONS = """
def length(prompt, response):
    return len(prompt) + len(response) / 100

def dear(prompt, response):
    return 3.0 if response.startswith("Dear") else -1.0

def picky(prompt, response):
    if "Mara" in prompt:
        raise LookupError("Mara is unknown")
    return 1.0

def broken(prompt, response):
    return float("nan")

def one(prompt):
    return 0.0

number = 7
"""


@pytest.fixture(autouse=True)
def functions(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "own_rewards.py").write_text(FUNCTIONS)
    (folder / "raises_rewards.py").write_text("raise ZeroDivisionError('at import')\n")
    monkeypatch.syspath_prepend(str(folder))


def by(function: str, *more: str) -> list[str]:
    return ["reward.judge.type=function", f"reward.judge.target=own_rewards:{function}", *more]


def small(path: Path, *overrides: str) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        return train(RECIPE, [*SMALL, "rollout.max_turns=1", *overrides], run_dir=path)


def test_a_run_is_judged_and_so_is_its_evaluation(tmp_path: Path) -> None:
    run = small(tmp_path / "a", *by("length", "reward.judge.success_above=30.1", "report.trajectories_per_step=6"))
    for step in (1, 2):
        for trajectory in read_trajectories(run.path / "trajectories" / f"step-{step:06d}.jsonl"):
            (turn,) = trajectory.turns
            assert turn.reward == pytest.approx(len(turn.observation) + len(turn.response_text) / 100)
            assert trajectory.is_success == (turn.reward > 30.1)
    again = tw.evaluate(run)
    rewards = [len(t.turns[0].observation) + len(t.turns[0].response_text) / 100 for t in again.trajectories]
    assert again.mean_return == pytest.approx(sum(rewards) / 5) == run.summary.return_after
    assert again.success == sum(reward > 30.1 for reward in rewards) / 5 == run.summary.success_after
    assert all(t.task.split == "eval" for t in again.trajectories)


def test_an_episode_that_cannot_be_scored_does_not_stop_the_run(tmp_path: Path) -> None:
    run = small(tmp_path / "a", *by("picky", "rollout.groups=20", "report.trajectories_per_step=40"))
    played = read_trajectories(run.path / "trajectories" / "step-000001.jsonl")
    failed = [t for t in played if t.stop_reason.is_error]
    assert {t.id for t in failed} == {t.id for t in played if "Mara" in t.turns[0].observation}
    assert failed
    assert "picky(" in failed[0].failure
    assert "LookupError: Mara is unknown" in failed[0].failure
    assert run.metrics()[1]["rollout/errors"] == len(failed) / 40


def test_a_judge_that_never_answers_stops_the_run_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(LearnError, match=r"no episode of step 1 can be learnt from.*reward\.judge: .* nan"):
        small(tmp_path / "a", *by("broken"))


def test_yardsticks_are_judged_too() -> None:
    settings = load_settings(RECIPE, [*by("dear"), "eval.episodes=40"])
    tasks = held_out_tasks(settings)
    played = evaluate_scripted_policy(settings, "oracle", tasks, build_scorer(settings))
    success, mean_return = played.success, played.mean_return
    assert 0 < success < 1
    assert mean_return == pytest.approx(3 * success - (1 - success))
    rollout = open_rollout(settings, resolve_model(settings))
    assert measure_baselines(settings, tasks, rollout.scoring) == {"oracle": success}


def test_the_border_of_success_changes_the_run() -> None:
    for above, expected in (("-5", 1.0), ("5", 0.0)):
        settings = load_settings(RECIPE, [*by("dear"), f"reward.judge.success_above={above}", "eval.episodes=9"])
        assert (
            evaluate_scripted_policy(settings, "oracle", held_out_tasks(settings), build_scorer(settings)).success
            == expected
        )


# --- what is refused -------------------------------------------------------------------------------------------------

BOTH = r"reward\.judge\.type=function reward\.judge\.target=my_rewards:score.*reward\.judge\.type=model .*'tiny'"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], rf"env\.type 'prompts' gives no rewards of its own and reward\.judge\.type is 'none'\. .*{BOTH}"),
        (["reward.judge.type=model"], rf"reward\.judge\.path: nothing given; expected a reward model\. .*{BOTH}"),
        (by("length", "context.answer.type=answer"), r"context\.answer\.type: 'answer' given; .* Set it to 'plain'"),
        (by("nothing"), r"reward\.judge\.target: 'own_rewards:nothing'.* has no 'nothing'"),
        (by("number"), r"reward\.judge\.target: 'own_rewards:number' is 7, which cannot be called; expected"),
        (by("one"), r"reward\.judge\.target: 'own_rewards:one' cannot be called so .*takes \(prompt, response\)"),
        (by("x", "reward.judge.target=score"), r"reward\.judge\.target: 'score' given; expected 'package"),
        (by("x", "reward.judge.target=not_there:f"), r"reward\.judge\.target: .*'not_there' cannot be imported"),
        (by("x", "reward.judge.target=raises_rewards:f"), r"reward\.judge\.target: .*ZeroDivisionError: at import"),
    ],
)
def test_rewards_from_nowhere_are_refused(overrides: list[str], words: str) -> None:
    settings = load_settings(RECIPE, overrides)
    with pytest.raises(ConfigError, match=words):
        check_settings(settings)
    # Commands that do not check a whole recipe refuse it in the same words.
    with pytest.raises(ConfigError, match=words):
        evaluate_scripted_policy(settings, "oracle", held_out_tasks(settings), build_scorer(settings))


def test_a_judge_that_is_never_asked_is_refused() -> None:
    recipe = {"env": {"type": "bandit"}, "credit": {"type": "grpo"}}
    settings = load_settings(recipe, by("length", "reward.judge.beside_env=leave"))
    with pytest.raises(ConfigError, match=r"env\.type 'bandit' gives rewards of its own, so the judge is never asked"):
        check_settings(settings)
    check_settings(load_settings(recipe, by("length")))


@pytest.mark.parametrize("overrides", [by("length"), ["reward.judge.type=model", "reward.judge.path=owner/name"]])
def test_judged_prompts_pass_without_notes(overrides: list[str]) -> None:
    settings = load_settings(RECIPE, overrides)
    check_settings(settings)
    assert find_unused_settings(settings) == []


def test_the_built_in_judge_knows_the_built_in_prompts_only() -> None:
    tiny = ["reward.judge.type=model", "reward.judge.path=tiny"]
    (note,) = find_unused_settings(load_settings(RECIPE, [*tiny, "env.path=mine.txt"]))
    assert "reward.judge.path 'tiny'" in note
    assert find_unused_settings(load_settings(RECIPE, tiny)) == []
    assert find_unused_settings(load_settings(RECIPE, ["env.path=mine.txt", *by("length")])) == []
