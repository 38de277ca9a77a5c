"""The doctor: everything that is wrong with a setup is found in one run."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from turnwise.checks.doctor import DoctorReport, label, run_doctor
from turnwise.checks.plan import check_memory, check_packages, describe_plan, make_plan
from turnwise.checks.stages import run_check
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.loop.policies import resolve_model
from turnwise.models.memory import PROCESS_BYTES, MemoryReport, ModelMemory, format_bytes

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_layers": 1, "num_heads": 2}
BASE: dict[str, Any] = {
    "env": {"type": "frozen_lake"},
    "model": {"tiny": SIZES},
    "credit": {"type": "grpo"},
    "rollout": {"groups": 2, "group_size": 4, "max_turns": 2},
    "eval": {"episodes": 4},
}
LEAKY = """
import random
from turnwise.config.settings import Settings
from turnwise.envs.base import BaseEnv

class Leaky(BaseEnv):
    Params = Settings

    def reset(self, seed=None, *, split="train", dynamics_seed=None):
        random.random()
        self._phase = "playing"
        return f"say yes {seed}"

    def step(self, action):
        self._require_playing()
        self._phase = "over"
        is_right = action == "yes"
        return "", float(is_right), True, {"success": is_right, "action_is_valid": True, "action_is_effective": True}
"""
TEN_MISTAKES: dict[str, Any] = {
    **BASE,
    "env": {"type": "leaky_world:Leaky"},
    "engine": {"type": "scripted", "replies": ["I would rather talk about the weather of last week."]},
    "context": {"max_response_tokens": 4},
    "credit": {"type": "bi_level_gae"},
    "rollout": {**BASE["rollout"], "workflow": "reflect_and_retry", "workflow_args": {"max_attempt": 2}},
    "buffer": {"train_batch_size": 2},
    "learn": {"stepz": 3, "critic": {"type": "none"}, "ptx": {"type": "file", "path": "missing_pairs.jsonl"}},
    "reward": {"judge": {"type": "model", "path": "./missing_judge"}},
    "mix": {
        "letters": {"groups": 1, "env": {"type": "prompts"}, "context": {"answer": {"type": "plain"}}},
        "questions": {"groups": 1, "env": {"type": "metamathqa", "path": "missing_rows.jsonl"}},
    },
}
TOLD = {
    "an unknown setting": "learn.stepz: unknown setting. Did you mean 'steps'?",
    "credit without its critic": "credit.type 'bi_level_gae' needs a critic",
    "a group larger than a batch": "a group does not fit into buffer.train_batch_size = 2",
    "an argument the workflow does not take": "rollout.workflow_args.max_attempt: ReflectAndRetryWorkflow takes no",
    "a missing file of pairs": "learn.ptx.path: 'missing_pairs.jsonl' cannot be read",
    "an environment that breaks its contract": "failed the environment check global_rng",
    "a missing file of a mixed environment": "mix.questions.env.path: 'missing_rows.jsonl' cannot be read",
    "a missing reward model": "reward.judge.path './missing_judge' cannot be loaded as a reward model",
    "a model that never keeps the format": "0 of 32 turns have a valid answer",
    "replies that are cut": "32 of 32 replies are cut at context.max_response_tokens = 4",
}


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaky_world.py").write_text(LEAKY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def look_at(recipe: dict[str, Any], *overrides: str) -> DoctorReport:
    Path("mine.yaml").write_text(json.dumps(recipe))
    return run_doctor("mine.yaml", overrides, lambda _: nullcontext(lambda *_: None))


def problems(report: DoctorReport) -> list[str]:
    return [finding.text for finding in report.having("error")]


@pytest.fixture(scope="module")
def model() -> Path:
    return Path(resolve_model(load_settings(BASE)))


@pytest.mark.slow
def test_ten_mistakes_are_found_in_one_run(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ten.yaml").write_text(json.dumps(TEN_MISTAKES))
    assert main(["doctor", "ten.yaml", f"model.path={model}", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    told = [row["message"] for row in report["findings"] if row["status"] == "problem"]
    missed = {mistake for mistake, words in TOLD.items() if not any(words in message for message in told)}
    assert len(TOLD) == 10
    assert missed == set()
    assert report["ok"] is False


@pytest.mark.slow
def test_mistakes_of_a_model_do_not_hide_those_beside_it(model: Path) -> None:
    """Those that leave nothing to play: the model, the judge's function, the workflow, a file, two names."""
    recipe = {
        **BASE,
        "env": {"type": "prompts", "path": "missing.txt"},
        "context": {"answer": {"type": "plain"}, "window": "half"},
        "model": {"path": "./missing_model"},
        "credit": {"type": "gea"},
        "rollout": {"workflow": "nowhere_at_all:Flow", "group_size": 4},
        "reward": {"judge": {"type": "function", "target": "nowhere_at_all:score"}},
        "buffer": {"capacity": 2},
    }
    report = look_at(recipe)
    told = problems(report)
    for words in (
        "context.window: 'half' given",
        "there is no credit rule named 'gea'. Did you mean 'gae'?",
        "rollout.workflow: workflow 'nowhere_at_all:Flow'",
        "reward.judge.target: 'nowhere_at_all:score'",
        "env.path: 'missing.txt' cannot be read",
        "The model folder './missing_model' does not exist",
        "does not fit into buffer.capacity = 2",
    ):
        assert any(words in message for message in told), (words, told)
    assert len(told) == 7


