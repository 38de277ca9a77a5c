"""Episodes that put an environment to the test: random ones, with and without garbage, and the oracle's.

In comes a subject, that is a way to make an environment and how much to play; out come its answers. It refuses to
judge: `check.py` does.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from turnwise.envs.base import BaseEnv
from turnwise.envs.safe_calls import call_env, reset_env, step_env
from turnwise.errors import EnvError, TurnwiseError
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
WORDS = ("yes", "1", "a word or two")
"""For environments that take any text, while it is not known yet whether they stand garbage."""
NUM_EPISODES = 20
NUM_LONG_EPISODES = 2
LONG_EPISODE_S = 0.5
"""All checks together play an episode about twenty times."""
MAX_RANDOM_STEPS = 50
MAX_ORACLE_STEPS = 2_000


class Made:
    """Environments that were made for a check and are still there are closed behind it: some hold programs.

    None is kept alive: a server may take few players at once.
    """

    def __init__(self, make: Callable[[], BaseEnv]) -> None:
        self._make = make
        self._open: list[weakref.ref[BaseEnv]] = []

    def make(self) -> BaseEnv:
        env = self._make()
        self._open.append(weakref.ref(env))
        return env

    def close(self) -> None:
        while self._open:
            if (env := self._open.pop()()) is not None:
                call_env(env, "close")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tested, and how much."""

    make: Callable[[], BaseEnv]
    num_episodes: int
    seed: int
    plays_garbage: bool = False
    close: Callable[[], None] = lambda: None
    """Closes whatever was made and is still there."""

    @property
    def seeds(self) -> range:
        return range(self.seed, self.seed + self.num_episodes)


Trace = list[tuple[str, float, bool, object]]
"""Text, reward, end and success of each step."""


def choose_action(subject: Subject, env: BaseEnv, rng: random.Random) -> str:
    """A random action, now and then garbage; where none are known, the oracle's is the only meaningful one."""
    if subject.plays_garbage and rng.random() < 0.2:
        return rng.choice(GARBAGE)
    if actions := call_env(env, "admissible_actions"):
        return rng.choice(cast("Sequence[str]", actions))
    return ask_oracle(env) if env.has_oracle else rng.choice(GARBAGE if subject.plays_garbage else WORDS)


def ask_oracle(env: BaseEnv) -> str:
    action = call_env(env, "oracle")
    if not isinstance(action, str):
        raise EnvError(f"{type(env).__name__}.oracle returned a {type(action).__name__}; expected an action (str).")
    return action


def random_episode(subject: Subject, seed: int, dynamics_seed: int, env: BaseEnv | None = None) -> Iterator[StepResult]:
    """One random episode, in a new environment unless one is given. As a generator, two can be played in turns."""
    env = env or subject.make()
    rng = random.Random(seed)
    text = reset_env(env, seed, dynamics_seed=dynamics_seed)
    yield StepResult(text=text, reward=0.0, terminated=False, truncated=False, info={})
    yield from go_on(subject, env, rng)


def random_episode_and_close(subject: Subject, seed: int) -> Trace:
    """One random episode in an environment that is closed behind it."""
    env = subject.make()
    trace = trace_of(random_episode(subject, seed, seed, env))
    subject.close()
    return trace


def go_on(subject: Subject, env: BaseEnv, rng: random.Random) -> Iterator[StepResult]:
    for _ in range(MAX_RANDOM_STEPS):
        result = step_env(env, choose_action(subject, env, rng))
        yield result
        if result.done:
            return


def count_affordable(env: BaseEnv, seed: int) -> int:
    """How many episodes a check plays: few where the first takes long."""
    subject = Subject(lambda: env, 1, seed)
    begin = time.perf_counter()
    with suppress(TurnwiseError):
        # Whatever fails here fails in its check again.
        trace_of(random_episode(subject, seed, seed))
    return NUM_EPISODES if time.perf_counter() - begin < LONG_EPISODE_S else NUM_LONG_EPISODES


def trace_of(results: Iterator[StepResult]) -> Trace:
    return [told_by(result) for result in results]


def told_by(result: StepResult) -> tuple[str, float, bool, object]:
    return result.text, result.reward, result.done, result.info.get("success")


def oracle_episode(env: BaseEnv, seed: int, dynamics_seed: int) -> tuple[Trace, StepResult | None]:
    """The episode of the oracle, and its last step; None where it does not end."""
    trace: Trace = [(reset_env(env, seed, dynamics_seed=dynamics_seed), 0.0, False, None)]
    for _ in range(MAX_ORACLE_STEPS):
        result = step_env(env, ask_oracle(env))
        trace.append(told_by(result))
        if result.done:
            return trace, result
    return trace, None
