"""Histories become prompts and replies become segments: exactly the tokens that went through the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.unit.rollout.worlds import make_proxy, make_states
from turnwise.config.schema import AnswerFormat, ContextSettings
from turnwise.context.manager import ContextManager
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import ContextOverflow, WorkflowError
from turnwise.rollout.env_manager import EnvStateManager
from turnwise.rollout.episode import Limits
from turnwise.rollout_io import LmOutput
from turnwise.types import GenerateRequest, Sampling, StopReason, Trajectory

from .chat_families import template_of, tokenizer_of

APPENDING, REWRITING = "chatml", "drops_thinking"
REPLIES = ["<answer>go</answer>", "<answer>stay</answer>", "what", "<answer>go</answer>", "<answer>win</answer>"]


class Played:
    """One episode with a scripted engine, and everything that went through it."""

    def __init__(self, family: str, replies: list[str], **settings: Any) -> None:
        self.template, self.tokenizer = template_of(family), tokenizer_of(family)
        self.settings = ContextSettings(**{"max_tokens": 4000, "max_response_tokens": 60, **settings})
        self._replies = iter(replies)
        self.engine = ScriptedEngine(self._reply, stop_ids=self.template.stop_ids)
        states = make_states(groups=1, group_size=1, limits=Limits(max_turns=len(replies)), invalid_penalty=-0.1)
        self.trajectory: Trajectory = self._drive(states)

    def _drive(self, states: EnvStateManager) -> Trajectory:
        """The managers by hand, as users of other systems drive them."""
        context, running = ContextManager(self.template, self.settings), states.reset()
        while running:
            try:
                (asked,) = context.get_lm_inputs(running)
            except ContextOverflow as error:
                states.stop(0, StopReason.CONTEXT_OVERFLOW, str(error))
                break
            request = GenerateRequest(
                prompt_ids=asked.prompt_ids,
                sampling=Sampling(max_new_tokens=asked.max_new_tokens),
                seed=0,
                cache_key=asked.cache_key,
            )
            completion = asyncio.run(self.engine.generate(request))
            running = states.step(context.get_env_inputs([LmOutput(env_id=0, completion=completion)]))
        (trajectory,) = context.formulate_rollouts(states.get_rollout_states())
        return trajectory

    def _reply(self, _request: GenerateRequest) -> list[int]:
        return [*self.template.encode_text(next(self._replies)).tolist(), self.template.end_of_turn_id]

    def prompt_text(self, turn: int) -> str:
        return self.tokenizer.decode(self.engine.requests[turn].prompt_ids)


def assert_tokens_are_what_the_engine_saw(played: Played) -> None:
    trajectory, engine = played.trajectory, played.engine
    assert len(trajectory.turns) == len(engine.requests)
    for turn, request, completion in zip(trajectory.turns, engine.requests, engine.completions, strict=True):
        segment = trajectory.segments[turn.segment_index]
        start, stop = len(request.prompt_ids), len(request.prompt_ids) + len(completion.token_ids)
        assert np.array_equal(segment.token_ids[:start], request.prompt_ids)
        assert np.array_equal(segment.token_ids[start:stop], completion.token_ids)
        # Where this turn's bits are set is where its tokens were sampled, and nowhere else in any segment.
        for index, other in enumerate(trajectory.segments):
            expected = range(start, stop) if index == turn.segment_index else range(0)
            assert np.flatnonzero(other.turn_ids == turn.index).tolist() == list(expected)
        np.testing.assert_array_equal(segment.behavior_logprobs[start:stop], completion.behavior_logprobs)
    for index, segment in enumerate(trajectory.segments):
        last = max(turn.index for turn in trajectory.turns if turn.segment_index == index)
        seen = len(engine.requests[last].prompt_ids) + len(engine.completions[last].token_ids)
        assert len(segment) == seen
    assert sum(s.num_action_tokens for s in trajectory.segments) == sum(len(c.token_ids) for c in engine.completions)


@pytest.mark.parametrize("forced_prefix", ["", "<answer>"])
@pytest.mark.parametrize(
    ("family", "window", "num_segments"),
    [
        (APPENDING, "full", 1),
        (APPENDING, "sliding", 4),
        (APPENDING, "single_turn", 5),
        (REWRITING, "full", 5),
        (REWRITING, "sliding", 5),
        ("headers", "full", 1),
        ("role_tokens_metaspace", "full", 1),
        ("opens_thinking", "full", 5),
    ],
)
def test_segments_are_what_the_engine_saw(family: str, window: str, num_segments: int, forced_prefix: str) -> None:
    replies = [reply.removeprefix(forced_prefix) for reply in REPLIES]
    answer = AnswerFormat(forced_prefix=forced_prefix)
    played = Played(family, replies, window=window, window_turns=2, answer=answer)
    trajectory = played.trajectory
    assert_tokens_are_what_the_engine_saw(played)
    assert [turn.index for turn in trajectory.turns] == [0, 1, 2, 3, 4]
    assert len(trajectory.segments) == num_segments
    assert [t.actions for t in trajectory.turns] == [("go",), ("stay",), (), ("go",), ("win",)]
    assert [t.reward for t in trajectory.turns] == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert [t.penalty for t in trajectory.turns] == [0.0, 0.0, -0.1, 0.0, 0.0]
    assert (trajectory.stop_reason, trajectory.is_success) == (StopReason.TERMINATED, True)
    assert trajectory.final_observation == "seed 0 at 4"
    assert [t.observation for t in trajectory.turns][:2] == ["seed 0 at 0", "seed 0 at 1"]


def test_the_forced_prefix_is_context() -> None:
    played = Played(APPENDING, ["go</answer>", "win</answer>"], answer=AnswerFormat(forced_prefix="<answer>"))
    prefix = played.template.encode_text("<answer>").tolist()
    for request in played.engine.requests:
        assert request.prompt_ids[-len(prefix) :].tolist() == prefix
    (segment,) = played.trajectory.segments
    assert played.tokenizer.decode(segment.token_ids[segment.loss_mask]).count("<answer>") == 0
    assert played.trajectory.turns[0].response_text == "<answer>go</answer>"


def test_windows_show_what_they_say() -> None:
    states_shown = {}
    for window in ("full", "sliding", "single_turn"):
        played = Played(APPENDING, REPLIES, window=window, window_turns=2, instructions="none")
        last = played.prompt_text(4)
        states_shown[window] = [n for n in range(5) if f"seed 0 at {n}" in last]
        assert last.count("assistant\n<answer>go</answer>") == {"full": 2, "sliding": 1, "single_turn": 0}[window]
    # The third answer plays no action, so the state after it is the same.
    assert states_shown == {"full": [0, 1, 2, 3], "sliding": [2, 3], "single_turn": [3]}


def test_a_history_that_is_rewritten_is_shown_whole_and_rewritten() -> None:
    thinking = [f"<think>thought {n}</think><answer>{word}</answer>" for n, word in enumerate(("go", "stay", "win"))]
    played = Played(REWRITING, thinking, answer=AnswerFormat(type="think_answer"))
    assert_tokens_are_what_the_engine_saw(played)
    last = played.prompt_text(2)
    assert "seed 0 at 0" in last
    assert "<answer>go</answer>" in last
    assert "thought 0" not in last
    trained = "".join(played.tokenizer.decode(s.token_ids[s.loss_mask]) for s in played.trajectory.segments)
    assert all(f"thought {n}" in trained for n in range(3))


@pytest.mark.parametrize("window", ["full", "single_turn"])
def test_the_first_message_explains_the_game(window: str) -> None:
    played = Played(APPENDING, REPLIES, window=window, system_prompt="Be quick.")
    first = played.prompt_text(0)
    forms = "<answer>go</answer>, <answer>win</answer>, <answer>lose</answer>, <answer>stay</answer>"
    actions = "Actions: go, win, lose, stay."
    for expected in ("Be quick.", "You say words.", "at: how often.", actions, forms, "seed 0 at 0"):
        assert first.count(expected) == 1
    assert played.prompt_text(3).count("You say words.") == 1


def test_instructions_can_be_left_out() -> None:
    first = Played(APPENDING, ["<answer>win</answer>"], instructions="none").prompt_text(0)
    assert "seed 0 at 0" in first
    assert "You say words." not in first
    assert "<answer>" not in first


@pytest.mark.parametrize("window", ["full", "sliding", "single_turn"])
def test_a_turn_that_was_not_understood_is_told_in_the_next_state(window: str) -> None:
    replies = ["<answer>go</answer>", "what", "<answer>nonsense</answer>", "<answer>win</answer>"]
    quiet = Played(APPENDING, replies, window=window, window_turns=2)
    played = Played(APPENDING, replies, window=window, window_turns=2, tell_invalid=True)
    assert_tokens_are_what_the_engine_saw(played)
    how = "Answer with one action, in exactly one of these forms: <answer>go</answer>, <answer>win</answer>, "
    how += "<answer>lose</answer>, <answer>stay</answer>"
    unread = f"Your last reply was not understood. {how}"
    unknown = f"'nonsense' is no action here. {how}"
    for turn, told in enumerate(["", "", f"{unread}\nseed 0 at 1", f"{unknown}\nseed 0 at 2"]):
        assert told in played.prompt_text(turn)
        assert "not understood" not in quiet.prompt_text(turn)
    assert unread not in played.prompt_text(1)
    # The line stays where it was said, so that the conversation goes on token by token.
    assert (unread in played.prompt_text(3)) == (window != "single_turn")
    assert len(played.trajectory.segments) == len(quiet.trajectory.segments)


@pytest.mark.parametrize("family", [APPENDING, "headers"])
def test_a_reply_cut_by_length_gets_its_end_of_turn_as_context(family: str) -> None:
    played = Played(family, ["<answer>go</answer> and so on and on"] * 2, max_response_tokens=12)
    assert_tokens_are_what_the_engine_saw(played)
    (segment,) = played.trajectory.segments
    end = played.template.end_of_turn_id
    behind = len(played.engine.requests[0].prompt_ids) + 12
    assert segment.token_ids[behind] == end
    assert not segment.loss_mask[behind]
    assert segment.loss_mask[behind - 1]
    assert end not in segment.token_ids[segment.loss_mask]


def test_a_sampled_end_of_turn_is_trained_and_not_doubled() -> None:
    played = Played(APPENDING, REPLIES[:2])
    (segment,) = played.trajectory.segments
    end = played.template.end_of_turn_id
    first_end = len(played.engine.requests[0].prompt_ids) + len(played.engine.completions[0].token_ids) - 1
    assert segment.token_ids[first_end] == end
    assert segment.loss_mask[first_end]
    assert segment.token_ids[first_end + 1] != end


@pytest.mark.parametrize(("family", "window"), [(APPENDING, "full"), (APPENDING, "sliding"), (REWRITING, "full")])
def test_overflow_truncates_and_keeps_what_was_played(family: str, window: str) -> None:
    roomy = Played(family, ["<answer>stay</answer>"] * 6, window=window, window_turns=9)
    limit = len(roomy.engine.requests[3].prompt_ids) + 59
    played = Played(family, ["<answer>stay</answer>"] * 6, window=window, window_turns=9, max_tokens=limit)
    trajectory = played.trajectory
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert trajectory.stop_reason.is_truncated
    assert "context.max_tokens" in trajectory.failure
    assert len(trajectory.turns) == 3
    assert_tokens_are_what_the_engine_saw(played)
    assert max(len(segment) for segment in trajectory.segments) <= limit
    assert trajectory.final_observation == "seed 0 at 3"


def test_overflow_before_the_first_reply_leaves_an_empty_trajectory() -> None:
    trajectory = Played(APPENDING, REPLIES, max_tokens=61).trajectory
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert (trajectory.segments, trajectory.turns) == ((), ())


def test_the_prompts_of_an_episode_share_a_cache_key() -> None:
    for window in ("full", "sliding"):
        assert len({r.cache_key for r in Played(APPENDING, REPLIES, window=window).engine.requests}) == 1


def test_policy_versions_are_kept_per_turn() -> None:
    template = template_of(APPENDING)
    end = template.end_of_turn_id

    def reply(_request: GenerateRequest) -> list[int]:
        engine.load_weights({}, engine.policy_version + 1)
        return [*template.encode_text("<answer>stay</answer>").tolist(), end]

    engine = ScriptedEngine(reply, stop_ids=template.stop_ids)
    states = make_states(groups=1, group_size=1, limits=Limits(max_turns=3))
    (group,) = asyncio.run(make_proxy(engine, template, states).collect(states._tasks.take(1), rollout=0))
    assert [turn.policy_version for turn in group.trajectories[0].turns] == [1, 2, 3]


# --- dictionaries in place of records ---------------------------------------------------------------------------------


def test_plain_dictionaries_go_all_the_way_round() -> None:
    states = make_states(groups=1, group_size=2, limits=Limits(max_turns=3))
    context = ContextManager(tokenizer_of(APPENDING))  # the tokenizer alone will do
    running: list[Any] = [dict(output) for output in states.reset()]
    replies = iter(REPLIES * 2)
    while running:
        asked = [dict(lm_input) for lm_input in context.get_lm_inputs(running)]
        said = [{"env_id": one["env_id"], "llm_response": next(replies)} for one in asked]
        inputs = [dict(env_input) for env_input in context.get_env_inputs(said)]
        running = [dict(output) for output in states.step(inputs)]
    first, second = context.formulate_rollouts([dict(state) for state in states.get_rollout_states()])
    assert [turn.actions for turn in first.turns] == [("go",), (), ("win",)]
    assert [turn.actions for turn in second.turns] == [("stay",), ("go",), ("go",)]
    assert (first.is_success, second.stop_reason) == (True, StopReason.MAX_TURNS)


def test_an_episode_that_does_not_say_how_it_ended_was_cut_off() -> None:
    context = ContextManager(template_of(APPENDING))
    start = {"env_id": 4, "group_id": 1, "tag": "words", "penalty": 0, "history": [{"state": "at 0"}]}
    context.get_lm_inputs([start])
    context.get_env_inputs([{"env_id": 4, "llm_response": "<answer>go</answer>"}])
    turn = {"state": "at 0", "actions": ["go"], "reward": 1.0, "llm_response": "<answer>go</answer>"}
    (cut,) = context.formulate_rollouts(env_outputs=[{**start, "history": [turn, {"state": "at 1"}]}])
    assert (cut.episode_return, cut.stop_reason, cut.final_observation) == (1.0, StopReason.MAX_TURNS, "at 1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"env_id": 0, "history": [{"state": "x"}]}, "EnvOutput: the given dictionary has no 'group_id', 'tag', 'pen"),
        (
            {"env_id": 0, "group_id": 0, "tag": "a", "penalty": 0, "history": [{}]},
            "HistoryEntry: a turn has no 'state'",
        ),
        ({"env_id": 0, "group_id": 0, "tag": "a", "penalty": 0, "history": []}, "expected a list of turns"),
        ({"env_id": 7, "group_id": 0, "tag": "a", "penalty": 0, "history": [{"state": "x"}] * 2}, "no conversation"),
    ],
)
def test_what_a_dictionary_lacks_is_told_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        ContextManager(template_of(APPENDING)).get_lm_inputs([given])


def test_replies_and_rollouts_need_their_prompts() -> None:
    context = ContextManager(template_of(APPENDING))
    with pytest.raises(WorkflowError, match="LmOutput: the given dictionary has no 'completion'"):
        context.get_env_inputs([{"env_id": 0}])
    with pytest.raises(WorkflowError, match="env_id 0 waits for no reply"):
        context.get_env_inputs([{"env_id": 0, "llm_response": "hm"}])
    played = {"env_id": 0, "group_id": 0, "tag": "a", "penalty": 0, "history": [{"state": "x"}] * 2}
    with pytest.raises(WorkflowError, match="there are no tokens of it"):
        context.formulate_rollouts([played])
