"""Agents that own their environment and their history, and the rollout that drives a batch of them.

An agent says what the model should see and acts on what it answers; nothing else of the loop concerns it. Each agent is
played by a workflow, so it has the same scheduler, the same token-exact record and the same failures as everything.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from turnwise.config.component import import_target
from turnwise.context.answer import build_instructions, describe_invalid, parse_answer
from turnwise.context.recorder import Response
from turnwise.envs.safe_calls import close_env, describe_env, reset_env, step_env
from turnwise.errors import ConfigError, WorkflowError
from turnwise.infra.threads import run_async
from turnwise.protocols import Collector
from turnwise.rollout.model_handle import ChatMessage, ModelHandle
from turnwise.rollout.step_wise import StepWiseRewardWorkflow
from turnwise.rollout.workflow import WorkflowTask
from turnwise.types import Experience, Group, Message, StepResult, StopReason, Task


class BaseAgent(ABC):
    """One agent in one episode: it is made for the task, reset once, and then asked in turns.

    Example of a turn::

        messages = agent.get_llm_prompts(env_out)
        env_out = agent.get_env_outputs(llm_response)
    """

    def __init__(self, task: WorkflowTask) -> None:
        """`task` tells the seed, the split, the arguments in `workflow_args`, and makes environments (`make_env`)."""
        self.task = task

    @abstractmethod
    def reset(self) -> StepResult:
        """Begin the episode: make the environment, forget the history, and return the first state."""

    @abstractmethod
    def get_llm_prompts(self, env_out: StepResult) -> Sequence[ChatMessage]:
        """The conversation that the model should continue."""

    @abstractmethod
    def get_env_outputs(self, llm_response: str) -> StepResult:
        """Act on what the model said, and remember it."""

    def close(self) -> None:
        """Let go of whatever the agent holds."""
        return


class EnvironmentAgent(BaseAgent):
    """Plays the environment of the settings and keeps the whole conversation; a model for agents of your own."""

    def __init__(self, task: WorkflowTask) -> None:
        super().__init__(task)
        self.env = task.make_env()
        self.history: list[Message] = []
        self._state = ""
        """What the world said last."""

    def reset(self) -> StepResult:
        given = self.task
        self._state = reset_env(self.env, seed=given.seed, split=given.task.split, dynamics_seed=given.dynamics_seed)
        self.history = []
        preamble = build_instructions(describe_env(self.env), given.context)
        return StepResult(text=preamble + self._state, reward=0.0, terminated=False, truncated=False)

    def get_llm_prompts(self, env_out: StepResult) -> Sequence[ChatMessage]:
        self.history.append(Message("user", env_out.text))
        return list(self.history)

    def get_env_outputs(self, llm_response: str) -> StepResult:
        self.history.append(Message("assistant", llm_response))
        context = self.task.context
        actions = parse_answer(llm_response, context.answer).actions[:1]
        if actions:
            result = step_env(self.env, actions[0])
            self._state = result.text
        else:
            result = StepResult(
                text=self._state,
                reward=0.0,
                terminated=False,
                truncated=False,
                is_valid=False,
                is_effective=False,
                is_success=False,
            )
        if not context.tell_invalid or result.is_valid:
            return result
        about = describe_env(self.env)
        told = describe_invalid(actions, context.answer, about.action_names, about.example)
        return replace(result, text=f"{told}\n{self._state}")

    def close(self) -> None:
        close_env(self.env)


AgentMaker: TypeAlias = Callable[[WorkflowTask], BaseAgent]
"""A class of agents: given a task, it makes the agent that plays it."""


class AgentWorkflow(StepWiseRewardWorkflow):
    """`rollout.workflow: agent` with `workflow_args: {agent_cls: 'package.module:Class'}`."""

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        find_agent_class(workflow_args.get("agent_cls"))

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        super().__init__(task=task, model=model)
        self._agent = find_agent_class(task.workflow_args.get("agent_cls"))(task)
        self._now: StepResult | None = None
        self._is_success: bool | None = None
        """As the agent said last."""

    def step(self, step_num: int) -> bool:
        before = self._now or _checked(self._agent.reset(), "reset")
        (reply,) = self.model.chat(self._agent.get_llm_prompts(before))
        after = self._now = _checked(self._agent.get_env_outputs(reply.response_text), "get_env_outputs")
        self.note(
            penalty=0.0 if after.is_valid else self.task.invalid_penalty,
            is_valid=after.is_valid,
            is_effective=after.is_effective,
            metrics=after.metrics,
            info=after.info,
        )
        if after.is_success is not None:
            self._is_success = after.is_success
        if after.truncated and not after.terminated:
            self.stop_reason = StopReason.ENV_TRUNCATED
        return not after.done

    def reward(self, exps: list[Response], step_num: int) -> float:
        return self._now.reward if self._now is not None else 0.0

    def is_success(self, total_reward: float) -> bool | None:
        """What the agent said last, which may have been turns ago; None: it never did."""
        return self._is_success

    def close(self) -> None:
        self._agent.close()


_METHODS = ("reset", "get_llm_prompts", "get_env_outputs")


def find_agent_class(given: object, where: str = "rollout.workflow_args.agent_cls") -> AgentMaker:
    """The class of agents that was given, or is behind 'package.module:Class'."""
    target = given
    if not callable(given):
        if not isinstance(given, str) or not (":" in given or "." in given):
            raise ConfigError(f"{where} is {given!r}; expected 'package.module:Class', a class of agents.")
        target = import_target(given, where)
    if missing := [name for name in _METHODS if not callable(getattr(target, name, None))]:
        raise ConfigError(
            f"{where}: {given!r} is no class of agents: it has no {', '.join(missing)}; expected {', '.join(_METHODS)}."
        )
    if unwritten := sorted(getattr(target, "__abstractmethods__", ())):
        raise ConfigError(f"{where}: {given!r} cannot be made; write {', '.join(unwritten)}.")
    return cast("AgentMaker", target)


def name_agent_class(agent_cls: AgentMaker) -> str:
    """How the settings of a run name a class, so that whoever reads them finds it."""
    module, name = agent_cls.__module__, getattr(agent_cls, "__qualname__", "")
    if getattr(sys.modules.get(module), name, None) is not agent_cls:
        raise ConfigError(
            f"agent_cls: {agent_cls!r} is not found as '{name}' in its module '{module}', so a run could not name it. "
            "Write the class at the top level of a module."
        )
    return f"{module}:{name}"


def _checked(result: object, method: str) -> StepResult:
    if not isinstance(result, StepResult):
        raise WorkflowError(f"the agent's {method} returned {type(result).__name__}; expected a StepResult.")
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class GenBatch:
    """What one rollout of a trainer is asked to play."""

    tasks: tuple[Task, ...]
    step: int
    meta_info: dict[str, Any] = field(default_factory=dict)
    """For whoever writes a trainer of their own; nothing here reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorRollout:
    """Who plays agents, what they play next, and how records are made of it: a worker group, in one process."""

    proxy: Collector
    next_tasks: Callable[[], list[Task]]
    build: Callable[[Sequence[Group]], list[Experience]]
    run: Callable[[Coroutine[Any, Any, list[Group]]], list[Group]] = run_async
    """Waits for what `proxy` plays."""


