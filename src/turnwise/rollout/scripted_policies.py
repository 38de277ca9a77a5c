"""Policies without a model: random play, the oracle, and an environment's own simple rules, as yardsticks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeAlias

from turnwise.context.answer import render_answer
from turnwise.context.recorder import Recorder, Response, completion_from_text, make_trajectory
from turnwise.envs.base import BaseEnv
from turnwise.envs.safe_calls import call_policy, reset_env, step_env
from turnwise.errors import ContextOverflow, EngineError, EnvError, RewardError
from turnwise.infra.seeds import derive_seed
from turnwise.infra.threads import call_with_timeout
from turnwise.protocols import ChatTemplate
from turnwise.rollout.workflow import EnvironmentWorkflow
from turnwise.types import (
    NO_POLICY,
    GenerateRequest,
    Message,
    StepResult,
    StopReason,
    Task,
    Trajectory,
    TrajectoryId,
    Turn,
)

Rule: TypeAlias = Callable[[BaseEnv, str], str]
"""What to do in an environment that has just said this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One action of a rule, and what the world answered."""

    observation: str
    """What the world had said before."""
    action: str
    result: StepResult


def run_policy(
    env: BaseEnv, rule: Rule, task: Task, *, max_actions: int, dynamics_seed: int | None = None
) -> Iterator[Move]:
    """One episode, move by move, until the world or the budget ends it."""
    observation = reset_env(env, seed=task.seed, split=task.split, dynamics_seed=dynamics_seed)
    for _ in range(max_actions):
        action = rule(env, observation)
        result = step_env(env, action)
        yield Move(observation=observation, action=action, result=result)
        if result.done:
            return
        observation = result.text


def list_policies(env: BaseEnv) -> dict[str, Rule]:
    """Every rule that can play this environment, weakest first; its episode has begun."""
    rules: dict[str, Rule] = {}
    if env.admissible_actions():
        rules["random"] = random_rule(0)
    rules |= {name: _rule_of(baseline) for name, baseline in env.baselines.items()}
    if env.has_oracle:
        rules["oracle"] = oracle_policy
    return rules


def _rule_of(baseline: Callable[[BaseEnv], str]) -> Rule:
    return lambda env, _: baseline(env)


def oracle_policy(env: BaseEnv, _observation: str) -> str:
    return env.oracle()


def random_rule(seed: int) -> Rule:
    """Any of the actions that are valid now, with dice of its own."""
    rng = random.Random(seed)

    def choose(env: BaseEnv, _observation: str) -> str:
        actions = env.admissible_actions()
        if not actions:
            raise EnvError(
                f"{env.label()} takes any text and knows no list of actions, so random play has nothing to draw from. "
                "Play it yourself, or by its oracle where it has one."
            )
        return rng.choice(actions)

    return choose


def record_episodes(
    env: BaseEnv, rule: Rule, tasks: Sequence[Task], max_actions: int, *, samples: int = 1, timeout_s: float | None
) -> list[Trajectory]:
    """Every task `samples` times, each episode within `timeout_s`; None: no limit."""
    played: list[Trajectory] = []
    is_hung = False
    for task, sibling in ((task, sibling) for task in tasks for sibling in range(samples)):
        if not is_hung:
            try:
                record = partial(record_episode, env, rule, task, max_actions, sibling=sibling)
                played.append(call_with_timeout(timeout_s, record))
                continue
            except TimeoutError:
                # The environment still hangs in that call, and there is no other: all that are left fail too.
                is_hung = True
        failure = f"a rule's episode took longer than rollout.episode_timeout_s = {timeout_s:g}."
        played.append(_ended(task, sibling, reason=StopReason.TIMEOUT, failure=failure))
    return played


def record_episode(env: BaseEnv, rule: Rule, task: Task, max_actions: int, *, sibling: int = 0) -> Trajectory:
    """One episode as it would stand in a rollout, without tokens; one that fails has what it earned until then.

    Siblings take other chances where the world takes any.
    """
    turns: list[Turn] = []
    dynamics_seed = derive_seed("rule", task.id, *([sibling] if sibling else []))
    reason, failure, final, is_success = StopReason.MAX_ACTIONS, "", "", False
    try:
        guarded = partial(_ask, rule)
        for move in run_policy(env, guarded, task, max_actions=max_actions, dynamics_seed=dynamics_seed):
            turns.append(_to_turn(len(turns), move))
            final, result = move.result.text, move.result
            is_success = result.done and bool(result.is_success)
            if result.done:
                reason = StopReason.TERMINATED if result.terminated else StopReason.ENV_TRUNCATED
    except (EnvError, RewardError) as error:
        reason, failure, is_success = StopReason.ENV_ERROR, str(error), False
    return _ended(task, sibling, turns, reason=reason, failure=failure, is_success=is_success, final=final)


def _ask(rule: Rule, env: BaseEnv, observation: str) -> str:
    """A rule of an author's own may fail as its world may."""
    return call_policy(env, rule, observation)


