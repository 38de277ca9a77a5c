"""Checks of sampled records: digests, group members, staleness, log-prob differences.

Each check takes experiences and returns findings; `BatchAudit` calls them before an update, `run_audit` on a finished
run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable
from zlib import crc32

import numpy as np

from turnwise.errors import Finding
from turnwise.provenance import Provenance, as_bytes, digest_name, digest_turn, finish_digest, join_provenance
from turnwise.types import Experience, ExperienceId, FloatArray, TrajectoryId

_MAX_SHOWN = 5
"""Findings that a message lists; the others are counted."""


def batch_finding(
    check: str,
    where: str,
    *,
    expected: str,
    found: str,
    turn: int | None = None,
    token: int | None = None,
    wrote: str = "",
    group: str | None = None,
) -> Finding:
    """Return what a check of a batch or of written records found.

    Args:
        check: Name of the check; the finding's kind.
        where: The experience, or the record.
        turn: Index of the turn.
        token: Index of the token in the experience; if a whole turn is meant, its first.
        wrote: Who wrote what was found.
        group: The group that can be left out; None if nothing can be used without it.
    """
    place = "".join(f", {name} {number}" for name, number in (("turn", turn), ("token", token)) if number is not None)
    return Finding(
        kind=check,
        level="error",
        where=f"{where}{place}",
        message=f"expected {expected}, found {found}" + (f"; written by {wrote}" if wrote else ""),
        stage="batch",
        details={
            "check": check,
            "where": where,
            "expected": expected,
            "found": found,
            "turn": turn,
            "token": token,
            "wrote": wrote,
            "group": group,
        },
    )


def of_experience(check: str, experience: Experience, expected: str, found: str, turn: int | None = None) -> Finding:
    """A finding whose group can be left out; `turn` counts the turns of the experience."""
    number = None if turn is None else int(experience.turn_indices[turn])
    sampled = experience.segment.turn_ids == number if number is not None else None
    return batch_finding(
        check,
        str(experience.id),
        expected=expected,
        found=found,
        turn=number,
        token=int(sampled.argmax()) if sampled is not None and sampled.any() else None,
        wrote=who_wrote(experience, turn or 0),
        group=experience.id.trajectory.group,
    )


def who_wrote(experience: Experience, turn: int) -> str:
    """The engine, request and version of one of its turns."""
    known = experience.provenance
    if known is None or turn >= len(known.engines):
        return f"version {experience.policy_version}, by an unknown engine"
    return f"engine {known.engines[turn]}, request {known.requests[turn]}, version {known.policy_versions[turn]}"


def describe(finding: Finding) -> str:
    """One line of a report."""
    return f"{finding.kind}: {finding.where}: {finding.message}"


def describe_all(findings: Sequence[Finding]) -> str:
    """One line for each of the first, and how many there are."""
    lines = [f"  {describe(finding)}" for finding in findings[:_MAX_SHOWN]]
    rest = len(findings) - len(lines)
    return "\n".join([*lines, f"  and {rest} more"] if rest > 0 else lines)


_BYTES = 4
"""Of a token id, and of a log-prob."""


def check_digests(experiences: Sequence[Experience]) -> list[Finding]:
    """Tokens, mask and log-probs are those that an engine returned for this prompt, turn by turn."""
    sealed = [e for e in experiences if e.provenance is not None]
    known = join_provenance([e.provenance for e in sealed])
    if known is None:
        return []
    breaches = [b for e in sealed if (b := _check_versions(e)) is not None]
    found = _digest_runs(sealed, known)
    expected = known.digests.tolist()
    turn = 0
    for experience in sealed:
        for number in range(len(experience.turn_indices)):
            if found[turn] != expected[turn]:
                breaches.append(_other_tokens(experience, number, expected[turn], found[turn]))
            turn += 1
    unasked = np.flatnonzero(~known.is_as_asked)
    return breaches + [_unasked(*_find_turn(sealed, int(turn))) for turn in unasked]


def _digest_runs(experiences: Sequence[Experience], known: Provenance) -> list[int]:
    """One digest for each turn of each experience, in order, from what the experiences hold now."""
    turn_ids = np.concatenate([e.segment.turn_ids for e in experiences])
    ids = as_bytes(np.concatenate([e.segment.token_ids for e in experiences]), np.int32)
    logprobs = as_bytes(np.concatenate([e.segment.behavior_logprobs for e in experiences]), np.float32)
    requests, versions = known.requests.tolist(), known.policy_versions.tolist()
    temperatures = known.temperatures.tolist()
    row_starts = np.cumsum([0, *(len(e.segment) for e in experiences)])
    digests: list[int] = []
    row, so_far, read_to = -1, 0, 0
    for owner, start, end in _runs(turn_ids, row_starts):
        if owner != row:
            row, so_far, read_to = owner, 0, int(row_starts[owner])
        so_far = crc32(ids[_BYTES * read_to : _BYTES * end], so_far)
        read_to, turn = end, len(digests)
        digests.append(
            finish_digest(
                so_far,
                logprobs[_BYTES * start : _BYTES * end],
                request=requests[turn],
                policy_version=versions[turn],
                temperature=temperatures[turn],
            )
        )
    return digests


def _runs(turn_ids: np.ndarray, row_starts: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Row, start and end of the tokens of each turn. An experience names its turns in the order they lie in it."""
    is_start = np.ones(len(turn_ids) + 1, dtype=np.bool_)
    is_start[1:-1] = turn_ids[1:] != turn_ids[:-1]
    is_start[row_starts] = True
    bounds = np.flatnonzero(is_start)
    starts, ends = bounds[:-1], bounds[1:]
    is_sampled = turn_ids[starts] >= 0
    starts, ends = starts[is_sampled], ends[is_sampled]
    owners = np.searchsorted(row_starts, starts, side="right") - 1
    return zip(owners.tolist(), starts.tolist(), ends.tolist(), strict=True)


