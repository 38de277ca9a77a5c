"""The frozen policy: one that lies in a file says what one in memory says, and takes no memory in an update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnwise.learn.checkpoint import digest_state
from turnwise.learn.policy import OffloadedPolicy
from turnwise.learn.trainer import Trainer

from .parts import copy_of, is_equal, make_batch, make_samples, make_trainer

EXPERIENCES = [sample.experience for sample in make_samples()]


def trainers(kind: str, **more: Any) -> tuple[Trainer, Trainer]:
    """One with its reference in memory, one with it in a file; otherwise alike."""
    kl = {"type": kind, "coef": 0.1}
    return make_trainer(kl=kl, **more), make_trainer(kl=kl | {"offload": True}, **more)


def said_by_reference(trainer: Trainer) -> np.ndarray:
    return np.concatenate(trainer.annotate(EXPERIENCES).reference_logprobs or ())


def bytes_of_reference(trainer: Trainer) -> int:
    assert isinstance(trainer.reference, OffloadedPolicy)
    return sum(parameter.nbytes for parameter in trainer.reference.model.parameters())


@pytest.mark.parametrize("kind", ["loss", "reward"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updates_are_the_same_wherever_the_reference_lies(kind: str, dtype: str) -> None:
    held, offloaded = trainers(kind, model_settings={"dtype": dtype})
    for step in range(3):
        assert np.array_equal(said_by_reference(held), said_by_reference(offloaded))
        held.step(make_batch(step))
        offloaded.step(make_batch(step))
    assert is_equal(copy_of(held.model), offloaded.model)


def test_it_takes_no_memory_but_while_it_is_asked() -> None:
    _, trainer = trainers("loss")
    assert bytes_of_reference(trainer) == 0
    assert trainer.reference is not None
    with trainer.reference.loaded():
        assert bytes_of_reference(trainer) == sum(parameter.nbytes for parameter in trainer.model.parameters())
    said_by_reference(trainer)
    trainer.step(make_batch())
    assert bytes_of_reference(trainer) == 0


def test_it_is_refreshed_saved_and_resumed_as_one_in_memory(tmp_path: Path) -> None:
    held, offloaded = trainers("loss")
    for trainer in (held, offloaded):
        trainer.step(make_batch())
        trainer.refresh_reference()
        trainer.step(make_batch(1))
    refreshed = said_by_reference(held)
    assert np.array_equal(refreshed, said_by_reference(offloaded))
    offloaded.save_state(tmp_path)
    resumed = trainers("loss")
    for trainer in resumed:
        assert not np.allclose(refreshed, said_by_reference(trainer))
        trainer.load_state(tmp_path)
        assert np.array_equal(refreshed, said_by_reference(trainer))


def test_its_digest_is_that_of_one_in_memory() -> None:
    held, offloaded = trainers("loss")
    before = digest_state(held)["reference"]
    assert digest_state(offloaded)["reference"] == before
    assert bytes_of_reference(offloaded) == 0
    offloaded.step(make_batch())
    assert digest_state(offloaded)["reference"] == before
    offloaded.refresh_reference()
    assert digest_state(offloaded)["reference"] != before
