"""The endpoint of `turnwise serve` over HTTP: who may ask, what is recorded, and which groups are saved when."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from turnwise.errors import StoreError
from turnwise.serve.recorder import ChatEndpoint, EpisodeRecorder
from turnwise.types import Group, StopReason, Task, Trajectory

from ...clock import HANG_S
from .episodes import CONTEXT, KEY, EchoEngine, open_model

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


class Client:
    """Asks an endpoint, without its event loop having to wait."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self.address = endpoint.address

    async def ask(self, path: str, body: object = None, *, key: str | None = KEY, method: str | None = None) -> Any:
        """The answer's JSON; for a refusal its status and error."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, headers, method=method)
        return await asyncio.get_running_loop().run_in_executor(None, _fetch, request)

    async def begin(self, **wishes: object) -> str:
        return (await self.ask("/v1/episodes", wishes))["id"]

    async def chat(self, episode: str, **body: object) -> Any:
        return await self.ask(f"/episodes/{episode}/v1/chat/completions", {**HELLO, **body})

    async def reward(self, episode: str, **outcome: object) -> Any:
        return await self.ask(f"/episodes/{episode}/reward", outcome)


def _fetch(request: Request) -> Any:
    try:
        with urlopen(request, timeout=HANG_S) as reply:
            return json.loads(reply.read())
    except HTTPError as refused:
        return refused.code, json.loads(refused.read())["error"]


class Stage:
    """An endpoint whose clock and disk are the test's."""

    def __init__(self) -> None:
        self.engine = EchoEngine()
        self.saved: list[Group] = []
        self.written: list[int] = []
        """The journal."""
        self.now_s = 0.0
        self.is_disk_full = False

    def save(self, group: Group) -> None:
        if self.is_disk_full:
            raise StoreError("the disk is full.")
        self.saved.append(group)

    def append(self, trajectory: Trajectory) -> None:
        self.written.append(trajectory.id.sibling)

    def remove(self) -> None:
        self.written.clear()

    def play(self, scene: Callable[[Client, EpisodeRecorder], Awaitable[None]]) -> None:
        async def run() -> None:
            numbers = iter(range(100))
            recorder = EpisodeRecorder(
                lambda trajectory: open_model(self.engine, str(trajectory)),
                lambda: (3, Task(tag="words", seed=next(numbers), split="served")),
                self.save,
                context=CONTEXT,
                journal=self,
                max_idle_s=60.0,
                clock=lambda: self.now_s,
            )
            endpoint = ChatEndpoint(recorder, token=KEY, model_name="small")
            await endpoint.start()
            try:
                await scene(Client(endpoint), recorder)
            finally:
                await endpoint.close()

        asyncio.run(run())

    def rewards(self) -> list[list[list[float]]]:
        """By group, by trajectory, by turn."""
        return [[[turn.reward for turn in t.turns] for t in group.trajectories] for group in self.saved]


def test_requests_without_the_token_are_rejected() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        assert await client.ask("/health", key=None) == {"status": "ok"}
        for key in (None, "", "secret-kez", "é"):
            with suppress(UnicodeEncodeError):
                status, error = await client.ask("/v1/chat/completions", HELLO, key=key)
                assert (status, error["code"]) == (401, "invalid_api_key")
        assert (await client.ask("/v1/models"))["data"][0]["id"] == "small"

    stage.play(scene)
    assert stage.engine.requests == []


