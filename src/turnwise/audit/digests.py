"""What engines and workflows sealed is what is learnt from: every digest is made once more from the record.

In: experiences as they come from the buffer. Out: breaches. What was swapped, shifted, dropped, doubled, re-tokenised
or given another sign on the way has another digest. Experiences without provenance are counted by others and pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import numpy as np

from turnwise.audit.breach import Breach, of_experience
from turnwise.provenance import Provenance, as_bytes, digest_name, finish_digest, join_provenance, seal_turn
from turnwise.types import Experience, TrajectoryId

_BYTES = 4
"""Of a token id, and of a log-prob."""


def check_digests(experiences: Sequence[Experience]) -> list[Breach]:
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


def check_seals(experiences: Sequence[Experience]) -> list[Breach]:
    """Turns are where they were, and earned what they earned, when their workflow handed them over."""
    num_turns: dict[TrajectoryId, int] = {}
    for experience in experiences:
        if len(experience.turn_indices):
            name = experience.id.trajectory
            num_turns[name] = max(num_turns.get(name, 0), int(experience.turn_indices[-1]) + 1)
    names = {name: digest_name(name) for name in num_turns}
    breaches: list[Breach] = []
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
        seal_turn(name, (index, num_turns, step, version, state), raw, learnt, experience.is_truncated)
        for index, step, version, state, raw, learnt in zip(*columns, strict=True)
    ]


# --- words -----------------------------------------------------------------------------------------------------------


def _check_versions(experience: Experience) -> Breach | None:
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


def _other_tokens(experience: Experience, turn: int, expected: int, found: int) -> Breach:
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


def _other_turn(experience: Experience, turn: int) -> Breach:
    rewards = f"raw reward {experience.raw_rewards[turn]:g}, learnt reward {experience.turn_rewards[turn]:g}"
    return of_experience(
        "seal",
        experience,
        "the turn as its workflow handed it over",
        f"another place, state, end or reward ({rewards})",
        turn,
    )


def _unasked(experience: Experience, turn: int) -> Breach:
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
