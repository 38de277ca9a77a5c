"""One episode's model behind an API: what it may be asked, why it would not answer, and what of a call is followed.

In: calls. Out: responses, each recorded as a step. It refuses to know HTTP, and what an episode is for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import SupportsFloat

from turnwise.context.recorder import Reading, Response
from turnwise.errors import ContextOverflow, EngineError, RewardError, ServeError, TurnwiseError
from turnwise.rollout.model_handle import Manner, ModelHandle
from turnwise.serve.calls import ModelCall
from turnwise.types import StopReason

_log = logging.getLogger("turnwise.serve")

_told: set[str] = set()
"""What was told of once in this process: programs ask for the same in every call."""


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
        self._prefix = prefix
        self._max_calls = max_calls
        self._max_response_tokens = max_response_tokens
        self._keeps_sampling = keeps_sampling

    @property
    def is_full(self) -> bool:
        """Whether it has had all its calls."""
        return self.num_calls >= self._max_calls

    def begin_reply(self, call: ModelCall) -> str:
        """What the reply to a call is made to begin with."""
        if call.tool_choice in ("auto", "none"):
            return self._prefix
        return self.model.begin_call("" if call.tool_choice == "required" else call.tool_choice)

    async def ask(self, call: ModelCall, listen: Callable[[int, int], None] | None = None) -> list[Response]:
        """The replies to one call, which is one step, recorded as such; `listen` hears choice and token as they come.

        Only an engine that samples in this process has tokens to hear before the reply is whole.
        """
        if self.is_full:
            raise self._refuse(
                StopReason.MAX_TURNS,
                ServeError(f"the episode has had its {self._max_calls} calls.", code="max_calls_exceeded"),
            )
        self.model.step = self.num_calls
        self.num_calls += 1
        max_tokens = min(call.max_tokens or self._max_response_tokens, self._max_response_tokens)
        self._tell_deviations(call)
        is_free = not self._keeps_sampling
        try:
            responses = await self.model.chat_async(
                call.messages,
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
                ),
            )
        except ContextOverflow as overflow:
            told = ServeError(str(overflow), code="context_length_exceeded", param="messages")
            raise self._refuse(StopReason.CONTEXT_OVERFLOW, told) from overflow
        except EngineError as error:
            told = ServeError(str(error), status=HTTPStatus.INTERNAL_SERVER_ERROR)
            raise self._refuse(StopReason.ENGINE_ERROR, told) from error
        except TurnwiseError as error:
            raise ServeError(str(error)) from error
        self.refusal, self.stop_reason = None, StopReason.TERMINATED
        return responses

    def forget(self, responses: Sequence[Response]) -> None:
        """Nobody got these replies, so nobody acted on them."""
        lost = set(map(id, responses))
        self.model.calls[:] = [call for call in self.model.calls if id(call) not in lost]

    def read_reward(self, given: object) -> float | dict[int, float]:
        """One number for the whole episode, or a list with one for each call."""
        if not isinstance(given, Sequence) or isinstance(given, str):
            return read_number(given)
        steps = sorted({call.step for call in self.model.calls})
        if len(given) != len(steps):
            raise RewardError(
                f"{len(given)} rewards given; expected one number, or one for each of {len(steps)} calls."
            )
        return dict(zip(steps, map(read_number, given), strict=True))

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
            if value is None or (line := f"{name}={value:g} {self._keeps_sampling}") in _told:
                continue
            _told.add(line)
            if self._keeps_sampling:
                _log.warning(
                    "A program asks for %s = %g. It is not followed: what is learnt from is sampled as the run says.",
                    name,
                    value,
                )
            else:
                _log.warning(
                    "A client asks for %s = %g. It is followed, but a learner scores at temperature %g and top_p %g: "
                    "leave it out of what is to be learnt from.",
                    name,
                    value,
                    own.temperature,
                    own.top_p,
                )


def read_number(given: object) -> float:
    if not isinstance(given, SupportsFloat) or not math.isfinite(float(given)):
        raise RewardError(f"reward {given!r} given; expected a finite number.")
    return float(given)
