"""Weights stay where they are until somebody looks; a buffer that replaces a lost one hands over what was taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contracts.test_buffers import group
from tests.small_run import SMALL_LAKE
from tests.unit.cluster.here import HereHost
from turnwise.cluster.buffer_worker import BufferWorker
from turnwise.cluster.explorer_pool import (
    ReferenceMailbox,
    RemoteBuffer,
    RemoteWeights,
    pack_annotations,
    pack_weights,
    read_target,
    unpack_annotations,
    unpack_weights,
    write_target,
)
from turnwise.config.load import load_settings
from turnwise.experience.codec import decode_experiences, encode_experiences
from turnwise.protocols import PolicyVersion
from turnwise.types import Annotations


class Counting:
    """A reference that counts how often it is fetched."""

    def __init__(self) -> None:
        self.num_fetched = 0

    def get(self) -> object:
        self.num_fetched += 1
        return pack_weights({"a": torch.arange(3.0), "b": torch.ones(2, dtype=torch.bfloat16)})


def test_weights_are_fetched_once_and_only_where_they_are_read() -> None:
    reference = Counting()
    weights = RemoteWeights(reference)
    mailbox = ReferenceMailbox(lambda: None)
    mailbox.post(PolicyVersion(1, 1), weights)
    assert mailbox.fetch() == (PolicyVersion(1, 1), weights)
    assert reference.num_fetched == 0
    assert torch.equal(weights["a"], torch.arange(3.0))
    assert weights["b"].dtype == torch.bfloat16
    assert reference.num_fetched == 1


def test_tied_weights_travel() -> None:
    tied = torch.ones(2)
    found = unpack_weights(pack_weights({"a": tied, "b": tied}))
    assert torch.equal(found["a"], found["b"])


def test_experiences_keep_their_order_where_groups_are_mixed() -> None:
    one, other = group(seed=1), group(seed=2)
    mixed = [one[0], other[0], *one[1:], *other[1:]]
    assert [e.id for e in decode_experiences(encode_experiences(mixed))] == [e.id for e in mixed]


def test_annotations_travel_in_few_arrays_and_come_back_per_experience() -> None:
    experiences = [*group(seed=1), *group(seed=2)]
    values = tuple(np.full(len(e.segment), i, dtype=np.float32) for i, e in enumerate(experiences))
    found = unpack_annotations(pack_annotations(Annotations(values=values)), experiences)
    assert found.values is not None
    assert found.reference_logprobs is found.token_penalties is None
    for array, expected in zip(found.values, values, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_nothing_is_known_about_no_experiences() -> None:
    assert unpack_annotations(pack_annotations(Annotations(values=())), []).values == ()


def test_a_replaced_buffer_hands_over_the_batch_that_the_lost_one_took(tmp_path: Path) -> None:
    settings = load_settings("frozenlake", [*SMALL_LAKE, "buffer.type=sqlite", "buffer.train_batch_size=2"])
    lost = RemoteBuffer(HereHost(BufferWorker(settings, tmp_path, is_replacement=False)))
    lost.add([e for seed in range(4) for e in group(seed=seed)])
    taken = lost.take(1)
    # The answer did not arrive, so the same question is asked again.
    replaced = RemoteBuffer(HereHost(BufferWorker(settings, tmp_path, is_replacement=True)))
    assert [e.id for e in replaced.take(1)] == [e.id for e in taken]
    assert len(replaced.take(2)) == 2
    assert len(replaced) == 0


def test_how_many_explorers_are_wanted_is_what_was_written_last(tmp_path: Path) -> None:
    assert read_target(tmp_path, 2) == 2
    write_target(tmp_path, 5)
    assert read_target(tmp_path, 2) == 5
    (tmp_path / "explorers.json").write_text('{"explorers": 0')
    assert read_target(tmp_path, 2) == 2


@pytest.mark.parametrize("step", [1, 2])
def test_only_the_first_batch_of_a_replacement_may_be_one_that_was_taken(tmp_path: Path, step: int) -> None:
    settings = load_settings("frozenlake", [*SMALL_LAKE, "buffer.type=sqlite", "buffer.train_batch_size=2"])
    buffer = RemoteBuffer(HereHost(BufferWorker(settings, tmp_path, is_replacement=True)))
    buffer.add([e for seed in range(4) for e in group(seed=seed)])
    ids = {e.id for _ in range(2) for e in buffer.take(step)}
    assert len(ids) == 4