def check_seals(experiences: Sequence[Experience]) -> list[Finding]:
    """Index, state, stop flag and rewards of every turn are those that its workflow returned."""
    num_turns: dict[TrajectoryId, int] = {}
    for experience in experiences:
        if len(experience.turn_indices):
            name = experience.id.trajectory
            num_turns[name] = max(num_turns.get(name, 0), int(experience.turn_indices[-1]) + 1)
    names = {name: digest_name(name) for name in num_turns}
    breaches: list[Finding] = []
    for experience in experiences:
        if (known := experience.provenance) is not None and len(experience.turn_indices):
            name = experience.id.trajectory
            expected, found = known.seals.tolist(), _seal_again(experience, known, names[name], num_turns[name])
            if expected != found:
                breaches += [
                    _other_turn(experience, turn)
                    for turn, (old, new) in enumerate(zip(expected, found, strict=True))
                    if old != new
                ]
    return breaches


def _seal_again(experience: Experience, known: Provenance, name: int, num_turns: int) -> list[int]:
    columns = (
        experience.turn_indices.tolist(),
        experience.turn_steps.tolist(),
        known.policy_versions.tolist(),
        experience.turn_states.tolist(),
        experience.raw_rewards.tolist(),
        experience.turn_rewards.tolist(),
    )
    return [
        digest_turn(name, (index, num_turns, step, version, state), raw, learnt, experience.is_truncated)
        for index, step, version, state, raw, learnt in zip(*columns, strict=True)
    ]


# --- words -----------------------------------------------------------------------------------------------------------