def _ended(
    task: Task,
    sibling: int,
    turns: Sequence[Turn] = (),
    *,
    reason: StopReason,
    failure: str,
    is_success: bool = False,
    final: str = "",
) -> Trajectory:
    return Trajectory(
        id=TrajectoryId(0, task.id, sibling),
        task=task,
        segments=(),
        turns=tuple(turns),
        stop_reason=reason,
        is_success=is_success,
        final_observation=final,
        failure=failure,
    )


def _to_turn(index: int, move: Move) -> Turn:
    result = move.result
    return Turn(
        index=index,
        segment_index=0,
        observation=move.observation,
        response_text=move.action,
        actions=(move.action,),
        reward=result.reward,
        penalty=0.0,
        policy_version=NO_POLICY,
        step=index,
        is_valid=result.is_valid,
        is_effective=result.is_effective,
        metrics=result.metrics,
        info=result.info,
    )


class DemonstrationWorkflow(EnvironmentWorkflow):
    """Plays an environment by its oracle, as if the policy had sampled the answers."""

    async def answer(self, messages: list[Message]) -> Response:
        fmt = self.task.context.answer
        text = render_answer([self.episode.oracle()], fmt).removeprefix(fmt.forced_prefix)
        return self.model.record_reply(messages, text, prefix=fmt.forced_prefix)


class NullEngine:
    """Stands where an engine would, for plays that ask no model."""

    policy_version = 0

    async def generate(self, request: GenerateRequest) -> NoReturn:
        raise EngineError("a demonstration asked the model; the oracle answers there.")

    def release(self, cache_key: str) -> None:
        return

    async def update_weights(self, weights: object, policy_version: int) -> None:
        return

    def state(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        return


def record_reply(pairs: Sequence[tuple[str, str]], template: ChatTemplate, *, max_tokens: int) -> list[Trajectory]:
    """Prompts with responses as single-turn trajectories, as if the policy had said the responses."""
    return [_recited(number, prompt, response, template, max_tokens) for number, (prompt, response) in enumerate(pairs)]


def _recited(number: int, prompt: str, response: str, template: ChatTemplate, max_tokens: int) -> Trajectory:
    recorder, completion = Recorder(template, max_tokens=max_tokens), completion_from_text(response, template)
    try:
        asked = recorder.prompt([Message("user", prompt)], max_new_tokens=len(completion.token_ids))
    except ContextOverflow as overflow:
        raise ContextOverflow(f"the row {prompt[:40]!r} is too long: {overflow}") from overflow
    recorder.record(asked, completion)
    task = Task(tag="recited", seed=number)
    return make_trajectory(
        TrajectoryId(0, task.id, 0),
        task,
        recorder.calls,
        {},
        is_cut_at_calls=False,
        stop_reason=StopReason.TERMINATED,
        is_success=None,
    )
