"""`rollout.workflow: openai_program`: trains a program that knows nothing but a client of a chat API.

The program is a function, plain or a coroutine, that is given `base_url`, `api_key` and the task, plays it and returns
its reward, or `{"reward": …, "is_success": …}`. All programs that run at the same time share one endpoint in this
process, so that the engine puts their calls into one batch.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, NoReturn

from turnwise.config.component import import_target
from turnwise.errors import ConfigError, EngineError, RewardError, ServeError
from turnwise.rollout.workflow import Workflow
from turnwise.rollout_io import TurnFacts
from turnwise.serve.episode import Episode, EpisodeOutcome
from turnwise.serve.recorder import ChatEndpoint
from turnwise.types import StopReason, Trajectory

_EXPECTED = "expected 'package.module:function', a function that takes (base_url, api_key, task) and returns a reward."


class OpenAiProgramWorkflow(Workflow):
    """One run of the program of `rollout.workflow_args: {program: package.module:function}`; see the module's text."""

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        _import_program(workflow_args)

    async def run(self) -> Trajectory:
        program = _import_program(self.task.workflow_args)
        context = self.task.context
        episode = Episode(
            str(next(_NUMBERS)),
            self.model,
            prefix=context.answer.forced_prefix,
            max_calls=self.task.limits.max_turns,
            max_response_tokens=context.max_response_tokens,
            # The learner scores tokens at the run's temperature.
            keeps_sampling=True,
        )
        async with _offer(episode) as (base_url, api_key):
            outcome = await self._earn(partial(program, base_url=base_url, api_key=api_key, task=self.task), episode)
        for call in self.model.calls:
            # A conversation that the program edited could not go on over the sampled tokens.
            self.facts[call.step] = TurnFacts(
                reward=episode.sub_rewards.get(call.step, 0.0), metrics={"encoded_anew": float(call.is_anew)}
            )
        return self.finish(outcome.reward, stop_reason=episode.stop_reason, is_success=outcome.is_success)

    async def _earn(self, program: Callable[[], Any], episode: Episode) -> EpisodeOutcome:
        try:
            returned = await self._call(program)
        except Exception:
            # Programs do not expect to be cut short: what a budget made them raise is the end of an episode.
            if episode.refusal is None:
                raise
            returned = 0.0
        if episode.stop_reason is StopReason.ENGINE_ERROR:
            raise EngineError(str(episode.refusal))
        return episode.read_outcome(returned)


def _import_program(workflow_args: Mapping[str, Any]) -> Callable[..., Any]:
    where, target = "rollout.workflow_args.program", workflow_args.get("program")
    if not isinstance(target, str) or not all(target.partition(":")):
        raise ConfigError(f"{where}: {target!r} given; {_EXPECTED}")
    program = import_target(target, f"{where}:")
    if not callable(program):
        raise ConfigError(f"{where}: '{target}' is {program!r}, which cannot be called; {_EXPECTED}")
    try:
        inspect.signature(program).bind(base_url="", api_key="", task=None)
    except TypeError as error:
        raise ConfigError(f"{where}: '{target}' cannot be called so ({error}); {_EXPECTED}") from error
    return program


# --- the endpoint that programs share -------------------------------------------------------------------------------


class _ProgramHost:
    """The episodes of all programs in one event loop, and their endpoint."""

    def __init__(self) -> None:
        self.api_key = secrets.token_urlsafe(32)
        self.num_users = 0
        self.episodes: dict[str, Episode] = {}
        self.endpoint = ChatEndpoint(self, token=self.api_key, model_name="policy")
        self._starting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Whoever comes first starts the endpoint; that one's end must not stop the others' start."""
        self._starting = self._starting or asyncio.create_task(self.endpoint.start())
        await asyncio.shield(self._starting)

    async def close(self) -> None:
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        await self.endpoint.close()

    def find(self, name: str | None) -> Episode:
        if name not in self.episodes:
            raise ServeError(f"episode {name} is over, or was never begun.", status=404, code="not_found")
        return self.episodes[name]

    def begin(self, wishes: dict[str, Any]) -> NoReturn:
        raise ServeError("episodes begin and end with the run here; use the base_url that the program was given.")

    def end(self, name: str, outcome: dict[str, Any]) -> dict[str, Any]:
        """Single calls and agents can be rewarded on the way; the end is the program's."""
        if not outcome.keys() & {"call", "agent"}:
            raise ServeError("the reward of an episode is what the program returns.")
        try:
            return self.find(name).add_reward(outcome)
        except RewardError as error:
            raise ServeError(str(error)) from error


_HOSTS: dict[asyncio.AbstractEventLoop, _ProgramHost] = {}
"""One for each event loop in which programs run; gone with the last of them."""
_NUMBERS = count()


@asynccontextmanager
async def _offer(episode: Episode) -> AsyncIterator[tuple[str, str]]:
    """Serve an episode; gives the base URL and the key that its program needs."""
    loop = asyncio.get_running_loop()
    host = _HOSTS.setdefault(loop, _ProgramHost())
    host.num_users += 1
    try:
        await host.open()
        host.episodes[episode.name] = episode
        yield host.endpoint.base_url(episode.name), host.api_key
    finally:
        host.episodes.pop(episode.name, None)
        host.num_users -= 1
        if host.num_users == 0:
            del _HOSTS[loop]
            await host.close()
