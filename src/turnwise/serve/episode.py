"""One episode behind an HTTP API: requests become recorded steps; streaming."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from turnwise.context.recorder import Reading, Response
from turnwise.errors import ContextOverflow, EngineError, RewardError, ServeError, TurnwiseError
from turnwise.infra.untrusted import format_error, parse_reward, parse_success, show
from turnwise.rollout.model_handle import HALF_A_CHARACTER, ChatOptions, ModelHandle, TextDecoder
from turnwise.serve.chat_requests import ChatRequest
from turnwise.types import IntArray, StopReason

_log = logging.getLogger("turnwise.serve")

_BEGIN_IDS = ("chatcmpl-", "resp_", "msg_")
"""How the three APIs begin the id of a reply."""
_told: set[tuple[str, bool]] = set()
"""What was told of once in this process: programs ask for the same, or for something new, in every call."""


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
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

    def begin_reply(self, call: ChatRequest) -> str:
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
        return self.model.tool_call_prefix("" if call.tool_choice == "required" else call.tool_choice)

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

    async def ask(
        self, call: ChatRequest, step: int, listen: Callable[[int, int], None] | None = None
    ) -> list[Response]:
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
                manner=ChatOptions(
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

    def read_outcome(self, given: object) -> EpisodeOutcome:
        """A reward, or `{"reward": …, "is_success": …}` with `rewards` where each call has its own."""
        if not isinstance(given, Mapping):
            return EpisodeOutcome(self.parse_reward(given))
        if set(given) - {"is_success"} not in ({"reward"}, {"rewards"}):
            raise RewardError(
                f"{dict(given)!r} given; expected a number, or a mapping with 'reward' (or 'rewards', one for each "
                "call or by agent) and 'is_success' (true or false)."
            )
        said = parse_success(given.get("is_success"), "is_success:")
        return EpisodeOutcome(self.parse_reward(given["reward"] if "reward" in given else given["rewards"]), said)

    def parse_reward(self, given: object) -> float | dict[int, float]:
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

    def _tell_deviations(self, call: ChatRequest) -> None:
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
    return parse_reward(given, "reward")


class StreamWriter(Protocol):
    """The words of one API for a reply that comes in pieces."""

    def begin(self) -> bytes: ...

    def delta(self, number: int, text: str) -> bytes:
        """More of what a choice says."""
        ...

    def end(self, responses: Sequence[Response]) -> bytes:
        """All that is known when the replies are whole, what they say aside."""
        ...

    def fail(self, error: ServeError) -> bytes: ...


class StreamedText:
    """What one choice has said so far."""

    def __init__(
        self,
        decode: Callable[[IntArray], str],
        marks: Sequence[str],
        prefix: str,
        *,
        told: str = "",
        takes_calls: bool = False,
    ) -> None:
        """`told` is the part of the prefix that the client has. With `takes_calls`, whitespace around the text is held
        back: it may belong to a call."""
        self._decoder = TextDecoder(decode)
        self._marks = marks
        self._prefix = prefix
        self._takes_calls = takes_calls
        self._told = told
        self._start = 0
        """What stands before it holds no mark, and not the beginning of one."""

    def add(self, token: int) -> str:
        """What is certain now and was not told yet."""
        self._decoder.add(token)
        text = self._prefix + self._decoder.text
        if text.endswith(HALF_A_CHARACTER) or (self._takes_calls and text[:1].isspace()):
            return ""
        certain = text[: min((_find_mark(text, mark, self._start) for mark in self._marks), default=len(text))]
        return self._tell(certain.rstrip() if self._takes_calls else certain)

    def rest(self, whole: str) -> str:
        return self._tell(whole)

    def _tell(self, text: str) -> str:
        if not text.startswith(self._told):
            return ""
        new, self._told, self._start = text[len(self._told) :], text, len(text)
        return new


def _find_mark(text: str, mark: str, start: int) -> int:
    """Where the mark stands behind `start`, or where it may be about to; the length of the text where neither is so."""
    place = text.find(mark, start)
    if place >= 0:
        return place
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return len(text) - length
    return len(text)


class Stream:
    """The reply to one call, piece by piece."""

    def __init__(self, episode: Episode, call: ChatRequest, step: int, writer: StreamWriter) -> None:
        self._episode = episode
        self._call = call
        self._writer = writer
        self._heard: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()
        self._asking = asyncio.create_task(episode.ask(call, step, lambda *heard: self._heard.put_nowait(heard)))
        self._asking.add_done_callback(lambda _: self._heard.put_nowait(None))
        self._first: tuple[int, int] | None = None

    async def begin(self) -> None:
        """Wait for a first token, or for the refusal of the call, which is raised."""
        try:
            self._first = await self._heard.get()
        except asyncio.CancelledError:
            self._asking.cancel()
            raise
        if self._first is None:
            self._asking.result()

    def _open_texts(self) -> list[StreamedText]:
        """Once the call was not refused: a template without tools has no mark of a call."""
        call, model = self._call, self._episode.model
        marks = [*call.stop, *([model.call_mark] if call.takes_calls else [])]
        prefix = self._episode.begin_reply(call)
        return [
            StreamedText(model.decode, marks, prefix, told=call.prefill, takes_calls=call.takes_calls)
            for _ in range(call.n)
        ]

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            texts = self._open_texts()
            yield self._writer.begin()
            heard = self._first
            while heard is not None:
                number, token = heard
                if text := texts[number].add(token):
                    yield self._writer.delta(number, text)
                heard = await self._heard.get()
            try:
                responses = self._asking.result()
            except ServeError as error:
                yield self._writer.fail(error)
                return
            except Exception as error:  # noqa: BLE001 - the boundary: the status has been sent, the client still hears
                yield self._writer.fail(ServeError(format_error(error), status=HTTPStatus.INTERNAL_SERVER_ERROR))
                return
            for number, response in enumerate(responses):
                if text := texts[number].rest(self._call.prefill + self._call.continuation(response.message.text)):
                    yield self._writer.delta(number, text)
            yield self._writer.end(responses)
        finally:
            self._asking.cancel()

    def forget(self) -> None:
        """The client has gone: what it did not get to the end is not recorded."""
        if self._asking.done() and not self._asking.cancelled() and self._asking.exception() is None:
            self._episode.forget(self._asking.result())
        self._asking.cancel()


def event(content: object, name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(content)}\n\n".encode()
