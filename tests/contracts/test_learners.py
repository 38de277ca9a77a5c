"""The contract of a learner: samples become gradients, and all that it is can be saved and loaded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.learn.parts import make_batch, make_experience, make_samples
from turnwise.errors import ConfigError
from turnwise.learn.pack import pack
from turnwise.loop.build import open_learner
from turnwise.models.load import load_model
from turnwise.protocols import Learner, SFTConfig, Weights
from turnwise.types import Experience, FloatArray

from .entries import names_of
from .setting import are_equal, copied, make_model, model_path, settings_with

every_learner = pytest.mark.parametrize("name", names_of("learn"))
HOW = SFTConfig(steps=6, batch_rows=4, lr=1e-2)


def open_named(name: str, *choices: str) -> Learner:
    return open_learner(settings_with(f"learn.type={name}", "learn.optim.lr=0.01", *choices), model_path())


def demonstrations(count: int = 5) -> list[Experience]:
    dice = np.random.default_rng(1)
    return [make_experience(dice, number) for number in range(count)]


@torch.no_grad()
def logprobs(weights: Weights, experience: Experience) -> FloatArray:
    """Of the tokens of a row under these weights, 0 for the first."""
    model = make_model()
    model.load_state_dict(dict(weights))
    ids = torch.tensor(experience.segment.token_ids).long()
    table = model(input_ids=ids[None, :-1]).logits[0].log_softmax(-1)
    return np.append(0.0, table.gather(1, ids[1:, None]).squeeze(1).numpy()).astype(np.float32)


@every_learner
def test_it_begins_with_the_model_under_its_own_names(name: str) -> None:
    learner = open_named(name)
    assert learner.policy_version == 0
    assert are_equal(copied(learner.weights()), copied(make_model().state_dict()))


@every_learner
def test_an_update_changes_the_weights_and_counts_as_one_version(name: str) -> None:
    learner = open_named(name)
    for version in (1, 2):
        before = copied(learner.weights())
        report = learner.step(make_batch(seed=version))
        assert (report.policy_version, learner.policy_version) == (version, version)
        assert report.metrics
        assert all(math.isfinite(number) for number in report.metrics.values())
        assert not are_equal(before, copied(learner.weights()))
    make_model().load_state_dict(dict(learner.weights()))


@every_learner
def test_what_was_good_becomes_likelier_and_what_was_bad_does_not(name: str) -> None:
    learner, samples = open_named(name), make_samples(num_rows=4)
    before = [logprobs(learner.weights(), sample.experience) for sample in samples]
    learner.step(pack(samples))
    after = [logprobs(learner.weights(), sample.experience) for sample in samples]
    gains = [float(((b - a) * s.advantages).sum()) for a, b, s in zip(before, after, samples, strict=True)]
    assert sum(gains) > 0


@every_learner
def test_equal_learners_make_equal_updates(name: str) -> None:
    one, other = open_named(name), open_named(name)
    for learner in (one, other):
        learner.step(make_batch(seed=3))
    assert are_equal(copied(one.weights()), copied(other.weights()))


@every_learner
def test_what_is_told_about_experiences_is_zero_off_their_masks(name: str) -> None:
    experiences = demonstrations()
    told = open_named(name).annotate(experiences)
    for rows in (told.values, told.reference_logprobs, told.token_penalties):
        for experience, row in zip(experiences, rows or (), strict=rows is not None):
            assert row.shape == experience.segment.token_ids.shape
            assert not row[~experience.segment.loss_mask].any()


# --- the way back ----------------------------------------------------------------------------------------------------


@every_learner
def test_a_loaded_learner_goes_on_exactly(name: str, tmp_path: Path) -> None:
    learner = open_named(name)
    learner.step(make_batch(seed=1))
    learner.step(make_batch(seed=2))
    learner.save_state(tmp_path)
    loaded = open_named(name)
    loaded.load_state(tmp_path)
    assert loaded.policy_version == 2
    assert are_equal(copied(loaded.weights()), copied(learner.weights()))
    for each in (learner, loaded):
        each.step(make_batch(seed=3))
    assert loaded.policy_version == learner.policy_version == 3
    assert are_equal(copied(loaded.weights()), copied(learner.weights()))


@every_learner
def test_a_learner_can_be_put_back(name: str, tmp_path: Path) -> None:
    """A run that collapses ends with an earlier policy, in the same process."""
    learner = open_named(name)
    learner.step(make_batch(seed=1))
    learner.save_state(tmp_path)
    saved = copied(learner.weights())
    learner.step(make_batch(seed=2))
    learner.load_state(tmp_path)
    assert learner.policy_version == 1
    assert are_equal(copied(learner.weights()), saved)


@every_learner
def test_what_is_saved_holds_the_policy_as_a_plain_model(name: str, tmp_path: Path) -> None:
    learner = open_named(name)
    learner.step(make_batch())
    learner.save_state(tmp_path)
    assert are_equal(copied(load_model(tmp_path / "policy").state_dict()), copied(learner.weights()))


# --- demonstrations --------------------------------------------------------------------------------------------------


@every_learner
def test_demonstrations_are_imitated_before_any_update(name: str) -> None:
    learner, heard, shown = open_named(name), [], demonstrations()

    def unlikely() -> float:
        return -sum(float(logprobs(learner.weights(), e)[e.segment.loss_mask].sum()) for e in shown)

    before = unlikely()
    loss = learner.imitate(shown, HOW, lambda done, total: heard.append((done, total)))
    assert unlikely() < before
    assert math.isfinite(loss)
    assert heard == [(step, HOW.steps) for step in range(1, HOW.steps + 1)]
    assert learner.policy_version == 0


@every_learner
def test_demonstrations_beside_updates_are_mixed_in_or_refused_in_words(name: str) -> None:
    mixed, plain = (open_named(name, "learn.ptx.type=oracle", "learn.ptx.coef=5.0") for _ in range(2))
    try:
        mixed.supervise(demonstrations())
    except ConfigError as error:
        if "learn.ptx" not in str(error):
            raise
        return
    learners: tuple[Any, ...] = (mixed, plain)
    for learner in learners:
        learner.step(make_batch())
    assert not are_equal(copied(mixed.weights()), copied(plain.weights()))
