"""Training for real, in small: the same seed, another seed, an interrupted run, and settings of the loop."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from turnwise.config.kinds import LoopSettings
from turnwise.errors import ConfigError, LearnError, ModelError, RunError
from turnwise.learn.trainer import Trainer
from turnwise.loop import step as stages
from turnwise.report.run_dir import TIME_SECTIONS
from turnwise.report.trajectories import read_trajectories
from turnwise.run import run_recorder as recording
from turnwise.run.api import Run, evaluate, resume, train

from ...small_run import SMALL_LAKE, without_plots

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.policy / "model.safetensors")


def same_weights(a: Run, b: Run) -> bool:
    first, second = weights(a), weights(b)
    return all(torch.equal(first[name], second[name]) for name in first)


def untimed(run: Run) -> list[dict[str, float]]:
    return [
        {k: v for k, v in row.items() if not k.startswith("time") and k != "rollout/tokens_per_s"}
        for row in run.metrics()
    ]


def small(tmp_path: Path, name: str, *overrides: str) -> Run:
    return train("frozenlake", [*SMALL_LAKE, *overrides], run_dir=tmp_path / name)


# --- the same again --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path: Path) -> None:
    first, again = small(tmp_path, "a"), small(tmp_path, "b")
    assert untimed(first) == untimed(again)
    assert same_weights(first, again)
    other = small(tmp_path, "c", "run.seed=1")
    assert untimed(first) != untimed(other)
    assert not same_weights(first, other)


class Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["value_head", "model", "full_window", "lora"])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    more = ["learn.steps=4", "report.checkpoint_every=2", "eval.every=1"]
    recipe: Any = "frozenlake"
    if kind in ("model", "lora"):
        (tmp_path / "model.yaml").write_text(
            "env: {type: frozen_lake, view: objects}\n"
            "context: {window: single_turn, instructions: none, max_response_tokens: 5, max_tokens: 64}\n"
            "learn: {critic: {type: model, lr: 1e-3}, kl: {type: loss}, optim: {lr: 1e-3, schedule: linear}}\n"
            "warm_start: {type: oracle}\n"
        )
        recipe = str(tmp_path / "model.yaml")
    if kind == "lora":
        more += ["model.lora.type=lora", "model.dtype=bfloat16"]
    if kind == "full_window":
        more += ["context.window=full", "context.max_tokens=128"]
    straight = train(recipe, [*SMALL_LAKE, *more], run_dir=tmp_path / "straight")

    plain = recording.ProgressDisplay.update

    def kill_in_step_3(self: Any, step: int, *rest: Any) -> None:
        plain(self, step, *rest)
        if step == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(recording.ProgressDisplay, "update", kill_in_step_3)
        with pytest.raises(Killed):
            train(recipe, [*SMALL_LAKE, *more], run_dir=tmp_path / "killed")
    killed = Run(tmp_path / "killed")
    assert [row["step"] for row in killed.metrics()] == [0, 1, 2, 3]  # step 3 was written and will be forgotten
    with pytest.raises(RunError, match=r"no summary\.json"):
        _ = killed.summary

    resumed = resume(tmp_path / "killed")
    assert [row["step"] for row in resumed.metrics()] == [0, 1, 2, 3, 4]
    assert untimed(resumed) == untimed(straight)
    assert same_weights(resumed, straight)
    for name in ("steps", "success_before", "return_before", "success_after", "return_after", "tokens_sampled"):
        assert getattr(resumed.summary, name) == getattr(straight.summary, name)
    assert resumed.summary.tokens_trained == straight.summary.tokens_trained
    assert resumed.summary.policy_version == straight.summary.policy_version
    for step in (1, 2, 3, 4):
        a, b = (read_trajectories(r.path / "trajectories" / f"step-{step:06d}.jsonl") for r in (resumed, straight))
        assert [str(t.id) for t in a] == [str(t.id) for t in b]


def test_the_summary_of_a_resumed_run_begins_where_the_run_began(tmp_path: Path) -> None:
    """An untrained policy and a trained one may score the same, so the record is marked."""
    run = small(tmp_path, "a", "report.checkpoint_every=1")
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    rows[0] |= {"eval/success": 0.375, "eval/return": -0.25}
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.rmtree(run.path / "checkpoints" / "step-000002")
    first, summary = run.summary, resume(run.path).summary
    assert (summary.success_before, summary.return_before) == (0.375, -0.25)
    assert summary.steps == 2
    assert summary.warm_start == first.warm_start
    assert summary.baselines["warm_start"] == 0.375
    # The clock goes on as well: the time before the checkpoint is part of the run.
    state = json.loads((run.path / "checkpoints" / "step-000001" / "progress.json").read_text())
    assert summary.wall_s > state["wall_s"] > 0
    times = [row["time_s"] for row in run.metrics()]
    assert times == sorted(times)


def test_a_run_of_no_steps_can_be_resumed(tmp_path: Path) -> None:
    run = small(tmp_path, "a", "learn.steps=0")
    before = run.summary
    assert resume(run.path).summary.success_after == before.success_after


def test_a_run_without_a_checkpoint_has_no_policy_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LearnError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", fail)
        with pytest.raises(LearnError, match="on purpose"):
            small(tmp_path, "a")
    with pytest.raises(RunError, match=r"has no checkpoint yet"):
        evaluate(tmp_path / "a")


@pytest.mark.parametrize(
    "file", ["learner.json", "progress.json", "optimizer.pt", "critic.safetensors", "policy/model.safetensors"]
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, finished: Run, file: str) -> None:
    shutil.copytree(finished.path, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-000002" / file).write_bytes(b"garbage")
    with pytest.raises((RunError, ModelError)) as caught:
        resume(tmp_path / "run")
    assert "step-000002" in str(caught.value)


# --- settings of the loop --------------------------------------------------------------------------------------------


def test_checkpoint_every_and_trajectories_per_step_and_tensorboard(tmp_path: Path) -> None:
    run = small(tmp_path, "a", "report.checkpoint_every=1", "report.trajectories_per_step=2", "report.tensorboard=true")
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["step-000001", "step-000002"]
    assert len(read_trajectories(run.path / "trajectories" / "step-000001.jsonl")) == 2
    assert (run.path / "tensorboard").is_dir()
    bare = small(tmp_path, "b", "report.trajectories_per_step=0")
    assert sorted(p.name for p in (bare.path / "checkpoints").iterdir()) == ["step-000002"]
    assert not list((bare.path / "trajectories").glob("step-*"))
    assert not (bare.path / "tensorboard").exists()


def test_no_steps_is_an_evaluation_with_a_checkpoint(tmp_path: Path) -> None:
    run = small(tmp_path, "a", "learn.steps=0")
    assert (run.summary.steps, run.summary.policy_version) == (0, 0)
    assert run.summary.success_before == run.summary.success_after
    assert run.policy.parent.name == "step-000000"


def test_what_does_not_fit_into_an_update_is_kept(tmp_path: Path) -> None:
    run = small(tmp_path, "a", "buffer.train_batch_size=7")
    left = [row["buffer/experiences_left"] for row in run.metrics()[1:]]
    trained = [row["learn/rows"] for row in run.metrics()[1:]]
    assert all(rows <= 7 for rows in trained)
    assert left[0] > 0
    whole = small(tmp_path, "b")
    assert [row["buffer/experiences_left"] for row in whole.metrics()[1:]] == [0, 0]


def test_the_policy_that_is_evaluated_in_the_end_is_the_one_that_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are published every two steps; the third step's must still reach the last evaluation."""
    versions: list[int] = []
    plain = stages.evaluate_policy

    async def watch(rollout: Any, *rest: Any) -> Any:
        versions.append(rollout.engine.policy_version)
        return await plain(rollout, *rest)

    monkeypatch.setattr(stages, "evaluate_policy", watch)
    run = small(tmp_path, "a", "learn.steps=3", "sync.interval=2")
    assert versions == [0, run.summary.policy_version] == [0, 3]


