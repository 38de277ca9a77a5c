"""Where tokens and rewards came from, and digests by which what was changed on the way is found.

An engine says whose tokens a reply is and puts a digest over them; whoever writes a turn down puts one over what it
earned. Both travel with the record and are compared where it is used. A digest is a CRC-32: it finds mistakes, one in
four billion excepted, and is no protection against somebody who wants to deceive. It refuses to know what is compared
when, and what is done about it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import copysign, inf
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

_REQUEST = struct.Struct("<Qqd")
"""The seed of a request, the version that answered it, and its temperature."""
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_ALL_64_BITS = (1 << 64) - 1
_TURN = struct.Struct("<qqqqQff?")
"""Index, turns of the trajectory, step, version, state, raw and learnt reward, whether a budget ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who sampled the tokens of one reply, for which request.

    Example: `Origin(engine="local", request=91, temperature=1.0, digest=0x9AE0DAAF)`.
    """

    engine: str
    """The engine's name in messages."""
    request: int
    """The seed of the request, which no other of a run has."""
    temperature: float
    """At which the tokens were drawn."""
    digest: int
    """Over prompt, sampled ids, log-probs, version, request and temperature, made by the engine."""
    is_as_asked: bool = True
    """Whether that is the request, and the temperature, that was asked for."""

    @classmethod
    def of(
        cls,
        engine: str,
        *,
        request: int,
        temperature: float,
        prompt_ids: NDArray[np.int32],
        token_ids: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        policy_version: int,
    ) -> Origin:
        """That of tokens that were sampled just now."""
        request &= _ALL_64_BITS
        ids = crc32(as_bytes(token_ids, np.int32), crc32(as_bytes(prompt_ids, np.int32)))
        digest = finish_digest(
            ids, as_bytes(logprobs, np.float32), request=request, policy_version=policy_version, temperature=temperature
        )
        return cls(engine=engine, request=request, temperature=temperature, digest=digest)


def as_bytes(array: NDArray[Any], dtype: type[np.generic]) -> memoryview:
    """The numbers of an array as they are digested."""
    return np.ascontiguousarray(array, dtype).data.cast("B")


def finish_digest(
    ids_so_far: int, logprobs: memoryview, *, request: int, policy_version: int, temperature: float
) -> int:
    """An engine's digest, from that of all ids up to the end of the reply."""
    return crc32(_REQUEST.pack(request, policy_version, temperature), crc32(logprobs, ids_so_far))


def digest_turn(
    name: int,
    place: tuple[int, int, int, int, int],
    raw_reward: float,
    learnt_reward: float,
    is_truncated: bool,
) -> int:
    """The digest of one turn as it is written down; `name` is that of its trajectory's name.

    `place` is its index, the number of turns of its trajectory, its step, the version that sampled it, and the
    fingerprint of the state it was played from.
    """
    try:
        return crc32(_TURN.pack(*place, raw_reward, learnt_reward, is_truncated), name)
    except OverflowError:
        # Finite as they were given and not as they are learnt from; the audit says that in words of its own.
        rewards = (r if abs(r) <= _LARGEST_FLOAT32 else copysign(inf, r) for r in (raw_reward, learnt_reward))
        return crc32(_TURN.pack(*place, *rewards, is_truncated), name)


def digest_name(trajectory: object) -> int:
    """What the seals of a trajectory's turns begin with."""
    return crc32(str(trajectory).encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Provenance:
    """[turns] where each turn of an experience came from; the fields are those of `Origin`."""

    engines: tuple[str, ...]
    requests: NDArray[np.uint64]
    policy_versions: NDArray[np.int64]
    """The version that sampled each turn."""
    temperatures: NDArray[np.float64]
    digests: NDArray[np.uint32]
    seals: NDArray[np.uint32]
    """Over the number, the state and the rewards of each turn, made where the trajectory was."""
    is_as_asked: NDArray[np.bool_]

    def __post_init__(self) -> None:
        arrays = (self.requests, self.policy_versions, self.temperatures, self.digests, self.seals, self.is_as_asked)
        if {len(array) for array in arrays} != {len(self.engines)}:
            raise ValueError("Provenance: arrays of turns differ in length")


def join_provenance(parts: list[Provenance | None]) -> Provenance | None:
    """That of turns one after another; None where one of them has none."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None
    names = ("requests", "policy_versions", "temperatures", "digests", "seals", "is_as_asked")
    return Provenance(
        engines=tuple(engine for part in known for engine in part.engines),
        **{name: np.concatenate([getattr(part, name) for part in known]) for name in names},
    )
