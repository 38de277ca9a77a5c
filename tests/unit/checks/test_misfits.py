"""Planted misfits between a recipe and a model: each is told before the end of step 1, with what to change."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from turnwise.config.load import load_settings
from turnwise.errors import TurnwiseError
from turnwise.loop.policies import resolve_model
from turnwise.report.run_dir import RunDirectory
from turnwise.run.api import Run, train

from ...small_run import SMALL_MODEL, without_plots

pytestmark = pytest.mark.slow

RECIPE: dict[str, Any] = {
    "env": {"type": "bandit"},
    "context": {"max_tokens": 512, "max_response_tokens": 32},
    "engine": {"type": "scripted", "replies": ["<answer>Phoenix</answer>", "<answer>Dragon</answer>"]},
    "rollout": {"groups": 2, "group_size": 4, "max_turns": 1},
    "credit": {"type": "dr_grpo"},
    "learn": {"steps": 1, "optim": {"lr": 1e-5}},
    "eval": {"episodes": 0},
    "report": {"tensorboard": False},
}
RAMBLING = "<answer>Phoenix</answer> because it is a bird and birds fly and so on and on and on and on and on"
UNTOLD_END = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as any other: that it is small and knows nothing is not looked at."""
    made = resolve_model(load_settings({"env": RECIPE["env"], "context": RECIPE["context"]}, SMALL_MODEL))
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("models") / "pretrained"))


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


def run_first_step(folder: Path, tmp_path: Path, *overrides: str) -> tuple[dict[str, str], str]:
    """What was found within step 1, and all that was said."""
    said = io.StringIO()
    words = [f"model.path={folder}", *overrides]
    run: Run = train(RECIPE, words, run_dir=tmp_path / "run", console=Console(file=said, width=10_000))
    found = RunDirectory.open(run.path).read_findings()
    assert all(finding.step <= 1 for finding in found)
    return {finding.kind: finding.message for finding in found}, said.getvalue()


def replies(*texts: str) -> str:
    return f"engine.replies={json.dumps(texts)}"


PLANTED = {
    "toy_learning_rate": (["learn.optim.lr=1e-3"], "Try 1e-6"),
    "toy_learning_rate of adapters": (["learn.optim.lr=5e-3", "model.lora.type=lora"], "Try 1e-4"),
    "low_temperature": (["rollout.temperature=0.05"], "Set it to 0.7"),
    "no_instructions": (["context.instructions=none"], "context.instructions=full"),
    "toy_reply": (["context.max_response_tokens=4"], "Set it to 32 or more"),
    "strict_answer": (["context.answer.is_strict=true"], "context.answer.is_strict=false"),
    "short_budget": (["context.max_response_tokens=2"], "Set it to"),
    "short_positions": (["context.max_tokens=9999"], "Set context.max_tokens=2048"),
    "format_ignored": ([replies("a fine day", "no")], "context.answer.forced_prefix='<answer>'"),
    "cut_replies": ([replies(RAMBLING, RAMBLING, "<answer>Dragon</answer>")], "Raise it"),
    "no_end": ([replies(RAMBLING, f"{RAMBLING} and on"), "context.max_response_tokens=12"], "eos_token"),
    "same_siblings": ([replies("<answer>Phoenix</answer>")], "Raise it, to 1"),
    "same_return": (
        ["env.type=frozen_lake", replies("<answer>Up</answer>", "<answer>Left</answer>")],
        "Try easier tasks",
    ),
    "behavior_gap": ([], "learn.correction.type=truncated"),
}


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_misfit_is_told_within_the_first_step(folder: Path, tmp_path: Path, plant: str) -> None:
    overrides, advice = PLANTED[plant]
    kind = plant.split()[0]
    found, said = run_first_step(folder, tmp_path, *overrides)
    assert kind in found
    assert advice in found[kind]
    assert f"{kind}: " in said


def test_what_fits_is_not_spoken_of(folder: Path, tmp_path: Path) -> None:
    found, _ = run_first_step(folder, tmp_path)
    # The log-probs of a script are made up, and nothing else is wrong.
    assert list(found) == ["behavior_gap"]
    words = ["engine.type=local", "model.path=tiny", "env.type=bandit", *SMALL_MODEL]
    found, _ = run_first_step(folder, tmp_path / "other", *words)
    assert "behavior_gap" not in found
    assert not {"no_instructions", "toy_learning_rate"} & found.keys()


def test_where_nothing_can_be_learnt_a_reply_is_shown_before_learning(folder: Path, tmp_path: Path) -> None:
    found, said = run_first_step(folder, tmp_path, replies("a fine day"), "rollout.invalid_penalty=0.0")
    assert found["format_ignored"].startswith("the first rollout has nothing to learn from: 0 of 8 turns")
    assert found["format_ignored"].endswith("One reply: 'a fine day'")
    assert said.index("format_ignored") < said.index("step ")
    assert Run(tmp_path / "run").metrics()[-1]["learn/skipped"] == 1


def test_a_reply_without_an_end_of_turn_is_foreseen(folder: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(folder, tmp_path / "model"))
    write_template(changed, UNTOLD_END)
    found, _ = run_first_step(changed, tmp_path)
    assert "set eos_token" in found["no_end_of_turn"]


def test_a_model_without_a_chat_template_is_refused(folder: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(folder, tmp_path / "model"))
    write_template(changed, None)
    with pytest.raises(TurnwiseError, match=r"no chat template.*context\.template"):
        run_first_step(changed, tmp_path)


def test_a_first_prompt_that_does_not_fit_is_refused_before_playing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match=r"context\.max_tokens: 40 given; the first prompt: .* Raise it"):
        run_first_step(folder, tmp_path, "context.max_tokens=40")
    assert not (tmp_path / "run").exists()


def write_template(folder: Path, text: str | None) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config.pop("chat_template", None)
    file.write_text(json.dumps(config))
    if text is not None:
        (folder / "chat_template.jinja").write_text(text)
