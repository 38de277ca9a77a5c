"""Episodes that clients begin and end over HTTP, as groups of trajectories.

An episode begins with a POST and ends with its reward; siblings name the same group, and a group is saved when all of
them have ended. Calls without an episode belong to `default`, which begins anew whenever it is given its reward. An
episode of which nothing is heard any more becomes a failed trajectory, so that its group can be saved. A group of which
a sibling never begins is saved without it.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

from turnwise.config.schema import ContextSettings
from turnwise.context.recorder import Response, make_trajectory
from turnwise.errors import RewardError, ServeError
from turnwise.infra.digests import seal_turns
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout_io import TurnFacts
from turnwise.serve.anthropic_api import MessagesWriter, read_messages_call
from turnwise.serve.chat_requests import ChatRequest, read_object
from turnwise.serve.episode import Episode, Stream
from turnwise.serve.http import LOOPBACK, HttpLimits, HttpReply, HttpRequest, HttpServer, json_reply
from turnwise.serve.openai_chat_api import ChatWriter, read_chat
from turnwise.serve.openai_responses_api import ResponsesWriter, read_response_call
from turnwise.types import Group, StopReason, Task, Trajectory, TrajectoryId

DEFAULT = "default"
SPLIT = "served"
"""Of the tasks of served episodes: they are numbered as they come."""
_MAX_CALLS = 1000
"""Of one episode: bounds what a client that never ends one can fill."""
_MAX_GROUP_SIZE = 1024


@dataclass(slots=True, eq=False)
class _OpenGroup:
    name: str | None
    """What siblings call it; None where it has a single episode."""
    rollout: int
    task: Task
    size: int
    heard_at_s: float
    num_begun: int = 0
    ended: dict[int, Trajectory] = field(default_factory=dict)
    """By sibling."""

    def to_group(self) -> Group:
        return Group(task=self.task, trajectories=tuple(self.ended[n] for n in sorted(self.ended)))


@dataclass(slots=True, eq=False)
class _OpenEpisode:
    episode: Episode
    id: TrajectoryId
    group: _OpenGroup
    heard_at_s: float


class Journal(Protocol):
    """Where an episode is written down while its siblings have not ended."""

    def append(self, trajectory: Trajectory) -> None: ...

    def remove(self) -> None:
        """All that was appended is saved elsewhere."""
        ...


class EpisodeRecorder:
    """The host of `turnwise serve`. `save` takes every finished group once; where it raises, the reward can be sent
    again."""

    def __init__(
        self,
        open_model: Callable[[TrajectoryId], ModelHandle],
        next_task: Callable[[], tuple[int, Task]],
        save: Callable[[Group], None],
        *,
        context: ContextSettings,
        journal: Journal,
        max_idle_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`next_task` gives the rollout and the task of a new group."""
        self._open_model = open_model
        self._next_task = next_task
        self._save = save
        self._context = context
        self._journal = journal
        self._max_idle_s = max_idle_s
        self._clock = clock
        self._episodes: dict[str, _OpenEpisode] = {}
        self._groups: list[_OpenGroup] = []

    # --- what an endpoint asks for -------------------------------------------------------------------------------

    def find(self, name: str | None) -> Episode:
        self._expire_idle()
        if name in (None, DEFAULT):
            self._renew_default()
        found = self._get(name or DEFAULT)
        found.heard_at_s = self._clock()
        return found.episode

    def begin(self, wishes: dict[str, Any]) -> dict[str, Any]:
        self._expire_idle()
        unknown = wishes.keys() - {"group", "group_size"}
        if unknown:
            raise ServeError(f"{sorted(unknown)} given; expected 'group' and 'group_size', or nothing.")
        name, size = wishes.get("group"), wishes.get("group_size", 1)
        if not (name is None or (isinstance(name, str) and name)):
            raise ServeError(f"group: {name!r} given; expected a name that siblings share.", param="group")
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MAX_GROUP_SIZE:
            raise ServeError(
                f"group_size: {size!r} given; expected a number from 1 to {_MAX_GROUP_SIZE}.", param="group_size"
            )
        if name is None and size > 1:
            raise ServeError(f"group_size: {size} given without 'group', the name that siblings share.", param="group")
        group = self._open_group(name, size)
        number = f"{group.task.seed}-{group.num_begun}"
        self._begin(number, group, called=number)
        return {"id": number, "trajectory": str(self._episodes[number].id)}

    def end(self, name: str, outcome: dict[str, Any]) -> dict[str, Any]:
        found = self._get(name)
        found.heard_at_s = self._clock()
        if outcome.keys() & {"call", "agent"}:
            try:
                return {**found.episode.add_reward(outcome), "id": name}
            except RewardError as error:
                raise ServeError(str(error)) from error
        if set(outcome) - {"is_success"} not in ({"reward"}, {"rewards"}):
            raise ServeError(
                f"{sorted(outcome)} given; expected 'reward', a number, or 'rewards', a list of one for each call or "
                "an object with one for each agent, and 'is_success' where it is known."
            )
        given = outcome.get("reward", outcome.get("rewards"))
        calls = found.episode.model.calls
        if isinstance(given, list | dict) is ("reward" in outcome) or not calls:
            raise ServeError(
                f"{given!r} given for {len(calls)} calls; expected 'reward', a number, or 'rewards', a list of one for "
                "each call or an object with one for each agent, after at least one call."
            )
        try:
            told = found.episode.read_outcome(outcome)
        except RewardError as error:
            raise ServeError(str(error)) from error
        rewards = found.episode.sub_rewards.copy()
        for step, reward in _by_step(told.reward, calls).items():
            rewards[step] += reward
        num_anew = sum(call.is_anew for call in calls)
        is_saved = self._end(name, found, rewards, found.episode.stop_reason, is_success=told.is_success)
        return {
            "id": name,
            "trajectory": str(found.id),
            "calls": len(calls),
            "is_success": told.is_success,
            "encoded_anew": num_anew,
            "group_saved": is_saved,
        }

    def close(self) -> None:
        """What has ended is saved, also where siblings have not."""
        for name, found in list(self._episodes.items()):
            self._end(name, found, {}, StopReason.TIMEOUT, "the server was ended before the episode.")
        for group in list(self._groups):
            self._finish(group)

    # --- groups --------------------------------------------------------------------------------------------------

    def _open_group(self, name: str | None, size: int) -> _OpenGroup:
        known = next((group for group in self._groups if name is not None and group.name == name), None)
        if known is None:
            return _OpenGroup(name, *self._next_task(), size, self._clock())
        if known.size != size or known.num_begun == known.size:
            raise ServeError(
                f"group '{name}' was begun with group_size {known.size} and has {known.num_begun} episodes; no other "
                f"with group_size {size} can join it. Choose another name.",
                status=HTTPStatus.CONFLICT,
            )
        return known

    def _begin(self, name: str, group: _OpenGroup, *, called: str) -> None:
        """`name` is where it is found, `called` what the ids of its replies begin with."""
        trajectory = TrajectoryId(group.rollout, group.task.id, group.num_begun)
        episode = Episode(
            called,
            self._open_model(trajectory),
            prefix=self._context.answer.forced_prefix,
            max_calls=_MAX_CALLS,
            max_response_tokens=self._context.max_response_tokens,
            keeps_sampling=False,
        )
        if group.num_begun == 0:
            self._groups.append(group)
        group.num_begun += 1
        group.heard_at_s = self._clock()
        self._episodes[name] = _OpenEpisode(episode, trajectory, group, group.heard_at_s)

    def _end(
        self,
        name: str,
        found: _OpenEpisode,
        rewards: Mapping[int, float],
        reason: StopReason,
        failure: str = "",
        *,
        is_success: bool | None = None,
    ) -> bool:
        """Says whether the group was saved with it."""
        calls, group = list(found.episode.model.calls), found.group
        ended = make_trajectory(
            found.id,
            group.task,
            calls,
            {step: TurnFacts(reward=reward) for step, reward in rewards.items()},
            is_cut_at_calls=True,
            stop_reason=reason,
            is_success=is_success,
            failure=failure,
        )
        trajectory = group.ended[found.id.sibling] = seal_turns(ended)
        group.heard_at_s = max(group.heard_at_s, found.heard_at_s)
        is_complete = len(group.ended) == group.size
        if is_complete:
            # Before anything is forgotten: where saving fails, the episode is still there.
            self._finish(group)
        else:
            self._journal.append(trajectory)
        del self._episodes[name]
        found.episode.model.cancel(failure or "it was given its reward.")
        found.episode.model.release()
        return is_complete

    def _finish(self, group: _OpenGroup) -> None:
        if any(not trajectory.stop_reason.is_error for trajectory in group.ended.values()):
            self._save(group.to_group())
        self._groups.remove(group)
        if not any(group.ended for group in self._groups):
            self._journal.remove()

    def _renew_default(self) -> None:
        """There is always a default episode with room for a call."""
        known = self._episodes.get(DEFAULT)
        if known is not None and known.episode.is_full:
            why = f"{_MAX_CALLS} calls without a reward."
            self._end(DEFAULT, known, {}, StopReason.WORKFLOW_ERROR, why)
        if DEFAULT not in self._episodes:
            group = self._open_group(None, 1)
            # Its replies must not have the ids of those before it.
            self._begin(DEFAULT, group, called=f"{DEFAULT}-{group.task.seed}")

    def _expire_idle(self) -> None:
        """Episodes, and groups of which a sibling never begins."""
        oldest_s = self._clock() - self._max_idle_s
        for name, found in list(self._episodes.items()):
            if found.heard_at_s < oldest_s:
                why = f"nothing was heard of the episode for {self._max_idle_s:g} s."
                self._end(name, found, {}, StopReason.TIMEOUT, why)
        played = {found.group for found in self._episodes.values()}
        for group in list(self._groups):
            if group not in played and group.heard_at_s < oldest_s:
                self._finish(group)

    def _get(self, name: str) -> _OpenEpisode:
        if name not in self._episodes:
            raise ServeError(
                f"episode '{name}' is over, or was never begun.", status=HTTPStatus.NOT_FOUND, code="not_found"
            )
        return self._episodes[name]


