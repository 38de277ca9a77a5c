"""Runs out of the box: a few lines of settings train for real, in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnwise.errors import LearnError
from turnwise.report.statistics import wilson_interval
from turnwise.run.api import Run, evaluate, train

from ..small_run import SMALL, without_plots

LAKE: dict[str, Any] = {"env": {"type": "frozen_lake"}}


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


def small(recipe: dict[str, Any], run_dir: Path, *overrides: str) -> Run:
    return train(recipe, [*SMALL, *overrides], run_dir=run_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({}, "grpo"),
        ({"multi_turn": True, "use_reward_model": False, "use_reward_critic": False}, "grpo"),
        ({"use_reward_critic": True}, "gae"),
    ],
)
def test_an_environment_alone_trains(tmp_path: Path, more: dict[str, Any], rule: str) -> None:
    run = small({**LAKE, **more}, tmp_path / "run")
    assert run.settings.credit.type == rule
    assert [row["step"] for row in run.metrics()] == [0, 1, 2]
    assert run.summary.policy_version == 2


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, LAKE])
def test_one_turn_trains_with_an_environment_and_without(tmp_path: Path, more: dict[str, Any]) -> None:
    run = small({"multi_turn": False, **more}, tmp_path / "run", "rollout.max_turns=1")
    assert run.settings.credit.type == "gae"
    assert run.summary.policy_version == 2


@pytest.mark.slow
def test_an_environment_and_a_judge_together_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_scores.py").write_text("def score(prompt, response):\n    return 3.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    judge = "reward.judge={type: function, target: 'my_scores:score', weight: 0.5}"
    run = small(LAKE, tmp_path / "run", judge)
    assert run.summary.rewards["judge"] == 1.5
    for row in run.metrics()[1:]:
        assert row["reward/judge"] == 1.5
        assert row["rollout/return"] == pytest.approx(row["reward/env"] + 1.5)


@pytest.mark.slow
def test_a_judge_adds_to_what_a_workflow_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_flow.py").write_text(
        "from turnwise import StepWiseRewardWorkflow\n"
        "class Flow(StepWiseRewardWorkflow):\n"
        "    def step(self, step_num):\n"
        "        self.model.chat([{'role': 'user', 'content': 'hello'}])\n"
        "        return False\n"
        "    def reward(self, exps, step_num):\n"
        "        return 0.25\n"
        "def score(prompt, response):\n    return 3.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = {
        "env": {"type": "prompts"},
        "context": {"answer": {"type": "plain"}},
        "rollout": {"workflow": "my_flow:Flow"},
        "reward": {"judge": {"type": "function", "target": "my_flow:score"}},
    }
    rows = small(recipe, tmp_path / "run").metrics()
    assert [(row["reward/env"], row["reward/judge"]) for row in rows[1:]] == [(0.25, 3.0)] * 2


def write_counter(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """An environment of one turn that always succeeds, pays 2 and tells a number."""
    (folder / "counter_env.py").write_text(
        "from turnwise import BaseEnv\n"
        "class Counter(BaseEnv):\n"
        "    def reset(self, seed=None, *, split='train', dynamics_seed=None):\n"
        "        self.seed = seed\n"
        "        return 'count'\n"
        "    def step(self, action):\n"
        "        info = {'success': True, 'action_is_valid': True, 'action_is_effective': True}\n"
        "        return 'done', 2.0, True, {**info, 'seed': self.seed, 'metrics': {'weight': 0.5}}\n"
    )
    patch.syspath_prepend(str(folder))


@pytest.mark.slow
def test_all_environments_of_a_mix_are_evaluated_each_with_its_own_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_counter(tmp_path, monkeypatch)
    counter = {"groups": 2, "env": {"type": "counter_env:Counter"}, "context": {"answer": {"type": "plain"}}}
    run = small({**LAKE, "mix": {"counter": counter}}, tmp_path / "run", "learn.steps=1", "eval.episodes=4")
    first, last = run.metrics()
    for row in (first, last):
        of = "eval" if row is first else "rollout"
        assert row[f"{of}/success/counter"] == 1.0
        assert row[f"{of}/return/counter"] == 2.0
        assert {f"{of}/success/frozen_lake", f"{of}/return/frozen_lake"} <= row.keys()
    assert first["eval/env/counter/weight"] == last["env/counter/weight"] == 0.5
    assert first["eval/env/counter/seed"] == 1.5  # the mean of the tasks 0 to 3
    # Every episode counts the same.
    assert first["eval/success"] == pytest.approx((first["eval/success/frozen_lake"] + 1) / 2)
    summary = run.summary
    assert summary.eval_episodes == 8
    counter = dict(summary.envs["counter"])
    assert counter.pop("success_interval") == pytest.approx([0.510, 1.0], abs=1e-3)
    assert counter == {"episodes": 4, "success": 1.0, "return": 2.0, "seed": 1.5, "weight": 0.5}
    oracle = "oracle/frozen_lake"
    assert tuple(summary.baseline_intervals[oracle]) == wilson_interval(summary.baselines[oracle], 4)
    assert summary.envs["frozen_lake"]["episodes"] == 4
    assert "oracle/frozen_lake" in summary.baselines
    assert evaluate(run, 2).by_tag()["counter"].episodes == 2


@pytest.mark.slow
def test_shaped_rewards_are_learnt_from_and_raw_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_counter(tmp_path, monkeypatch)
    (tmp_path / "my_shaping.py").write_text(
        "def shape(turn):\n"
        "    assert turn.is_last and turn.is_success and turn.tag == 'counter_env:Counter'\n"
        "    return turn.reward - 0.5\n"
        "def broken(turn):\n    return 'much'\n"
    )
    recipe = {"env": {"type": "counter_env:Counter"}, "context": {"answer": {"type": "plain"}}}
    run = small(recipe, tmp_path / "run", "reward.shaping=my_shaping:shape", "rollout.invalid_penalty=0")
    for row in run.metrics()[1:]:
        assert (row["reward/raw"], row["reward/shaped"], row["rollout/return"]) == (2.0, 1.5, 2.0)
    sampled = run.tokens(1)
    assert set(sampled.turns.raw_rewards.tolist()) == {2.0}
    assert set(sampled.turns.turn_rewards.tolist()) == {1.5}
    with pytest.raises(LearnError, match=r"reward\.shaping: broken, at turn 0, returned 'much'"):
        small(recipe, tmp_path / "broken", "reward.shaping=my_shaping:broken")
