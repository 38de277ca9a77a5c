"""What cannot run is refused by all who ask, in the same words, before anything is made."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import turnwise as tw
from turnwise.checks.setup import find_errors, validate_run
from turnwise.cli import main
from turnwise.config.load import dump_settings, load_settings
from turnwise.errors import ConfigError
from turnwise.loop.policies import resolve_model
from turnwise.report.manifest import collect_manifest
from turnwise.report.run_dir import RunDirectory

from ...small_run import SMALL_MODEL

LAKE: dict[str, Any] = {"env": {"type": "frozen_lake"}, "credit": {"type": "grpo"}}
PROMPTS: dict[str, Any] = {
    "env": {"type": "prompts"},
    "context": {"answer": {"type": "plain"}},
    "credit": {"type": "grpo"},
}
PLUG_INS = """
import turnwise as tw

class Unpaid(tw.StepWiseRewardWorkflow):
    def step(self, step_num):
        return False

def plain(task):
    return 1.0

class Agent(tw.BaseAgent):
    def reset(self, **kw):
        pass

    def get_llm_prompts(self, *args):
        return []

    def get_env_outputs(self, *args):
        return []
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "refused_plug_ins.py").write_text(PLUG_INS)
    (tmp_path / "no_rows.jsonl").write_text('{"question": "Why?"}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def model() -> Path:
    return Path(resolve_model(load_settings(LAKE, SMALL_MODEL)))


def reasons(recipe: dict[str, Any], *overrides: str) -> list[str]:
    return [refusal.message for refusal in find_errors(load_settings(recipe, overrides))]


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        (LAKE, ["rollout.workflow=nowhere_at_all:Flow"], "module 'nowhere_at_all' cannot be imported"),
        (LAKE, ["rollout.workflow=refused_plug_ins:plain"], "expected a class that extends turnwise.Workflow"),
        (LAKE, ["rollout.workflow=refused_plug_ins:Unpaid"], "'refused_plug_ins:Unpaid' has no reward"),
        (LAKE, ["rollout.workflow=reflect_and_retry", "rollout.workflow_args.tries=2"], "takes no such argument"),
        (LAKE, ["rollout.workflow=agent"], "rollout.workflow_args.agent_cls is None"),
        (LAKE, ["env.type=alfworld", "env.game_file=no.tw-pddl"], "env.game_file: 'no.tw-pddl' cannot be read"),
        (LAKE, ["env.type=alfworld", "env.games=no_games"], "no_games' cannot be read"),
        (LAKE, ["env.type=metamathqa", "env.path=no_rows.jsonl"], "no_rows.jsonl, line 1"),
        (
            LAKE,
            ["mix.m.env.type=metamathqa", "mix.m.env.path=none.jsonl"],
            "mix.m.env.path: 'none.jsonl' cannot be read",
        ),
        (LAKE, ["learn.ptx.type=file", "learn.ptx.path=none.jsonl"], "learn.ptx.path: 'none.jsonl' cannot be read"),
        (LAKE, ["model.path=./no_model"], "The model folder './no_model' does not exist"),
        (
            LAKE,
            ["model.lora.type=lora", "model.lora.target_modules=[q_prok]"],
            "'q_prok' given; LlamaForCausalLM has no",
        ),
        (PROMPTS, ["reward.judge.type=model", "reward.judge.path=./no_judge"], "reward.judge.path './no_judge' cannot"),
        (PROMPTS, ["reward.judge.type=function", "reward.judge.target=nowhere_at_all:f"], "cannot be imported"),
        (
            PROMPTS,
            [
                "env.path=prompts.txt",
                "warm_start.type=oracle",
                "reward.judge.type=function",
                "reward.judge.target=refused_plug_ins:two",
            ],
            "warm_start.type is 'oracle' and 'prompts' has no oracle",
        ),
    ],
)
def test_what_a_run_would_meet_later_is_refused_at_once(
    recipe: dict[str, Any], overrides: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("".join(f"Say {n}.\n" for n in range(40)))
    (tmp_path / "refused_plug_ins.py").write_text(f"{PLUG_INS}\ndef two(prompt, response):\n    return 2\n")
    found = reasons(recipe, *overrides)
    assert [message in reason for reason in found] == [True], found


def test_an_offline_file_must_be_there() -> None:
    mode = ["run.mode=train", "buffer.type=sqlite", "sync.method=checkpoint"]
    assert reasons(LAKE, *mode, "eval.episodes=0") == []
    (reason,) = reasons(LAKE, *mode, "buffer.offline=none.jsonl")
    assert "none.jsonl does not exist" in reason


def test_a_trainer_of_its_own_needs_no_games(model: Path) -> None:
    """It learns from what is stored; only an evaluation would play."""
    words = ["run.mode=train", "buffer.type=sqlite", "sync.method=checkpoint", f"model.path={model}"]
    games = ["env.type=alfworld", "env.games=no_games"]
    assert reasons(LAKE, *words, *games, "eval.episodes=0") == []
    assert reasons(LAKE, *words, *games, "eval.episodes=4") != []


@pytest.mark.parametrize("start", ["train", "PPOTrainer", "AgentTrainer", "resume"])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["learn.ptx.type=file", "learn.ptx.path=none.jsonl"], "learn.ptx.path: 'none.jsonl' cannot be read"),
        (["model.path=./no_model"], "The model folder './no_model' does not exist"),
        (["report.trackers=[swanlab]"], "report.trackers: swanlab needs the package 'swanlab'"),
        (["report.callbacks=[nowhere_at_all:Callback]"], "module 'nowhere_at_all' cannot be imported"),
        (["buffer.train_batch_size=1"], "a group does not fit"),
    ],
)
def test_every_way_to_start_refuses_before_anything_is_made(
    start: str, overrides: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "swanlab", None)
    given = {key: yaml.safe_load(value) for key, value in (word.split("=") for word in overrides)}
    run, made = tmp_path / "run", set[Path]()

    def attempt() -> None:
        if start == "resume":
            written = dump_settings(load_settings(LAKE, ["learn.steps=1", "eval.episodes=0", *overrides]))
            RunDirectory.create(run, config_yaml=written, manifest=collect_manifest("mine", seed=0))
            made.update(run.iterdir())
            tw.resume(run)
        elif start == "AgentTrainer":
            tw.AgentTrainer(LAKE, agent_cls="refused_plug_ins:Agent", overrides=given, run_dir=run)
        elif start == "PPOTrainer":
            tw.PPOTrainer(LAKE, given, run_dir=run)
        else:
            tw.train(LAKE, given, run_dir=run)

    with pytest.raises(ConfigError, match=re.escape(message)):
        attempt()
    assert set(run.glob("*")) == made


