"""The pipelined loop against a serial loop with a turn barrier, on lakes where every step takes 100 ms.

With a barrier all episodes of a rollout step together: the slowest one and the longest one hold up the others, and no
episode is played while the learner works. The environments of one turn still wait side by side in threads, so the
barrier is given its best case. Both sides have the same model, tasks, seeds and updates; each is stopped by the clock
at the first policy whose success on held-out lakes, averaged with its neighbours', reaches the target. Policies are
kept while training and evaluated afterwards, so that no clock runs meanwhile.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch

from turnwise.config.load import load_settings
from turnwise.config.schema import OracleWarmStart
from turnwise.config.settings import Settings
from turnwise.context.manager import ContextManager
from turnwise.engine.local import LocalEngine
from turnwise.envs.frozen_lake import FrozenLake
from turnwise.envs.frozen_lake.layout import LakeParams
from turnwise.hooks import TrainStep
from turnwise.infra.seeds import derive_seed
from turnwise.loop.build import build_states, open_components
from turnwise.loop.components import TrainComponents
from turnwise.loop.evaluate import evaluate_policy
from turnwise.loop.pipelined import train_pipelined
from turnwise.loop.policies import resolve_model
from turnwise.loop.serial import train_serial
from turnwise.loop.warm_start import warm_start
from turnwise.protocols import Weights
from turnwise.report.metrics import Stopwatch
from turnwise.rollout.env_manager import EnvStateManager
from turnwise.rollout.env_specs import all_envs
from turnwise.rollout_io import EnvInput, EnvOutput, LmInput, LmOutput
from turnwise.types import Completion, GenerateRequest, Group, Sampling, Task, Trajectory

STEP_S = 0.1
TARGET = 0.65
STALENESS = 4
NUM_STEPS = 60
KEPT_EVERY = 2

RECIPE: dict[str, object] = {
    # Loops are called by hand here, with other bounds of staleness than the settings say.
    "audit": {"is_on": False},
    "env": {
        "type": "benchmarks.pipelined:SlowLake",
        "size": 3,
        "view": "objects",
        "hole_rate": 0.35,
        "max_holes": 5,
        "min_distance": 2,
        "max_distance": 4,
        "blind_solvable_keep": 0.0,
        "train": {"random_start_rate": 0.7, "step_s": STEP_S},
    },
    "model": {"tiny": {"hidden_size": 64, "intermediate_size": 192}},
    "context": {
        "window": "single_turn",
        "instructions": "none",
        "answer": {"type": "plain"},
        "max_response_tokens": 3,
        "max_tokens": 32,
    },
    "rollout": {"groups": 64, "group_size": 1, "max_turns": 12},
    "credit": {"type": "bi_level_gae", "turn_value_at": "first", "truncation": "end", "high_level_gamma": 0.95},
    "warm_start": {"type": "oracle", "episodes": 60, "steps": 17, "batch_rows": 128, "lr": 2e-3},
    "learn": {
        "steps": NUM_STEPS,
        "epochs": 4,
        "minibatches": 2,
        "critic": {"type": "value_head"},
        "entropy_coef": 0.003,
        "optim": {"lr": 4e-4, "warmup_steps": 5},
        "num_threads": 1,
    },
    "eval": {"episodes": 200, "temperature": 1.0},
}


class SlowLakeParams(LakeParams):
    step_s: float = 0.0
    """How long the world takes to answer."""


class SlowLake(FrozenLake):
    """A lake that lets its players wait, as a browser or a remote service would."""

    name = "slow_lake"
    is_slow = True
    Params: ClassVar[type[Settings]] = SlowLakeParams

    params: SlowLakeParams

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        time.sleep(self.params.step_s)
        return super().step(action)


class BarrierProxy:
    """Plays like `AgentProxy`, turn by turn: all running episodes ask, then all step, then all ask again."""

    def __init__(self, states: EnvStateManager, context: ContextManager, engine: LocalEngine, seed: int) -> None:
        self._states = states
        self._context = context
        self._engine = engine
        self._seed = seed

    @property
    def env_seconds(self) -> float:
        """What the loop asks for the time spent inside environments."""
        return self._states.env_seconds

    async def collect(self, tasks: Sequence[Task], *, rollout: int, **_: object) -> list[Group]:
        running = self._states.begin(tasks, rollout=rollout)
        while running:
            asked = self._context.get_lm_inputs(running)
            replies = await asyncio.gather(*(self._ask(lm_input, rollout, running) for lm_input in asked))
            outputs = [LmOutput(env_id=i.env_id, completion=c) for i, c in zip(asked, replies, strict=True)]
            running = await self._step(self._context.get_env_inputs(outputs))
        trajectories = self._context.formulate_rollouts(self._states.get_rollout_states())
        return [_as_group(task, trajectory) for task, trajectory in zip(tasks, trajectories, strict=True)]

    async def _ask(self, lm_input: LmInput, rollout: int, running: Sequence[EnvOutput]) -> Completion:
        turn = len(running[0].history)
        request = GenerateRequest(
            prompt_ids=lm_input.prompt_ids,
            sampling=Sampling(max_new_tokens=lm_input.max_new_tokens),
            seed=derive_seed(self._seed, rollout, lm_input.env_id, turn),
        )
        return await self._engine.generate(request)

    async def _step(self, env_inputs: Sequence[EnvInput]) -> list[EnvOutput]:
        outputs = await asyncio.gather(*(asyncio.to_thread(self._states.step, [given]) for given in env_inputs))
        return [output for going_on in outputs for output in going_on]


def _as_group(task: Task, trajectory: Trajectory) -> Group:
    return Group(task=task, trajectories=(trajectory,))


def run(seeds: Sequence[int] = (0, 1, 2)) -> dict[str, object]:
    """Seconds to the target of both sides for every seed, and their ratios."""
    staleness = {"sync.max_staleness": STALENESS, "sync.style": "dynamic_by_trainer"}
    barrier_s, pipelined_s = [], []
    for seed in seeds:
        barrier_s.append(_seconds_to_target(seed, _with_barrier, train_serial))
        pipelined_s.append(_seconds_to_target(seed, lambda components: components, train_pipelined, staleness))
    ratios = [a / b for a, b in zip(barrier_s, pipelined_s, strict=True)]
    return {
        "benchmark": "pipelined",
        "env_step_s": STEP_S,
        "target_success": TARGET,
        "max_staleness": STALENESS,
        "seeds": list(seeds),
        "serial_with_barrier_s": barrier_s,
        "pipelined_s": pipelined_s,
        "ratios": ratios,
        "ratio_median": statistics.median(ratios),
    }


def _with_barrier(components: TrainComponents) -> TrainComponents:
    settings, worlds = components.settings, all_envs(components.settings)
    states = build_states(settings, worlds, "train", group_size=1)
    proxy = BarrierProxy(
        states,
        ContextManager(components.explorer.rollout.template, {world.tag: world.context for world in worlds}),
        components.explorer.rollout.engine,
        settings.run.seed,
    )
    collectors = replace(components.explorer.collectors, sampled=proxy)  # type: ignore[arg-type]
    return replace(components, explorer=replace(components.explorer, collectors=collectors))


def _seconds_to_target(
    seed: int,
    prepare: Callable[[TrainComponents], TrainComponents],
    loop: Callable[..., object],
    overrides: dict[str, object] | None = None,
) -> float:
    settings = load_settings(RECIPE, {"run.seed": seed, **(overrides or {})})
    components = prepare(open_components(settings, resolve_model(settings)))
    assert isinstance(components.settings.warm_start, OracleWarmStart)
    assert components.settings.learn.num_threads is not None
    # One core plays and one learns: threads of torch that wait actively would take both from either side.
    torch.set_num_threads(components.settings.learn.num_threads)
    return asyncio.run(_train_and_measure(components, partial(loop, components)))


async def _train_and_measure(components: TrainComponents, loop: Callable[..., object]) -> float:
    assert isinstance(components.settings.warm_start, OracleWarmStart)
    trainer, template = components.trainer, components.explorer.rollout.template
    await warm_start(trainer, template, components.settings.warm_start, lambda _done, _total: None)
    kept: list[tuple[float, Weights]] = []
    started_s = time.perf_counter()

    async def keep(step: TrainStep) -> None:
        if step.step % KEPT_EVERY == 0:
            weights = {name: tensor.clone() for name, tensor in components.trainer.learner.weights().items()}
            kept.append((time.perf_counter() - started_s, weights))

    await components.publish(0)
    await loop(Stopwatch(), start_step=0, on_step=keep)  # type: ignore[misc]
    successes: list[float] = []
    for number, (elapsed_s, weights) in enumerate(kept):
        await components.explorer.rollout.publisher.publish(weights, number)
        successes.append((await evaluate_policy(components.explorer.rollout)).success)
        if statistics.mean(successes[-3:]) >= TARGET:
            return elapsed_s
    raise RuntimeError(f"success stayed below {TARGET}: {successes}")