class SyncMultiTurnRollout:
    """Plays a batch of agents to the end and makes training records of it: `reset`, `rollout`, `build_update_batch`."""

    def __init__(
        self,
        actor_rollout_wg: ActorRollout,
        cfg: object = None,
        tokenizer: object = None,
        processor: object = None,
        agent_cls: object = None,
    ) -> None:
        """The others are for those who know this call: settings, tokenizer and class of agents are the players' own."""
        self._workers = actor_rollout_wg
        self._tasks: list[Task] | None = None
        self._groups: list[Group] | None = None
        self._num_rollouts = 0

    def reset(self, tasks: Sequence[Task] | None = None) -> None:
        """Choose the next tasks, or take those given; what was played before is forgotten."""
        self._tasks, self._groups = self._workers.next_tasks() if tasks is None else list(tasks), None

    def rollout(self) -> list[Group]:
        """Play all agents of all tasks, until each has finished."""
        if self._tasks is None:
            self.reset()
        self._num_rollouts += 1
        self._groups = self._workers.run(self._workers.proxy.collect(self._tasks or [], rollout=self._num_rollouts))
        return self._groups

    def build_update_batch(self) -> list[Experience]:
        """The training records of the last rollout: one per model call, failed episodes left out."""
        if self._groups is None:
            raise WorkflowError("there is nothing to build a batch from yet; call rollout() first.")
        return self._workers.build(self._groups)
