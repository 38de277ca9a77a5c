"""Learner, buffer and weights of another process, behind the contracts that the loops hold.

Each is a *host* on this side: it is called by a method's name, and waits with a deadline. Experiences travel as the
blocks that the durable buffer writes. Weights stay where they were made until somebody looks at them; an explorer
fetches them from there itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor

from turnwise.experience.codec import decode_experiences, encode_experiences
from turnwise.protocols import Imitation, PolicyMark, Weights
from turnwise.sync.weight_store import as_safetensors
from turnwise.types import Annotations, Batch, Experience, FloatArray, IntArray, StepReport


class Reference(Protocol):
    """A result that stays where it was made."""

    def get(self) -> Any:
        """Fetch it; LostError where it is gone."""
        ...


class Host(Protocol):
    """An object of another process, called by the names of its methods; LostError once it is gone."""

    def call(self, method: str, *args: object) -> Any:
        """What the method returns, or raises."""
        ...

    def stream(self, method: str, *args: object) -> Iterator[Any]:
        """What the method yields, as it comes."""
        ...

    def refer(self, method: str, *args: object) -> Reference:
        """What the method returns, left there."""
        ...


# --- weights ---------------------------------------------------------------------------------------------------------


def pack_weights(weights: Weights) -> np.ndarray:
    """As safetensors, in a block that travels as it is."""
    return np.frombuffer(as_safetensors(weights), dtype=np.uint8)


def unpack_weights(packed: np.ndarray) -> Weights:
    return load(packed.tobytes())


class RemoteWeights(Mapping[str, Tensor]):
    """Weights that are elsewhere; whoever looks at one of them fetches all."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self._fetched: Weights | None = None

    def _here(self) -> Weights:
        if self._fetched is None:
            self._fetched = unpack_weights(self.reference.get())
        return self._fetched

    def __getitem__(self, name: str) -> Tensor:
        return self._here()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._here())

    def __len__(self) -> int:
        return len(self._here())


class ReferenceMailbox:
    """A `Mailbox` that keeps which weights are the newest, and not the weights: those do not change once made."""

    is_shared: ClassVar[bool] = False

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._posted: tuple[PolicyMark, Weights] | None = None
        self._requested: int | None = None

    def post(self, mark: PolicyMark, weights: Weights) -> None:
        assert isinstance(weights, RemoteWeights), "a learner elsewhere makes a copy for each publication"
        self._posted = (mark, weights)
        self._ring()

    def newest(self) -> PolicyMark | None:
        return None if self._posted is None else self._posted[0]

    def fetch(self) -> tuple[PolicyMark, Weights]:
        assert self._posted is not None, "nothing has been posted"
        return self._posted

    def request(self, step: int) -> None:
        self._requested = step
        self._ring()

    def requested(self) -> int | None:
        return self._requested


# --- what is known about experiences ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedAnnotations:
    """`Annotations` with the tokens of all experiences end to end: a few arrays travel faster than thousands."""

    values: FloatArray | None
    reference_logprobs: FloatArray | None
    token_penalties: FloatArray | None


def pack_annotations(annotations: Annotations) -> PackedAnnotations:
    return PackedAnnotations(
        values=_join(annotations.values),
        reference_logprobs=_join(annotations.reference_logprobs),
        token_penalties=_join(annotations.token_penalties),
    )


def unpack_annotations(packed: PackedAnnotations, experiences: Sequence[Experience]) -> Annotations:
    """Those of the experiences that were asked about."""
    ends = np.cumsum([len(experience.segment) for experience in experiences], dtype=np.int64)
    return Annotations(
        values=_cut(packed.values, ends),
        reference_logprobs=_cut(packed.reference_logprobs, ends),
        token_penalties=_cut(packed.token_penalties, ends),
    )


def _join(arrays: Sequence[FloatArray] | None) -> FloatArray | None:
    return None if arrays is None else np.concatenate([np.zeros(0, np.float32), *arrays])


def _cut(joined: FloatArray | None, ends: NDArray[np.int64]) -> tuple[FloatArray, ...] | None:
    return None if joined is None else tuple(np.split(joined, ends)[:-1])


# --- learner and buffer ----------------------------------------------------------------------------------------------


class RemoteLearner:
    """A `Learner` of another process."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._policy_version = int(host.call("policy_version"))

    @property
    def policy_version(self) -> int:
        return self._policy_version

    def annotate(self, experiences: Sequence[Experience]) -> Annotations:
        return unpack_annotations(self._host.call("annotate", encode_experiences(experiences)), experiences)

    def step(self, batch: Batch) -> StepReport:
        report: StepReport = self._host.call("step", batch)
        self._policy_version = report.policy_version
        return report

    def imitate(
        self, demonstrations: Sequence[Experience], how: Imitation, on_step: Callable[[int, int], None]
    ) -> float:
        last_loss = 0.0
        for done, total, loss in self._host.stream("imitate", encode_experiences(demonstrations), how):
            on_step(done, total)
            last_loss = loss
        return last_loss

    def supervise(self, demonstrations: Sequence[Experience]) -> None:
        self._host.call("supervise", encode_experiences(demonstrations))

    def weights(self) -> Weights:
        return RemoteWeights(self._host.refer("weights"))

    def logprobs_of(self, experiences: Sequence[Experience], of: str = "policy") -> Sequence[FloatArray]:
        return self._host.call("logprobs_of", encode_experiences(experiences), of)

    def score(self, token_ids: IntArray) -> FloatArray:
        return self._host.call("score", token_ids)

    def save_state(self, folder: Path) -> None:
        self._host.call("save_state", folder.resolve())

    def load_state(self, folder: Path) -> None:
        self._policy_version = int(self._host.call("load_state", folder.resolve()))


class RemoteBuffer:
    """A `Buffer` of another process."""

    is_shared: ClassVar[bool] = True

    def __init__(self, host: Host) -> None:
        self._host = host

    def add(self, experiences: Sequence[Experience]) -> None:
        self._host.call("add", encode_experiences(experiences))

    def take(self, step: int) -> list[Experience]:
        return decode_experiences(self._host.call("take", step))

    def is_ready(self, step: int) -> bool:
        return self._host.call("is_ready", step)

    def has_group(self, group_id: str) -> bool:
        return self._host.call("has_group", group_id)

    @property
    def num_dropped(self) -> int:
        return self._host.call("num_dropped")

    def __len__(self) -> int:
        return self._host.call("count")

    def rewind(self, step: int, *, plays_again: bool) -> None:
        self._host.call("rewind", step, plays_again)