def _check_versions(experience: Experience) -> Finding | None:
    known = experience.provenance
    assert known is not None
    if not len(known.digests) == len(experience.turn_indices) == _num_runs(experience):
        found = f"{len(experience.turn_indices)} turns in {_num_runs(experience)} runs of sampled tokens"
        return of_experience("turns", experience, f"{len(known.digests)} turns, each in one piece", found)
    if len(known.digests) and experience.policy_version != known.policy_versions.min():
        expected = f"version {known.policy_versions.min()}, the oldest of its turns"
        return of_experience("version", experience, expected, f"version {experience.policy_version}")
    return None


def _num_runs(experience: Experience) -> int:
    turn_ids = experience.segment.turn_ids
    is_start = np.append(True, turn_ids[1:] != turn_ids[:-1])[: len(turn_ids)]
    return int(np.count_nonzero(is_start & (turn_ids >= 0)))


def _other_tokens(experience: Experience, turn: int, expected: int, found: int) -> Finding:
    here = experience.segment.turn_ids == experience.turn_indices[turn]
    ids = experience.segment.token_ids[here][:8].tolist()
    logprobs = [round(number, 4) for number in experience.segment.behavior_logprobs[here][:8].tolist()]
    return of_experience(
        "digest",
        experience,
        f"the tokens, log-probs and prompt with digest {expected:08x}",
        f"digest {found:08x} over ids {ids} with log-probs {logprobs}",
        turn,
    )


def _other_turn(experience: Experience, turn: int) -> Finding:
    rewards = f"raw reward {experience.raw_rewards[turn]:g}, shaped reward {experience.turn_rewards[turn]:g}"
    return of_experience(
        "seal",
        experience,
        "the turn as its workflow returned it",
        f"another index, state, stop flag or reward ({rewards})",
        turn,
    )


def _unasked(experience: Experience, turn: int) -> Finding:
    known = experience.provenance
    assert known is not None
    found = f"the answer to request {known.requests[turn]} at temperature {known.temperatures[turn]:g}"
    return of_experience("request", experience, "the answer to what was asked", found, turn)


def _find_turn(experiences: Sequence[Experience], turn: int) -> tuple[Experience, int]:
    for experience in experiences:
        if turn < len(experience.turn_indices):
            return experience, turn
        turn -= len(experience.turn_indices)
    raise IndexError(turn)


_MAX_LOGPROB = 1e-3
"""A probability is at most 1; sums in half precision may end a little above."""


def check_finite(experiences: Sequence[Experience]) -> list[Finding]:
    """Every reward and every log-prob is a number in float32, and no log-prob is above 0."""
    logprobs = np.concatenate([e.segment.behavior_logprobs for e in experiences])
    rewards = np.concatenate([array for e in experiences for array in (e.raw_rewards, e.turn_rewards)])
    if np.isfinite(rewards).all() and np.isfinite(logprobs).all() and logprobs.max(initial=0) <= _MAX_LOGPROB:
        return []
    breaches = []
    for experience in experiences:
        for name, array in (("raw reward", experience.raw_rewards), ("shaped reward", experience.turn_rewards)):
            for turn in np.flatnonzero(~np.isfinite(array)).tolist():
                found = f"a {name} of {array[turn]} in float32"
                breaches.append(of_experience("finite", experience, "a finite reward", found, turn))
        given = experience.segment.behavior_logprobs
        for token in np.flatnonzero(~(np.isfinite(given) & (given <= _MAX_LOGPROB))).tolist():
            breaches.append(_bad_logprob(experience, token))
    return breaches


def _bad_logprob(experience: Experience, token: int) -> Finding:
    index = int(experience.segment.turn_ids[token])
    found = f"{experience.segment.behavior_logprobs[token]} on token id {experience.segment.token_ids[token]}"
    if index < 0:
        return of_experience("finite", experience, "a log-prob of 0 where nothing was sampled", found)
    turn = int(np.searchsorted(experience.turn_indices, index))
    return of_experience("finite", experience, "a finite log-prob of at most 0", found, turn)


