"""Workflows that users write: what they must say, what becomes of it, and what never breaks a run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from tests.clock import HANG_S, LoopClock
from tests.unit.context.chat_families import template_of
from turnwise.config.schema import AnswerFormat, ContextSettings
from turnwise.context.recorder import Response
from turnwise.credit.step_level import MultiStepGrpo, StepReturn
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import WorkflowError
from turnwise.experience.build import build_experiences, merge_prefixes
from turnwise.protocols import CreditRule
from turnwise.rollout.episode import Limits, RolloutLimits
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout.step_wise import RewardPropagationWorkflow, StepWiseRewardWorkflow
from turnwise.rollout.workflow import (
    RewardPropagationEnvironmentWorkflow,
    SingleTurnWorkflow,
    StepWiseEnvironmentWorkflow,
    Workflow,
)
from turnwise.types import Annotations, GenerateRequest, Group, Sampling, StopReason, Task, Trajectory

from .worlds import make_proxy, make_states

TEMPLATE = template_of("chatml")


def say(word: str) -> list[int]:
    return [*TEMPLATE.encode_text(f"<answer>{word}</answer>").tolist(), TEMPLATE.end_of_turn_id]


def engine_saying(word: str = "stay") -> ScriptedEngine:
    return ScriptedEngine(lambda _: say(word), stop_ids=TEMPLATE.stop_ids)


def play(
    workflow: Callable[..., Workflow],
    engine: ScriptedEngine | None = None,
    *,
    max_turns: int = 10,
    max_actions: int | None = None,
    group_size: int = 1,
    tasks: int = 1,
    limits: RolloutLimits | None = None,
    context: ContextSettings | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
    **workflow_args: Any,
) -> list[Group]:
    states = make_states(
        group_size=group_size, limits=Limits(max_turns=max_turns, max_actions=max_actions), invalid_penalty=-0.1
    )
    proxy = make_proxy(
        engine or engine_saying(),
        TEMPLATE,
        states,
        workflow=workflow,
        context=context,
        limits=limits or RolloutLimits(),
        workflow_args=workflow_args,
    )
    return asyncio.run(proxy.collect([Task(tag="words", seed=n) for n in range(tasks)], rollout=0, on_done=on_done))


def play_one(workflow: Callable[..., Workflow], *args: Any, **options: Any) -> Trajectory:
    (group,) = play(workflow, *args, **options)
    return group.trajectories[0]


class FiveSteps(StepWiseRewardWorkflow):
    """Plain code that ends after five steps; step k is worth k."""

    calls_per_step = 1

    def step(self, step_num: int) -> bool:
        for _ in range(self.calls_per_step):
            (reply,) = self.model.chat([{"role": "user", "content": f"step {step_num}"}])
            assert reply.response_text == "<answer>stay</answer>"
        return step_num < 4

    def reward(self, exps: list[Response], step_num: int) -> float:
        assert [e.step for e in exps] == [step_num] * self.calls_per_step
        return float(step_num)


class Endless(FiveSteps):
    def step(self, step_num: int) -> bool:
        super().step(step_num)
        return True


class Propagated(RewardPropagationWorkflow):
    async def step(self, step_num: int) -> bool:
        await self.model.chat_async([{"role": "user", "content": "go on"}])
        return step_num < 2

    def reward(self, exps: list[Response]) -> float:
        return len(exps) / 2


def rewards(trajectory: Trajectory) -> list[float]:
    return [turn.reward for turn in trajectory.turns]


# --- the two contracts ------------------------------------------------------------------------------------------------


def test_every_step_is_an_experience_with_its_own_reward() -> None:
    (group,) = play(FiveSteps)
    experiences = build_experiences([group])
    assert [e.turn_steps.tolist() for e in experiences] == [[0], [1], [2], [3], [4]]
    assert [e.raw_rewards.tolist() for e in experiences] == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert group.trajectories[0].stop_reason is StopReason.TERMINATED
    assert group.trajectories[0].turns[-1].info["actual_env_steps"] == 5


@pytest.mark.parametrize("budget", [{"max_turns": 3}, {"max_env_steps": 3}])
def test_a_budget_cuts_and_marks_the_run_as_truncated(budget: dict[str, int]) -> None:
    trajectory = play_one(Endless, **budget)
    assert len(trajectory.segments) == 3
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.stop_reason.is_truncated


def test_one_reward_at_the_end_stands_on_the_last_step() -> None:
    trajectory = play_one(Propagated)
    assert rewards(trajectory) == [0.0, 0.0, 1.5]
    assert trajectory.turns[-1].info["actual_env_steps"] == 3


@pytest.mark.parametrize("rule", [MultiStepGrpo(), StepReturn(gamma=1.0)])
def test_one_reward_at_the_end_counts_the_same_for_every_step(rule: CreditRule) -> None:
    class BetterWithNumber(Propagated):
        def reward(self, exps: list[Response]) -> float:
            return float(self.task.id.sibling)

    experiences = build_experiences(play(BetterWithNumber, group_size=3))
    samples = rule(experiences, Annotations())
    per_step = {
        str(sample.experience.id): set(sample.advantages[sample.experience.segment.loss_mask]) for sample in samples
    }
    assert len(per_step) == 9
    for sibling, sign in enumerate((-1, 0, 1)):
        first, second, third = (values for name, values in per_step.items() if f"/{sibling}#" in name)
        assert first == second == third
        assert [np.sign(value) for value in first] == [sign]


def test_several_calls_in_one_step_share_its_number_and_its_reward_is_counted_once() -> None:
    class Twice(FiveSteps):
        calls_per_step = 2

    trajectory = play_one(Twice)
    assert [turn.step for turn in trajectory.turns] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert rewards(trajectory) == [0, 0, 0, 1, 0, 2, 0, 3, 0, 4]


def test_a_step_without_a_call_makes_no_experience_and_its_reward_is_not_lost() -> None:
    class Listens(StepWiseRewardWorkflow):
        def step(self, step_num: int) -> bool:
            if step_num in (1, 3):
                self.model.chat([{"role": "user", "content": "now"}])
            return step_num < 4

        def reward(self, exps: list[Response], step_num: int) -> float:
            return 1.0

    trajectory = play_one(Listens)
    assert [turn.step for turn in trajectory.turns] == [1, 3]
    assert rewards(trajectory) == [3.0, 2.0]


def test_a_model_without_a_record_is_refused_at_once() -> None:
    with pytest.raises(WorkflowError, match="keeps no record"):
        FiveSteps(task=None, model=object())  # type: ignore[arg-type]


# --- plain code runs at the same time, and its faults are data --------------------------------------------------------


def test_plain_code_that_blocks_does_not_hold_up_its_siblings() -> None:
    barrier = threading.Barrier(8, timeout=HANG_S)

    class Waits(FiveSteps):
        def step(self, step_num: int) -> bool:
            barrier.wait()  # passes only when all eight are inside
            return super().step(step_num)

    (group,) = play(Waits, group_size=8)
    assert [t.stop_reason for t in group.trajectories] == [StopReason.TERMINATED] * 8


class _Faulty(FiveSteps):
    def step(self, step_num: int) -> bool:
        if step_num == 2 and self.task.seed == 1:
            raise RuntimeError("my agent broke")
        return super().step(step_num)


def test_an_exception_is_data_with_its_place_and_the_others_go_on() -> None:
    first, second = (group.trajectories[0] for group in play(_Faulty, tasks=2))
    assert first.stop_reason is StopReason.TERMINATED
    assert second.stop_reason is StopReason.WORKFLOW_ERROR
    assert "my agent broke" in second.failure
    assert "test_step_wise.py" in second.failure
    assert len(second.segments) == 2
    assert build_experiences([Group(task=second.task, trajectories=(second,))]) == []


@pytest.mark.parametrize("wrong", [None, 1, "yes"])
def test_a_step_must_say_whether_it_goes_on(wrong: object) -> None:
    class Mute(FiveSteps):
        def step(self, step_num: int) -> bool:
            return wrong  # type: ignore[return-value]

    assert "expected True to go on, or False" in play_one(Mute).failure


@pytest.mark.parametrize("wrong", [None, "1", float("nan"), float("inf")])
def test_a_reward_must_be_a_finite_number(wrong: object) -> None:
    class Odd(FiveSteps):
        def reward(self, exps: list[Response], step_num: int) -> float:
            return wrong  # type: ignore[return-value]

    trajectory = play_one(Odd)
    assert trajectory.stop_reason is StopReason.WORKFLOW_ERROR
    assert "expected a finite number" in trajectory.failure


def test_chat_in_a_coroutine_says_what_to_do() -> None:
    class Wrong(Propagated):
        async def step(self, step_num: int) -> bool:
            self.model.chat([{"role": "user", "content": "?"}])
            return False

    assert "Await chat_async" in play_one(Wrong).failure


def test_an_episode_that_takes_too_long_is_ended_and_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    heard: SimpleQueue[str] = SimpleQueue()
    is_over = threading.Event()

    class Sleeps(FiveSteps):
        def step(self, step_num: int) -> bool:
            if self.task.seed == 1:
                return super().step(step_num)
            assert is_over.wait(HANG_S)
            try:
                return super().step(step_num)
            except WorkflowError as error:
                heard.put(str(error))
                raise

    def note(trajectory: Trajectory) -> None:
        if trajectory.task.seed == 1:
            clock.put_forward(HANG_S)

    limits = RolloutLimits(timeout_s=HANG_S)
    slow, fast = (g.trajectories[0] for g in play(Sleeps, tasks=2, limits=limits, on_done=note))
    is_over.set()
    assert slow.stop_reason is StopReason.TIMEOUT
    assert f"episode_timeout_s = {HANG_S:g}" in slow.failure
    assert fast.stop_reason is StopReason.TERMINATED
    assert "the episode is over" in heard.get(timeout=HANG_S)


def test_a_failed_episode_is_played_again_from_a_fresh_start() -> None:
    made: list[int] = []

    class Once(FiveSteps):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            made.append(len(made))
            self.is_first = len(made) == 1

        def step(self, step_num: int) -> bool:
            if self.is_first and step_num == 1:
                raise RuntimeError("only the first time")
            return super().step(step_num)

    trajectory = play_one(Once, limits=RolloutLimits(max_retries=1))
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert rewards(trajectory) == [0, 1, 2, 3, 4]
    assert len(made) == 2


def test_no_more_episodes_than_allowed_run_at_the_same_time() -> None:
    running, most = 0, 0
    lock = threading.Lock()
    barrier = threading.Barrier(3, timeout=HANG_S)

    class Counts(FiveSteps):
        def step(self, step_num: int) -> bool:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            barrier.wait()  # passes only when three are inside
            with lock:
                running -= 1
            return super().step(step_num)

    play(Counts, group_size=9, limits=RolloutLimits(max_concurrent=3))
    assert most == 3


def test_a_workflow_is_closed_however_it_ends() -> None:
    closed: list[int] = []
    done = threading.Event()

    class Closes(_Faulty):
        def close(self) -> None:
            closed.append(self.task.seed)
            if len(closed) == 2:
                done.set()

    play(Closes, tasks=2)
    assert done.wait(HANG_S)
    assert sorted(closed) == [0, 1]


# --- tokens -----------------------------------------------------------------------------------------------------------


class Remembers(RewardPropagationWorkflow):
    """Keeps the conversation as text, as agent programs do."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.memory: list[dict[str, str]] = []

    def step(self, step_num: int) -> bool:
        self.memory.append({"role": "user", "content": f"observation {step_num}"})
        (reply,) = self.model.chat(self.memory)
        self.memory.append({"role": "assistant", "content": reply.response_text})
        return step_num < 3

    def reward(self, exps: list[Response]) -> float:
        return 1.0


