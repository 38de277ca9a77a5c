"""check_env finds seeded faults, each by the check made for it, and passes what is in order."""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from turnwise.envs import check
from turnwise.envs import check_episodes as trials
from turnwise.envs.base import BaseEnv, check_split, make_env
from turnwise.envs.check import CheckReport, check_env
from turnwise.envs.frozen_lake import FrozenLake
from turnwise.errors import ConfigError

from ...clock import HANG_S


class Walk(BaseEnv):
    """A sound little world: walk from 0 to 5. The faulty ones below break it in one place each."""

    has_oracle = True

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        self.rng = random.Random(dynamics_seed if dynamics_seed is not None else seed)
        self.place = 0
        self._phase = "playing"
        return self.say()

    def step(self, action: str) -> tuple[Any, ...]:
        self._require_playing()
        is_valid = action in ("on", "back")
        self.place = max(0, self.place + {"on": 1, "back": -1}.get(action, 0))
        is_over = self.place == 5
        if is_over:
            self._phase = "over"
        return self.say(), self.pay(is_over), is_over, self.tell(is_over, is_valid)

    @property
    def action_names(self) -> tuple[str, ...]:
        return ("on", "back")

    def oracle(self) -> str:
        return "on"

    def say(self) -> Any:
        return f"at {self.place}"

    def pay(self, is_over: bool) -> Any:
        return float(is_over)

    def tell(self, is_over: bool, is_valid: bool) -> dict[str, object]:
        return {"success": is_over, "action_is_valid": is_valid, "action_is_effective": is_valid}


class GlobalRandom(Walk):
    def reset(self, seed: int | None = None, **options: Any) -> str:
        random.seed(seed)
        return super().reset(seed, **options)


class GlobalNumpy(Walk):
    def pay(self, is_over: bool) -> float:
        return np.random.rand() * 0


class Unseeded(Walk):
    def pay(self, is_over: bool) -> float:
        return random.SystemRandom().random()


class SharedState(Walk):
    visits: ClassVar[dict[int, int]] = {}

    def reset(self, seed: int | None = None, **options: Any) -> str:
        self.visits.clear()
        return super().reset(seed, **options)

    def say(self) -> str:
        self.visits[self.place] = self.visits.get(self.place, 0) + 1
        return f"at {self.place}, visit {self.visits[self.place]}"


class Bytes(Walk):
    def say(self) -> bytes:
        return b"at"


class NanReward(Walk):
    def pay(self, is_over: bool) -> float:
        return float("nan") if is_over else 0.0


class RaisesOnGarbage(Walk):
    def step(self, action: str) -> tuple[Any, ...]:
        if len(action) > 1000:
            raise MemoryError("too long")
        return super().step(action)


class NoInfo(Walk):
    def tell(self, is_over: bool, is_valid: bool) -> dict[str, object]:
        return {"success": is_over, "action_is_valid": is_valid}


class NeverOver(Walk):
    def _require_playing(self) -> None:
        return


class CrashesAfterTheEnd(Walk):
    def _require_playing(self) -> None:
        if self._phase == "over":
            raise IndexError("list index out of range")


class LazyOracle(Walk):
    def oracle(self) -> str:
        return "back"


class WrongOracle(Walk):
    def tell(self, is_over: bool, is_valid: bool) -> dict[str, object]:
        return {**super().tell(is_over, is_valid), "success": False}


class BrokenOracle(Walk):
    def oracle(self) -> str:
        raise ZeroDivisionError


class HalfSnapshot(Walk):
    """Restores the place and not the luck."""

    def pay(self, is_over: bool) -> float:
        return self.rng.random()

    def snapshot(self) -> object:
        return self.place

    def restore(self, state: object) -> None:
        self.place, self._phase, self.rng = int(str(state)), "playing", random.Random(0)


class AliasedSnapshot(Walk):
    """Hands out its own list, which goes on changing."""

    def reset(self, seed: int | None = None, **options: Any) -> str:
        self.way: list[int] = []
        return super().reset(seed, **options)

    def say(self) -> str:
        self.way.append(self.place)
        return f"at {self.place} after {len(self.way)}"

    def snapshot(self) -> object:
        return self.place, self.way

    def restore(self, state: object) -> None:
        self.place, self.way = state  # type: ignore[misc]
        self._phase = "playing"


class HalfASurrogate(Walk):
    def say(self) -> str:
        return "\ud800"


