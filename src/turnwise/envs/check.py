"""Tests an environment by running episodes, so that faults are found before a training run.

Every check holds for any environment that keeps the contract of `BaseEnv`.
"""

from __future__ import annotations

import copy
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from turnwise.envs.base import REQUIRED_INFO_KEYS, BaseEnv, make_env
from turnwise.envs.check_episodes import (
    GARBAGE,
    MAX_ORACLE_STEPS,
    MAX_RANDOM_STEPS,
    Made,
    Subject,
    Trace,
    choose_action,
    count_affordable,
    go_on,
    oracle_episode,
    random_episode,
    random_episode_and_close,
    told_by,
    trace_of,
)
from turnwise.envs.safe_calls import call_env, reset_env, step_env
from turnwise.errors import EnvError, RewardError, TaskError, TurnwiseError
from turnwise.types import StepResult

SPEED_STEPS = 2_000
MAX_CALL_S = 1.0
"""On average; a slower environment holds up all others unless it says `is_slow`, and is told how not to."""
SLOW_NOTE = (
    "all others wait meanwhile. Where it waits itself, let the class say is_slow = True; where it computes, set "
    "rollout.isolation.type=process"
)


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    passed: bool | None
    """None where it was not made; the detail says why."""
    detail: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every check that was made has passed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def not_made(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is None)


def check_env(
    make: Callable[[], BaseEnv] | BaseEnv | str, *, num_episodes: int | None = None, seed: int = 0
) -> CheckReport:
    """Play the environment and report what holds; a fault while playing is reported, not raised.

    Each check plays `num_episodes`; None: 20, or 2 where one takes long.
    """
    made = Made(_maker(make))
    # A wrong name or setting is the caller's mistake and raised here, not reported twelve times below.
    first = made.make()
    subject = Subject(made.make, num_episodes or count_affordable(first, seed), seed, close=made.close)
    with suppress(EnvError):  # 'contract' tells of it
        made.close()
    checks: dict[str, Check] = {}
    for name, run in _CHECKS.items():
        try:
            passed, detail = run(subject)
            made.close()
        except TurnwiseError as error:
            passed, detail = False, str(error)
        cause = next((need for need in _needs(name) if need in checks and checks[need].passed is False), None)
        if cause and not passed:
            # One fault is reported once, by the check that is made for it.
            passed, detail = None, f"see '{cause}'"
        checks[name] = Check(name, passed, detail)
        if name == "garbage":
            subject = replace(subject, plays_garbage=passed is True)
    with suppress(EnvError):
        made.close()
    return CheckReport(tuple(checks.values()))


def _needs(name: str) -> tuple[str, ...]:
    """The checks without which this one says nothing."""
    return ("contract", "rewards", "determinism") if name in _COMPARISONS else ("contract", "rewards")


def _maker(make: Callable[[], BaseEnv] | BaseEnv | str) -> Callable[[], BaseEnv]:
    if isinstance(make, str):
        name = make
        return lambda: make_env(name)
    if isinstance(make, BaseEnv):
        env = make
        return lambda: copy.deepcopy(env)
    return make


Finding = tuple[bool | None, str]
"""Whether a check passed, None where there is nothing to check, and what was seen."""

# --- the checks -----------------------------------------------------------------------------------------------------


def _check_contract(subject: Subject) -> Finding:
    """Texts are str, info is a mapping, nothing is raised, by close() neither. Rewards have a check of their own."""
    num_steps = 0
    try:
        for seed in subject.seeds:
            texts = [text for text, *_ in random_episode_and_close(subject, seed)]
            num_steps += len(texts) - 1
            for text in texts:
                text.encode()
    except RewardError:
        return None, "see 'rewards'"
    except UnicodeEncodeError as error:
        return False, f"a text cannot be written as UTF-8: {error.reason} at {error.start}"
    return True, f"{num_steps} steps in {subject.num_episodes} episodes"


def _check_rewards(subject: Subject) -> Finding:
    try:
        rewards = [step[1] for seed in subject.seeds for step in trace_of(random_episode(subject, seed, seed))[1:]]
    except RewardError as error:
        return False, str(error)
    if subject.make().is_judged and any(rewards):
        return False, f"it says is_judged and pays {max(rewards, key=abs):g}; the judge alone pays"
    return True, f"from {min(rewards):g} to {max(rewards):g}"


def _check_info(subject: Subject) -> Finding:
    for seed in subject.seeds:
        told: list[tuple[StepResult, dict[str, object]]] = []
        for result in random_episode(subject, seed, seed):
            told.append((result, {key: result.info.get(key) for key in REQUIRED_INFO_KEYS}))
        for number, (result, facts) in enumerate(told[1:], start=1):
            wrong = [key for key in REQUIRED_INFO_KEYS if not isinstance(facts[key], (bool, np.bool_))]
            if wrong:
                return False, f"info lacks {', '.join(wrong)} as True or False; it holds {sorted(result.info)}"
            if any(result.info.get(key) != fact for key, fact in facts.items()):
                return False, f"the info of step {number} was changed later; make a new mapping in each step"
    return True, f"has {', '.join(REQUIRED_INFO_KEYS)}"