@pytest.mark.parametrize(
    ("path", "body", "method", "status"),
    [
        ("/v1/nothing", {}, "POST", 404),
        ("/../../etc/passwd", None, "GET", 404),
        ("/%2e%2e/%2e%2e/etc/passwd", None, "GET", 404),
        ("/episodes/..%2f..%2fetc/v1/chat/completions", HELLO, "POST", 404),
        ("/v1/chat/completions", None, "GET", 405),
        ("/v1/models", {}, "POST", 405),
        ("/episodes/7-0/v1/chat/completions", HELLO, "POST", 404),
        ("/episodes/7-0/reward", {"reward": 1}, "POST", 404),
        ("/v1/episodes", {"colour": "red"}, "POST", 400),
        ("/v1/episodes", {"group_size": 2}, "POST", 400),
        ("/v1/episodes", {"group": "a", "group_size": 0}, "POST", 400),
        ("/v1/episodes", {"group": "a", "group_size": True}, "POST", 400),
        ("/v1/episodes", {"group": 7}, "POST", 400),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x " * 500}]}, "POST", 400),
    ],
)
def test_what_cannot_be_served_is_told(path: str, body: object, method: str, status: int) -> None:
    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        told, error = await client.ask(path, body, method=method)
        assert told == status
        assert error["message"].endswith(".")

    Stage().play(scene)