class Exits(Walk):
    def say(self) -> str:
        sys.exit("bye")


class HugeReward(Walk):
    def pay(self, is_over: bool) -> int:
        return 10**400


class PaysBesideTheJudge(Walk):
    is_judged = True


class OneInfo(Walk):
    """Tells every step by one mapping."""

    facts: ClassVar[dict[str, object]] = {}

    def tell(self, is_over: bool, is_valid: bool) -> dict[str, object]:
        self.facts.update(super().tell(is_over, is_valid))
        return self.facts


class OffersTooMuch(Walk):
    def admissible_actions(self) -> tuple[str, ...]:
        return ("on", "back", "fly")


class EndsInWordsOnly(Walk):
    def tell(self, is_over: bool, is_valid: bool) -> dict[str, object]:
        return {**super().tell(is_over, is_valid), "truncated": self.place > 2 and not is_over}


class Remembers(Walk):
    num_episodes = 0

    def reset(self, seed: int | None = None, **options: Any) -> str:
        self.num_episodes += 1
        return super().reset(seed, **options)

    def say(self) -> str:
        return f"at {self.place} of episode {self.num_episodes}"


class LuckyLayout(Walk):
    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        return f"{super().reset(seed, split=split, dynamics_seed=dynamics_seed)}, luck {dynamics_seed}"


class GlobalTorch(Walk):
    def pay(self, is_over: bool) -> float:
        return float(torch.rand(1)) * 0


class ChangesEnviron(Walk):
    def say(self) -> str:
        os.environ["WALK"] = str(int(os.environ.get("WALK", "0")) + 1)
        return super().say()


class ChangesFolder(Walk):
    def reset(self, seed: int | None = None, **options: Any) -> str:
        os.chdir("/" if os.getcwd() != "/" else "/tmp")
        return super().reset(seed, **options)


class NoEval(Walk):
    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        return super().reset(seed, dynamics_seed=dynamics_seed) if split == "train" else {}[split]


class TrainOnly(Walk):
    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, ("train",), "walk")
        return super().reset(seed, dynamics_seed=dynamics_seed)


class NoOracle(Walk):
    """Random steps get nowhere, and nobody knows better."""

    has_oracle = False

    def step(self, action: str) -> tuple[Any, ...]:
        return super().step("back" if action == "on" else action)


class Sleeps(Walk):
    def say(self) -> str:
        time.sleep(0.0001)
        return super().say()


class SleepsAndSaysSo(Sleeps):
    is_slow = True


class NeverOverAtRandom(NeverOver):
    """Random play does not come to the end; the oracle does."""

    def admissible_actions(self) -> tuple[str, ...]:
        return ("back",)


class FreeText(Walk):
    """Any text is an action, and only the oracle's is known."""

    @property
    def action_names(self) -> None:  # type: ignore[override]
        return None


def failed(report: CheckReport) -> set[str]:
    return {check.name for check in report.failures}


@pytest.mark.parametrize(
    "make",
    [
        "frozen_lake",
        "bandit",
        "prompts",
        Walk,
        FreeText,
        Walk(),
        lambda: make_env("frozen_lake", size=3, view="objects", random_start_rate=0.7),
        FrozenLake(is_slippery=True),
    ],
)
def test_sound_environments_pass(make: Any) -> None:
    report = check_env(make, num_episodes=10)
    assert report.ok, report.failures
    assert failed(report) == set()


