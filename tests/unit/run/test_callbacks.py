"""A user's callbacks hear of every stage, add what they measure, and fail with their own line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import turnwise as tw
from turnwise.checks.setup import find_errors
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, LearnError
from turnwise.hooks import LogValue
from turnwise.loop.components import TrainerComponents
from turnwise.run import training_run as closing
from turnwise.run.api import train
from turnwise.types import Annotations, Batch, Experience, Group, Metrics, Sample, Trajectory

from ...small_run import SMALL_LAKE, without_plots

HEARD: list[tuple[str, int]] = []


class Listener(tw.Callback):
    """Writes down what it hears, in order."""

    def on_rollout(self, step: int, groups: Sequence[Group]) -> None:
        assert len(groups) == 3
        HEARD.append(("rollout", step))

    def on_batch(self, update: int, batch: Batch) -> None:
        assert batch.loss_mask.any()
        HEARD.append(("batch", update))

    def on_step(self, step: int, metrics: Metrics) -> Mapping[str, LogValue]:
        assert "learn/credit_target" in metrics
        assert "time/learn_s" in metrics
        HEARD.append(("step", step))
        return {"mine/number": step * 2.0, "mine/spread": np.arange(4), "mine/words": f"step {step}"}

    def on_eval(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        assert len(trajectories) == 5
        HEARD.append(("eval", step))

    def on_checkpoint(self, step: int, folder: Path) -> None:
        assert (folder / "policy").is_dir()
        HEARD.append(("checkpoint", step))

    def close(self) -> None:
        HEARD.append(("close", 0))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    HEARD.clear()
    without_plots(monkeypatch)


NAMED = "report.callbacks=[tests.unit.run.test_callbacks:Listener]"


def test_every_stage_is_heard_in_order(tmp_path: Path) -> None:
    words = [*SMALL_LAKE, NAMED, "eval.every=2", "report.tensorboard=true"]
    run = train("frozenlake", words, run_dir=tmp_path / "run")
    assert HEARD == [
        ("eval", 0),
        ("rollout", 1),
        ("batch", 1),
        ("step", 1),
        ("rollout", 2),
        ("batch", 2),
        ("eval", 2),
        ("step", 2),
        ("checkpoint", 2),
        ("eval", 2),
        ("close", 0),
    ]
    assert [row["mine/number"] for row in run.metrics() if row["step"] > 0] == [2.0, 4.0]
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert {"mine/spread", "rollout/returns", "learn/advantages"} <= set(events.Tags()["histograms"])
    assert events.Histograms("mine/spread")[0].histogram_value.num == 4
    assert events.Tensors("mine/words")[1].tensor_proto.string_val == [b"step 2"]
    assert b"return" in events.Tensors("rollout/episode")[0].tensor_proto.string_val[0]


BATCHES: list[int] = []


class SeesBatches(tw.Callback):
    def on_batch(self, update: int, batch: Batch) -> None:
        BATCHES.append(update)


ONE_STEP = [*SMALL_LAKE, "learn.steps=1", "eval.episodes=0", "warm_start.type=none"]
SEES_BATCHES = "report.callbacks=[tests.unit.run.test_callbacks:SeesBatches]"


class OwnRewards(tw.PPOTrainer):
    def reward_model_step(self, groups: list[Group]) -> list[Group]:
        def reward(trajectory: Trajectory) -> Trajectory:
            return replace(trajectory, turns=tuple(replace(turn, reward=7.0) for turn in trajectory.turns))

        return [replace(group, trajectories=tuple(map(reward, group.trajectories))) for group in groups]


class OwnCredit(tw.PPOTrainer):
    def compute_advantages(
        self, parts: TrainerComponents, experiences: Sequence[Experience], annotations: Annotations
    ) -> list[Sample]:
        samples = super().compute_advantages(parts, experiences, annotations)
        return [replace(sample, advantages=2 * sample.advantages) for sample in samples]


@pytest.mark.parametrize("trainer", [OwnRewards, OwnCredit])
def test_a_callback_for_batches_goes_with_a_trainer_that_overrides_a_stage(
    trainer: type[tw.PPOTrainer], tmp_path: Path
) -> None:
    BATCHES.clear()
    run = trainer("frozenlake", [*ONE_STEP, SEES_BATCHES], run_dir=tmp_path / "run").train()
    assert (run.summary.steps, BATCHES) == (1, [1])


def test_a_callback_for_batches_goes_with_a_loop_that_takes_no_stages(tmp_path: Path) -> None:
    BATCHES.clear()
    run = train("frozenlake", [*ONE_STEP, SEES_BATCHES, "loop.type=examples.plug_ins:plain_loop"], run_dir=tmp_path)
    assert (run.summary.steps, BATCHES) == (1, [1])


def test_callbacks_from_python_change_nothing_that_is_learnt(tmp_path: Path) -> None:
    plain = train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "plain")
    heard = train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "heard", callbacks=[Listener()])
    for one, two in zip(plain.metrics(), heard.metrics(), strict=True):
        learnt = [name for name in one if name.startswith("learn/")]
        assert [one[name] for name in learnt] == [two[name] for name in learnt]


class Clashing(tw.Callback):
    def on_step(self, step: int, metrics: Metrics) -> Mapping[str, LogValue]:
        return {"rollout/success": 1.0}


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LearnError, match="'rollout/success', which is a metric already"):
        train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "run", callbacks=[Clashing()])


def test_what_is_no_callback_is_refused_before_the_run() -> None:
    settings = load_settings("frozenlake", ["report.callbacks=[builtins:dict]"])
    assert any("is no turnwise.Callback" in refusal.message for refusal in find_errors(settings))
    settings = load_settings("frozenlake", ["report.callbacks=[not_there:Mine]"])
    assert any("'not_there' cannot be imported" in refusal.message for refusal in find_errors(settings))


CALLS = """
import turnwise as tw
class Mine(tw.Callback):
    def on_step(self, step, metrics):
        1 / 0
