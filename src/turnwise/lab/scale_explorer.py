"""A simulated explorer: episodes ask its engine, wait for their worlds, and ask again.

The engine computes one pass after another for whoever is there, as the real one does: who asks joins at the next pass,
and new weights are loaded between requests, so that running ones end first and later ones wait. In: a clock and what
things take. Out: callbacks at the end of episodes, and how long it worked. It refuses to know learners.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.lab.scale_clock import Clock, Then
from turnwise.lab.scale_constants import Constants

_MAX_BITES = 4
"""Passes that stand for one reply, at most: a long reply is computed in pieces of several tokens."""


@dataclass(slots=True)
class _Reply:
    left: float
    """Tokens that are not sampled yet."""
    then: Then


class SimulatedExplorer:
    """One engine with its episodes; `version` are the weights that it has.

    An engine that is a server computes while the explorer's process reads replies and writes prompts; one that is in
    the process cannot.
    """

    def __init__(self, clock: Clock, constants: Constants, *, is_engine_apart: bool = False) -> None:
        self.version = 0
        self.busy_s = 0.0
        self.num_playing = 0
        self.tokens = 0.0
        self._clock = clock
        self._constants = constants
        self._bite = max(1.0, constants.reply_tokens / _MAX_BITES)
        self._waiting: list[_Reply] = []
        self._running: list[_Reply] = []
        self._loads: deque[tuple[int, Then]] = deque()
        self._chores: deque[tuple[float, Then]] = deque()
        self._is_engine_apart = is_engine_apart
        self._is_working = False
        """The engine; and the process beside it, where they are two."""
        self._is_process_working = False

    def play(self, turn_counts: Sequence[int], seen: list[int], then: Then) -> None:
        """Episodes of so many turns each, at most `max_concurrent` at a time; `seen` hears the weights of each turn."""
        waiting, left = deque(turn_counts), len(turn_counts)
        self.num_playing += 1

        def end() -> None:
            nonlocal left
            left -= 1
            if waiting:
                self._play_episode(waiting.popleft(), seen, end)
            elif left == 0:
                self.num_playing -= 1
                then()

        if not turn_counts:
            left = 1
            end()
        for _ in range(min(self._constants.max_concurrent or len(turn_counts), len(turn_counts))):
            self._play_episode(waiting.popleft(), seen, end)

    def load(self, version: int, then: Then) -> None:
        """Replace the weights once what is running has ended."""
        self._loads.append((version, then))
        self._go_on()

    def do(self, seconds: float, then: Then) -> None:
        """Something else that takes this process its time."""
        self._chores.append((seconds, then))
        self._go_on()

    def _play_episode(self, turns: int, seen: list[int], then: Then) -> None:
        def act() -> None:
            nonlocal turns
            turns -= 1
            if turns > 0:
                self._clock.wait(self._constants.env_s, ask)
            else:
                self._clock.wait(self._constants.env_s, then)

        def ask() -> None:
            if self._is_engine_apart:
                self.do(self._constants.turn_s, reach_engine)
            else:
                reach_engine()

        def reach_engine() -> None:
            seen.append(self.version)
            self._waiting.append(_Reply(self._constants.reply_tokens, act))
            self._settle()

        ask()

    # --- the engine --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Go on when all that happens at this moment has happened, so that who asks now shares the next pass."""
        self._clock.wait(0.0, self._go_on)

    def _go_on(self) -> None:
        """Whatever is next, if nothing is being done."""
        if self._is_engine_apart and self._chores and not self._is_process_working:
            self._do_chore(*self._chores.popleft())
        if self._is_working:
            return
        if self._chores and not self._is_engine_apart:
            self._work(*self._chores.popleft())
        elif self._loads and not self._running:
            version, then = self._loads.popleft()
            self._work(self._constants.load_s, lambda: self._have(version, then))
        elif self._running or (self._waiting and not self._loads):
            self._pass()

    def _do_chore(self, seconds: float, then: Then) -> None:
        self._is_process_working = True

        def end() -> None:
            self._is_process_working = False
            then()
            self._settle()

        self._clock.work(seconds, end)

    def _pass(self) -> None:
        constants, new = self._constants, 0
        if not self._loads:
            room = constants.max_rows - len(self._running)
            joining, self._waiting = self._waiting[:room], self._waiting[room:]
            self._running += joining
            new = len(joining)
        per_token_s = constants.pass_s + constants.row_s * len(self._running)
        own_s = 0.0 if self._is_engine_apart else constants.turn_s * new
        self._work(self._bite * per_token_s + own_s, self._sampled)

    def _sampled(self) -> None:
        self.tokens += sum(min(self._bite, reply.left) for reply in self._running)
        ended: list[_Reply] = []
        going_on: list[_Reply] = []
        for reply in self._running:
            reply.left -= self._bite
            (going_on if reply.left > 0 else ended).append(reply)
        self._running = going_on
        for reply in ended:
            reply.then()

    def _have(self, version: int, then: Then) -> None:
        self.version = version
        then()

    def _work(self, seconds: float, then: Then) -> None:
        self._is_working = True

        def end() -> None:
            self._is_working = False
            self.busy_s += seconds
            then()
            self._settle()

        self._clock.work(seconds, end)