def _check_actions(subject: Subject) -> Finding:
    num_actions = 0
    for seed in subject.seeds:
        env, rng = subject.make(), random.Random(seed)
        reset_env(env, seed)
        for _ in range(MAX_RANDOM_STEPS):
            actions = cast("Sequence[str] | None", call_env(env, "admissible_actions"))
            if not actions:
                return None, "it knows no list of actions: any text is one"
            action = rng.choice(actions)
            result = step_env(env, action)
            num_actions += 1
            if not result.is_valid:
                return False, f"'{action}' is offered and not valid; let admissible_actions() leave it out"
            if result.done:
                break
    return True, f"{num_actions} offered actions are valid"


def _check_budget(subject: Subject) -> Finding:
    for seed in subject.seeds:
        for result in random_episode(subject, seed, seed):
            if result.info.get("truncated") and not result.done:
                return False, "info['truncated'] is true and the episode goes on; a limit ends it: done is true as well"
    return True, "no step tells of a limit and goes on"


def _check_determinism(subject: Subject) -> Finding:
    for seed in subject.seeds:
        first, second = (trace_of(random_episode(subject, seed, seed)) for _ in range(2))
        if first != second:
            return False, f"two fresh instances differ for seed {seed}: {_first_difference(first, second)}"
    return True, "equal seeds and actions give equal episodes"


def _check_reuse(subject: Subject) -> Finding:
    """Environments are played again and again; nothing of an episode may be left in the next."""
    env = subject.make()
    for seed in subject.seeds:
        fresh, used = trace_of(random_episode(subject, seed, seed)), trace_of(random_episode(subject, seed, seed, env))
        if fresh != used:
            return False, f"an earlier episode changed that of seed {seed}: {_first_difference(fresh, used)}"
    return True, "reset forgets the episode before"


def _check_layout(subject: Subject) -> Finding:
    for seed in subject.seeds:
        texts = [reset_env(subject.make(), seed, dynamics_seed=luck) for luck in (seed, seed + 1)]
        if texts[0] != texts[1]:
            return False, f"dynamics_seed changes the first text of seed {seed}; it is for what happens later"
    return True, "siblings begin alike"


def _check_independence(subject: Subject) -> Finding:
    """An episode must not change because a sibling is played beside it."""
    for seed in subject.seeds:
        alone = trace_of(random_episode(subject, seed, seed))
        beside: Trace = []
        sibling = random_episode(subject, seed, seed + 1)
        for result in random_episode(subject, seed, seed):
            beside.append(told_by(result))
            next(sibling, None)
        if alone != beside:
            return False, f"a sibling changed the episode of seed {seed}: {_first_difference(alone, beside)}"
    return True, "siblings do not change each other"


def _check_global_rng(subject: Subject) -> Finding:
    return _check_untouched(subject, _global_rngs, "it uses the global generator of {}; keep one of your own")


def _check_global_state(subject: Subject) -> Finding:
    return _check_untouched(subject, _global_state, "it changes {}, which belongs to the whole process")


def _check_untouched(subject: Subject, read: Callable[[], dict[str, Any]], fault: str) -> Finding:
    for seed in subject.seeds:
        before = read()
        for _ in random_episode(subject, seed, seed):
            pass
        after = read()
        if changed := [name for name in before if before[name] != after[name]]:
            return False, fault.format(" and ".join(changed))
    return True, f"{', '.join(read())} are untouched"


def _global_rngs() -> dict[str, Any]:
    kind, words, *rest = np.random.get_state(legacy=True)
    states = {"random": random.getstate(), "numpy.random": (kind, np.asarray(words).tobytes(), *rest)}
    # Whoever plays may have loaded torch; this room itself does not.
    torch: Any = sys.modules.get("torch")
    return states if torch is None else states | {"torch": torch.get_rng_state().numpy().tobytes()}


def _global_state() -> dict[str, Any]:
    return {
        "os.environ": dict(os.environ),
        "the working directory": os.getcwd(),
        "the recursion limit": sys.getrecursionlimit(),
        "numpy.seterr": np.geterr(),
    }


def _check_oracle(subject: Subject) -> Finding:
    if not subject.make().has_oracle:
        return None, "it has no oracle"
    num_successes, num_endless, is_stochastic = 0, 0, False
    for seed in subject.seeds:
        trace, last = oracle_episode(subject.make(), seed, seed)
        is_stochastic = is_stochastic or trace != oracle_episode(subject.make(), seed, seed + 1)[0]
        num_endless += last is None
        num_successes += last is not None and bool(last.is_success)
    kind = "stochastic" if is_stochastic else "deterministic"
    detail = f"succeeds in {num_successes} of {subject.num_episodes} ({kind})"
    if num_endless:
        return False, f"{detail}; {num_endless} do not end within {MAX_ORACLE_STEPS} steps"
    if subject.make().is_judged:
        return True, f"ends in {subject.num_episodes} of {subject.num_episodes} ({kind}); success is the judge's word"
    return is_stochastic or num_successes == subject.num_episodes, detail


