"""Whom a run meets: drawn by the seed, from what was saved before, and never somebody who is still changing."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.setting import model_path
from tests.small_run import SMALL, without_plots
from tests.unit.rollout.test_self_play import TRAIN
from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, SyncError
from turnwise.infra.atomic_files import write_checksums
from turnwise.loop.frozen_opponents import RunOpponentPool
from turnwise.models.load import load_model
from turnwise.report.run_dir import step_name
from turnwise.report.trajectories import read_trajectories
from turnwise.run.api import Run, resume, train
from turnwise.run.replay import replay
from turnwise.types import Message, Task

TASKS = [Task(tag="nim:Nim", seed=seed) for seed in range(24)]


def league(**args: Any) -> dict[str, Any]:
    return {
        "env": {"type": "nim:Nim"},
        "rollout": {"workflow": "league", "group_size": 4, "workflow_args": args},
        "credit": {"type": "grpo"},
        "report": {"checkpoint_every": 2},
    }


def settings_of(*choices: str, **args: Any) -> TurnwiseSettings:
    return load_settings(league(**args), list(choices))


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Puts checkpoints into a run's directory."""

    def save(name: str, *steps: int) -> Path:
        run = tmp_path / name
        for step in steps:
            shutil.copytree(model_path(), run / "checkpoints" / step_name(step) / "policy")
        return run

    return save


def met(rivals: RunOpponentPool, rollout: int) -> list[str]:
    drawn = asyncio.run(rivals.draw(TASKS, rollout))
    return ["itself" if rival is None else rival.name for rival in drawn]


def test_past_selves_are_drawn_by_the_seed_from_what_was_saved_before(save: Callable[..., Path]) -> None:
    # Step 3 was saved when somebody interrupted the run: who resumes it must not meet more than who did not.
    run = save("run", 0, 2, 3, 4, 6)
    rivals = RunOpponentPool(settings_of(past_selves=2), run)
    drawn = {rollout: met(rivals, rollout) for rollout in range(1, 8)}
    expected = {1: [0], 2: [0], 3: [0, 2], 4: [0, 2], 5: [2, 4], 6: [2, 4], 7: [4, 6]}
    for rollout, steps in expected.items():
        assert set(drawn[rollout]) == set(map(step_name, steps))
    again = RunOpponentPool(settings_of(past_selves=2), run)
    assert [met(again, rollout) for rollout in (7, 5)] == [drawn[7], drawn[5]]
    assert drawn[5] != drawn[6]
    assert met(RunOpponentPool(settings_of("run.seed=1", past_selves=2), run), 7) != drawn[7]


def test_policies_that_are_met_no_more_are_let_go(save: Callable[..., Path]) -> None:
    rivals = RunOpponentPool(settings_of(past_selves=1), save("run", 0, 2, 4))
    for rollout in (1, 3, 5):
        met(rivals, rollout)
        assert len(rivals._loaded) == 1


def test_a_share_of_the_tasks_is_for_siblings_alone(save: Callable[..., Path]) -> None:
    rivals = RunOpponentPool(settings_of(past_selves=1, self_share=0.5), save("run", 0))
    assert set(met(rivals, 1)) == {"itself", "step-000000"}
    assert "itself" not in met(RunOpponentPool(settings_of(past_selves=1), save("other", 0)), 1)


def test_given_folders_are_met_beside_past_selves(save: Callable[..., Path], tmp_path: Path) -> None:
    shutil.copytree(model_path(), tmp_path / "a model")
    checkpoint = save("earlier", 7) / "checkpoints" / step_name(7)
    settings = settings_of(past_selves=1, opponents=[str(tmp_path / "a model"), str(checkpoint)])
    rivals = RunOpponentPool(settings, save("run", 0))
    assert set(met(rivals, 1)) == {"a model", "earlier/step-000007", "step-000000"}
    versions = {rival.engine.policy_version for rival in asyncio.run(rivals.draw(TASKS, 1)) if rival}
    assert versions == {0}


def test_a_model_in_the_root_folder_has_a_name(tmp_path: Path) -> None:
    rivals = RunOpponentPool(settings_of(opponents=[model_path()]), tmp_path)
    assert [rivals._name_of(Path(path)) for path in ("/model", "/policy")] == ["model", "policy"]


