"""A policy at one game with frozen ones: whose tokens and payoffs are kept, and who is never learnt from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.contracts.setting import template
from tests.contracts.test_workflows import assert_exact, spelled
from turnwise.config.load import load_settings
from turnwise.config.schema import ContextSettings
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import ConfigError, EngineError
from turnwise.experience.build import build_experiences
from turnwise.rollout.env_specs import find_workflow
from turnwise.rollout.episode import Limits, RolloutLimits
from turnwise.rollout.self_play import LeagueWorkflow
from turnwise.rollout.workflow import FrozenOpponent
from turnwise.types import GenerateRequest, Group, StopReason, Task

from .test_self_play import CONTEXT, RUN, TASK, Players, heap_of
from .worlds import make_proxy, make_states


class FrozenPlayer(ScriptedEngine):
    """Says the same replies in every game, one after the other; None is an engine that fails."""

    def __init__(self, *replies: str | None) -> None:
        super().__init__(lambda request: self._say(request), stop_ids=template().stop_ids)
        self._lines = replies
        self._said: dict[str, int] = {}

    def _say(self, request: GenerateRequest) -> list[int]:
        game = str(request.cache_key)
        number = self._said[game] = self._said.get(game, -1) + 1
        reply = self._lines[number]
        if reply is None:
            raise EngineError("the frozen engine refused")
        return spelled(f"<answer>{reply}</answer>")


class Always:
    """The same rival for every task."""

    def __init__(self, engine: ScriptedEngine, context: ContextSettings | None = None) -> None:
        self.rival = FrozenOpponent(name="old", engine=engine, template=template(), context=context, temperature=0.7)

    async def draw(self, tasks: Sequence[Task], rollout: int) -> list[FrozenOpponent | None]:
        return [self.rival for _ in tasks]


def play(engine: ScriptedEngine, frozen: ScriptedEngine, context: ContextSettings | None = None, **args: Any) -> Group:
    """One task with two siblings and a heap of 7."""
    states = make_states(heap_of(7), groups=1, group_size=2, limits=Limits(max_turns=5), invalid_penalty=-0.1)
    proxy = make_proxy(
        engine,
        template(),
        states,
        context=CONTEXT,
        workflow=LeagueWorkflow,
        seats=2,
        rivals=Always(frozen, context),
        workflow_args=args,
        limits=RolloutLimits(max_retries=args.pop("retries", 0)),
    )
    (group,) = asyncio.run(proxy.collect([TASK], rollout=3))
    return group


def test_siblings_sit_at_either_seat_and_have_their_own_tokens_and_payoffs() -> None:
    # Heap 7: the first sibling takes 3, the rival 1, the first 3. At the other game the rival takes 1 of 7, the second
    # sibling 3 of 6, the rival 2 of 3, the second sibling the last one.
    engine, frozen = Players(["3", "3"], ["3", "1"]), FrozenPlayer("1", "2")
    group = play(engine, frozen)
    first, second = group.trajectories
    assert [turn.observation for turn in first.turns] == ["heap 7", "heap 3"]
    assert [turn.observation for turn in second.turns] == ["heap 6", "heap 1"]
    assert [t.episode_return for t in (first, second)] == [1.0, 1.0]
    for trajectory in (first, second):
        assert trajectory.stop_reason is StopReason.TERMINATED
        assert_exact(trajectory, engine.calls_of(trajectory))
        assert trajectory.turns[-1].metrics == {"won_against_frozen": 1.0}
        assert trajectory.turns[-1].info["met"] == "old"


def test_the_frozen_policy_is_never_trained_on() -> None:
    engine, frozen = Players(["3", "3"], ["3", "1"]), FrozenPlayer("1", "2")
    group = play(engine, frozen)
    records = build_experiences([group])
    assert len(records) == 2
    sampled = sum(len(said.token_ids) for said in engine.completions)
    assert sum(record.segment.num_action_tokens for record in records) == sampled
    # What it said is nowhere: each player is told the heap alone.
    theirs = [said.token_ids.tolist() for said in frozen.completions]
    assert len(theirs) == 3
    own = [e.segment.token_ids[e.segment.loss_mask].tolist() for e in records]
    assert own == [
        [token for _, said in engine.calls_of(t) for token in said.token_ids.tolist()] for t in group.trajectories
    ]
    assert len(set(frozen.released)) == 2


def test_a_frozen_policy_speaks_in_its_own_manner() -> None:
    plain = CONTEXT.model_copy(update={"max_response_tokens": 17})
    frozen = FrozenPlayer("1", "2")
    play(Players(["3", "3"], ["3", "1"]), frozen, context=plain)
    assert {(r.sampling.temperature, r.sampling.max_new_tokens) for r in frozen.requests} == {(0.7, 17)}


def test_a_lost_game_is_told_and_paid() -> None:
    first, _ = play(Players(["3", "2"], ["3", "1"]), FrozenPlayer("1", "1", "1")).trajectories
    assert (first.episode_return, first.is_success) == (-1.0, False)
    assert first.turns[-1].metrics == {"won_against_frozen": 0.0}


def test_a_seat_that_is_named_is_everybodys() -> None:
    for seat, heaps in ((0, "heap 7"), (1, "heap 6")):
        group = play(Players(["3", "1", "1"], ["3", "1", "1"]), FrozenPlayer("1", "1", "1"), seat=seat)
        assert {t.turns[0].observation for t in group.trajectories} == {heaps}


def test_without_a_rival_siblings_meet_each_other() -> None:
    class Nobody(Always):
        async def draw(self, tasks: Sequence[Task], rollout: int) -> list[FrozenOpponent | None]:
            return [None for _ in tasks]

    states = make_states(heap_of(7), groups=1, group_size=2, limits=Limits(max_turns=5))
    rules: dict[str, Any] = {"workflow": LeagueWorkflow, "seats": 2, "rivals": Nobody(FrozenPlayer())}
    proxy = make_proxy(Players(["3", "3"], ["1"]), template(), states, context=CONTEXT, **rules)
    (group,) = asyncio.run(proxy.collect([TASK], rollout=3))
    assert [t.episode_return for t in group.trajectories] == [1.0, -1.0]
    assert all(not turn.metrics for t in group.trajectories for turn in t.turns)


def test_a_frozen_engine_that_fails_costs_the_table_and_leaves_what_was_sampled() -> None:
    engine = Players(["3"], [])
    group = play(engine, FrozenPlayer(None))
    for trajectory in group.trajectories:
        assert trajectory.stop_reason is StopReason.ENGINE_ERROR
        assert "the frozen engine refused" in trajectory.failure
        assert_exact(trajectory, engine.calls_of(trajectory))


LEAGUE = {
    **RUN,
    "rollout": {"workflow": "league", "group_size": 4, "workflow_args": {"past_selves": 2}},
    "report": {"checkpoint_every": 1},
}


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (["rollout.workflow_args.past_selves=null"], "a league has nobody to meet"),
        (["rollout.workflow_args.past_selves=0"], r"workflow_args\.past_selves: 0 given"),
        (["rollout.workflow_args.self_share=1"], r"workflow_args\.self_share: 1\.0 given"),
        (["rollout.workflow_args.seat=2"], r"workflow_args\.seat: 2 given; expected 0 or 1"),
        (["rollout.workflow_args.seat=0", "rollout.workflow_args.self_share=0.5"], "sit at both seats"),
        (["rollout.workflow_args.opponents=x"], r"workflow_args\.opponents: 'x' given; expected a list"),
        (["rollout.workflow_args.wait_s=0"], r"workflow_args\.wait_s: 0\.0 given"),
        (["rollout.workflow_args.wait_s=.nan"], r"workflow_args\.wait_s: nan given"),
        (["rollout.workflow_args.opponent=x"], r"workflow_args\.opponent: LeagueWorkflow takes no such argument"),
        (["report.checkpoint_every=0"], r"report\.checkpoint_every: 0 given"),
        (["loop.type=pipelined"], r"loop\.type: 'pipelined' and run\.mode: 'both' given"),
        (["rollout.group_size=3"], r"rollout\.group_size: 3 given"),
        (["env.type=frozen_lake"], r"env\.type: 'frozen_lake' given; .*has no deal"),
    ],
)
def test_settings_that_do_not_go_with_a_league_are_refused(choices: list[str], words: str) -> None:
    find_workflow(load_settings(LEAGUE))
    with pytest.raises(ConfigError, match=words):
        find_workflow(load_settings(LEAGUE, choices))
