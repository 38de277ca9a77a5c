"""Seeds and generators that follow from names and numbers alone: no process, no clock, no order of calls.

In come the parts that a draw depends on. Out comes the same number in every process, on every machine. It refuses to
know what is drawn. Published results depend on these values: a change here is a change of every run.
"""

from __future__ import annotations

import random
from hashlib import blake2b


def hash64(text: str) -> int:
    """64 bits of a text: equal texts have equal numbers."""
    return int.from_bytes(blake2b(_as_bytes(text), digest_size=8).digest(), "big")


def derive_seed(*parts: object) -> int:
    """A seed that depends on all parts and on nothing else."""
    return hash64(_join(parts))


def make_rng(*parts: object) -> random.Random:
    """A generator for one purpose: `make_rng("layout", seed)` and `make_rng("slips", seed)` share nothing."""
    return random.Random(_as_bytes(_join(parts)))


def random_seed() -> int:
    """Return a fresh seed from the operating system, for runs without a given seed."""
    return random.SystemRandom().randrange(2**31)


def _join(parts: tuple[object, ...]) -> str:
    return "/".join(map(str, parts))


def _as_bytes(text: str) -> bytes:
    # Models and JSON can spell half a surrogate pair, which plain UTF-8 refuses.
    return text.encode("utf-8", "surrogatepass")
