"""Many episodes over one engine: nobody waits for anybody, and failures stay where they happen."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from tests.clock import HANG_S, LoopClock
from tests.unit.context.chat_families import template_of
from turnwise.config.load import load_settings
from turnwise.config.schema import ContextSettings
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.base import BaseEnv
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import EngineError, EnvError
from turnwise.infra.threads import count_abandoned
from turnwise.rollout.agent_proxy import AgentProxy
from turnwise.rollout.env_specs import main_env
from turnwise.rollout.episode import Limits, RolloutLimits
from turnwise.rollout.scripted_policies import record_episodes
from turnwise.rollout.workflow import EnvironmentWorkflow
from turnwise.types import Completion, GenerateRequest, Group, Sampling, StopReason, Task, Trajectory

from .worlds import BrokenStart, WordWorld, make_states
from .worlds import make_proxy as proxy_of

TEMPLATE = template_of("chatml")
TASKS = [Task(tag="words", seed=0), Task(tag="words", seed=1)]


def say(word: str) -> list[int]:
    return [*TEMPLATE.encode_text(f"<answer>{word}</answer>").tolist(), TEMPLATE.end_of_turn_id]


def env_of(request: GenerateRequest) -> int:
    """Counted through both tasks: `0:7/words/train/1/0` is the third of four."""
    seed, sibling = str(request.cache_key).split("/")[-2:]
    return 2 * int(seed) + int(sibling)


class WaitingEngine(ScriptedEngine):
    """Says `stay`; the listed environments get their answers only once the gate is open."""

    def __init__(self, slow: set[int]) -> None:
        super().__init__(lambda _: say("stay"), stop_ids=TEMPLATE.stop_ids)
        self.slow, self.gate = slow, asyncio.Event()
        self.arrived: defaultdict[int, int] = defaultdict(int)

    async def generate(self, request: GenerateRequest) -> Completion:
        self.arrived[env_of(request)] += 1
        if env_of(request) in self.slow:
            await self.gate.wait()
        return await super().generate(request)


class FailingEngine(ScriptedEngine):
    """Fails one environment's second turn."""

    def __init__(self, failing: int) -> None:
        super().__init__(lambda _: say("stay"), stop_ids=TEMPLATE.stop_ids)
        self.failing, self.turns = failing, 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self.turns += env_of(request) == self.failing
        if env_of(request) == self.failing and self.turns == 2:
            raise EngineError("the engine is gone")
        return await super().generate(request)


def make_proxy(
    engine: ScriptedEngine,
    world: type[BaseEnv] = WordWorld,
    *,
    seed: int = 0,
    limits: RolloutLimits | None = None,
) -> AgentProxy:
    states = make_states(lambda *_: world(), groups=2, group_size=2, limits=Limits(max_turns=4))
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.9, max_new_tokens=1)
    return proxy_of(engine, TEMPLATE, states, sampling=sampling, seed=seed, limits=limits or RolloutLimits())


def collect(proxy: AgentProxy, rollout: int = 0) -> list[Group]:
    return asyncio.run(proxy.collect(TASKS, rollout=rollout))


def test_fast_episodes_finish_while_a_slow_one_is_in_its_first_turn() -> None:
    engine = WaitingEngine(slow={1})
    done: list[Trajectory] = []

    async def run() -> list[Group]:
        rollout = asyncio.create_task(make_proxy(engine).collect(TASKS, rollout=0, on_done=done.append))
        while len(done) < 3:
            await asyncio.sleep(0)
        assert dict(engine.arrived) == {0: 4, 1: 1, 2: 4, 3: 4}
        assert not rollout.done()
        engine.gate.set()
        return await rollout

    groups = asyncio.run(asyncio.wait_for(run(), HANG_S))
    assert [str(t.id) for t in done] == [
        "0/words/train/0/0",
        "0/words/train/1/0",
        "0/words/train/1/1",
        "0/words/train/0/1",
    ]
    assert [len(t.turns) for g in groups for t in g.trajectories] == [4] * 4