def spelled(text: str) -> list[int]:
    """One token per letter: what no tokenizer would make of the text."""
    return [int(i) for letter in text for i in TEMPLATE.encode_text(letter)]


def test_a_conversation_goes_on_over_the_sampled_tokens_and_not_over_their_text() -> None:
    engine = ScriptedEngine(
        lambda _: [*spelled("stay here"), int(TEMPLATE.end_of_turn_id or 0)], stop_ids=TEMPLATE.stop_ids
    )
    assert len(spelled("stay here")) > len(TEMPLATE.encode_text("stay here"))
    (group,) = play(Remembers, engine)
    (trajectory,) = group.trajectories
    for before, after in zip(trajectory.segments, trajectory.segments[1:], strict=False):
        assert after.token_ids[: len(before)].tolist() == before.token_ids.tolist()
    (merged,) = merge_prefixes(build_experiences([group]))
    assert merged.segment.num_action_tokens == 4 * (len(spelled("stay here")) + 1)
    assert merged.segment.token_ids.tolist() == trajectory.segments[-1].token_ids.tolist()


def test_what_is_recorded_is_what_went_through_the_engine() -> None:
    engine = engine_saying()
    trajectory = play_one(Remembers, engine)
    for segment, request, completion in zip(trajectory.segments, engine.requests, engine.completions, strict=True):
        whole = np.concatenate([request.prompt_ids, completion.token_ids])
        assert segment.token_ids.tolist() == whole.tolist()
        assert segment.token_ids[segment.loss_mask].tolist() == completion.token_ids.tolist()
        assert segment.behavior_logprobs[segment.loss_mask].tolist() == completion.behavior_logprobs.tolist()