def test_sync_interval_decides_which_policy_plays(tmp_path: Path) -> None:
    run = small(tmp_path, "a", "learn.steps=4", "sync.interval=2")
    files = [run.path / "trajectories" / f"step-{step:06d}.jsonl" for step in (1, 2, 3, 4)]
    assert [read_trajectories(f)[0].turns[0].policy_version for f in files] == [0, 0, 2, 2]


def test_threads_are_set_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    small(tmp_path, "a", "learn.steps=0")
    assert asked == []
    small(tmp_path, "b", "learn.steps=0", "learn.num_threads=1")
    assert asked == [1]


def test_seeds_of_tasks(tmp_path: Path) -> None:
    run = small(tmp_path, "a", "rollout.first_seed=500", "eval.first_seed=70", "report.trajectories_per_step=6")
    seeds = [
        t.task.seed for step in (1, 2) for t in read_trajectories(run.path / "trajectories" / f"step-{step:06d}.jsonl")
    ]
    assert seeds == [500, 500, 501, 501, 502, 502, 503, 503, 504, 504, 505, 505]
    evaluated = read_trajectories(run.path / "trajectories" / "eval" / "step-000002.jsonl")
    assert [t.task.seed for t in evaluated] == [70, 71, 72, 73, 74]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "rollout.temperature=0.5",
        "rollout.invalid_penalty=-0.7",
        "rollout.max_turns=2",
        "rollout.max_actions=1",
        "context.instructions=full",
        "context.answer.type=plain",
        "context.max_response_tokens=3",
        "context.system_prompt=Move",
        "context.answer.forced_prefix=''",
        "credit.high_level_gamma=0.5",
        "learn.loss.clip_low=0.01",
        "learn.entropy_coef=0.5",
        "warm_start.lr=0.05",
        "warm_start.batch_rows=1",
        "warm_start.episodes=3",
        "env.train.random_start_rate=1.0",
        "model.tiny.num_layers=2",
        "model.lora.type=lora",
        "model.dtype=bfloat16",
    ],
)
def test_a_setting_changes_the_run(tmp_path: Path, base: Run, change: str) -> None:
    more = ["context.max_tokens=400"] if "context" in change else []
    changed = small(tmp_path, "a", "report.trajectories_per_step=0", *more, change)
    assert untimed(changed) != untimed(base)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "engine.max_rows=2",
        "learn.micro_batch_tokens=40",
        "context.max_tokens=400",
        "model.gradient_checkpointing=true",
    ],
)
def test_a_setting_that_is_about_speed_or_memory_does_not_change_what_is_played(
    tmp_path: Path, base: Run, change: str
) -> None:
    changed = small(tmp_path, "a", "report.trajectories_per_step=0", change)
    for row, other in zip(untimed(base), untimed(changed), strict=True):
        # A digest tells of the last bit, which the order of sums may change.
        row.pop("audit/weights", None), other.pop("audit/weights", None)
        assert row == pytest.approx(other, abs=1e-4)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        return small(tmp_path_factory.mktemp("base"), "base", "report.trajectories_per_step=0")