class SlowToClose(EnvironmentWorkflow):
    """Closing takes a few turns of the event loop, for each sibling others."""

    closed: ClassVar[set[str]] = set()

    async def close(self) -> None:
        for _ in range(9 * (1 + self.task.task.seed + self.task.id.sibling)):
            await asyncio.sleep(0)
        await super().close()
        self.closed.add(str(self.task.id))


@pytest.mark.parametrize("end", ["failure", "cancellation"])
def test_no_episode_goes_on_after_its_rollout(end: str) -> None:
    engine = WaitingEngine(slow={0, 2, 3})
    SlowToClose.closed.clear()

    async def run() -> set[asyncio.Task[object]]:
        has_ended = asyncio.Event()

        def break_down(_trajectory: Trajectory) -> None:
            has_ended.set()
            if end == "failure":
                raise ZeroDivisionError

        states = make_states(lambda *_: WordWorld(), groups=2, group_size=2, limits=Limits(max_turns=4))
        proxy = proxy_of(engine, TEMPLATE, states, workflow=SlowToClose)
        rollout = asyncio.create_task(proxy.collect(TASKS, rollout=0, on_done=break_down))
        async with asyncio.timeout(HANG_S):
            await has_ended.wait()
            if end == "cancellation":
                rollout.cancel()
            with pytest.raises(ZeroDivisionError if end == "failure" else asyncio.CancelledError):
                await rollout
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]

    assert asyncio.run(run()) == set()
    assert len(SlowToClose.closed) == 4


def test_a_reply_without_tokens_is_an_engine_error() -> None:
    groups = collect(make_proxy(ScriptedEngine(lambda _: [], stop_ids=TEMPLATE.stop_ids)))
    trajectory = groups[0].trajectories[0]
    assert trajectory.stop_reason is StopReason.ENGINE_ERROR
    assert "without a token" in trajectory.failure


def test_groups_follow_the_tasks_whoever_finishes_first() -> None:
    groups = collect(make_proxy(ScriptedEngine(lambda _: say("win"), stop_ids=TEMPLATE.stop_ids)), rollout=7)
    assert [group.task for group in groups] == TASKS
    assert [str(t.id) for g in groups for t in g.trajectories] == [
        "7/words/train/0/0",
        "7/words/train/0/1",
        "7/words/train/1/0",
        "7/words/train/1/1",
    ]
    assert all(t.task == g.task and t.is_success for g in groups for t in g.trajectories)


def test_requests_carry_the_sampling_and_a_seed_of_their_own() -> None:
    engine = ScriptedEngine(lambda _: say("stay"), stop_ids=TEMPLATE.stop_ids)
    collect(make_proxy(engine))
    assert {(r.sampling.temperature, r.sampling.top_k, r.sampling.top_p) for r in engine.requests} == {(0.7, 5, 0.9)}
    assert {r.sampling.max_new_tokens for r in engine.requests} == {ContextSettings().max_response_tokens}
    assert len({r.seed for r in engine.requests}) == 16


def test_seeds_of_requests_depend_on_run_and_rollout_and_nothing_else() -> None:
    def seeds(*, seed: int, rollout: int) -> list[int]:
        engine = ScriptedEngine(lambda _: say("stay"), stop_ids=TEMPLATE.stop_ids)
        collect(make_proxy(engine, seed=seed), rollout=rollout)
        return sorted(r.seed for r in engine.requests)

    assert seeds(seed=0, rollout=1) == seeds(seed=0, rollout=1)
    assert not set(seeds(seed=0, rollout=1)) & set(seeds(seed=0, rollout=2))
    assert not set(seeds(seed=0, rollout=1)) & set(seeds(seed=1, rollout=1))


def test_an_engine_failure_ends_its_own_episode() -> None:
    engine = FailingEngine(failing=2)
    groups = collect(make_proxy(engine))
    reasons = [t.stop_reason for g in groups for t in g.trajectories]
    assert reasons == [StopReason.MAX_TURNS, StopReason.MAX_TURNS, StopReason.ENGINE_ERROR, StopReason.MAX_TURNS]
    failed = groups[1].trajectories[0]
    assert "the engine is gone" in failed.failure
    assert len(failed.turns) == 1
    assert len(set(engine.released)) == 4
    assert set(engine.released) == {request.cache_key for request in engine.requests}


