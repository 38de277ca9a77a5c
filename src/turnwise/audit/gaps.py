"""What was recorded while sampling is what the learner makes of the same tokens at the same version.

In: log-probs of both sides. Out: gaps per version and engine, and breaches. Only tokens of the version that the learner
holds are compared: for older ones there is nobody left to ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from turnwise.audit.breach import Breach, who_wrote
from turnwise.types import Experience, FloatArray

_OWN_FLOAT32, _OTHER_FLOAT32, _BFLOAT16 = 1e-4, 0.02, 0.2
"""Nats per token on average. Measured on CPUs: 3e-7 with `local` in float32, 1e-6 with vLLM, 0.05 in bfloat16."""
_UNSAMPLED = "scripted"
"""An engine that recites: its log-probs are nobody's."""
_UNKNOWN = "an unnamed engine"


@runtime_checkable
class Rescorer(Protocol):
    """A learner that can be asked what it makes of stored tokens, without learning anything."""

    def logprobs_of(self, experiences: Sequence[Experience], of: str) -> Sequence[FloatArray]:
        """By the `policy` or its `reference`: of every sampled token, at the temperature of sampling; 0 elsewhere."""
        ...


def largest_gap(given: float | Literal["auto"], dtype: str, engine: str) -> float:
    """What `audit.max_gap` means for weights of this number type in this engine."""
    if given != "auto":
        return given
    if dtype != "float32":
        return _BFLOAT16
    return _OWN_FLOAT32 if engine == "local" else _OTHER_FLOAT32


def is_comparable(experience: Experience, *, policy_version: int, temperature: float) -> bool:
    """Whether all its turns were sampled by this version, as the learner scores them."""
    known = experience.provenance
    if known is None:
        return experience.policy_version == policy_version
    return bool(
        (known.policy_versions == policy_version).all()
        and (known.temperatures == temperature).all()
        and _UNSAMPLED not in known.engines
    )


def choose_rows(experiences: Sequence[Experience], *, seed: int, max_tokens: int) -> list[Experience]:
    """Neighbours from a place that differs from update to update, up to so many tokens; at least one."""
    if not experiences:
        return []
    first = (seed * 2654435761) % len(experiences)
    chosen, num_tokens = [], 0
    for experience in [*experiences[first:], *experiences[:first]]:
        num_tokens += len(experience.segment)
        if chosen and num_tokens > max_tokens:
            break
        chosen.append(experience)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Of the tokens of one version from one engine."""

    engine: str
    policy_version: int
    mean: float
    worst: tuple[Experience, int]
    """The experience and the token that differ most."""
    expected: float
    """What the learner makes of that token."""


def measure_gaps(experiences: Sequence[Experience], scored: Sequence[FloatArray]) -> Iterator[Gap]:
    """One for each version and engine; a token that was not scored is NaN and left out."""
    of_source: dict[tuple[str, int], list[int]] = {}
    for number, experience in enumerate(experiences):
        engines = experience.provenance.engines if experience.provenance is not None else ()
        of_source.setdefault((engines[0] if engines else _UNKNOWN, experience.policy_version), []).append(number)
    for (engine, version), numbers in of_source.items():
        rows = [experiences[number] for number in numbers]
        mask = np.concatenate([row.segment.loss_mask for row in rows])
        given = np.concatenate([row.segment.behavior_logprobs for row in rows]).astype(np.float64)
        found = np.concatenate([scored[number] for number in numbers]).astype(np.float64)
        # What is not a number in the record must not pass as one that was not scored.
        gaps = np.where(np.isfinite(given), np.abs(given - found), np.inf)[mask]
        places = np.flatnonzero(mask)[~np.isnan(gaps)]
        gaps = gaps[~np.isnan(gaps)]
        if len(gaps) == 0:
            continue
        worst = int(places[gaps.argmax()])
        ends = np.cumsum([len(row.segment) for row in rows])
        row = int(np.searchsorted(ends, worst, side="right"))
        token = worst - (int(ends[row - 1]) if row else 0)
        yield Gap(
            engine=engine,
            policy_version=version,
            mean=float(gaps.mean()),
            worst=(rows[row], token),
            expected=float(found[worst]),
        )


def check_gap(gap: Gap, *, max_gap: float) -> list[Breach]:
    # Not `>`: what is no number must not pass.
    if gap.mean <= max_gap:
        return []
    experience, token = gap.worst
    index = int(experience.segment.turn_ids[token])
    turn = int(np.searchsorted(experience.turn_indices, index))
    found = (
        f"{experience.segment.behavior_logprobs[token]:.5g} on token id {experience.segment.token_ids[token]} (the "
        f"worst token; engine and learner differ by {gap.mean:.3g} nats per token, expected at most audit.max_gap = "
        f"{max_gap:g})"
    )
    return [
        Breach(
            check="gap",
            where=str(experience.id),
            turn=index,
            token=token,
            expected=f"the log-prob {gap.expected:.5g} that the learner gives it at version {gap.policy_version}",
            found=found,
            wrote=who_wrote(experience, turn),
            group=experience.id.trajectory.group,
        )
    ]
