"""Built-in workflows that play any environment step by step, each step a training record of its own.

`step_wise_environment` gives each step the reward the world gave it, `reward_propagation_environment` gives the whole
run its return at the end, and `single_turn` takes one step. The conversation, its window and the answer format are
those of `context`, as in the workflow that plays a whole episode as one record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from turnwise.context.answer import parse_answer
from turnwise.context.manager import count_shown, write_preamble
from turnwise.envs.boundary import describe_env, reset_env
from turnwise.exchange import EnvDescription
from turnwise.rollout.model_handle import ModelHandle, Response
from turnwise.rollout.step_wise import RewardPropagationWorkflow, StepFacts, StepWiseRewardWorkflow, WorkflowTask
from turnwise.rollout.turn import info_of_turn, is_invalid_turn, is_successful_turn, play_actions
from turnwise.types import Message, StepResult, StopReason

T = TypeVar("T")


class EnvironmentPlayer:
    """Plays an environment with a model, turn by turn, and remembers what was said."""

    def __init__(self, task: WorkflowTask, model: ModelHandle) -> None:
        self._task = task
        self._model = model
        self._about = EnvDescription()
        self._said: list[tuple[str, str]] = []
        """Each turn's observation and reply."""
        self._num_actions = 0
        self.env = task.make_env()
        self.observation = ""
        self.is_success = False
        self.stop_reason: StopReason | None = None
        """Why the episode is over; None while it goes on."""
        self.facts: list[StepFacts] = []

    async def reset(self) -> None:
        """Begin the task from the start; what was said is forgotten."""
        self._said, self._num_actions = [], 0
        self.stop_reason, self.is_success = None, False
        self.observation = await self._in_env(self._reset)

    async def play_turn(self, *, notes: str = "") -> float:
        """One reply, and its actions in the world; returns what they earned. `notes` stand before the first text."""
        answer = self._task.context.answer
        reply = await self.ask(self.messages(notes))
        self._said.append((self.observation, reply.response_text))
        parsed = parse_answer(reply.response_text, answer)
        results = await self._in_env(lambda: self._play(parsed.actions))
        last = results[-1] if results else None
        is_invalid = is_invalid_turn(results, is_well_formed=parsed.is_well_formed)
        self.facts.append(
            StepFacts(
                actions=parsed.actions[: len(results)],
                penalty=self._task.invalid_penalty if is_invalid else 0.0,
                info=info_of_turn(results),
            )
        )
        if last is not None:
            self.observation = last.text
        self.is_success = is_successful_turn(results)
        self.stop_reason = self._task.limits.find_stop(last, num_actions=self._num_actions, num_turns=len(self._said))
        return sum(result.reward for result in results)

    async def ask(self, messages: list[Message]) -> Response:
        """The reply that is acted on."""
        (reply,) = await self._model.chat_async(messages, prefix=self._task.context.answer.forced_prefix)
        return reply

    def messages(self, notes: str = "") -> list[Message]:
        """What the model sees next: the turns that the window shows, and the current state."""
        settings = self._task.context
        num_past = count_shown(len(self._said) + 1, settings) - 1
        shown = self._said[len(self._said) - num_past :]
        first = notes + write_preamble(self._about, settings)
        messages = [Message("system", settings.system_prompt)] if settings.system_prompt else []
        for observation, reply in shown:
            messages += [Message("user", first + observation), Message("assistant", reply)]
            first = ""
        return [*messages, Message("user", first + self.observation)]

    def _reset(self) -> str:
        given = self._task
        text = reset_env(self.env, seed=given.seed, split=given.task.split, dynamics_seed=given.dynamics_seed)
        self._about = describe_env(self.env)
        return text

    def _play(self, actions: tuple[str, ...]) -> list[StepResult]:
        budget = self._task.limits.max_actions
        left = None if budget is None else budget - self._num_actions
        results = list(play_actions(self.env, actions, max_actions=left))
        self._num_actions += len(results)
        return results

    async def _in_env(self, call: Callable[[], T]) -> T:
        """A slow environment must not hold up other episodes."""
        if self.env.is_slow:
            return await asyncio.get_running_loop().run_in_executor(self._task.threads, call)
        return call()


class _PlaysEnvironment:
    """What the workflows below share: one turn in the world is one step."""

    player: EnvironmentPlayer
    stop_reason: StopReason

    async def take_step(self, step_num: int) -> tuple[float, bool]:
        """What the turn earned, and whether the episode goes on."""
        if step_num == 0:
            await self.player.reset()
        earned = await self.player.play_turn()
        self.stop_reason = self.player.stop_reason or StopReason.TERMINATED
        return earned, self.player.stop_reason is None

    def facts(self) -> Mapping[int, StepFacts]:
        return dict(enumerate(self.player.facts))

    def is_success(self, total_reward: float) -> bool:
        return self.player.is_success

    def close(self) -> None:
        self.player.env.close()


class StepWiseEnvironmentWorkflow(_PlaysEnvironment, StepWiseRewardWorkflow):
    """`rollout.workflow: step_wise_environment`: every step has the reward that the world gave it."""

    arg_names = frozenset({"max_env_steps"})

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        super().__init__(task=task, model=model)
        self.player = EnvironmentPlayer(task, model)
        self._earned = 0.0

    async def step(self, step_num: int) -> bool:
        self._earned, goes_on = await self.take_step(step_num)
        return goes_on

    async def reward(self, exps: list[Response], step_num: int) -> float:
        return self._earned


class RewardPropagationEnvironmentWorkflow(_PlaysEnvironment, RewardPropagationWorkflow):
    """`rollout.workflow: reward_propagation_environment`: the return of the run is the reward of all its steps."""

    arg_names = frozenset({"max_env_steps"})

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        super().__init__(task=task, model=model)
        self.player = EnvironmentPlayer(task, model)
        self._total = 0.0

    async def step(self, step_num: int) -> bool:
        earned, goes_on = await self.take_step(step_num)
        self._total += earned
        return goes_on

    async def reward(self, exps: list[Response]) -> float:
        return self._total


class SingleTurnWorkflow(RewardPropagationEnvironmentWorkflow):
    """`rollout.workflow: single_turn`: one reply, whatever `rollout.max_turns` says."""

    arg_names = frozenset()

    @property
    def max_step_num(self) -> int:
        return 1