def test_a_failed_reset_becomes_an_empty_trajectory() -> None:
    engine = ScriptedEngine(lambda _: say("win"), stop_ids=TEMPLATE.stop_ids)
    good, bad = collect(make_proxy(engine, BrokenStart))
    assert all(t.is_success for t in good.trajectories)
    for trajectory in bad.trajectories:
        assert trajectory.stop_reason is StopReason.ENV_ERROR
        assert "no such level" in trajectory.failure
        assert (trajectory.segments, trajectory.turns) == ((), ())


class StuckStart(WordWorld):
    """Starts odd seeds only once the gate is open."""

    is_slow = True
    gate = threading.Event()

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        if seed is not None and seed % 2:
            self.gate.wait(HANG_S)
        return super().reset(seed, split=split, dynamics_seed=dynamics_seed)


def test_a_reset_that_hangs_costs_its_own_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    engine = ScriptedEngine(lambda _: say("win"), stop_ids=TEMPLATE.stop_ids)
    proxy = make_proxy(engine, StuckStart, limits=RolloutLimits(timeout_s=HANG_S))
    StuckStart.gate.clear()
    ended: list[int] = []

    async def run() -> list[Group]:
        def note(trajectory: Trajectory) -> None:
            ended.append(trajectory.task.seed)
            if ended == [0, 0]:
                clock.put_forward(HANG_S)

        groups = await proxy.collect(TASKS, rollout=0, on_done=note)
        StuckStart.gate.set()
        return groups

    good, stuck = asyncio.run(run())
    assert all(t.is_success for t in good.trajectories)
    assert ended == [0, 0, 1, 1]
    for trajectory in stuck.trajectories:
        assert trajectory.stop_reason is StopReason.TIMEOUT
        assert f"episode_timeout_s = {HANG_S:g}" in trajectory.failure
        assert (trajectory.segments, trajectory.turns) == ((), ())


def test_what_is_known_is_not_played_again() -> None:
    engine = ScriptedEngine(lambda _: say("win"), stop_ids=TEMPLATE.stop_ids)
    first = collect(make_proxy(engine))
    known = {t.id: t for t in (first[0].trajectories[1], first[1].trajectories[0])}
    engine.requests.clear()
    done: list[Trajectory] = []
    again = asyncio.run(make_proxy(engine).collect(TASKS, rollout=0, on_done=done.append, known=known))
    assert sorted(env_of(request) for request in engine.requests) == [0, 3]
    assert [str(t.id) for t in done] == ["0/words/train/0/0", "0/words/train/1/1"]
    played = [t for group in again for t in group.trajectories]
    assert [t.id for t in played] == [t.id for group in first for t in group.trajectories]
    assert [t is known.get(t.id) for t in played] == [False, True, True, False]


def test_a_crash_keeps_the_turns_before_it() -> None:
    engine = ScriptedEngine(lambda r: say("crash" if env_of(r) == 0 else "win"), stop_ids=TEMPLATE.stop_ids)
    groups = collect(make_proxy(engine))
    crashed, won = groups[0].trajectories
    assert (crashed.stop_reason, won.stop_reason) == (StopReason.ENV_ERROR, StopReason.TERMINATED)
    assert len(crashed.turns) == 1
    assert crashed.segments[0].num_action_tokens == len(say("crash"))


def test_a_proxy_plays_again_and_again() -> None:
    engine = ScriptedEngine(lambda _: say("win"), stop_ids=TEMPLATE.stop_ids)
    proxy = make_proxy(engine)
    first, second = collect(proxy, 1), collect(proxy, 2)
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one.trajectories, other.trajectories, strict=True):
            assert np.array_equal(a.segments[0].token_ids, b.segments[0].token_ids)
            assert (a.id.rollout, b.id.rollout) == (1, 2)