def test_every_call_is_a_step_recorded_with_the_tokens_that_were_sampled() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        episode = await client.begin()
        first = await client.chat(episode)
        said = first["choices"][0]["message"]["content"]
        assert said.startswith("<answer>")
        more = [*HELLO["messages"], {"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
        await client.chat(episode, messages=more, n=2, temperature=0.2, max_tokens=1000)
        assert await client.reward(episode, rewards=[0.25, 1]) == {
            "id": episode,
            "trajectory": "3/words/served/0/0",
            "calls": 3,
            "is_success": None,
            "encoded_anew": 0,
            "group_saved": True,
        }

    stage.play(scene)
    ((trajectory,),) = [group.trajectories for group in stage.saved]
    assert [turn.step for turn in trajectory.turns] == [0, 1, 1]
    assert stage.rewards() == [[[0.25, 0.0, 1.0]]]
    assert {turn.policy_version for turn in trajectory.turns} == {3}
    for segment, request, completion in zip(
        trajectory.segments, stage.engine.requests, stage.engine.completions, strict=True
    ):
        sampled = segment.loss_mask
        np.testing.assert_array_equal(segment.token_ids[~sampled], request.prompt_ids)
        np.testing.assert_array_equal(segment.token_ids[sampled], completion.token_ids)
        np.testing.assert_array_equal(segment.behavior_logprobs[sampled], completion.behavior_logprobs)
    # The second call goes on from the sampled tokens of the first, and asks for no more than the context allows.
    whole = trajectory.segments[0].token_ids
    np.testing.assert_array_equal(stage.engine.requests[1].prompt_ids[: len(whole)], whole)
    assert [r.sampling.temperature for r in stage.engine.requests] == [0.7, 0.2, 0.2]
    assert {r.sampling.max_new_tokens for r in stage.engine.requests} == {16}
    assert stage.engine.released == ["3/words/served/0/0"]


def test_episodes_at_the_same_time_share_a_batch_and_nothing_else() -> None:
    stage = Stage()
    # Nobody gets an answer before all four have asked.
    stage.engine = EchoEngine(at_once=4)

    async def play_one(client: Client, number: int) -> list[str]:
        episode = await client.begin()
        replies = []
        for turn in range(3):
            said = [{"role": "user", "content": f"episode {number} turn {turn}"}]
            replies.append((await client.chat(episode, messages=said))["choices"][0]["message"]["content"])
        await client.reward(episode, reward=number)
        return replies

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        played = await asyncio.gather(*(play_one(client, number) for number in range(4)))
        by_reward = {group.trajectories[0].episode_return: group.trajectories[0] for group in stage.saved}
        for number, replies in enumerate(played):
            turns = by_reward[number].turns
            assert [turn.response_text for turn in turns] == replies
            assert [turn.observation for turn in turns] == [f"episode {number} turn {turn}" for turn in range(3)]

    stage.play(scene)


def test_calls_side_by_side_in_one_episode_are_kept_in_the_order_they_came() -> None:
    stage = Stage()
    stage.engine = engine = SlowFirst()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        episode = await client.begin()
        late = asyncio.create_task(client.chat(episode, messages=[{"role": "user", "content": "slow"}]))
        await engine.is_asked.wait()
        await client.chat(episode)
        engine.may_answer.set()
        await late
        await client.reward(episode, rewards=[1, 2])

    stage.play(scene)
    turns = stage.saved[0].trajectories[0].turns
    assert [(turn.step, turn.observation, turn.reward) for turn in turns] == [(0, "slow", 1.0), (1, "hello", 2.0)]


class SlowFirst(EchoEngine):
    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def generate(self, request):  # type: ignore[no-untyped-def]
        if not self.is_asked.is_set():
            self.is_asked.set()
            await self.may_answer.wait()
        return await super().generate(request)


def test_siblings_are_saved_together_and_only_when_all_have_ended() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        siblings = [await client.begin(group="lake", group_size=2) for _ in range(2)]
        status, error = await client.ask("/v1/episodes", {"group": "lake", "group_size": 2})
        assert status == 409
        assert "has 2 episodes" in error["message"]
        for episode in siblings:
            await client.chat(episode)
        assert (await client.reward(siblings[1], reward=5))["group_saved"] is False
        assert stage.saved == []
        assert (await client.reward(siblings[0], reward=4))["group_saved"] is True
        # The name is free again, for another group.
        await client.begin(group="lake", group_size=3)

    stage.play(scene)
    assert stage.rewards() == [[[4.0], [5.0]]]
    assert {t.id.group for t in stage.saved[0].trajectories} == {"3/words/served/0"}


def test_an_episode_nobody_hears_of_fails_and_its_siblings_are_saved_without_it() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        ended, silent = [await client.begin(group="lake", group_size=2) for _ in range(2)]
        await client.chat(ended)
        await client.chat(silent)
        await client.reward(ended, reward=1)
        stage.now_s = 59.0
        await client.begin()
        assert stage.saved == []
        stage.now_s = 61.0
        await client.begin()
        status, _ = await client.chat(silent)
        assert status == 404

    stage.play(scene)
    (group,) = stage.saved
    assert [t.stop_reason for t in group.trajectories] == [StopReason.TERMINATED, StopReason.TIMEOUT]
    assert "nothing was heard" in group.trajectories[1].failure


def test_a_group_of_which_a_sibling_never_begins_is_saved_without_it() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        for now_s in (0.0, 30.0):
            stage.now_s = now_s
            episode = await client.begin(group="lake", group_size=3)
            await client.chat(episode)
            await client.reward(episode, reward=now_s)
        stage.now_s = 89.0
        await client.begin()
        assert (stage.saved, stage.written) == ([], [0, 1])
        stage.now_s = 91.0
        await client.begin()
        assert stage.written == []
        # The name is free again.
        await client.begin(group="lake", group_size=2)

    stage.play(scene)
    assert stage.rewards() == [[[0.0], [30.0]]]


def test_siblings_that_are_still_played_are_waited_for() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        ended, played = [await client.begin(group="lake", group_size=3) for _ in range(2)]
        for episode in (ended, played):
            await client.chat(episode)
        await client.reward(ended, reward=1)
        for stage.now_s in (50.0, 100.0):
            await client.chat(played)
        assert stage.saved == []

    stage.play(scene)


def test_a_reward_on_the_way_is_a_sign_of_life() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        episode = await client.begin()
        call = (await client.chat(episode))["id"]
        stage.now_s = 50.0
        await client.reward(episode, call=call, reward=0.5)
        stage.now_s = 100.0
        await client.begin()
        assert (await client.reward(episode, reward=1))["group_saved"] is True

    stage.play(scene)
    assert stage.rewards() == [[[1.5]]]


def test_calls_without_an_episode_belong_to_the_default_one_which_begins_anew() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        status, _ = await client.reward("default", reward=1)
        assert status == 404
        ids = []
        for reward in (1, 2):
            ids.append((await client.ask("/v1/chat/completions", HELLO))["id"])
            # What is over is not rewarded any more, and never in the place of another.
            told = [await client.reward("default", call=call, reward=0.5) for call in ids]
            assert [refused[0] for refused in told[:-1]] == [400] * (reward - 1)
            assert told[-1] == {"id": "default", "call": ids[-1], "reward": 0.5}
            await client.reward("default", reward=reward)

    stage.play(scene)
    assert stage.rewards() == [[[1.5]], [[2.5]]]
    assert len({group.trajectories[0].id for group in stage.saved}) == 2


def test_a_default_episode_that_never_ends_is_not_kept_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.serve.recorder._MAX_CALLS", 2)
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        told = [(await client.ask("/v1/chat/completions", HELLO))["id"] for _ in range(5)]
        assert [word.rsplit("-", 1)[1] for word in told] == ["0", "1", "0", "1", "0"]
        named = await client.begin()
        await client.chat(named)
        await client.chat(named)
        status, error = await client.chat(named)
        assert (status, error["code"]) == (400, "max_calls_exceeded")

    stage.play(scene)
    assert stage.saved == []


@pytest.mark.parametrize(
    "outcome",
    [
        {},
        {"reward": "1"},
        {"reward": None},
        {"reward": [1]},
        {"rewards": 1},
        {"rewards": [1, 2]},
        {"rewards": [None]},
        {"reward": 1, "rewards": [1]},
        {"reward": 1, "is_success": "yes"},
        {"score": 1},
        {"call": "chatcmpl-0-0-7", "reward": 1},
        {"call": 0, "reward": 1},
        {"call": "chatcmpl-0-0-0", "agent": "", "reward": 1},
        {"call": "chatcmpl-0-0-0", "reward": "much"},
    ],
)
def test_a_reward_that_is_none_is_refused_and_the_episode_goes_on(outcome: dict[str, object]) -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        episode = await client.begin()
        assert (await client.reward(episode, reward=1))[0] == 400  # before any call
        await client.chat(episode)
        status, error = await client.reward(episode, **outcome)
        assert status == 400
        assert "expected" in error["message"]
        assert (await client.reward(episode, reward=1))["group_saved"] is True

    stage.play(scene)


def test_a_reward_that_could_not_be_saved_can_be_sent_again() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        episode = await client.begin()
        await client.chat(episode)
        stage.is_disk_full = True
        status, error = await client.reward(episode, reward=1)
        assert status == 500
        assert "the disk is full" in error["message"]
        stage.is_disk_full = False
        assert (await client.reward(episode, reward=1))["group_saved"] is True

    stage.play(scene)
    assert stage.rewards() == [[[1.0]]]


def test_closing_saves_what_has_ended() -> None:
    stage = Stage()

    async def scene(client: Client, recorder: EpisodeRecorder) -> None:
        siblings = [await client.begin(group="lake", group_size=3) for _ in range(2)]
        alone = await client.begin()
        for episode in (*siblings, alone):
            await client.chat(episode)
        await client.reward(siblings[0], reward=1)
        recorder.close()

    stage.play(scene)
    (group,) = stage.saved
    assert [t.stop_reason for t in group.trajectories] == [StopReason.TERMINATED, StopReason.TIMEOUT]


def test_an_episode_is_written_down_until_its_group_is_saved() -> None:
    stage = Stage()

    async def scene(client: Client, recorder: EpisodeRecorder) -> None:
        first, second = [await client.begin(group="a", group_size=2) for _ in range(2)]
        alone, other = await client.begin(), await client.begin(group="b", group_size=2)
        for episode in (first, second, alone, other):
            await client.chat(episode)
        await client.reward(alone, reward=1)
        assert stage.written == []
        await client.reward(second, reward=1)
        await client.reward(other, reward=1)
        assert stage.written == [1, 0]
        await client.reward(first, reward=0)
        # Of the other group a sibling is still to come.
        assert stage.written == [1, 0]
        recorder.close()
        assert stage.written == []

    stage.play(scene)


def test_the_client_says_whether_the_goal_was_reached_and_nobody_guesses() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        for outcome in ({"reward": 0.3, "is_success": False}, {"reward": -1, "is_success": True}, {"reward": 0.3}):
            episode = await client.begin()
            await client.chat(episode)
            told = await client.reward(episode, **outcome)
            assert told["is_success"] == outcome.get("is_success")

    stage.play(scene)
    assert [group.trajectories[0].is_success for group in stage.saved] == [False, True, None]


def test_single_calls_are_rewarded_by_their_ids_while_the_episode_goes_on() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        episode = await client.begin()
        replies = [await client.chat(episode) for _ in range(3)]
        for reward in (0.5, 0.25):
            told = await client.reward(episode, call=replies[1]["id"], reward=reward)
        assert told["reward"] == 0.75
        await client.reward(episode, reward=1)

    stage.play(scene)
    assert stage.rewards() == [[[0.0, 0.75, 1.0]]]


def test_agents_of_one_program_are_rewarded_by_the_model_that_they_ask_for() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        episode = await client.begin()
        for agent in ("planner", "solver"):
            await client.chat(episode, model=agent)
        assert await client.reward(episode, agent="planner", reward=0.5) == {
            "id": episode, "agent": "planner", "reward": 0.5
        }  # fmt: skip
        for agent in ("planner", "solver"):
            await client.chat(episode, model=agent)
        for wrong in ({"agent": "judge", "reward": 1}, {"rewards": {"judge": 1}}, {"rewards": {"solver": "much"}}):
            status, error = await client.reward(episode, **wrong)
            assert status == 400
            assert "expected" in error["message"]
        await client.reward(episode, rewards={"planner": 2, "solver": -1}, is_success=True)

    stage.play(scene)
    assert stage.rewards() == [[[0.5, 0.0, 2.0, -1.0]]]


SIBLING = """
import json, sys
from urllib.request import Request, urlopen
address, key, reward = sys.argv[1:]
def post(url, body):
    return json.load(urlopen(Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {key}"}), timeout=60))
episode = post(f"{address}/v1/episodes", {"group": "shared", "group_size": 3})
for _ in range(2):
    post(f"{episode['base_url']}/chat/completions", {"messages": [{"role": "user", "content": "hello"}]})
post(f"{address}/episodes/{episode['id']}/reward", {"reward": float(reward)})
"""


@pytest.mark.slow
def test_siblings_may_be_played_by_several_processes() -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        async with asyncio.timeout(HANG_S):
            players = [
                await asyncio.create_subprocess_exec(sys.executable, "-c", SIBLING, client.address, KEY, str(reward))
                for reward in range(3)
            ]
            assert [await player.wait() for player in players] == [0, 0, 0]

    stage.play(scene)
    (group,) = stage.saved
    assert sorted(t.episode_return for t in group.trajectories) == [0.0, 1.0, 2.0]
    assert {len(t.turns) for t in group.trajectories} == {2}


def test_a_conversation_that_was_edited_is_counted() -> None:
    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        episode = await client.begin()
        await client.chat(episode)
        edited = [*HELLO["messages"], {"role": "assistant", "content": "edited"}, {"role": "user", "content": "and?"}]
        await client.chat(episode, messages=edited)
        assert (await client.reward(episode, reward=1))["encoded_anew"] == 1

    Stage().play(scene)


@pytest.mark.parametrize("reward", [10**400, 1e39, -1e300])
def test_a_reward_that_float32_cannot_hold_is_refused_and_the_episode_stays(reward: float) -> None:
    stage = Stage()

    async def scene(client: Client, _recorder: EpisodeRecorder) -> None:
        episode = (await client.ask("/v1/episodes", {}))["id"]
        await client.ask(f"/episodes/{episode}/v1/chat/completions", HELLO)
        status, error = await client.reward(episode, reward=reward)
        assert status == 400
        assert "reward" in error["message"]
        await client.reward(episode, reward=1)

    stage.play(scene)
    assert stage.rewards() == [[[1.0]]]
