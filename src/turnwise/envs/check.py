"""Tests an environment by playing it, so that an author learns of a fault before a training run does.

In comes an environment, a way to make one, or its name; out comes a report of named checks. It refuses to know what the
game is about: every check holds for any environment that keeps the contract of `BaseEnv`.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from turnwise.envs.base import REQUIRED_INFO_KEYS, BaseEnv
from turnwise.envs.boundary import call_env, reset_env, step_env
from turnwise.envs.make import make_env
from turnwise.errors import EnvError, RewardError, TurnwiseError
from turnwise.types import StepResult

GARBAGE = (
    "",
    " \n\t",
    "left right " * 5_000,
    "进攻 🧊 \u202e\x00",
    "[[(<{",
    "]})>",
    "<answer>",
    "%s {0} \\",
    "-1",
    "None",
)
MAX_RANDOM_STEPS = 50
MAX_ORACLE_STEPS = 2_000
SPEED_STEPS = 2_000


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is tested, and how much."""

    make: Callable[[], BaseEnv]
    num_episodes: int
    seed: int

    @property
    def seeds(self) -> range:
        return range(self.seed, self.seed + self.num_episodes)


_Trace = list[tuple[str, float, bool]]


def check_env(make: Callable[[], BaseEnv] | BaseEnv | str, *, num_episodes: int = 20, seed: int = 0) -> CheckReport:
    """Play the environment and report what holds; a fault while playing is reported, not raised."""
    subject = _Subject(_maker(make), num_episodes, seed)
    # A wrong name or setting is the caller's mistake and raised here, not reported twelve times below.
    subject.make().close()
    checks = []
    for name, run in _CHECKS.items():
        try:
            passed, detail = run(subject)
        except TurnwiseError as error:
            passed, detail = False, str(error)
        checks.append(Check(name, passed, detail))
    return CheckReport(tuple(checks))


def _maker(make: Callable[[], BaseEnv] | BaseEnv | str) -> Callable[[], BaseEnv]:
    if isinstance(make, str):
        name = make
        return lambda: make_env(name)
    if isinstance(make, BaseEnv):
        env = make
        return lambda: copy.deepcopy(env)
    return make


# --- playing --------------------------------------------------------------------------------------------------------


def _choose(env: BaseEnv, rng: random.Random) -> str:
    """A random action, now and then garbage; where any text is an action, the oracle's is the only meaningful one."""
    if rng.random() < 0.2:
        return rng.choice(GARBAGE)
    if env.action_names:
        return rng.choice(env.action_names)
    return _ask_oracle(env) if env.has_oracle else rng.choice(GARBAGE)


def _ask_oracle(env: BaseEnv) -> str:
    action = call_env(env, "oracle")
    if not isinstance(action, str):
        raise EnvError(f"{type(env).__name__}.oracle returned a {type(action).__name__}; expected an action (str).")
    return action


def _play(env: BaseEnv, seed: int, dynamics_seed: int) -> Iterator[StepResult]:
    """One random episode. It is a generator so that two of them can be played in turns."""
    rng = random.Random(seed)
    text = reset_env(env, seed, dynamics_seed=dynamics_seed)
    yield StepResult(text=text, reward=0.0, terminated=False, truncated=False, info={})
    yield from _go_on(env, rng)


def _go_on(env: BaseEnv, rng: random.Random) -> Iterator[StepResult]:
    for _ in range(MAX_RANDOM_STEPS):
        result = step_env(env, _choose(env, rng))
        yield result
        if result.done:
            return


def _trace(results: Iterator[StepResult]) -> _Trace:
    return [(result.text, result.reward, result.done) for result in results]