def test_a_changed_history_starts_a_new_sequence() -> None:
    class Forgets(Remembers):
        def step(self, step_num: int) -> bool:
            goes_on = super().step(step_num)
            self.memory[-1]["content"] = "…"
            return goes_on

    (group,) = play(Forgets)
    assert len(merge_prefixes(build_experiences([group]))) == 4


def test_several_replies_to_one_prompt_are_several_records_with_dice_of_their_own() -> None:
    class Asks(Propagated):
        async def step(self, step_num: int) -> bool:
            replies = await self.model.chat_async([{"role": "user", "content": "?"}], n=3)
            assert len(replies) == 3
            return False

    engine = engine_saying()
    assert len(play_one(Asks, engine).segments) == 3
    assert len({request.seed for request in engine.requests}) == 3


@pytest.mark.parametrize("wrong", ["hello", [], [{"role": "user"}], [{"role": "user", "content": 3}]])
def test_messages_of_the_wrong_shape_are_named(wrong: object) -> None:
    class Wrong(Propagated):
        async def step(self, step_num: int) -> bool:
            await self.model.chat_async(wrong)  # type: ignore[arg-type]
            return False

    assert "expected" in play_one(Wrong).failure


def test_a_conversation_that_outgrows_the_context_is_truncated_and_keeps_its_reward() -> None:
    trajectory = play_one(Remembers, context=ContextSettings(max_tokens=60, max_response_tokens=16))
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert 0 < len(trajectory.segments) < 4
    assert sum(rewards(trajectory)) == 1.0