def test_half_a_character_is_mended_where_it_comes_in() -> None:
    assert check_env(HalfASurrogate, num_episodes=6).ok


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Bytes, "contract"),
        (Exits, "contract"),
        (NanReward, "rewards"),
        (HugeReward, "rewards"),
        (PaysBesideTheJudge, "rewards"),
        (RaisesOnGarbage, "garbage"),
        (NoInfo, "info"),
        (OneInfo, "info"),
        (OffersTooMuch, "actions"),
        (EndsInWordsOnly, "budget"),
        (Unseeded, "determinism"),
        (Remembers, "reuse"),
        (LuckyLayout, "layout"),
        (SharedState, "independence"),
        (GlobalRandom, "global_rng"),
        (GlobalNumpy, "global_rng"),
        (GlobalTorch, "global_rng"),
        (ChangesEnviron, "global_state"),
        (ChangesFolder, "global_state"),
        (LazyOracle, "oracle"),
        (WrongOracle, "oracle"),
        (BrokenOracle, "oracle"),
        (NoEval, "splits"),
        (NeverOver, "after_done"),
        (NeverOverAtRandom, "after_done"),
        (CrashesAfterTheEnd, "after_done"),
        (HalfSnapshot, "snapshot"),
        (AliasedSnapshot, "snapshot"),
    ],
)
def test_a_fault_fails_its_own_check_only(
    make: Callable[[], BaseEnv], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WALK", "0")
    assert failed(check_env(make, num_episodes=6)) == {name}


def test_every_check_that_can_fail_has_a_fault_that_fails_it() -> None:
    (faults,) = (
        mark.args[1] for mark in test_a_fault_fails_its_own_check_only.pytestmark if mark.name == "parametrize"
    )
    assert {name for _, name in faults} == set(check._CHECKS) - {"speed"}


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        ("prompts", "actions", "any text is one"),
        (NoOracle, "oracle", "it has no oracle"),
        (NoOracle, "after_done", "no random episode ended"),
        (TrainOnly, "splits", "there is no split 'eval'"),
        (Walk, "snapshot", "it has no snapshots"),
        (Bytes, "rewards", "see 'contract'"),
        (NanReward, "contract", "see 'rewards'"),
        (Unseeded, "reuse", "see 'determinism'"),
    ],
)
def test_a_check_that_cannot_be_made_has_not_passed(make: Any, name: str, reason: str) -> None:
    report = check_env(make, num_episodes=3)
    (found,) = (check for check in report.checks if check.name == name)
    assert found.passed is None
    assert reason in found.detail
    assert found in report.not_made
    assert found not in report.failures


@pytest.mark.parametrize(("make", "is_told"), [(Sleeps, True), (SleepsAndSaysSo, False)])
def test_a_slow_environment_is_told_what_to_do_unless_it_says_so(
    make: type[Walk], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MAX_CALL_S", 0.00005)
    report = check_env(make, num_episodes=1)
    assert report.ok
    (speed,) = (found.detail for found in report.checks if found.name == "speed")
    assert ("rollout.isolation.type=process" in speed) is is_told


def test_environments_that_are_still_there_behind_a_check_are_closed() -> None:
    held: list[BaseEnv] = []

    class Holds(Unseeded):
        def __init__(self) -> None:
            super().__init__()
            held.append(self)

        def close(self) -> None:
            held.remove(self)

    assert failed(check_env(Holds, num_episodes=2)) == {"determinism"}
    assert held == []


def test_an_environment_that_cannot_be_closed_is_reported_and_nothing_is_raised() -> None:
    class Stays(Walk):
        def close(self) -> None:
            raise OSError("the door is stuck")

    report = check_env(Stays, num_episodes=2)
    assert [(found.name, found.detail) for found in report.failures] == [
        ("contract", "Stays.close() failed: OSError: the door is stuck")
    ]


@pytest.mark.parametrize(("long_s", "count"), [(HANG_S, 20), (0.0, 2)])
def test_few_episodes_are_played_where_one_takes_long(
    long_s: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "LONG_EPISODE_S", long_s)
    details = {found.name: found.detail for found in check_env(Walk).checks}
    assert details["oracle"].startswith(f"succeeds in {count} of {count}")


def test_details_say_what_to_look_at() -> None:
    details = {check.name: check.detail for check in check_env(Unseeded, num_episodes=3).checks}
    assert "seed 0: step 1 gave" in details["determinism"]
    assert "steps/s" in details["speed"]
    lake = {check.name: check.detail for check in check_env("frozen_lake", num_episodes=5).checks}
    assert lake["oracle"] == "succeeds in 5 of 5 (deterministic)"
    assert lake["splits"].startswith("0 of 5")


def test_a_wrong_name_is_the_callers_mistake() -> None:
    with pytest.raises(ConfigError, match="frozen_lake"):
        check_env("frozen_lak")


def test_playing_the_check_itself_leaves_the_global_generators_alone() -> None:
    before = random.getstate(), repr(np.random.get_state())
    check_env("bandit", num_episodes=2)
    assert (random.getstate(), repr(np.random.get_state())) == before


def test_an_instance_is_checked_on_copies() -> None:
    env = FrozenLake()
    text = env.reset(3)
    check_env(env, num_episodes=2)
    assert env.render() == text


def test_check_names_are_unique() -> None:
    names = [check.name for check in check_env(Walk, num_episodes=1).checks]
    assert all(first != second for first, second in itertools.combinations(names, 2))
