"""Credit rules and learners with one mistake in their mathematics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.audit.faults.fault import Fault, Stand
from turnwise.types import Annotations, Batch, Experience, Sample, StepReport


class _AlteredCredit(Stand):
    def __init__(self, inner: Any, before: Callable[..., Any] | None, after: Callable[[Sample], Sample] | None) -> None:
        super().__init__(inner)
        self._before, self._after = before, after

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        given = self._before(experiences, annotations) if self._before else (experiences, annotations)
        samples = self.inner(*given)
        if self._before:
            # What the rule was really given is its own secret.
            samples = [replace(s, experience=e) for s, e in zip(samples, experiences, strict=True)]
            if annotations.values is not None:
                samples = [replace(s, values=v) for s, v in zip(samples, annotations.values, strict=True)]
        return [self._after(sample) for sample in samples] if self._after else samples


class _AlteredBatch(Stand):
    """Learns from something else than it was given."""

    def __init__(self, inner: Any, alter: Callable[[Batch], Batch]) -> None:
        super().__init__(inner)
        self._alter = alter

    def step(self, batch: Batch) -> StepReport:
        return self.inner.step(self._alter(batch))


class _WeightedLoss(Stand):
    """Weighs tokens by their advantages where the loss should not."""

    def __call__(self, logprobs: Any, behavior: Any, advantages: Any, turns: Any) -> Any:
        losses, details = self.inner(logprobs, behavior, advantages, turns)
        return losses * advantages, details


class _MovingReference(Stand):
    def step(self, batch: Batch) -> StepReport:
        report = self.inner.step(batch)
        self.inner.refresh_reference()
        return report


class _ForgetfulOptimizer(Stand):
    def load_state(self, folder: Path) -> None:
        self.inner.load_state(folder)
        self.inner.optimizer.state.clear()


def _move_positions(learner: Any) -> Any:
    """The trunk reads every second position."""
    trunk = learner.actor.model.base_model
    forward = trunk.forward

    def moved(*args: Any, **given: Any) -> Any:
        width = given["input_ids"].shape[1]
        positions = given.get("position_ids")
        if positions is None:
            positions = given["input_ids"].new_tensor(range(width))[None]
        return forward(*args, **{**given, "position_ids": positions * 2})

    trunk.forward = moved
    return learner


def _credit(
    name: str,
    *,
    before: Callable[..., Any] | None = None,
    after: Callable[[Sample], Sample] | None = None,
    overrides: tuple[str, ...] = (),
) -> Fault:
    return Fault(name=name, room="credit", overrides=overrides, credit=lambda c: _AlteredCredit(c, before, after))


def _late_values(experiences: Sequence[Experience], annotations: Annotations) -> Any:
    assert annotations.values is not None
    return experiences, replace(annotations, values=tuple(np.roll(row, 1) + 0.05 for row in annotations.values))


def _twice_paid(experiences: Sequence[Experience], annotations: Annotations) -> Any:
    return [replace(e, turn_rewards=2 * e.turn_rewards) for e in experiences], annotations


def _in_other_states(experiences: Sequence[Experience], annotations: Annotations) -> Any:
    """No state is met twice."""
    ends = np.cumsum([len(e.turn_states) for e in experiences]).tolist()
    states = (np.arange(end - len(e.turn_states), end) for e, end in zip(experiences, ends, strict=True))
    return [
        replace(e, turn_states=row.astype(np.uint64)) for e, row in zip(experiences, states, strict=True)
    ], annotations


def _with_padding(batch: Batch) -> Batch:
    """Given tokens in front of sampled ones count as sampled."""
    mask = batch.loss_mask.copy()
    mask[:-1] |= batch.loss_mask[1:]
    mask[batch.row_starts[:-1]] = batch.loss_mask[batch.row_starts[:-1]]
    return replace(batch, loss_mask=mask, turn_ids=np.where(mask, np.maximum(batch.turn_ids, 0), -1))


_GROUPS = ("credit={type: grpo}", "learn.critic={type: none}")
_CRITIC = ("credit={type: gae, lam: 0.5}",)
_KL = ("learn.kl={type: loss, coef: 1.0, estimator: k1}", "learn.optim.lr=0.01")
_CHEAP_KL = ("learn.kl={type: loss, coef: 0.001, estimator: k3}", "learn.optim.lr=0.01")
_STATES = ("credit={type: gigpo}", "learn.critic={type: none}")

_BATCH_SPREAD = ("credit={type: multi_step_grpo, std_level: batch}", "learn.critic={type: none}")


def _loss(name: str, settings: str, function: str, wrap: Callable[[Any], Any]) -> Fault:
    """Only of older samples are the ratios so far from 1 that they can be told apart."""
    return Fault(
        name=name,
        room="learn",
        overrides=(f"learn.loss={{{settings}}}", "sync.interval=2", "learn.optim.lr=0.01"),
        patch=("turnwise.learn.losses", function, wrap),
    )


def _inverted(ratio: Callable[..., Any]) -> Callable[..., Any]:
    return lambda policy, behavior: ratio(behavior, policy)


FAULTS = (
    _credit("wrong_advantage_sign", after=lambda s: replace(s, advantages=-s.advantages, returns=-s.returns)),
    _credit("advantages_not_whitened", after=lambda s: replace(s, advantages=s.returns - s.values + np.float32(0.1))),
    _credit("off_by_one_bootstrap", before=_late_values, overrides=_CRITIC),
    _credit("reward_counted_twice", before=_twice_paid, overrides=_CRITIC),
    _credit("group_scale_wrong", after=lambda s: replace(s, advantages=s.advantages / 2), overrides=_GROUPS),
    _credit("batch_scale_wrong", after=lambda s: replace(s, advantages=s.advantages / 2), overrides=_BATCH_SPREAD),
    _credit("states_not_recognised", before=_in_other_states, overrides=_STATES),
    Fault(name="padding_in_the_loss", room="learn", learner=lambda x: _AlteredBatch(x, _with_padding)),
    Fault(
        name="advantages_of_another_row",
        room="learn",
        learner=lambda x: _AlteredBatch(
            x, lambda b: replace(b, advantages=np.where(b.loss_mask, -b.advantages, 0).astype(np.float32))
        ),
    ),
    Fault(
        name="wrong_loss_normaliser",
        room="learn",
        patch=("turnwise.learn.trainer", "token_weights", lambda f: lambda *given: f(*given) * np.float32(2)),
    ),
    Fault(
        name="kl_with_swapped_arguments",
        room="learn",
        overrides=_KL,
        patch=("turnwise.learn.trainer", "estimate_kl", lambda f: lambda p, r, kind: f(r, p, kind)),
    ),
    Fault(
        name="kl_with_swapped_arguments_at_a_small_price",
        room="learn",
        overrides=_CHEAP_KL,
        patch=("turnwise.learn.trainer", "estimate_kl", lambda f: lambda p, r, kind: f(r, p, kind)),
    ),
    Fault(
        name="kl_penalty_with_swapped_arguments",
        room="learn",
        overrides=("learn.kl={type: reward, coef: 0.01, estimator: k3}",),
        patch=("turnwise.learn.kl", "estimate_kl", lambda f: lambda p, r, kind: f(r, p, kind)),
    ),
    Fault(
        name="value_loss_without_half",
        room="learn",
        patch=("turnwise.learn.trainer", "value_loss", lambda f: lambda *given: 2 * f(*given)),
    ),
    _loss("gspo_ratio_of_single_tokens", "type: gspo", "_mean_over_turns", lambda _: lambda moved, _turns: moved),
    _loss("cispo_with_inverted_ratio", "type: cispo", "_ratio", _inverted),
    _loss("sapo_with_inverted_ratio", "type: sapo", "_ratio", _inverted),
    _loss(
        "opmd_without_its_pull",
        "type: opmd, tau: 0.5",
        "OpmdLoss",
        lambda loss: lambda params: loss(params.model_copy(update={"tau": 0.0})),
    ),
    _loss("sft_weighted_by_advantages", "type: sft", "Sft", lambda loss: lambda params: _WeightedLoss(loss(params))),
    Fault(name="wrong_position_ids", room="learn", learner=_move_positions),
    Fault(name="stale_reference", room="learn", overrides=_KL, learner=_MovingReference),
    Fault(name="optimizer_state_not_restored", room="learn", learner=_ForgetfulOptimizer, at_resume=True),
)