"""
LOSSES = """
class Mine:
    def __init__(self, settings):
        pass
    def __call__(self, *given):
        return missing
"""
RULES = """
class Mine:
    needs_values = needs_groups = needs_greedy = False
    def __init__(self, settings):
        pass
    def __call__(self, experiences, annotations):
        return [][0]
"""


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("calls", CALLS, ["report.callbacks=[{name}:Mine]"]),
        ("losses", LOSSES, ["learn.loss.type={name}:Mine"]),
        ("rules", RULES, ["credit={{type: '{name}:Mine'}}", "learn.critic.type=none"]),
    ],
)
def test_code_of_the_user_that_fails_is_one_message_with_file_and_line(
    name: str,
    source: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"own_{name}"
    (tmp_path / f"{module}.py").write_text(source)
    given = [word.format(name=module) for word in words]
    assert main(["train", "frozenlake", *SMALL_LAKE, "eval.episodes=0", *given]) == 1
    told = capsys.readouterr().err.strip().splitlines()
    assert told[-2].startswith(f"turnwise: your code failed: {tmp_path / module}.py:")
    line = len(source.splitlines())
    assert f".py:{line}, in " in told[-2]
    assert "Traceback" not in "\n".join(told)


def test_the_closing_words_repeat_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "run")
    directory = closing.RunDirectory.open(run.path)

    def again(*command: str) -> str:
        manifest = json.loads(directory.manifest.read_text())
        directory.manifest.write_text(json.dumps({**manifest, "command": list(command)}))
        return closing._train_words(run.settings, directory)

    typed = ("turnwise", "train", "frozenlake", "learn.steps=2", "run.seed=4", "--run-dir", "there", "env.size=[1, 2]")
    assert again(*typed) == "frozenlake learn.steps=2 'env.size=[1, 2]'"
    assert again("turnwise", "train", "x", "engine.key=***") == f"--config {directory.config}"
    assert again("pytest", "tests") == f"--config {directory.config}"


def test_old_runs_are_read_under_the_new_name(tmp_path: Path) -> None:
    run = train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "run")
    file = run.path / "metrics.jsonl"
    file.write_text(file.read_text().replace("learn/credit_target", "learn/mean_return"))
    assert all("learn/credit_target" in row for row in run.metrics() if row["step"] > 0)


def test_a_tracker_without_its_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    settings = load_settings("frozenlake", ["report.trackers=[wandb]"])
    (told,) = [refusal.message for refusal in find_errors(settings) if "wandb" in refusal.message]
    assert "pip install 'turnwise[wandb]'" in told
    with pytest.raises(ConfigError, match="there is no tracker named 'wandbb'"):
        raise ConfigError(find_errors(load_settings("frozenlake", ["report.trackers=[wandbb]"]))[0].message)


WRITTEN: list[tuple[int, Metrics]] = []


class OwnSink:
    @classmethod
    def open(cls, site: object) -> OwnSink:
        return cls()

    def write(self, step: int, metrics: Metrics) -> None:
        WRITTEN.append((step, metrics))
        if step == 2:
            raise OSError("the server is gone")

    def close(self) -> None:
        pass


def test_a_sink_of_the_users_own_gets_every_step_and_stops_nothing(tmp_path: Path) -> None:
    WRITTEN.clear()
    words = [*SMALL_LAKE, "report.trackers=[tests.unit.run.test_callbacks:OwnSink]", "learn.steps=3"]
    run = train("frozenlake", words, run_dir=tmp_path / "run")
    assert [step for step, _ in WRITTEN] == [0, 1, 2]
    assert "rollout/success" in WRITTEN[1][1]
    assert run.summary.steps == 3


def test_paths_below_the_working_directory_are_shown_as_they_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(closing.short_path(tmp_path / "runs" / "one")) == "runs/one"
    assert closing.short_path(tmp_path.parent / "other") == tmp_path.parent / "other"