def test_a_run_is_resumed_without_the_model_and_the_teacher_it_started_from() -> None:
    gone = load_settings(LAKE, ["model.path=./no_model", "warm_start={type: endpoint, url: 'http://127.0.0.1:9/v1'}"])
    assert len(find_errors(gone)) == 2
    validate_run(gone, is_resumed=True)
    broken = load_settings(LAKE, ["learn.ptx.type=file", "learn.ptx.path=none.jsonl", "model.path=./no_model"])
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        validate_run(broken, is_resumed=True)


def test_a_model_folder_must_hold_a_model_of_the_right_kind(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    judge = ["reward.judge.type=model", f"reward.judge.path={folder}"]
    assert reasons(LAKE, f"model.path={folder}") == []
    assert "is a LlamaForCausalLM; expected a reward model" in reasons(PROMPTS, *judge)[0]
    config = json.loads((folder / "config.json").read_text())
    labels = {"0": "bad", "1": "good"}
    other = {**config, "architectures": ["LlamaForSequenceClassification"], "id2label": labels}
    (folder / "config.json").write_text(json.dumps(other))
    assert "is a LlamaForSequenceClassification; expected a causal" in reasons(LAKE, f"model.path={folder}")[0]
    assert "has 2 labels; expected a reward model" in reasons(PROMPTS, *judge)[0]
    (folder / "config.json").write_text(json.dumps({**other, "id2label": {"0": "score"}}))
    assert reasons(PROMPTS, *judge) == []
    (folder / "model.safetensors").unlink()
    assert "the folder has no weights" in reasons(PROMPTS, *judge)[0]
    (folder / "config.json").unlink()
    assert "the folder has no config.json" in reasons(LAKE, f"model.path={folder}")[0]


def test_a_name_of_the_hub_is_known_when_it_is_fetched() -> None:
    assert reasons(LAKE, "model.path=owner/model") == []


def test_all_reasons_are_told_at_once() -> None:
    settings = load_settings(
        {**LAKE, "buffer": {"train_batch_size": 2}, "rollout": {"workflow": "agent"}},
        ["mix.m.env.type=metamathqa", "mix.m.env.path=none.jsonl", "model.path=./no_model"],
    )
    with pytest.raises(ConfigError) as caught:
        validate_run(settings)
    told = str(caught.value).splitlines()
    assert told[0] == "Invalid configuration:"
    words = ("a group does not fit", "agent_cls", "none.jsonl", "./no_model")
    assert [word in line for word, line in zip(words, told[1:], strict=True)] == [True] * 4


def test_every_command_refuses_in_the_same_words_and_makes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(
        json.dumps({**LAKE, "mix": {"m": {"env": {"type": "metamathqa", "path": "no"}}}})
    )
    told: set[str] = set()
    for command in ("check", "train", "plan", "serve"):
        assert main([command, "mine.yaml", "rollout.workflow=agent"]) == 2
        told.add(capsys.readouterr().err)
    (message,) = told
    assert "agent_cls" in message
    assert "mix.m.env.path" in message
    assert not (tmp_path / "runs").exists()
