"""Runs with a learning record: it says what was trained, changes nothing, and outlives a kill."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnwise as tw
from tests.unit.run.test_run import Killed, same_weights, untimed
from turnwise.errors import RunError
from turnwise.learn.losses import PpoClip
from turnwise.learn.trainer import Trainer
from turnwise.report.trajectories import read_trajectories
from turnwise.run import run_recorder as recording
from turnwise.run.api import Run, resume, train
from turnwise.types import Batch, StepReport

from ...small_run import SMALL_LAKE, without_plots

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


def small(path: Path, *overrides: str) -> Run:
    return train("frozenlake", [*SMALL_LAKE, *overrides], run_dir=path)


def record(run: Run) -> bytes:
    return (run.path / "learning_record.bin").read_bytes()


def test_the_record_is_what_the_learner_was_given_and_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[Batch, StepReport]] = []
    plain = Trainer.step

    def note(self: Trainer, batch: Batch) -> StepReport:
        report = plain(self, batch)
        steps.append((batch, report))
        return report

    monkeypatch.setattr(Trainer, "step", note)
    run = tw.open_run(str(small(tmp_path / "run").path))
    assert run.recorded_steps() == [1, 2]
    for step, (batch, report) in enumerate(steps, start=1):
        tokens = run.tokens(step=step)
        assert (tokens.policy_version, tokens.is_complete) == (report.policy_version, True)
        for name in ("token_ids", "loss_mask", "turn_ids", "behavior_logprobs", "advantages", "returns", "values"):
            np.testing.assert_array_equal(getattr(tokens.batch, name), getattr(batch, name))
        assert tokens.has_values
        assert not tokens.has_reference
        assert report.trace is not None
        assert tokens.trace is not None
        for name in ("proximal_logprobs", "first_ratios", "last_ratios", "entropies", "is_clipped", "proximal_steps"):
            np.testing.assert_array_equal(getattr(tokens.trace, name), getattr(report.trace, name))
        metrics = run.metrics()[step]
        assert metrics["learn/action_tokens"] == sum(token.is_sampled for token in tokens)
    with pytest.raises(RunError, match=r"has no step 3; it has steps 1 to 2\."):
        run.tokens(3)
    with pytest.raises(RunError, match="is not a run"):
        tw.open_run(tmp_path / "elsewhere")


def test_tokens_say_which_play_and_which_policy_they_come_from(tmp_path: Path) -> None:
    run = small(tmp_path / "run", "report.trajectories_per_step=6")
    played = read_trajectories(run.path / "trajectories" / "step-000002.jsonl")
    tokens = run.tokens(2)
    assert {token.trajectory for token in tokens} == {play.id for play in played}
    for play in played:
        for turn in play.turns:
            said, segment = tokens.of(play.id, turn=turn.index), play.segments[turn.segment_index]
            at = np.flatnonzero(segment.turn_ids == turn.index)
            assert [token.position for token in said] == at.tolist() != []
            assert [token.token_id for token in said] == segment.token_ids[at].tolist()
            assert [token.behavior_logprob for token in said] == segment.behavior_logprobs[at].tolist()
            assert {token.policy_version for token in said} == {turn.policy_version} == {1}
            assert {token.raw_reward for token in said} == {turn.reward}
            assert {token.turn_reward for token in said} == {np.float32(turn.reward + turn.penalty)}


def test_the_sampling_policy_is_the_current_one_and_moves_with_the_epochs(tmp_path: Path) -> None:
    run = small(tmp_path / "run", "learn.minibatches=1", "learn.epochs=2", "learn.loss.clip_high=0.001")
    tokens = [token for token in run.tokens(2) if token.is_sampled]
    assert max(abs(token.first_ratio - 1) for token in tokens) < 1e-3
    assert max(abs(token.last_ratio - 1) for token in tokens) > 0.01
    rule = PpoClip(clip_high=0.001)
    for token in tokens:
        is_above = token.advantage > 0 and token.last_ratio > 1 + rule.clip_high
        is_below = token.advantage < 0 and token.last_ratio < 1 - rule.clip_low
        assert token.is_clipped == (is_above or is_below)
    assert any(token.is_clipped for token in tokens)


def test_a_run_is_the_same_with_and_without_a_record(tmp_path: Path) -> None:
    with_record, without = small(tmp_path / "a", "report.tokens=all"), small(tmp_path / "b", "report.tokens=none")
    assert untimed(with_record) == untimed(without)
    assert same_weights(with_record, without)
    assert not list(without.path.glob("learning_record*"))
    with pytest.raises(RunError, match=r"there is no learning record .*report\.tokens is 'none'"):
        without.tokens(1)


def test_report_tokens_bounds_what_is_written(tmp_path: Path) -> None:
    everything, default = small(tmp_path / "a", "report.tokens=all"), small(tmp_path / "b")
    assert record(everything) == record(default)
    bounded = small(tmp_path / "c", "report.tokens=40")
    whole, some = everything.tokens(1), bounded.tokens(1)
    assert (whole.is_complete, some.is_complete) == (True, False)
    assert 0 < len(some) <= 40 < len(whole) == some.num_trained_tokens
    assert some.num_trained_rows == whole.batch.num_rows
    kept = {token.trajectory for token in some}
    assert [t for t in whole if t.trajectory in kept] == list(some)


def test_a_learner_that_does_not_tell_is_recorded_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Trainer.step

    def silent(self: Trainer, batch: Batch) -> StepReport:
        report = plain(self, batch)
        return StepReport(policy_version=report.policy_version, metrics=report.metrics)

    monkeypatch.setattr(Trainer, "step", silent)
    tokens = small(tmp_path / "run").tokens(1)
    assert tokens.trace is None
    assert any(token.advantage for token in tokens)


def test_a_killed_run_has_the_record_of_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["learn.steps=4", "report.checkpoint_every=2"]
    straight = small(tmp_path / "straight", *words)
    plain = recording.ProgressDisplay.update

    def kill_in_step_3(self: Any, step: int, *rest: Any) -> None:
        plain(self, step, *rest)
        if step == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(recording.ProgressDisplay, "update", kill_in_step_3)
        with pytest.raises(Killed):
            small(tmp_path / "killed", *words)
    killed = Run(tmp_path / "killed")
    assert killed.recorded_steps() == [1, 2, 3]
    with (killed.path / "learning_record.bin").open("ab") as file:
        file.write(record(straight)[:1000])  # as if it had been killed while writing
    assert record(resume(killed.path)) == record(straight)


def test_the_example_of_the_docs_prints_a_trajectory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "token_log.md").read_text()
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)[:2]
    run = small(tmp_path / "run")
    exec(re.sub(r'"runs/.*?"', repr(str(run.path)), code).replace("step=3", "step=2"), {})
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"2/frozen_lake/train/\d+/\d", printed[0])
    assert printed[1] == shown.splitlines()[1]
    assert len(printed) > 2
    assert all(re.match(r" +\d+  '.+' +-?\d\.\d\d +-?\d\.\d{3} ", line) for line in printed[2:])


@pytest.mark.parametrize("more", [["loop.type=pipelined"], ["loop.type=pipelined", "sync.max_staleness=1"]])
def test_the_pipelined_loop_keeps_a_record(tmp_path: Path, more: list[str]) -> None:
    run = small(tmp_path / "run", *more)
    assert run.recorded_steps() == [1, 2]
    assert run.tokens(2).num_trained_tokens == run.metrics()[2]["learn/tokens"]


def test_a_trainer_alone_keeps_a_record(tmp_path: Path) -> None:
    words = ["buffer.type=sqlite", "sync.method=checkpoint"]
    small(tmp_path / "run", *words, "run.mode=explore")
    run = Run(tmp_path / "run")
    assert not list(run.path.glob("learning_record*"))
    small(tmp_path / "run", *words, "run.mode=train")
    assert run.recorded_steps() == [row["step"] for row in run.metrics()[1:]] != []
    # All was explored before the first update.
    assert {token.policy_version for token in run.tokens(1)} == {0}


def test_the_price_of_leaving_the_reference_is_on_record(tmp_path: Path) -> None:
    run = small(tmp_path / "run", "learn.kl={type: reward, coef: 0.1}")
    tokens = run.tokens(2)
    assert tokens.has_reference
    assert tokens.token_penalties is not None
    assert np.abs(tokens.token_penalties).max() > 0
    samples = run.settings.credit(tokens.experiences(), tokens.annotations())
    for sample, learnt in zip(samples, tokens.samples(), strict=True):
        np.testing.assert_array_equal(sample.advantages, learnt.advantages)
