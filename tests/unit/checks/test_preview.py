"""`turnwise plan` shows what the model will see first, and what it says to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnwise.checks.model import cut_middle, describe_preview, make_preview
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.loop.policies import resolve_model

from ...small_run import SMALL_MODEL

pytestmark = pytest.mark.slow

RECIPE: dict[str, Any] = {
    "env": {"type": "bandit"},
    "context": {"max_tokens": 512, "max_response_tokens": 32, "system_prompt": "Be quick."},
    "engine": {"type": "scripted", "replies": ["<answer>Phoenix</answer>"]},
    "rollout": {"max_retries": 2},
}


def test_the_prompt_is_the_first_of_the_run_with_all_that_the_template_writes() -> None:
    preview = make_preview(load_settings(RECIPE, SMALL_MODEL))
    assert preview.prompt is not None
    assert preview.prompt.startswith("<|system|>Be quick.")
    assert "Actions: Phoenix, Dragon." in preview.prompt
    assert preview.prompt.endswith("<|assistant|>")
    assert (preview.reply, preview.is_understood, preview.why_missing) == ("<answer>Phoenix</answer>", True, "")
    assert "which was understood" in describe_preview(preview)


@pytest.mark.parametrize("workflow", ["step_wise_environment", "agent", "reflect_and_retry"])
def test_any_workflow_is_shown_as_it_asks(workflow: str) -> None:
    words = ["engine.replies=[what]", "context.system_prompt=''", f"rollout.workflow={workflow}", *SMALL_MODEL]
    if workflow == "agent":
        words += ["rollout.workflow_args.agent_cls=turnwise.rollout.agents:EnvironmentAgent"]
    preview = make_preview(load_settings(RECIPE, words))
    assert preview.prompt is not None
    assert preview.prompt.count("Actions: Phoenix, Dragon.") == 1
    assert (preview.reply, preview.is_understood) == ("what", False)
    assert "NOT understood" in describe_preview(preview)


def test_what_is_missing_is_said() -> None:
    preview = make_preview(load_settings(RECIPE, ["model.path=owner/elsewhere"]))
    assert preview.prompt is None
    assert "'owner/elsewhere' is not on this machine" in describe_preview(preview)
    preview = make_preview(load_settings(RECIPE, ["context.max_tokens=40", *SMALL_MODEL]))
    assert preview.reply is None
    assert "do not fit into context.max_tokens = 40" in describe_preview(preview)


def test_a_long_prompt_is_cut_in_the_middle_with_a_count() -> None:
    assert cut_middle("short", 10) == "short"
    shown = cut_middle("a" * 50 + "b" * 1950 + "c" * 50, 100)
    assert shown == f"{'a' * 50}\n[… 1,950 characters …]\n{'c' * 50}"


def test_plan_tells_prompt_reply_and_what_the_section_changed(capsys: pytest.CaptureFixture[str]) -> None:
    folder = resolve_model(load_settings(RECIPE, SMALL_MODEL))
    words = ["bandit", f"model.path={folder}", "engine.type=scripted", 'engine.replies=["Dragon</answer>"]']
    assert main(["plan", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["prompt"].count("Answer with one action") == 1
    assert (told["reply"], told["is_understood"]) == ("<answer>Dragon</answer>", True)
    assert {"path": "learn.optim.lr", "before": 1e-3, "after": 1e-4} in told["pretrained"]
    assert main(["plan", *words]) == 0
    shown = capsys.readouterr().out
    assert "learn.optim.lr: 0.001 -> 0.0001" in shown
    assert "One sampled reply, which was understood" in shown
