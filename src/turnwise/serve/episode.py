"""One episode's model behind an API: what it may be asked, why it would not answer, and what of a call is followed.

In: calls. Out: responses, each recorded as a step. It refuses to know HTTP, and what an episode is for.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from turnwise.context.recorder import Reading, Response
from turnwise.errors import ContextOverflow, EngineError, RewardError, ServeError, TurnwiseError
from turnwise.infra.untrusted import read_reward, read_success, show
from turnwise.rollout.model_handle import Manner, ModelHandle
from turnwise.serve.calls import ModelCall
from turnwise.types import StopReason

_log = logging.getLogger("turnwise.serve")

_BEGIN_IDS = ("chatcmpl-", "resp_", "msg_")
"""How the three APIs begin the id of a reply."""
_told: set[tuple[str, bool]] = set()
"""What was told of once in this process: programs ask for the same, or for something new, in every call."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an episode was worth."""

    reward: float | dict[int, float]
    """For its end, or by step."""
    is_success: bool | None = None
    """Whether the goal was reached; None: nobody said."""


class Episode:
    """See the module's text."""

    def __init__(
        self,
        name: str,
        model: ModelHandle,
        *,
        prefix: str,
        max_calls: int,
        max_response_tokens: int,
        keeps_sampling: bool,
    ) -> None:
        """`prefix` begins every reply; with `keeps_sampling` that of the model holds, whatever a client asks for."""
        self.name = name
        self.model = model
        self.refusal: TurnwiseError | None = None
        """Why the newest call was not answered; None where it was."""
        self.stop_reason = StopReason.TERMINATED
        """What ended the episode, if it ends now."""
        self.num_calls = 0
        """Steps that were begun; the next one has this number."""
        self.sub_rewards: defaultdict[int, float] = defaultdict(float)
        """By step: what single calls and agents were given on the way, beside the reward of the end."""
        self._agents: dict[int, str] = {}
        """By step: which agent of the program asked."""
        self._prefix = prefix
        self._max_calls = max_calls
        self._max_response_tokens = max_response_tokens
        self._keeps_sampling = keeps_sampling

    @property
    def is_full(self) -> bool:
        """Whether it has had all its calls."""
        return self.num_calls >= self._max_calls

    def begin_reply(self, call: ModelCall) -> str:
        """What the reply to a call is made to begin with. Raises ServeError for a prefill that says otherwise."""
        is_free = call.tool_choice in ("auto", "none")
        if call.prefill and not (is_free and call.prefill.startswith(self._prefix)):
            begins = f"with context.answer.forced_prefix = {self._prefix!r}" if is_free else "with a call (tool_choice)"
            raise ServeError(
                f"the last message is the assistant's, and the reply to this request begins {begins}. End the "
                "conversation with another message, or begin that text in the same way.",
                param="messages",
            )
        if is_free:
            return call.prefill or self._prefix
        return self.model.begin_call("" if call.tool_choice == "required" else call.tool_choice)

    def begin_step(self, agent: str) -> int:
        """The number of a new step, which nobody else has; ServeError where the episode has had its calls."""
        if self.is_full:
            raise self._refuse(
                StopReason.MAX_TURNS,
                ServeError(f"the episode has had its {self._max_calls} calls.", code="max_calls_exceeded"),
            )
        step = self.num_calls
        self._agents[step] = agent
        self.num_calls += 1
        return step

    def name_step(self, step: int) -> str:
        """What the id of its reply ends with; the API says how it begins."""
        return f"{self.name}-{step}"

    async def ask(self, call: ModelCall, step: int, listen: Callable[[int, int], None] | None = None) -> list[Response]:
        """The replies to one call, recorded as a step that was begun; `listen` hears choice and token as they come.

        Only an engine that samples in this process has tokens to hear before the reply is whole.
        """
        self.model.step = step
        max_tokens = min(call.max_tokens or self._max_response_tokens, self._max_response_tokens)
        self._tell_deviations(call)
        is_free = not self._keeps_sampling
        try:
            responses = await self.model.chat_async(
                call.conversation,
                n=call.n,
                temperature=call.temperature if is_free else None,
                max_tokens=max_tokens,
                prefix=self.begin_reply(call),
                tools=call.tools,
                manner=Manner(
                    top_p=call.top_p if is_free else None,
                    seed=call.seed if is_free else None,
                    reading=Reading(
                        stop=call.stop, takes_calls=call.takes_calls, takes_many_calls=call.takes_many_calls
                    ),
                    listen=listen,
                    alternatives=call.top_logprobs,
                ),
            )
        except ContextOverflow as overflow:
            told = ServeError(str(overflow), code="context_length_exceeded", param="messages")
            raise self._refuse(StopReason.CONTEXT_OVERFLOW, told) from overflow
        except EngineError as error:
            told = ServeError(str(error), status=HTTPStatus.INTERNAL_SERVER_ERROR)
            raise self._refuse(StopReason.ENGINE_ERROR, told) from error
        except ServeError:
            raise
        except TurnwiseError as error:
            raise ServeError(str(error)) from error
        if call.top_logprobs and any(response.completion.alternatives is None for response in responses):
            self.forget(responses)
            told = (
                "'top_logprobs' is not supported: the engine tells the log-prob of the sampled token, and of no other."
            )
            raise ServeError(told, param="top_logprobs", code="unsupported_parameter")
        self.refusal, self.stop_reason = None, StopReason.TERMINATED
        return responses

    def forget(self, responses: Sequence[Response]) -> None:
        """Nobody got these replies, so nobody acted on them."""
        lost = set(map(id, responses))
        self.model.calls[:] = [call for call in self.model.calls if id(call) not in lost]

    def read_outcome(self, given: object) -> Outcome:
        """A reward, or `{"reward": …, "is_success": …}` with `rewards` where each call has its own."""
        if not isinstance(given, Mapping):
            return Outcome(self.read_reward(given))
        if set(given) - {"is_success"} not in ({"reward"}, {"rewards"}):
            raise RewardError(
                f"{dict(given)!r} given; expected a number, or a mapping with 'reward' (or 'rewards', one for each "
                "call or by agent) and 'is_success' (true or false)."
            )
        said = read_success(given.get("is_success"), "is_success:")
        return Outcome(self.read_reward(given["reward"] if "reward" in given else given["rewards"]), said)

    def read_reward(self, given: object) -> float | dict[int, float]:
        """One number for the whole episode, a list with one for each call, or one by agent, for its last call."""
        if isinstance(given, Mapping):
            return {self._last_step(agent): read_number(reward) for agent, reward in given.items()}
        if not isinstance(given, Sequence) or isinstance(given, str):
            return read_number(given)
        steps = sorted({call.step for call in self.model.calls})
        if len(given) != len(steps):
            raise RewardError(
                f"{len(given)} rewards given; expected one number, or one for each of {len(steps)} calls."
            )
        return dict(zip(steps, map(read_number, given), strict=True))

    def add_reward(self, given: Mapping[str, object]) -> dict[str, object]:
        """A reward for one call, by the id of its reply, or for the newest call of an agent; the episode goes on."""
        match given:
            case {"call": str(call), "reward": reward} if len(given) == 2:
                step = self._step_of(call)
            case {"agent": str(agent), "reward": reward} if len(given) == 2:
                step = self._last_step(agent)
            case _:
                step, reward = None, None
        if step is None:
            raise RewardError(
                f"{dict(given)!r} given; expected 'call', the id of a reply of this episode, or 'agent', the name of a "
                "model that it asked, and 'reward'."
            )
        self.sub_rewards[step] += read_number(reward)
        return {"id": self.name, **given, "reward": self.sub_rewards[step]}

    def _step_of(self, reply: str) -> int | None:
        """The step of a reply, by the id that it was given; None where no recorded one has it."""
        ids = {f"{word}{self.name_step(call.step)}": call.step for call in self.model.calls for word in _BEGIN_IDS}
        return ids.get(reply)

    def _last_step(self, agent: object) -> int:
        """The step of an agent's newest call."""
        asked = [call.step for call in self.model.calls if self._agents[call.step] == agent]
        if not asked:
            known = sorted(set(self._agents.values()))
            raise RewardError(f"agent {agent!r} given; expected a name that was asked for as 'model': {known}.")
        return asked[-1]

    def _refuse(self, reason: StopReason, told: ServeError) -> ServeError:
        self.refusal, self.stop_reason = told, reason
        return told

    def _tell_deviations(self, call: ModelCall) -> None:
        """A learner scores tokens at the run's own temperature, and with the whole vocabulary."""
        own = self.model.sampling
        asked = {
            "temperature": call.temperature if call.temperature != own.temperature else None,
            "top_p": call.top_p if call.top_p != own.top_p else None,
            "seed": call.seed if self._keeps_sampling else None,
        }
        for name, value in asked.items():
            if value is None or (name, self._keeps_sampling) in _told:
                continue
            _told.add((name, self._keeps_sampling))
            if self._keeps_sampling:
                _log.warning(
                    "A program asks for %s = %s. It is not followed: what is learnt from is sampled as the run says.",
                    name,
                    show(value),
                )
            else:
                _log.warning(
                    "A client asks for %s = %s. It is followed, but a learner scores at temperature %g and top_p %g: "
                    "leave it out of what is to be learnt from.",
                    name,
                    show(value),
                    own.temperature,
                    own.top_p,
                )


def read_number(given: object) -> float:
    return read_reward(given, "reward")