def test_eval_temperature_changes_what_is_played(tmp_path: Path, base: Run) -> None:
    hot = small(tmp_path, "a", "eval.temperature=1.0")
    replies = []
    for run in (base, hot):
        trajectories = read_trajectories(run.path / "trajectories" / "eval" / "step-000002.jsonl")
        replies.append([turn.response_text for t in trajectories for turn in t.turns])
    assert replies[0] != replies[1]


@pytest.mark.parametrize(
    ("changes", "default_tolerance"),
    [
        (["model.lora.type=lora", "learn.kl.type=loss"], 1e-4),
        (["model.dtype=bfloat16"], 0.05),
    ],
)
def test_the_engine_plays_the_policy_that_is_trained(
    tmp_path: Path, changes: list[str], default_tolerance: float
) -> None:
    run = small(tmp_path, "a", "learn.steps=3", *changes)
    gaps = [row["learn/behavior_gap"] for row in run.metrics()[1:]]
    assert len(gaps) == 3
    assert 0 < max(gaps) < default_tolerance
    saved = AutoModelForCausalLM.from_pretrained(run.policy)
    assert not any("lora" in name for name in saved.state_dict())
    assert all(p.dtype == torch.float32 for p in saved.parameters())
    assert evaluate(run, 5).success == run.summary.success_after


def test_a_run_says_first_what_is_loaded(tmp_path: Path) -> None:
    console = Console(record=True, width=400, file=io.StringIO())
    train("frozenlake", [*SMALL_LAKE, "learn.steps=0"], run_dir=tmp_path / "a", console=console)
    text = console.export_text()
    assert "models: actor" in text
    assert "reference (learn.kl is none), critic (learn.critic is value_head" in text


