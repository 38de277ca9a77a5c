"""Environments of one kind that wait for their next episode, where slow ones are waited for, and their time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial

from turnwise.envs.base import BaseEnv
from turnwise.envs.safe_calls import close_env
from turnwise.infra.threads import call_within

log = logging.getLogger(__name__)
_CLOSE_S = 5.0
"""Longest wait for a slow environment to close."""


class EnvPool:
    """Making an environment may take long, so that one is used for many episodes."""

    def __init__(self, make_env: Callable[[], BaseEnv], threads: Executor) -> None:
        self.threads = threads
        """Where slow environments are waited for."""
        self.seconds = 0.0
        """Time spent inside environments so far."""
        self._make_env = make_env
        self._spare: list[BaseEnv] = []

    def take(self) -> BaseEnv:
        return self._spare.pop() if self._spare else self._make_env()

    def give_back(self, env: BaseEnv, *, is_sound: bool) -> None:
        """For a later episode; an environment that is not sound is closed and never used again."""
        if is_sound:
            self._spare.append(env)
        else:
            # Closing may take as long as the call that hangs.
            self.threads.submit(close_env, env)

    @contextmanager
    def timed(self, env: BaseEnv) -> Iterator[None]:
        """Charge the time to environments; while a slow one is waited for, others play, so its wait is nobody's."""
        started = time.perf_counter()
        yield
        if not env.is_slow:
            self.seconds += time.perf_counter() - started

    def close(self) -> None:
        for env in self._spare:
            try:
                call_within(_CLOSE_S if env.is_slow else None, partial(close_env, env))
            except TimeoutError:
                log.warning("%s.close() takes longer than %g s and is left behind", type(env).__name__, _CLOSE_S)
        self._spare = []