# --- the built-in ones ------------------------------------------------------------------------------------------------

WORDS = ["stay", "nonsense", "go", "stay", "win"]


def scripted(words: list[str]) -> ScriptedEngine:
    """The nth reply of each episode is the nth word; episodes are told apart by how much they were told."""
    turns: dict[str, int] = {}

    def reply(request: GenerateRequest) -> list[int]:
        name = str(request.cache_key).split("#")[0]
        turns[name] = turns.get(name, -1) + 1
        return say(words[turns[name]])

    return ScriptedEngine(reply, stop_ids=TEMPLATE.stop_ids)


@pytest.mark.parametrize(
    "context",
    [
        ContextSettings(),
        ContextSettings(system_prompt="Be brief.", instructions="none"),
        ContextSettings(window="sliding", window_turns=2),
        ContextSettings(window="sliding", window_turns=1),
        ContextSettings(window="single_turn", answer=AnswerFormat(forced_prefix="<")),
    ],
)
def test_step_by_step_the_model_sees_what_it_sees_in_a_whole_episode(context: ContextSettings) -> None:
    whole, steps = scripted(WORDS), scripted(WORDS)
    states = make_states(groups=1, group_size=1, limits=Limits(max_turns=10), invalid_penalty=-0.1)
    proxy = make_proxy(whole, TEMPLATE, states, context=context)
    (expected,) = asyncio.run(proxy.collect([Task(tag="words", seed=0)], rollout=0))
    (found,) = play(StepWiseEnvironmentWorkflow, steps, context=context)
    assert [r.prompt_ids.tolist() for r in steps.requests] == [r.prompt_ids.tolist() for r in whole.requests]
    old, new = expected.trajectories[0], found.trajectories[0]
    assert [(t.reward, t.penalty, t.actions) for t in new.turns] == [
        (t.reward, t.penalty, t.actions) for t in old.turns
    ]
    assert (new.stop_reason, new.is_success) == (old.stop_reason, old.is_success)
    # A whole episode is one record wherever its calls extend each other, and so are steps that are merged.
    rows = merge_prefixes(build_experiences([found]))
    for a, b in zip(rows, build_experiences([expected]), strict=True):
        assert a.segment.token_ids.tolist() == b.segment.token_ids.tolist()
        assert a.segment.turn_ids.tolist() == b.segment.turn_ids.tolist()
        assert a.turn_rewards.tolist() == b.turn_rewards.tolist()


