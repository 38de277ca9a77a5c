"""The contract of a weight transport: the newest weights from the trainer to the explorer, and requests back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.small_run import build_components
from turnwise.hooks import TrainStep
from turnwise.loop.build import find_loop, open_mailbox
from turnwise.protocols import Mailbox, PolicyVersion
from turnwise.report.metrics import Stopwatch

from .entries import names_of
from .setting import are_equal, copied, settings_with

pytestmark = pytest.mark.slow

every_transport = pytest.mark.parametrize("name", names_of("sync"))


def open_named(name: str, folder: Path, ring: Callable[[], None] = lambda: None) -> Mailbox:
    return open_mailbox(settings_with(f"sync.method={name}"), folder, ring)


def weights(value: float) -> dict[str, torch.Tensor]:
    """Two names for one memory, as tied weights have, and a tensor that does not lie in one piece."""
    shared = torch.full((2, 3), value)
    return {"embed": shared, "head": shared, "turned": (value + torch.arange(6.0)).reshape(2, 3).T}


@every_transport
def test_nothing_lies_there_before_the_first_post(name: str, tmp_path: Path) -> None:
    mailbox = open_named(name, tmp_path)
    assert mailbox.newest() is None
    assert mailbox.requested() is None


@every_transport
def test_the_newest_weights_are_fetched_with_their_mark(name: str, tmp_path: Path) -> None:
    mailbox = open_named(name, tmp_path)
    for step in (1, 2, 5):
        mark = PolicyVersion(step, step - 1)
        mailbox.post(mark, weights(step))
        assert mailbox.newest() == mark
        for _ in range(2):
            found, fetched = mailbox.fetch()
            assert found == mark
            assert are_equal(copied(fetched), weights(step))


@every_transport
def test_what_was_posted_is_a_copy(name: str, tmp_path: Path) -> None:
    """The learner goes on changing its own before the explorer has fetched these."""
    mailbox, posted = open_named(name, tmp_path), weights(1)
    mailbox.post(PolicyVersion(1, 1), posted)
    for tensor in posted.values():
        tensor.zero_()
    assert are_equal(copied(mailbox.fetch()[1]), weights(1))


@every_transport
def test_what_was_fetched_stays_as_it_is(name: str, tmp_path: Path) -> None:
    mailbox = open_named(name, tmp_path)
    mailbox.post(PolicyVersion(1, 1), weights(1))
    _, fetched = mailbox.fetch()
    mailbox.post(PolicyVersion(2, 2), weights(2))
    assert are_equal(copied(fetched), weights(1))


@every_transport
def test_the_newest_request_stands(name: str, tmp_path: Path) -> None:
    mailbox = open_named(name, tmp_path)
    for step in (1, 4):
        mailbox.request(step)
        assert mailbox.requested() == step
    mailbox.post(PolicyVersion(4, 4), weights(4))
    assert mailbox.requested() == 4
    assert mailbox.newest() == PolicyVersion(4, 4)


@every_transport
def test_whoever_waits_is_woken(name: str, tmp_path: Path) -> None:
    rung: list[int] = []
    mailbox = open_named(name, tmp_path, lambda: rung.append(1))
    mailbox.post(PolicyVersion(1, 1), weights(1))
    assert len(rung) == 1
    mailbox.request(2)
    assert len(rung) == 2


@every_transport
def test_it_says_truly_whether_it_reaches_another_process(name: str, tmp_path: Path) -> None:
    trainer, explorer = open_named(name, tmp_path), open_named(name, tmp_path)
    trainer.post(PolicyVersion(3, 2), weights(3))
    explorer.request(4)
    if not trainer.is_shared:
        assert (explorer.newest(), trainer.requested()) == (None, None)
        return
    assert explorer.newest() == PolicyVersion(3, 2)
    assert are_equal(copied(explorer.fetch()[1]), weights(3))
    assert trainer.requested() == 4
    again = open_named(name, tmp_path)
    assert (again.newest(), again.requested()) == (PolicyVersion(3, 2), 4)


@every_transport
def test_weights_that_a_cut_off_process_left_are_not_those_of_updates_to_come(name: str, tmp_path: Path) -> None:
    """A run that goes on from a checkpoint makes the updates after it again."""

    def trained(*choices: str) -> dict[str, torch.Tensor]:
        chosen = settings_with("sync.max_staleness=0", "learn.optim.lr=0.05", *choices)
        torch.manual_seed(0)
        components = build_components(chosen, run_path=tmp_path)
        left = {key: torch.zeros_like(tensor) for key, tensor in components.trainer.learner.weights().items()}
        components.open_weight_store(lambda: None).post(PolicyVersion(9, 9), left)
        asyncio.run(find_loop(chosen)(components, Stopwatch(), start_step=0, on_step=nothing))
        return copied(components.trainer.learner.weights())

    async def nothing(_: TrainStep) -> None:
        return

    assert are_equal(trained("loop.type=pipelined", f"sync.method={name}"), trained("loop.type=serial"))
