"""The outcome of a run comes in as numbers and goes out as `summary.json`, the file that outside checks read.

Its keys are public and stay. Refuses to know how the numbers were measured, and refuses NaN and infinity: a number that
is not known is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path

from turnwise.errors import RunError
from turnwise.infra.atomic_files import encode_object, read_object

_NOT_NUMBERS = ("recipe", "env", "findings", "stopped")
TIME_SECTIONS: tuple[str, ...] = ("rollout", "env", "learn", "sync", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What `summary.json` holds. Success is a share of episodes, from 0 to 1."""

    recipe: str
    env: str
    seed: int
    steps: int
    wall_s: float
    setup_s: float
    success_before: float | None
    """On held-out episodes, before the first update; None where nothing was evaluated, or where nobody says what a
    success is: then there is a return."""
    success_after: float | None
    return_before: float | None
    return_after: float | None
    eval_episodes: int
    baselines: Mapping[str, float]
    """Success of simple policies on the same episodes, by name."""
    tokens_sampled: int
    tokens_trained: int
    time_split: Mapping[str, float]
    """Seconds, for exactly the names in `TIME_SECTIONS`."""
    policy_version: int
    warm_start: Mapping[str, float] | None = None
    """How the policy was prepared, for example `demonstrations` and `steps`; None where it was not."""
    findings: Sequence[Mapping[str, str | int]] = field(default_factory=list)
    """What the watch told, in order: `step`, `kind` and `message` of each."""
    stopped: Mapping[str, str | int] | None = None
    """The finding that ended the run early, and `returned_to_step`, which the result is of; None where none did."""

    failures: Mapping[str, int] = field(default_factory=dict)
    """Training episodes that failed, by cause."""
    envs: Mapping[str, Mapping[str, float | Sequence[float] | None]] = field(default_factory=dict)
    """The last evaluation in each environment: `episodes`, `success`, its interval, `return`, and its own numbers."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Who gave how much to an episode of the last evaluation: `env`, and `judge` where one was asked."""
    success_before_interval: Sequence[float] | None = None
    """Low and high end of the 95 % interval; None where there is no share."""
    success_after_interval: Sequence[float] | None = None
    baseline_intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The same for each of `baselines`."""

    def __post_init__(self) -> None:
        for name, number in self._numbers():
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError(f"Summary: {name} must be a number, got {number!r}")
            if not math.isfinite(number):
                raise ValueError(f"Summary: {name} must be finite, got {number}; use None for what is not known")
        if set(self.time_split) != set(TIME_SECTIONS):
            raise ValueError(f"Summary: time_split must have {list(TIME_SECTIONS)}, got {sorted(self.time_split)}")
        for told in self.findings:
            if not isinstance(told, Mapping) or set(told) != {"step", "kind", "message"}:
                raise ValueError(f"Summary: findings must have step, kind and message, got {told!r}")

    def _numbers(self) -> Iterator[tuple[str, object]]:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in _NOT_NUMBERS:
                continue
            yield from _flatten(f.name, value)

    def to_json(self) -> str:
        return encode_object(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Summary:
        """From a file. Keys this version does not know are left alone: a newer turnwise may have written them."""
        values = read_object(path)
        required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise RunError(
                f"{path} is damaged: it lacks {', '.join(missing)}. Restore it, or resume the run to write it anew."
            )
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        try:
            return cls(**known)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged: {error}.") from error


def _flatten(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _flatten(f"{name}.{place}", inner)
    elif value is not None:
        yield name, value