def test_a_model_without_a_run_has_the_chat_template_of_this_one_and_a_checkpoint_its_own(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    base, given = tmp_path / "base", tmp_path / "words.jinja"
    shutil.copytree(model_path(), base)
    given.write_text("Words: " + (base / "chat_template.jinja").read_text())
    (base / "chat_template.jinja").unlink()
    settings = settings_of(f"context.template={given}", opponents=[str(base)])
    (rival, *_) = asyncio.run(RunOpponentPool(settings, None).draw(TASKS, 1))
    assert rival is not None
    told = rival.template.decode_reply(rival.template.encode_prompt([Message("user", "?")]))
    assert told.startswith("Words: ")
    # The file that a run was given need not be there any more: what it saved has the words already.
    gone, own, other = "context.template=gone.jinja", save("own", 0), save("other", 0)
    for run in (own, other):
        write_config(run, gone)
    checkpoint = other / "checkpoints" / step_name(0)
    rivals = RunOpponentPool(settings_of(gone, past_selves=1, opponents=[str(checkpoint)]), own)
    assert set(met(rivals, 1)) == {"step-000000", "other/step-000000"}


def test_what_cannot_be_met_is_named(save: Callable[..., Path], tmp_path: Path) -> None:
    unfinished = save("unfinished", 0)
    (unfinished / "config.yaml").write_text("{}")
    for path, words in ((unfinished, "is a run that is not finished"), (tmp_path / "no", "holds no model")):
        with pytest.raises(ConfigError, match=rf"rollout\.workflow_args\.opponents: .*{words}"):
            RunOpponentPool(settings_of(opponents=[str(path)]), None)
    with pytest.raises(ConfigError, match="without a directory has no past"):
        RunOpponentPool(settings_of(past_selves=1), None)
    run = save("run", 0)
    folder = run / "checkpoints" / step_name(0)
    write_checksums(folder)
    (folder / "policy" / "config.json").write_text("{}")
    with pytest.raises(SyncError, match=r"step-000000/policy cannot play\. It is damaged"):
        met(RunOpponentPool(settings_of(past_selves=1), run), 1)


class TestAnotherRun:
    @pytest.fixture
    def other(self, save: Callable[..., Path]) -> Path:
        run = save("other", 0, 2, 4)
        write_config(run, "learn.steps=4")
        return run

    def test_it_is_met_as_it_was_at_the_same_step(self, other: Path) -> None:
        rivals = RunOpponentPool(settings_of(rival_run=str(other)), None)
        reached = [set(met(rivals, rollout)) for rollout in (1, 2, 3, 4, 5, 9)]
        # It ends after step 4, and stays what it was then.
        assert reached == [{f"other/{step_name(step)}"} for step in (0, 0, 2, 2, 4, 4)]

    def test_it_is_waited_for(self, other: Path, tmp_path: Path) -> None:
        late = other / "checkpoints" / step_name(2)
        late.rename(tmp_path / "late")
        rivals = RunOpponentPool(settings_of(rival_run=str(other)), None)

        async def come_late() -> list[Any]:
            drawing = asyncio.create_task(rivals.draw(TASKS, 3))
            await asyncio.sleep(0.3)
            assert not drawing.done()
            (tmp_path / "late").rename(late)
            return await drawing

        assert {rival.name for rival in asyncio.run(come_late())} == {"other/step-000002"}

    def test_a_wait_has_an_end(self, other: Path) -> None:
        shutil.rmtree(other / "checkpoints" / step_name(2))
        rivals = RunOpponentPool(settings_of(rival_run=str(other), wait_s=0.01), None)
        with pytest.raises(SyncError, match=r"step-000002 has not come within wait_s = 0\.01"):
            met(rivals, 3)

    def test_a_run_that_saves_nothing_on_its_way_is_refused(self, other: Path) -> None:
        write_config(other, "rollout.workflow=self_play", "rollout.workflow_args={}")
        with pytest.raises(ConfigError, match=r"rival_run: .* is a run of rollout\.workflow 'self_play'"):
            met(RunOpponentPool(settings_of(rival_run=str(other)), None), 1)


def write_config(run: Path, *choices: str) -> None:
    from turnwise.config.load import dump_settings  # noqa: PLC0415

    (run / "config.yaml").write_text(dump_settings(settings_of(*choices, past_selves=1)))


# --- whole runs -------------------------------------------------------------------------------------------------------

STEPS = [*TRAIN, "learn.steps=4", "rollout.group_size=4"]


def turns_of(run: Run) -> list[Any]:
    files = sorted((run.path / "trajectories").glob("step-*.jsonl"))
    return [turn for file in files for t in read_trajectories(file) for turn in t.turns]


@pytest.mark.slow
def test_a_run_meets_its_own_past_goes_on_after_a_kill_and_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plots(monkeypatch)
    recipe = league(past_selves=2, self_share=0.3)
    whole = train(recipe, [*STEPS, "report.checkpoint_every=2"], run_dir=tmp_path / "whole")
    assert [int(row["step"]) for row in whole.metrics()] == [0, 1, 2, 3, 4]
    assert all("env/nim:Nim/won_against_frozen" in row for row in whole.metrics()[1:])
    assert {turn.info["met"] for turn in turns_of(whole) if "met" in turn.info} >= {"step-000000"}
    # As after a kill behind step 3: the checkpoint of step 4 is there or not, and nothing of it may be met.
    again = tmp_path / "again"
    shutil.copytree(whole.path, again)
    shutil.rmtree(again / "checkpoints" / step_name(4))
    (again / "summary.json").unlink()
    resumed = resume(again)
    weights = [load_model(run.policy).state_dict() for run in (whole, resumed)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert replay(whole.path, 3).identical


@pytest.mark.slow
def test_two_runs_train_against_each_other_and_the_same_again(tmp_path: Path) -> None:
    def play(folder: Path) -> list[dict[str, torch.Tensor]]:
        games = Path(__file__).resolve().parents[3] / "examples" / "self_play"
        running = []
        for own, other, seed in (("a", "b", 0), ("b", "a", 1)):
            words = [f"rollout.workflow_args.rival_run={folder / other}", "rollout.workflow_args.wait_s=300"]
            rest = [*SMALL, *STEPS, "report.checkpoint_every=2", f"run.seed={seed}", *words]
            choices = ["env.type=nim:Nim", "rollout.workflow=league", "credit.type=grpo", *rest]
            command = [sys.executable, "-m", "turnwise", "train", "bandit", "--run-dir", str(folder / own), *choices]
            path = f"{games}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            running.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL))
        assert [process.wait(timeout=300) for process in running] == [0, 0]
        for own, other in (("a", "b"), ("b", "a")):
            names = {turn.info["met"] for turn in turns_of(Run(folder / own)) if "met" in turn.info}
            assert names == {f"{other}/step-000000", f"{other}/step-000002"}
        return [load_model(Run(folder / name).policy).state_dict() for name in "ab"]

    first, second = play(tmp_path / "one"), play(tmp_path / "two")
    for one, two in zip(first, second, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(first[0][name], first[1][name]) for name in first[0])