def _check_splits(subject: Subject) -> Finding:
    """For information: small worlds may look alike although their layouts are apart."""
    env = subject.make()
    try:
        train = {reset_env(env, seed, split="train") for seed in subject.seeds}
        evaluation = [reset_env(env, seed, split="eval") for seed in subject.seeds]
    except TaskError as error:
        return None, f"not both of train and eval: {error}"
    num_shared = sum(text in train for text in evaluation)
    return True, f"{num_shared} of {len(evaluation)} first texts of eval are also in train"


def _check_garbage(subject: Subject) -> Finding:
    env = subject.make()
    for garbage in GARBAGE:
        reset_env(env, subject.seed)
        step_env(env, garbage)
    return True, f"{len(GARBAGE)} senseless answers raise nothing"


def _check_after_done(subject: Subject) -> Finding:
    for seed in subject.seeds:
        env = subject.make()
        is_over = trace_of(random_episode(subject, seed, seed, env))[-1][2]
        if not is_over and not (env.has_oracle and oracle_episode(env, seed, seed)[1]):
            continue
        try:
            step_env(env, "")
        except EnvError as error:
            # The boundary wraps whatever is raised; the cause tells a refusal from an accident.
            is_refusal = isinstance(error.__cause__, EnvError)
            return is_refusal, "a step after the end is refused" if is_refusal else f"expected EnvError; {error}"
        return False, "a step after the end is played; raise EnvError, for example with self._require_playing()"
    return None, f"no random episode ended within {MAX_RANDOM_STEPS} steps"


def _check_snapshot(subject: Subject) -> Finding:
    env_class = type(subject.make())
    if env_class.snapshot is BaseEnv.snapshot and not env_class.state_fields:
        return None, "it has no snapshots"
    for seed in subject.seeds:
        env, other = subject.make(), subject.make()
        reset_env(env, seed, dynamics_seed=seed)
        step_env(env, GARBAGE[0])
        state = call_env(env, "snapshot")
        first = trace_of(go_on(subject, env, random.Random(seed)))
        call_env(other, "restore", state)
        call_env(env, "restore", state)
        again = [trace_of(go_on(subject, restored, random.Random(seed))) for restored in (env, other)]
        if again != [first, first]:
            return False, f"an episode of seed {seed} goes on differently after restore"
    return True, "episodes go on equally after restore"


def _check_speed(subject: Subject) -> Finding:
    """For information: how long a call takes is a matter of the machine, and of who else uses it."""
    env, rng, seed = subject.make(), random.Random(subject.seed), subject.seed
    num_steps, num_resets, reset_s, step_s = 0, 0, 0.0, 0.0
    done = True
    while num_steps < SPEED_STEPS and reset_s + step_s < 1:
        if done:
            begin = time.perf_counter()
            reset_env(env, seed + num_resets)
            reset_s += time.perf_counter() - begin
            num_resets += 1
        action = choose_action(subject, env, rng)
        begin = time.perf_counter()
        done = step_env(env, action).done
        step_s += time.perf_counter() - begin
        num_steps += 1
    detail = f"{_rate(num_steps / step_s)} steps/s, {_rate(num_resets / reset_s)} resets/s"
    if max(step_s / num_steps, reset_s / num_resets) > MAX_CALL_S and not env.is_slow:
        detail = f"{detail}: {SLOW_NOTE}"
    return True, detail


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2g}"


def _first_difference(first: Trace, second: Trace) -> str:
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return f"step {index} gave {left!r} and {right!r}"
    return f"{len(first) - 1} and {len(second) - 1} steps"


_CHECKS: dict[str, Callable[[Subject], Finding]] = {
    # These two are played sensibly; all behind "garbage" also with garbage, where that raises nothing.
    "contract": _check_contract,
    "rewards": _check_rewards,
    "garbage": _check_garbage,
    "info": _check_info,
    "actions": _check_actions,
    "budget": _check_budget,
    "determinism": _check_determinism,
    "reuse": _check_reuse,
    "layout": _check_layout,
    "independence": _check_independence,
    "global_rng": _check_global_rng,
    "global_state": _check_global_state,
    "oracle": _check_oracle,
    "splits": _check_splits,
    "after_done": _check_after_done,
    "snapshot": _check_snapshot,
    "speed": _check_speed,
}
_COMPARISONS = ("reuse", "layout", "independence", "snapshot")
"""They compare episodes of equal seeds."""
