"""What a finished run leaves behind, and what can be done with it."""

from __future__ import annotations

import json

from transformers import AutoModelForCausalLM, AutoTokenizer

import turnwise as tw
from turnwise.config.load import load_settings
from turnwise.report.trajectories import read_trajectories

from ...small_run import SMALL_LAKE

PUBLIC_KEYS = [
    "recipe",
    "env",
    "seed",
    "steps",
    "wall_s",
    "setup_s",
    "success_before",
    "success_after",
    "return_before",
    "return_after",
    "eval_episodes",
    "baselines",
    "tokens_sampled",
    "tokens_trained",
    "time_split",
]
MORE_KEYS = ["policy_version", "warm_start", "findings", "stopped", "failures", "envs", "rewards"]
MORE_KEYS += ["success_before_interval", "success_after_interval", "baseline_intervals"]


def test_config_reloads_to_the_same_settings(finished: tw.Run) -> None:
    given = load_settings("frozenlake", [*SMALL_LAKE, "report.tensorboard=true", "eval.every=1"])
    assert finished.settings.model_dump() == given.model_dump()


def test_manifest(finished: tw.Run) -> None:
    manifest = json.loads((finished.path / "manifest.json").read_text())
    assert manifest["seeds"] == {"run": 0}
    assert manifest["recipe"] == "frozenlake"


def test_metrics_have_one_object_per_step(finished: tw.Run) -> None:
    rows = [json.loads(line) for line in (finished.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows == finished.metrics()
    for row in rows[1:]:
        names = {"rollout/success", "learn/policy_loss", "learn/lr", "buffer/experiences_left", "time/rollout_s"}
        assert names <= row.keys()
        assert all("/" in key for key in row.keys() - {"step", "time_s"})
    assert all({"eval/success", "eval/return"} <= row.keys() for row in rows)


def test_summary_has_exactly_the_public_keys(finished: tw.Run) -> None:
    summary = json.loads((finished.path / "summary.json").read_text())
    assert list(summary) == PUBLIC_KEYS + MORE_KEYS
    assert list(summary["time_split"]) == ["rollout", "env", "learn", "sync", "other"]
    assert {"random", "oracle", "warm_start"} <= summary["baselines"].keys()
    assert (summary["steps"], summary["eval_episodes"], summary["policy_version"]) == (2, 5, 2)
    assert summary["tokens_trained"] == 2 * summary["tokens_sampled"] > 0  # the recipe makes two epochs
    assert summary["warm_start"]["demonstrations"] == 6
    assert finished.summary.success_after == summary["success_after"]


def test_checkpoint_loads_in_transformers(finished: tw.Run) -> None:
    folder = finished.path / "checkpoints" / "step-000002" / "policy"
    assert finished.policy == folder
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.hidden_size == 16
    assert tokenizer.chat_template


def test_plots_trajectories_and_tensorboard_exist(finished: tw.Run) -> None:
    for name in ("learning_curve.png", "training_health.png"):
        assert (finished.path / "plots" / name).read_bytes().startswith(b"\x89PNG")
    for step in (1, 2):
        trajectories = read_trajectories(finished.path / "trajectories" / f"step-{step:06d}.jsonl")
        assert len(trajectories) == 4
        assert all(t.segments and t.turns for t in trajectories)
    assert len(read_trajectories(finished.path / "trajectories" / "eval" / "step-000002.jsonl")) == 5
    assert list((finished.path / "tensorboard").iterdir())


def test_evaluation_repeats_itself_and_equals_the_run(finished: tw.Run) -> None:
    first, again = (tw.evaluate(finished, episodes=20) for _ in range(2))
    assert first.episodes == 20
    assert first.env == "frozen_lake"

    def played(report: object) -> list[tuple[str, str]]:
        return [(str(t.id), t.turns[0].response_text) for t in report.trajectories]  # type: ignore[attr-defined]

    assert played(first) == played(again)
    assert (first.success, first.mean_return) == (again.success, again.mean_return)
    as_in_run = tw.evaluate(str(finished.path))
    assert (as_in_run.episodes, as_in_run.success) == (5, finished.summary.success_after)
    assert as_in_run.mean_return == finished.summary.return_after


def test_a_model_folder_is_evaluated_in_the_setting_of_a_recipe(finished: tw.Run) -> None:
    report = tw.evaluate(finished.policy, episodes=3, recipe="frozenlake")
    assert report.episodes == 3
    assert report.trajectories[0].task.split == "eval"