def _by_step(reward: float | Mapping[int, float], calls: Sequence[Response]) -> Mapping[int, float]:
    """One reward for all is that of the last step."""
    return reward if isinstance(reward, Mapping) else {calls[-1].step: reward}


_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")
_PATH = re.compile(r"(?:/episodes/(?P<episode>[^/]+))?(?P<rest>/.*)")


class _Api(NamedTuple):
    read: Callable[[bytes], ChatRequest]
    writer: type[ChatWriter | ResponsesWriter | MessagesWriter]
    id_prefix: str = ""


_APIS = {
    "/v1/chat/completions": _Api(read_chat, ChatWriter, "chatcmpl-"),
    "/v1/responses": _Api(read_response_call, ResponsesWriter),
    "/v1/messages": _Api(read_messages_call, MessagesWriter),
}


class EpisodeRegistry(Protocol):
    """Who keeps the episodes of an endpoint."""

    def find(self, name: str | None) -> Episode:
        """A running episode; None: the one that calls without an episode belong to. Raises ServeError."""
        ...

    def begin(self, wishes: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode over HTTP; the answer has its `id`. Raises ServeError where that is not offered."""
        ...

    def end(self, name: str, outcome: dict[str, Any]) -> dict[str, Any]:
        """End an episode over HTTP with its reward. Raises ServeError."""
        ...


class ChatEndpoint:
    """Serves the episodes of a host from `start` to `close`, to programs of this machine unless told otherwise."""

    def __init__(
        self,
        host: EpisodeRegistry,
        *,
        token: str,
        model_name: str,
        limits: HttpLimits = HttpLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._host = host
        self._token = token
        self._model_name = model_name
        self._server = HttpServer(self._answer, limits)
        self.address = ""
        """`http://HOST:PORT`, once started."""

    async def start(self, port: int = 0, host: str = LOOPBACK) -> None:
        """`host` is the interface to listen on; one that is not loopback lets other machines in."""
        number = await self._server.start(port, host)
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{number}"

    async def close(self) -> None:
        await self._server.close()

    def base_url(self, episode: str | None = None, *, host: str = "") -> str:
        """What a client is given as its base URL; `host` is what it calls this machine, where that is known."""
        address = f"http://{host}" if _HOST.fullmatch(host) else self.address
        return f"{address}/v1" if episode is None else f"{address}/episodes/{episode}/v1"

    # --- one request ---------------------------------------------------------------------------------------------

    async def _answer(self, request: HttpRequest) -> HttpReply:
        if request.path == "/health":
            _expect(request, "GET")
            return json_reply({"status": "ok"})
        self._check_token(request)
        found = _PATH.fullmatch(request.path)
        episode, rest = (found["episode"], found["rest"]) if found else (None, "")
        if api := _APIS.get(rest):
            _expect(request, "POST")
            return await self._ask(self._host.find(episode), api, request)
        match rest:
            case "/v1/models":
                _expect(request, "GET")
                model = {"id": self._model_name, "object": "model", "created": 0, "owned_by": "turnwise"}
                return json_reply({"object": "list", "data": [model]})
            case "/v1/episodes" if episode is None:
                _expect(request, "POST")
                begun = self._host.begin(read_object(await request.read_body()))
                return json_reply(
                    {**begun, "base_url": self.base_url(begun["id"], host=request.headers.get("host", ""))}
                )
            case "/reward" if episode is not None:
                _expect(request, "POST")
                return json_reply(self._host.end(episode, read_object(await request.read_body())))
        raise ServeError(f"there is nothing at {request.path}.", status=HTTPStatus.NOT_FOUND, code="not_found")

    def _check_token(self, request: HttpRequest) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            # Where clients of Anthropic's API write it.
            given = request.headers.get("x-api-key", "")
        # Compared in constant time, so that the answer's delay tells nothing about the token.
        if not hmac.compare_digest(given.strip().encode(), self._token.encode()):
            raise ServeError(
                "the token is missing or wrong. Send 'Authorization: Bearer TOKEN', or give it as api_key.",
                status=HTTPStatus.UNAUTHORIZED,
                code="invalid_api_key",
            )

    async def _ask(self, episode: Episode, api: _Api, request: HttpRequest) -> HttpReply:
        """Answer one request to the model."""
        body = await request.read_body()
        try:
            call = api.read(body)
            # Before anything is waited for: calls that come together must not be given the same id.
            step = episode.begin_step(call.agent)
            name = f"{api.id_prefix}{episode.name_step(step)}"
            writer = api.writer(id=name, model=self._model_name, call=call, decode=episode.model.decode)
            if call.is_streamed:
                stream = Stream(episode, call, step, writer)
                await stream.begin()
                return HttpReply(pieces=stream.pieces(), content_type="text/event-stream", on_disconnect=stream.forget)
            responses = await episode.ask(call, step)
        except RecursionError as error:
            raise ServeError("the request is nested too deeply; expected a few hundred levels at most.") from error
        return json_reply(writer.whole(responses), on_disconnect=lambda: episode.forget(responses))


def _expect(request: HttpRequest, method: str) -> None:
    if request.method != method:
        raise ServeError(
            f"{request.method} {request.path} given; expected {method}.", status=HTTPStatus.METHOD_NOT_ALLOWED
        )
