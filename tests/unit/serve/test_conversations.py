"""Conversations as programs really hold them: what the engine saw is what is trained, in as few rows as can be."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.context.recorder import make_trajectory
from turnwise.experience.build import merge_prefixes, split_trajectory
from turnwise.types import Experience, StopReason, Task, TrajectoryId

from .episodes import EchoEngine, open_model

TASK = Task(tag="words", seed=0)


def converse(seed: int, num_calls: int) -> tuple[EchoEngine, list[Experience], list[Any]]:
    """Several conversations that are continued in any order, branched off, edited and cut short."""
    dice = random.Random(seed)
    engine = EchoEngine()

    async def play() -> list[Any]:
        model = open_model(engine)
        held: list[list[Any]] = [[{"role": "user", "content": "agent 0"}]]
        for step in range(num_calls):
            model.step = step
            kind = dice.choice(["append"] * 4 + ["branch", "new", "edit", "compact", "again"])
            messages = dice.choice(held)
            if kind == "branch":
                messages = messages[: 2 * dice.randrange(len(messages) // 2 + 1) + 1]
                held.append(messages)
            elif kind == "new":
                messages = [{"role": "user", "content": f"agent {len(held)}"}]
                held.append(messages)
            elif kind == "edit" and len(messages) > 1:
                place = dice.randrange(len(messages))
                messages[place] = {**messages[place], "content": f"edited {step}"}
            elif kind == "compact" and len(messages) > 2:
                messages[:] = [{"role": "user", "content": f"in short {step}"}]
            (reply,) = await model.chat_async(messages)
            if kind != "again":
                said = reply.response_text + dice.choice(["", " ", "\n"])
                messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"go on {step}"}]
            if sum(map(len, held)) > 60 or len(engine.requests[-1].prompt_ids) > 300:
                held[:] = [[{"role": "user", "content": f"anew {step}"}]]
        return model.calls

    calls = asyncio.run(play())
    trajectory = make_trajectory(
        TrajectoryId(0, TASK.id, 0),
        TASK,
        calls,
        {},
        is_cut_at_calls=True,
        stop_reason=StopReason.TERMINATED,
        is_success=None,
    )
    return engine, merge_prefixes(split_trajectory(trajectory)), calls


def differing(seed: int, num_calls: int) -> str:
    """What is wrong with the rows of such an episode; empty where nothing is."""
    engine, rows, calls = converse(seed, num_calls)
    trained: dict[int, tuple[bytes, bytes, bytes]] = {}
    for row in rows:
        segment = row.segment
        for turn in row.turn_indices.tolist():
            sampled = np.flatnonzero(segment.turn_ids == turn)
            seen = segment.token_ids[: sampled[0]]
            trained[turn] = (
                seen.tobytes(),
                segment.token_ids[sampled].tobytes(),
                segment.behavior_logprobs[sampled].tobytes(),
            )
    engines = [
        (r.prompt_ids.tobytes(), c.token_ids.tobytes(), c.behavior_logprobs.tobytes())
        for r, c in zip(engine.requests, engine.completions, strict=True)
    ]
    if sorted(trained) != list(range(len(engines))) or [trained[turn] for turn in sorted(trained)] != engines:
        return f"seed {seed}: what is trained is not what the engine saw"
    going_on = {id(call.before) for call in calls if call.before is not None}
    num_ends = sum(id(call) not in going_on for call in calls)
    return "" if len(rows) <= num_ends else f"seed {seed}: {len(rows)} rows for {num_ends} ends"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_what_is_trained_is_what_the_engine_saw_whatever_programs_do(seed: int, num_calls: int) -> None:
    assert differing(seed, num_calls) == ""


def test_two_agents_that_alternate_have_one_row_each() -> None:
    engine = EchoEngine()

    async def play() -> list[Any]:
        model = open_model(engine)
        held = {name: [{"role": "user", "content": name}] for name in "AB"}
        for step in range(6):
            model.step = step
            messages = held["AB"[step % 2]]
            (reply,) = await model.chat_async(messages)
            messages += [{"role": "assistant", "content": reply.response_text}, {"role": "user", "content": "on"}]
        return model.calls

    trajectory = make_trajectory(
        TrajectoryId(0, TASK.id, 0),
        TASK,
        asyncio.run(play()),
        {},
        is_cut_at_calls=True,
        stop_reason=StopReason.TERMINATED,
        is_success=False,
    )
    rows = merge_prefixes(split_trajectory(trajectory))
    assert [row.turn_indices.tolist() for row in rows] == [[0, 2, 4], [1, 3, 5]]
    assert [row.is_last for row in rows] == [False, True]
