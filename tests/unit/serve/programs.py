"""Agents as people write them, with nothing but the openai client. None knows that it is being trained."""

from __future__ import annotations

from typing import Any

from openai import APIStatusError, APITimeoutError, AsyncOpenAI, DefaultHttpxClient, OpenAI

CONNECTIONS = DefaultHttpxClient()
TURNS = 3


def play_plain(*, base_url: str, api_key: str, task: Any) -> float:
    """A conversation of three turns in plain code."""
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS)
    messages: list[Any] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"task {task.seed} turn {turn}"})
        reply = client.chat.completions.create(model="gpt", messages=messages, temperature=0.1)
        messages.append(reply.choices[0].message)
    return float(task.seed)


async def play_async(*, base_url: str, api_key: str, task: Any) -> list[float]:
    """The same as a coroutine, streamed; it gives every call a reward of its own."""
    rewards = []
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages: list[Any] = []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"task {task.seed} turn {turn}"})
            stream = await client.chat.completions.create(model="gpt", messages=messages, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            messages.append({"role": "assistant", "content": text})
            rewards.append(float(turn))
    return rewards


def play_unsuccessful(*, base_url: str, api_key: str, task: Any) -> dict[str, object]:
    """Earns something on the way, and does not reach its goal."""
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS)
    client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    return {"reward": 0.01, "is_success": False}


def play_two_agents(*, base_url: str, api_key: str, task: Any) -> dict[str, object]:
    """Two agents take turns; single calls and agents are rewarded, some on the way."""
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS)

    def ask(agent: str) -> str:
        return client.chat.completions.create(model=agent, messages=[{"role": "user", "content": agent}]).id

    def reward(**given: object) -> int:
        headers = {"authorization": f"Bearer {api_key}"}
        return CONNECTIONS.post(f"{base_url.removesuffix('/v1')}/reward", json=given, headers=headers).status_code

    ask("planner")
    solved = ask("solver")
    told = [reward(agent="planner", reward=0.5), reward(call=solved, reward=0.25)]
    ask("planner")
    ask("solver")
    told += [reward(reward=1.0), reward(agent="judge", reward=1.0)]
    return {"rewards": {"planner": 1.0, "solver": -1.0}, "is_success": told == [200, 200, 400, 400]}


def play_endless(*, base_url: str, api_key: str, task: Any) -> float:
    """Never ends by itself."""
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS)
    while True:
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "more"}])


def play_too_much(*, base_url: str, api_key: str, task: Any) -> float:
    """Says more than fits, after something that does."""
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS)
    for length in (1, 5000):
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x " * length}])
    return 1.0


def play_careful(*, base_url: str, api_key: str, task: Any) -> float:
    """Says too much, hears of it, and goes on with less."""
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS)
    try:
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x " * 5000}])
    except APIStatusError as error:
        if (error.status_code, error.code) != (400, "context_length_exceeded"):
            return -1.0
    client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    return 2.0


def play_beyond_the_end(*, base_url: str, api_key: str, task: Any) -> str:
    """Calls until it is refused, and returns what is no reward."""
    try:
        play_endless(base_url=base_url, api_key=api_key, task=task)
    except APIStatusError:
        return "much"
    return ""


def play_impatient(*, base_url: str, api_key: str, task: Any) -> float:
    """Does not wait for the first reply."""
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS, max_retries=0)
    try:
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "slow"}], timeout=0.1)
    except APITimeoutError:
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "again"}])
    return 1.0


def play_wrong(*, base_url: str, api_key: str, task: Any) -> float:
    raise ZeroDivisionError("a bug of its own")


def play_for_nothing(*, base_url: str, api_key: str, task: Any) -> None:
    """Forgets to return a reward."""
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS)
    client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])


def play_other_words(client: OpenAI) -> float:
    return 0.0


NOT_A_FUNCTION = 3