@pytest.mark.slow
def test_a_sound_setup_is_fine(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = look_at(BASE, f"model.path={model}", "engine.type=scripted", "engine.replies=['<answer>Right</answer>']")
    assert problems(report) == []
    by_check = {label(finding): finding.message for finding in report.findings}
    assert "32 of 32 turns" in by_check["format of env"] or "turns have a valid answer" in by_check["format of env"]
    assert "append-only" in by_check["template"]
    assert "LlamaForCausalLM" in by_check["model"]
    assert report.numbers["probe"]["frozen_lake"]["episodes"] == 16
    assert report.numbers["plan"]["episodes_per_step"] == 8
    words = ["engine.type=scripted", "engine.replies=['<answer>Right</answer>']"]
    assert main(["doctor", "mine.yaml", f"--model.path={model}", *words]) == 0
    assert "0 problems" in capsys.readouterr().out


@pytest.mark.slow
def test_a_policy_that_is_taught_first_is_not_blamed_and_its_teacher_is_tried() -> None:
    taught = {**BASE, "warm_start": {"type": "oracle"}}
    assert problems(look_at(taught)) == []
    (told,) = problems(look_at(taught, "context.max_response_tokens=2"))
    assert "the oracle's replies have up to" in told


@pytest.mark.slow
def test_tools_need_a_template_that_knows_them(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    (tmp_path / "own_tools.py").write_text('def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n')
    words = [f"model.path={folder}", "engine.type=scripted"]
    tools = ["rollout.workflow=tool_calling", "rollout.workflow_args.tools=['own_tools:add']"]
    without, with_tools = look_at(BASE, *words), look_at(BASE, *words, *tools)
    assert not any(finding.where == "tools" and finding.level == "error" for finding in without.findings)
    (tool_problem,) = [f.message for f in with_tools.having("error") if f.where == "tools"]
    assert "rollout.workflow 'tool_calling' uses tools, and the chat template" in tool_problem


def test_a_file_that_is_no_settings_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Say hi.\nSay bye.\n")
    report = run_doctor("prompts.txt", [], lambda _: nullcontext(lambda *_: None))
    assert [label(f) for f in report.having("error")] == ["settings"]
    assert {"packages", "extras", "machine"} <= {label(finding) for finding in report.findings}


def test_packages_are_held_against_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["numpy>=999", "not-there-at-all>=1", 'pyarrow>=1; extra == "data"', 'nor-this; extra == "math"']
    monkeypatch.setattr("turnwise.checks.plan.metadata.requires", lambda _: asked)
    too_old, missing, extras = check_packages()
    assert (too_old.level, missing.level, extras.level) == ("error", "error", "note")
    assert "expected >=999" in too_old.message
    assert "not-there-at-all is not installed" in missing.message
    assert "not installed: math (pip install 'turnwise[math]')" in extras.message


def test_models_that_do_not_fit_are_a_problem() -> None:
    def need(num_bytes: int) -> MemoryReport:
        row = ModelMemory(
            name="engine",
            is_loaded=True,
            reason="",
            parameters=1,
            weight_bytes=num_bytes,
            gradient_bytes=0,
            optimizer_bytes=0,
        )
        return MemoryReport(models=(row,), loaded_bytes=num_bytes, saved_bytes=0)

    assert check_memory(need(1000), None)[0].level == "note"
    assert check_memory(need(10**15), None)[0].level == "error"


def test_memory_is_the_peak_that_the_plan_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(load_settings(BASE))
    assert plan.peak is not None
    assert plan.memory.loaded_bytes is not None
    beside = plan.peak.num_bytes - PROCESS_BYTES
    assert beside > plan.memory.loaded_bytes
    monkeypatch.setattr("turnwise.checks.plan.free_bytes", lambda: beside)
    (fine,) = check_memory(plan.memory, plan.peak)
    monkeypatch.setattr("turnwise.checks.plan.free_bytes", lambda: beside - 1)
    (scarce,) = check_memory(plan.memory, plan.peak)
    assert (fine.level, scarce.level) == ("note", "error")
    for message in (fine.message, scarce.message):
        assert f"about {format_bytes(plan.peak.num_bytes)}" in message
        assert format_bytes(plan.peak.num_bytes) in describe_plan(plan)


def test_a_look_that_fails_is_a_finding() -> None:
    def fail() -> list[Any]:
        raise ZeroDivisionError("by accident")

    (finding,) = run_check("template", fail)
    assert (finding.where, finding.level) == ("template", "error")
    assert "ZeroDivisionError: by accident" in finding.message