def test_the_budget_of_actions_ends_an_episode_in_the_middle_of_an_answer() -> None:
    context = ContextSettings(answer=AnswerFormat(max_actions_per_turn=2))
    engine = scripted(["go || stay", "go || win", "win"])
    trajectory = play_one(StepWiseEnvironmentWorkflow, engine, context=context, max_actions=3)
    assert [turn.actions for turn in trajectory.turns] == [("go", "stay"), ("go",)]
    assert (trajectory.stop_reason, trajectory.is_success) == (StopReason.MAX_ACTIONS, False)


def test_the_return_of_a_run_is_given_at_its_end() -> None:
    trajectory = play_one(RewardPropagationEnvironmentWorkflow, scripted(["go", "go", "win"]))
    assert rewards(trajectory) == [0.0, 0.0, 3.0]
    assert trajectory.is_success


def test_a_single_turn_is_one_reply() -> None:
    trajectory = play_one(SingleTurnWorkflow, scripted(["go", "win"]))
    assert rewards(trajectory) == [1.0]
    assert trajectory.stop_reason is StopReason.MAX_TURNS


def test_a_world_that_breaks_is_an_environments_failure() -> None:
    trajectory = play_one(StepWiseEnvironmentWorkflow, scripted(["go", "crash"]))
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert "the world broke" in trajectory.failure


def test_a_handle_is_all_a_test_of_a_workflow_needs() -> None:
    async def ask() -> Response:
        model = ModelHandle(
            engine_saying("go"),
            TEMPLATE,
            sampling=Sampling(),
            max_tokens=200,
            seed=0,
            name="alone",
        )
        (reply,) = await model.chat_async([{"role": "user", "content": "?"}])
        return reply

    reply = asyncio.run(ask())
    assert reply.response_text == "<answer>go</answer>"
    assert len(reply.tokens) == len(reply.logprobs)
    assert reply.prompt_length == len(reply.prompt_ids)


class BadAtClosing(RewardPropagationWorkflow):
    async def step(self, step_num: int) -> bool:
        await self.model.chat_async([{"role": "user", "content": "go on"}])
        return False

    def reward(self, exps: list[Response]) -> float:
        return 1.0

    async def close(self) -> None:
        raise OSError("cannot let go")


def test_a_close_that_fails_costs_nothing_that_was_earned(caplog: pytest.LogCaptureFixture) -> None:
    trajectory = play_one(BadAtClosing)
    assert (trajectory.stop_reason, rewards(trajectory)) == (StopReason.TERMINATED, [1.0])
    assert "BadAtClosing failed while it was closed" in caplog.text


@pytest.mark.parametrize("workflow", [StepWiseEnvironmentWorkflow, RewardPropagationEnvironmentWorkflow])
def test_a_context_that_is_full_ends_an_episode_with_what_it_earned(workflow: type[Workflow]) -> None:
    trajectory = play_one(
        workflow, engine_saying("go"), context=ContextSettings(max_tokens=300, max_response_tokens=40)
    )
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert "context.max_tokens" in trajectory.failure
    assert 0 < len(trajectory.turns) < 10
    assert sum(rewards(trajectory)) == len(trajectory.turns)
    assert trajectory.final_observation == f"seed 0 at {len(trajectory.turns)}"
    if workflow is RewardPropagationEnvironmentWorkflow:
        assert rewards(trajectory)[:-1] == [0.0] * (len(trajectory.turns) - 1)


class Reading(RewardPropagationWorkflow):
    """Sums up what it noted of its steps."""

    def step(self, step_num: int) -> bool:
        (reply,) = self.model.chat([{"role": "user", "content": "say"}])
        self.note(reward=float(step_num), metrics={"replies": len([reply])}, info={"said": step_num})
        return step_num < 2

    def reward(self, exps: list[Response]) -> float:
        assert [(exp.reward, exp.info["said"]) for exp in exps] == [(0, 0), (1, 1), (2, 2)]
        assert ["c<" in exp.response_text for exp in exps] == [False, False, True]
        assert not self.repeatable
        assert self.task.raw_task == {"seed": self.task.seed, "split": "train"}
        return sum(exp.metrics["replies"] for exp in exps)


def test_a_reward_reads_what_is_known_of_each_call() -> None:
    trajectory = play_one(Reading, scripted(["b", "b", "c"]))
    assert (trajectory.failure, rewards(trajectory)) == ("", [0.0, 1.0, 5.0])