def check_members(experiences: Sequence[Experience], *, group_size: int) -> list[Finding]:
    """Each record occurs once, groups are whole and in order, trajectories have all their turns."""
    breaches: list[Finding] = []
    seen: set[ExperienceId] = set()
    finished: set[str] = set()
    of_trajectory: dict[TrajectoryId, list[Experience]] = {}
    before: Experience | None = None
    for experience in experiences:
        name = experience.id.trajectory
        if experience.id in seen:
            breaches.append(of_experience("twice", experience, "each experience once", "the same one again"))
            continue
        seen.add(experience.id)
        if before is not None and before.id.trajectory.group != name.group:
            finished.add(before.id.trajectory.group)
        if name.group in finished or (before is not None and _is_before(experience, before)):
            found = f"it behind {before.id if before else 'nothing'}"
            breaches.append(of_experience("order", experience, "rollouts of a group side by side, in order", found))
        if name.task_id.split("/")[-2:-1] == ["train"] and not 0 <= name.sibling < group_size:
            found = f"rollout {name.sibling}"
            breaches.append(of_experience("group", experience, f"one of {group_size} rollouts", found))
        of_trajectory.setdefault(name, []).append(experience)
        before = experience
    return breaches + [b for rows in of_trajectory.values() if (b := _check_turns(rows)) is not None]


def _is_before(experience: Experience, other: Experience) -> bool:
    """Whether it is of the same group and belongs in front."""
    return experience.id.trajectory.group == other.id.trajectory.group and experience.id < other.id


def _check_turns(rows: Sequence[Experience]) -> Finding | None:
    """Turns without a gap from 0 on, and one last row, at the end."""
    rows = sorted(rows, key=lambda row: row.id.segment_index)
    turns = [turn for row in rows for turn in row.turn_indices.tolist()]
    if turns != list(range(len(turns))):
        return of_experience("turns", rows[0], f"turns 0 to {len(turns) - 1} in order", f"turns {turns}")
    if [row.is_last for row in rows] != [*[False] * (len(rows) - 1), True]:
        return of_experience("turns", rows[-1], "a row that ends the trajectory, at its end", "none, or another one")
    return None


def check_staleness(
    experiences: Sequence[Experience], *, policy_version: int, max_staleness: int | None
) -> list[Finding]:
    """No row is of a future policy version, or older than the loop allows."""
    oldest = -1 if max_staleness is None else policy_version - max_staleness
    return [
        of_experience(
            "staleness",
            experience,
            f"a version from {max(oldest, 0)} to {policy_version}",
            f"version {experience.policy_version}",
        )
        for experience in experiences
        if not max(oldest, 0) <= experience.policy_version <= policy_version
    ]


_OWN_FLOAT32, _OTHER_FLOAT32, _BFLOAT16 = 1e-4, 0.02, 0.2
"""Nats per token on average. Measured on CPUs: 3e-7 with `local` in float32, 1e-6 with vLLM, 0.05 in bfloat16."""
_UNSAMPLED = "scripted"
"""An engine with scripted replies: its log-probs mean nothing."""
_UNKNOWN = "an unnamed engine"


@runtime_checkable
class Rescorer(Protocol):
    """A learner that scores stored tokens without an update."""

    def logprobs_of(self, experiences: Sequence[Experience], of: str) -> Sequence[FloatArray]:
        """By the `policy` or its `reference`: of every sampled token, at the temperature of sampling; 0 elsewhere."""
        ...


def default_tolerance(given: float | Literal["auto"], dtype: str, engine: str) -> float:
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
    """The learner's log-prob of that token."""


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


def check_gap(gap: Gap, *, max_gap: float) -> list[Finding]:
    # Not `>`: NaN must not pass.
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
        batch_finding(
            "gap",
            str(experience.id),
            turn=index,
            token=token,
            expected=f"the log-prob {gap.expected:.5g} that the learner gives it at version {gap.policy_version}",
            found=found,
            wrote=who_wrote(experience, turn),
            group=experience.id.trajectory.group,
        )
    ]
