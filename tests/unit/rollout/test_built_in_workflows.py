"""The built-in ways to play: what each shows the model, what it acts on, and that its tokens are the engine's."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from tests.contracts.setting import make_model, model_path, settings_with, template
from tests.contracts.test_workflows import assert_exact
from tests.small_run import SMALL_LAKE, without_plots
from turnwise.config.component import WORKFLOWS
from turnwise.config.schema import ContextSettings
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import ConfigError
from turnwise.loop.build import load_words, open_engine
from turnwise.protocols import Engine
from turnwise.rollout.episode import Limits
from turnwise.rollout.prompt_workflows import read_action
from turnwise.run.api import train
from turnwise.types import StopReason, Task, ToolCall, Trajectory

from .worlds import make_proxy, make_states

CONTEXT = ContextSettings(max_response_tokens=200, max_tokens=4000)
GO, WIN, LOSE = "<answer>go</answer>", "<answer>win</answer>", "<answer>lose</answer>"
ADD = "tests.contracts.programs:add"
ARGS: dict[str, dict[str, Any]] = {
    "react": {"tools": [ADD]},
    "plan_and_act": {"replan_every": 2},
    "reflect_and_retry": {"max_attempts": 2},
    "best_of_n": {"n": 3},
    "summarized_memory": {"compact_above_tokens": 300},
}


def prefer_win(prompt: str, response: str) -> float:
    return float(WIN in response)


def refuse_all(prompt: str, response: str) -> float:
    raise ValueError("no opinion")


def say(*replies: str) -> ScriptedEngine:
    left, end = iter(replies), int(template().end_of_turn_id or 0)
    return ScriptedEngine(lambda _: [*template().encode_text(next(left)), end], stop_ids=template().stop_ids)


def play(
    name: str, engine: Engine, args: dict[str, Any], *, context: ContextSettings = CONTEXT, **rules: Any
) -> Trajectory:
    target: Any = WORKFLOWS.get_target(name)
    target.check_args(args)
    states = make_states(group_size=1, limits=Limits(max_turns=5), invalid_penalty=-0.1)
    proxy = make_proxy(engine, template(), states, workflow=target, context=context, workflow_args=args, **rules)
    (group,) = asyncio.run(proxy.collect([Task(tag="words", seed=0)], rollout=0))
    return group.trajectories[0]


def seen(engine: ScriptedEngine) -> list[str]:
    """What the model was shown, call by call."""
    return [
        "\n".join(message.text for message in request.asked.messages) for request in engine.requests if request.asked
    ]


def test_react_runs_the_first_action_and_tells_what_came_of_it() -> None:
    made_up = 'Thought: add them\nAction: add {"a": 2, "b": 3}\nObservation: 6'
    engine = say(made_up, 'Action: add {"a": 2}', "Action: rm -rf", WIN)
    trajectory = play("react", engine, {"tools": [ADD]})
    assert 'add: The sum of two numbers. Arguments: {"type": "object"' in seen(engine)[0]
    assert seen(engine)[1].endswith("Observation: 5")
    assert seen(engine)[2].endswith("Observation: error: b: Field required")
    assert seen(engine)[3].endswith("Observation: error: no such tool. Tools: add")
    assert [turn.step for turn in trajectory.turns] == [0, 0, 0, 0]
    assert (trajectory.is_success, trajectory.episode_return) == (True, 1.0)
    # Nothing was asked of the chat template: the conversation only grew.
    assert [request.asked.tools for request in engine.requests if request.asked] == [()] * 4


def test_a_model_that_only_acts_in_react_runs_out_of_calls() -> None:
    call = 'Action: add {"a": 1, "b": 1}'
    trajectory = play("react", say(*[call] * 10), {"tools": [ADD], "max_tool_calls": 1})
    assert [turn.step for turn in trajectory.turns] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert trajectory.stop_reason is StopReason.MAX_TURNS


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("Thought: none\n<answer>go</answer>", None),
        ("I like Action: films", None),
        ('  Action:  add  {"a": 1} ', ToolCall("add", '{"a": 1}')),
        ("Action:", ToolCall("", "")),
        ("Action: a\nAction: b", ToolCall("a", "")),
    ],
)
def test_an_action_is_a_line_that_begins_with_the_word(text: str, call: ToolCall | None) -> None:
    assert read_action(text) == call


def test_a_plan_stays_in_the_conversation_and_is_one_row_with_what_it_led_to() -> None:
    engine = say("first right", GO, WIN)
    trajectory = play("plan_and_act", engine, {})
    assert "write a short plan" in seen(engine)[0]
    assert seen(engine)[1].endswith("first right\nNow act on your plan.")
    assert [turn.step for turn in trajectory.turns] == [0, 0, 1]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0, 1.0]
    assert len(trajectory.segments) == 1


def test_a_plan_is_made_again_where_that_is_asked_for() -> None:
    engine = say("first right", GO, GO, "then left", WIN)
    trajectory = play("plan_and_act", engine, {"replan_every": 2})
    assert [turn.step for turn in trajectory.turns] == [0, 0, 1, 2, 2]
    assert seen(engine)[3].count("write a short plan") == 2
    assert len(trajectory.segments) == 1
    assert trajectory.is_success


def test_a_plan_outlives_the_window_that_it_was_made_in() -> None:
    engine = say("first right", GO, GO, WIN)
    play("plan_and_act", engine, {}, context=CONTEXT.model_copy(update={"window": "single_turn"}))
    assert "Your plan: first right" in seen(engine)[2]
    assert "seed 0 at 0" not in seen(engine)[2]


def test_after_a_failure_the_model_says_what_to_do_and_only_the_last_attempt_is_paid() -> None:
    engine = say(GO, LOSE, "win at once", WIN)
    trajectory = play("reflect_and_retry", engine, {})
    assert "You did not succeed" in seen(engine)[2]
    assert "Earlier you failed and said: win at once" in seen(engine)[3]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.0, 0.0, 1.0]
    assert trajectory.is_success


def test_the_policy_chooses_among_its_own_replies_and_the_choice_is_trained() -> None:
    engine = say(LOSE, WIN, "number 2")
    trajectory = play("best_of_n", engine, {"n": 2})
    assert seen(engine)[2].endswith(f"1. {LOSE}\n2. {WIN}")
    assert trajectory.is_success
    assert [turn.step for turn in trajectory.turns] == [0, 0, 0]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("verdict", ["9", "none of them", ""])
def test_a_verdict_that_names_no_reply_means_the_first(verdict: str) -> None:
    assert play("best_of_n", say(WIN, LOSE, verdict), {"n": 2}).is_success


def test_a_function_chooses_and_the_next_turn_goes_on_from_its_choice() -> None:
    engine = say(GO, LOSE, LOSE, WIN)
    judged = {"n": 2, "judge": "tests.unit.rollout.test_built_in_workflows:prefer_win"}
    trajectory = play("best_of_n", engine, judged)
    assert seen(engine)[2].count(GO) == 2  # once as the format that is asked for
    assert trajectory.is_success


def test_equal_replies_need_no_judge() -> None:
    assert len(play("best_of_n", say(WIN, WIN, WIN), {"n": 3}).turns) == 3


def test_a_judge_that_can_score_nothing_costs_the_episode_and_says_why() -> None:
    judged = {"n": 2, "judge": "tests.unit.rollout.test_built_in_workflows:refuse_all"}
    trajectory = play("best_of_n", say(WIN, LOSE), judged)
    assert trajectory.stop_reason is StopReason.WORKFLOW_ERROR
    assert "no opinion" in trajectory.failure


@pytest.mark.parametrize("judge", ["nobody", 3, "tests.unit.rollout.test_built_in_workflows:CONTEXT", "tests:nothing"])
def test_a_judge_that_is_none_is_refused(judge: object) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.workflow_args\.judge"):
        WORKFLOWS.get_target("best_of_n").check_args({"judge": judge})  # type: ignore[attr-defined]


def test_what_is_dropped_is_out_of_the_context_and_still_trained() -> None:
    long = say(GO, GO, WIN)
    play("summarized_memory", long, {})
    engine = say(GO, GO, "I was at 2", GO, WIN)
    trajectory = play("summarized_memory", engine, {"compact_above_tokens": len(long.requests[1].prompt_ids)})
    assert "Write down what you must remember" in seen(engine)[2]
    assert "What you remember: I was at 2" in seen(engine)[3]
    assert "seed 0 at 1" not in seen(engine)[3]
    assert [turn.step for turn in trajectory.turns] == [0, 1, 2, 2, 3]
    trained = "".join(template().decode_reply(s.token_ids[s.loss_mask]) for s in trajectory.segments)
    assert trained.count("go") == 3
    assert "I was at 2" in trained
    assert len(trajectory.segments) == 2


def test_the_model_may_remember_before_it_is_asked() -> None:
    engine = say(GO, f"<memory>all is well</memory>{GO}", WIN)
    trajectory = play("summarized_memory", engine, {})
    assert "<memory>what matters</memory>" in seen(engine)[0]
    assert "What you remember: all is well" in seen(engine)[2]
    assert "seed 0 at 1" not in seen(engine)[2]
    assert trajectory.is_success


@pytest.mark.parametrize("window", ["full", "single_turn"])
@pytest.mark.parametrize("name", ARGS)
def test_a_pass_over_each_row_gives_the_log_probs_that_its_tokens_were_sampled_with(name: str, window: str) -> None:
    """Exact means: behind these very tokens, by these very weights."""
    settings = settings_with()
    engine = open_engine(load_words(settings, model_path()), model_path())
    context = CONTEXT.model_copy(update={"window": window, "max_response_tokens": 12})
    trajectory = play(name, engine, ARGS[name], context=context)
    assert not trajectory.failure
    assert trajectory.turns
    model = make_model()
    for segment in trajectory.segments:
        with torch.no_grad():
            logits = model(torch.tensor(segment.token_ids[None].astype(np.int64))).logits[0, :-1]
        scored = torch.log_softmax(logits, -1)[
            torch.arange(len(segment) - 1), torch.tensor(segment.token_ids[1:]).long()
        ]
        own = segment.loss_mask[1:]
        np.testing.assert_allclose(segment.behavior_logprobs[1:][own], scored.numpy()[own], atol=2e-4)


@pytest.mark.parametrize("name", ARGS)
def test_every_row_is_what_the_engine_was_given_and_gave(name: str) -> None:
    script = ("Action: add {}", "2", GO, "<memory>on</memory>", LOSE, "well", GO, WIN, GO, "1", WIN, *[LOSE] * 40)
    engine = say(*script)
    trajectory = play(name, engine, ARGS[name])
    assert_exact(trajectory, list(zip(engine.requests, engine.completions, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARGS)
def test_it_trains(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    args = [f"rollout.workflow_args.{key}={value}" for key, value in ARGS[name].items()]
    chosen = [*SMALL_LAKE, f"rollout.workflow={name}", "context.max_tokens=2048", *args]
    run = train("frozenlake", chosen, run_dir=tmp_path / "run")
    rows = run.metrics()
    assert [row["step"] for row in rows][-1] == 2
    assert all(np.isfinite(row["learn/policy_loss"]) for row in rows if "learn/policy_loss" in row)
    assert run.summary.tokens_trained > 0