class RaisingWorkflow(EnvironmentWorkflow):
    """Raises what its test chooses, from a coroutine."""

    raised: ClassVar[BaseException]

    async def run(self) -> Trajectory:
        await asyncio.sleep(0)
        raise self.raised


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), SystemExit(3), StopIteration("x")])
def test_whatever_a_workflow_raises_is_data(raised: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has cancelled it: a program can raise `CancelledError` of its own."""
    monkeypatch.setattr(RaisingWorkflow, "raised", raised, raising=False)
    states = make_states(lambda *_: WordWorld(), groups=2, group_size=2, limits=Limits(max_turns=4))
    engine = ScriptedEngine(lambda _: say("stay"), stop_ids=TEMPLATE.stop_ids)
    groups = collect(proxy_of(engine, TEMPLATE, states, workflow=RaisingWorkflow))
    assert {t.stop_reason for g in groups for t in g.trajectories} == {StopReason.WORKFLOW_ERROR}


class IdleWorkflow(EnvironmentWorkflow):
    async def run(self) -> Trajectory:
        return None  # type: ignore[return-value]


def test_a_workflow_that_returns_no_trajectory_is_data() -> None:
    states = make_states(lambda *_: WordWorld(), groups=2, group_size=2, limits=Limits(max_turns=4))
    engine = ScriptedEngine(lambda _: say("stay"), stop_ids=TEMPLATE.stop_ids)
    groups = collect(proxy_of(engine, TEMPLATE, states, workflow=IdleWorkflow))
    assert "returned None" in groups[0].trajectories[0].failure


class BlockingWorld(WordWorld):
    """An environment of somebody's own, which blocks the thread that it is called in."""

    gate = threading.Event()

    def step(self, action: str) -> tuple[object, ...]:
        self.gate.wait()
        return super().step(action)


def test_episode_timeout_ends_an_environment_that_blocks_inside_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit, its calls are made in threads; the one that hangs is left behind and counted."""
    monkeypatch.setattr(BlockingWorld, "gate", gate := threading.Event())
    # Without a limit that holds, the test fails instead of hanging.
    late = threading.Timer(HANG_S, gate.set)
    late.start()
    before = count_abandoned()
    settings = load_settings(
        {"env": {"type": f"{__name__}:BlockingWorld"}, "rollout": {"episode_timeout_s": 0.2, "max_turns": 2}}
    )
    world = main_env(settings)
    states = make_states(lambda _, split: world.make(split), groups=2, group_size=2, limits=Limits(max_turns=4))
    engine = ScriptedEngine(lambda _: say("stay"), stop_ids=TEMPLATE.stop_ids)
    groups = collect(proxy_of(engine, TEMPLATE, states, limits=RolloutLimits(timeout_s=0.2)))
    assert {t.stop_reason for g in groups for t in g.trajectories} == {StopReason.TIMEOUT}
    assert count_abandoned() - before == 4
    hung = record_episodes(world.make("train"), lambda *_: "go", TASKS, 3, timeout_s=0.1)
    assert {played.stop_reason for played in hung} == {StopReason.TIMEOUT}
    assert len(hung) == len(TASKS)
    late.cancel()
    gate.set()


class Stuck:
    is_asked, gate = threading.Event(), threading.Event()


def ask_stuck(seed: int, split: str) -> tuple[str, Callable[[str], float]]:
    """A task for `function:` whose grade does not come back by itself."""

    def grade(reply: str) -> float:
        Stuck.is_asked.set()
        return float(Stuck.gate.wait(HANG_S))

    return "?", grade


def test_a_function_that_hangs_is_named_to_those_who_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take turns, and nobody waits longer than an episode may last."""
    monkeypatch.setattr("turnwise.infra.process_state._LOOK_S", 0.001)
    name, rollout = f"function:{__name__}:ask_stuck", {"episode_timeout_s": 0.01}
    world = main_env(load_settings({"env": {"type": name}, "rollout": rollout}))
    one, other = world.make("train"), world.make("train")
    for env in (one, other):
        reset_env(env, 0)
    hanging = threading.Thread(target=step_env, args=(one, "go"), daemon=True)
    hanging.start()
    assert Stuck.is_asked.wait(HANG_S)
    with pytest.raises(EnvError, match=f"a call of {name} has kept them"):
        step_env(other, "go")
    Stuck.gate.set()
    hanging.join(HANG_S)
    assert step_env(other, "go").reward == 1.0


def test_our_own_worlds_are_not_put_into_threads() -> None:
    settings = load_settings("frozenlake", ["rollout.episode_timeout_s=3"])
    assert not main_env(settings).make("train").is_slow