@pytest.mark.parametrize("tensorboard", [True, False])
def test_the_panel_names_the_tensorboard_folder_only_if_it_exists(tmp_path: Path, tensorboard: bool) -> None:
    console = Console(record=True, width=400, file=io.StringIO())
    words = [*SMALL_LAKE, "learn.steps=0", f"report.tensorboard={str(tensorboard).lower()}"]
    run = train("frozenlake", words, run_dir=tmp_path / "a", console=console)
    assert ("tensorboard --logdir" in console.export_text()) is tensorboard
    assert any(run.path.glob("tensorboard*")) is tensorboard


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_episodes_that_cannot_even_begin_stop_the_run_with_a_reason(tmp_path: Path) -> None:
    too_short = [word for word in SMALL_LAKE if not word.startswith("warm_start")]
    too_short += ["context.max_tokens=6", "context.max_response_tokens=5"]
    recipe = {"env": {"type": "frozen_lake"}, "credit": {"type": "grpo"}}
    with pytest.raises(LearnError, match=r"no episode of step 1 can be learnt from.*context\.max_tokens"):
        train(recipe, too_short, run_dir=tmp_path / "a")
    with pytest.raises(LearnError, match=r"no demonstration"):
        train({**recipe, "warm_start": {"type": "oracle"}}, too_short, run_dir=tmp_path / "b")


def test_an_environment_without_an_oracle_cannot_be_imitated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "coin_env.py").write_text(
        "from turnwise.config.settings import Settings\n"
        "from turnwise.envs.base import BaseEnv\n"
        "class P(Settings):\n    pass\n"
        "class Coin(BaseEnv):\n"
        "    Params = P\n"
        "    action_names = ('heads', 'tails')\n"
        "    def reset(self, seed=None, *, split='train', dynamics_seed=None):\n        return 'toss'\n"
        "    def step(self, action):\n"
        "        return 'done', float(action == 'heads'), True, {'success': action == 'heads'}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = {
        "env": {"type": "coin_env:Coin"},
        "credit": {"type": "grpo"},
        "context": {"max_response_tokens": 5, "max_tokens": 200},
    }
    overrides = [word for word in SMALL_LAKE if not word.startswith("warm_start")]
    run = train(recipe, overrides, run_dir=tmp_path / "plugin")
    assert run.summary.env == "coin_env:Coin"
    assert run.summary.steps == 2
    with pytest.raises(ConfigError, match=r"warm_start.type is 'oracle' and 'coin_env:Coin' has no oracle"):
        train(recipe, [*overrides, "warm_start.type=oracle"], run_dir=tmp_path / "b")


def test_training_works_where_an_event_loop_is_running(tmp_path: Path) -> None:
    async def notebook() -> Run:
        return small(tmp_path, "a", "learn.steps=0")

    assert asyncio.run(notebook()).summary.steps == 0


def test_a_new_run_goes_under_the_root(tmp_path: Path) -> None:
    run = train("frozenlake", [*SMALL_LAKE, "learn.steps=0", f"run.root={tmp_path / 'here'}"])
    assert run.path.parent == tmp_path / "here"
    assert run.path.name.startswith("frozenlake-")


def test_an_existing_run_is_not_overwritten(finished: Run) -> None:
    before = (finished.path / "metrics.jsonl").read_text()
    with pytest.raises(RunError, match="already holds a run"):
        train("frozenlake", SMALL_LAKE, run_dir=finished.path)
    assert (finished.path / "metrics.jsonl").read_text() == before


def test_tokens_per_second_of_a_loop_of_ones_own_are_those_of_the_whole_step(tmp_path: Path) -> None:
    """It opens no sections of the stopwatch, so that rollouts have taken no time by their own account."""
    words = [*SMALL_LAKE, "learn.steps=1", "eval.episodes=0", "warm_start.type=none"]
    run = train("frozenlake", [*words, "loop.type=examples.plug_ins:plain_loop"], run_dir=tmp_path)
    (row,) = [row for row in run.metrics() if row["step"] == 1]
    spent = sum(row[f"time/{name}_s"] for name in TIME_SECTIONS)
    sampled = run.summary.tokens_sampled
    assert row["rollout/tokens_per_s"] == pytest.approx(sampled / spent)


def test_a_loop_of_ones_own_may_play_while_it_learns() -> None:
    in_turns = {name: LoopSettings(type=name).is_in_turns for name in ("serial", "pipelined", "mine:loop")}
    assert in_turns == {"serial": True, "pipelined": False, "mine:loop": False}