def _play_oracle(env: BaseEnv, seed: int, dynamics_seed: int) -> tuple[_Trace, StepResult | None]:
    """The episode of the oracle, and its last step; None where it does not end."""
    trace: _Trace = [(reset_env(env, seed, dynamics_seed=dynamics_seed), 0.0, False)]
    for _ in range(MAX_ORACLE_STEPS):
        result = step_env(env, _ask_oracle(env))
        trace.append((result.text, result.reward, result.done))
        if result.done:
            return trace, result
    return trace, None


# --- the checks -----------------------------------------------------------------------------------------------------


def _check_contract(subject: _Subject) -> tuple[bool, str]:
    """Texts are str, info is a mapping, nothing is raised. Rewards have a check of their own."""
    try:
        num_steps = sum(len(_trace(_play(subject.make(), seed, seed))) - 1 for seed in subject.seeds)
    except RewardError:
        return True, "see 'rewards'"
    return True, f"{num_steps} steps in {subject.num_episodes} episodes"


def _check_rewards(subject: _Subject) -> tuple[bool, str]:
    try:
        rewards = [step[1] for seed in subject.seeds for step in _trace(_play(subject.make(), seed, seed))[1:]]
    except RewardError as error:
        return False, str(error)
    except EnvError:
        return True, "see 'contract'"
    return True, f"from {min(rewards):g} to {max(rewards):g}" if rewards else "no step"


def _check_info(subject: _Subject) -> tuple[bool, str]:
    for seed in subject.seeds:
        for result in list(_play(subject.make(), seed, seed))[1:]:
            wrong = [key for key in REQUIRED_INFO_KEYS if not isinstance(result.info.get(key), (bool, np.bool_))]
            if wrong:
                return False, f"info lacks {', '.join(wrong)} as True or False; it holds {sorted(result.info)}"
    return True, f"has {', '.join(REQUIRED_INFO_KEYS)}"


def _check_determinism(subject: _Subject) -> tuple[bool, str]:
    for seed in subject.seeds:
        first, second = (_trace(_play(subject.make(), seed, seed)) for _ in range(2))
        if first != second:
            return False, f"two fresh instances differ for seed {seed}: {_first_difference(first, second)}"
    return True, "equal seeds and actions give equal episodes"


def _check_independence(subject: _Subject) -> tuple[bool, str]:
    """An episode must not change because a sibling is played beside it."""
    for seed in subject.seeds:
        alone = _trace(_play(subject.make(), seed, seed))
        beside: _Trace = []
        sibling = _play(subject.make(), seed, seed + 1)
        for result in _play(subject.make(), seed, seed):
            beside.append((result.text, result.reward, result.done))
            next(sibling, None)
        if alone != beside:
            return False, f"a sibling changed the episode of seed {seed}: {_first_difference(alone, beside)}"
    return True, "siblings do not change each other"


def _check_global_rng(subject: _Subject) -> tuple[bool, str]:
    for seed in subject.seeds:
        before = random.getstate(), repr(np.random.get_state())
        for _ in _play(subject.make(), seed, seed):
            pass
        if random.getstate() != before[0]:
            return False, "it uses the global generator of `random`; keep one of your own, seeded in reset"
        if repr(np.random.get_state()) != before[1]:
            return False, "it uses the global generator of numpy; keep one of your own, seeded in reset"
    return True, "random and numpy.random are untouched"


def _check_oracle(subject: _Subject) -> tuple[bool, str]:
    if not subject.make().has_oracle:
        return True, "has none"
    num_successes, num_endless, is_stochastic = 0, 0, False
    for seed in subject.seeds:
        trace, last = _play_oracle(subject.make(), seed, seed)
        is_stochastic = is_stochastic or trace != _play_oracle(subject.make(), seed, seed + 1)[0]
        num_endless += last is None
        num_successes += last is not None and bool(last.info.get("success"))
    kind = "stochastic" if is_stochastic else "deterministic"
    detail = f"succeeds in {num_successes} of {subject.num_episodes} ({kind})"
    if num_endless:
        return False, f"{detail}; {num_endless} do not end within {MAX_ORACLE_STEPS} steps"
    if subject.make().is_judged:
        return True, f"ends in {subject.num_episodes} of {subject.num_episodes} ({kind}); success is the judge's word"
    return is_stochastic or num_successes == subject.num_episodes, detail


def _check_splits(subject: _Subject) -> tuple[bool, str]:
    """For information: small worlds may look alike although their layouts are apart."""
    env = subject.make()
    try:
        train = {reset_env(env, seed, split="train") for seed in subject.seeds}
        evaluation = [reset_env(env, seed, split="eval") for seed in subject.seeds]
    except TurnwiseError as error:
        return True, f"not both of train and eval: {error}"
    num_shared = sum(text in train for text in evaluation)
    return True, f"{num_shared} of {len(evaluation)} first texts of eval are also in train"


def _check_garbage(subject: _Subject) -> tuple[bool, str]:
    env = subject.make()
    for garbage in GARBAGE:
        reset_env(env, subject.seed)
        step_env(env, garbage)
    return True, f"{len(GARBAGE)} senseless answers raise nothing"


def _check_after_done(subject: _Subject) -> tuple[bool, str]:
    for seed in subject.seeds:
        env = subject.make()
        if not _trace(_play(env, seed, seed))[-1][2]:
            continue
        try:
            step_env(env, "")
        except EnvError as error:
            # The boundary wraps whatever is raised; the cause tells a refusal from an accident.
            is_refusal = isinstance(error.__cause__, EnvError)
            return is_refusal, "a step after the end is refused" if is_refusal else f"expected EnvError; {error}"
        return False, "a step after the end is played; raise EnvError, for example with self._require_playing()"
    return True, f"no random episode ended within {MAX_RANDOM_STEPS} steps"


def _check_snapshot(subject: _Subject) -> tuple[bool, str]:
    if type(subject.make()).snapshot is BaseEnv.snapshot:
        return True, "has none"
    for seed in subject.seeds:
        env, other = subject.make(), subject.make()
        reset_env(env, seed, dynamics_seed=seed)
        step_env(env, GARBAGE[0])
        state = call_env(env, "snapshot")
        first = _trace(_go_on(env, random.Random(seed)))
        call_env(other, "restore", state)
        call_env(env, "restore", state)
        again = [_trace(_go_on(restored, random.Random(seed))) for restored in (env, other)]
        if again != [first, first]:
            return False, f"an episode of seed {seed} goes on differently after restore"
    return True, "episodes go on equally after restore"


def _check_speed(subject: _Subject) -> tuple[bool, str]:
    env, rng, seed = subject.make(), random.Random(subject.seed), subject.seed
    num_steps, num_resets, reset_s, step_s = 0, 0, 0.0, 0.0
    done = True
    while num_steps < SPEED_STEPS and reset_s + step_s < 1:
        if done:
            begin = time.perf_counter()
            reset_env(env, seed + num_resets)
            reset_s += time.perf_counter() - begin
            num_resets += 1
        action = _choose(env, rng)
        begin = time.perf_counter()
        done = step_env(env, action).done
        step_s += time.perf_counter() - begin
        num_steps += 1
    return True, f"{num_steps / step_s:,.0f} steps/s, {num_resets / reset_s:,.0f} resets/s"


def _first_difference(first: _Trace, second: _Trace) -> str:
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return f"step {index} gave {left!r} and {right!r}"
    return f"{len(first) - 1} and {len(second) - 1} steps"


_CHECKS: dict[str, Callable[[_Subject], tuple[bool, str]]] = {
    "contract": _check_contract,
    "rewards": _check_rewards,
    "info": _check_info,
    "determinism": _check_determinism,
    "independence": _check_independence,
    "global_rng": _check_global_rng,
    "oracle": _check_oracle,
    "splits": _check_splits,
    "garbage": _check_garbage,
    "after_done": _check_after_done,
    "snapshot": _check_snapshot,
    "speed": _check_speed,
}
