"""Injected faults: components of a working run, each wrapped so that it does one thing wrong.

`turnwise audit --seed-faults` runs each of them and reports whether the audit finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from turnwise.infra.digests import complete
from turnwise.protocols import Weights
from turnwise.types import (
    Annotations,
    Batch,
    Completion,
    Experience,
    GenerateRequest,
    Group,
    Sample,
    Segment,
    StepReport,
    Trajectory,
)

Wrap: TypeAlias = Callable[[Any], Any]
"""From a component to a wrapper with the same protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: how it wraps the components of a run."""

    name: str
    room: str
    """The package in which such a mistake would be made."""
    overrides: tuple[str, ...] = ()
    """Settings of the run in which it shows, beside those of all faults."""
    engine: Wrap | None = None
    collector: Wrap | None = None
    buffer: Wrap | None = None
    credit: Wrap | None = None
    learner: Wrap | None = None
    patch: tuple[str, str, Wrap] | None = None
    """A module, a function in it, and how the function is wrapped during the run."""
    at_resume: bool = False
    """Whether it shows only after a resume from a checkpoint."""


class FaultWrapper:
    """Delegates to a component; subclasses override what they do wrong."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)


class _Altered(FaultWrapper):
    """Changes replies after the engine has digested them; `digests_again`: as if the engine itself were wrong."""

    def __init__(
        self, inner: Any, alter: Callable[[Completion], dict[str, Any]], *, digests_again: bool = False
    ) -> None:
        super().__init__(inner)
        self._alter = alter
        self._digests_again = digests_again

    async def generate(self, request: GenerateRequest) -> Completion:
        reply = await self.inner.generate(request)
        altered = replace(reply, **self._alter(reply))
        if not self._digests_again:
            return altered
        parts = altered.token_ids, altered.behavior_logprobs, altered.finish_reason
        return complete("local", request, *parts, policy_version=altered.policy_version)


class _OtherTemperature(FaultWrapper):
    async def generate(self, request: GenerateRequest) -> Completion:
        return await self.inner.generate(replace(request, sampling=replace(request.sampling, temperature=0.7)))


class _AnotherAnswer(FaultWrapper):
    """Returns each reply to the next request."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._waiting: Completion | None = None

    async def generate(self, request: GenerateRequest) -> Completion:
        reply = await self.inner.generate(request)
        given, self._waiting = self._waiting or reply, reply
        return given


class _StaleWeights(FaultWrapper):
    async def update_weights(self, weights: Weights, policy_version: int) -> None:
        self._first = getattr(self, "_first", None) or {name: t.detach().clone() for name, t in weights.items()}
        await self.inner.update_weights({**weights, **self._stale(weights)}, policy_version)

    def _stale(self, weights: Weights) -> Weights:
        return self._first


class _StaleHead(_StaleWeights):
    def _stale(self, weights: Weights) -> Weights:
        return {name: tensor for name, tensor in self._first.items() if "embed" in name or "lm_head" in name}


class _OtherPrompt(FaultWrapper):
    """Reads a prompt whose first token was encoded another way."""

    async def generate(self, request: GenerateRequest) -> Completion:
        ids = request.prompt_ids.copy()
        ids[0] = (ids[0] + 1) % 7
        return await self.inner.generate(replace(request, prompt_ids=ids, cache_key=None))


def _shift(reply: Completion) -> dict[str, Any]:
    return {"behavior_logprobs": np.roll(reply.behavior_logprobs, 1) - np.float32(0.01)}


def _after_top_p(reply: Completion) -> dict[str, Any]:
    return {"behavior_logprobs": np.minimum(reply.behavior_logprobs - np.float32(np.log(0.9)), 0).astype(np.float32)}


def _first_id(reply: Completion) -> dict[str, Any]:
    ids = reply.token_ids.copy()
    ids[0] += 1 if ids[0] == 0 else -1
    return {"token_ids": ids}


def _replies(
    name: str, alter: Callable[[Completion], dict[str, Any]], *, room: str = "engine", digests_again: bool = True
) -> Fault:
    return Fault(name=name, room=room, engine=lambda e: _Altered(e, alter, digests_again=digests_again))


def _scale(factor: float) -> Callable[[Completion], dict[str, Any]]:
    return lambda reply: {"behavior_logprobs": reply.behavior_logprobs * np.float32(factor)}


def _without_end(reply: Completion) -> dict[str, Any]:
    num = max(len(reply.token_ids) - 1, 1)
    return {"token_ids": reply.token_ids[:num], "behavior_logprobs": reply.behavior_logprobs[:num]}


ENGINE_FAULTS = (
    Fault(name="wrong_temperature", room="engine", engine=_OtherTemperature),
    _replies("logprobs_of_another_temperature", _scale(1.1)),
    _replies("logprobs_after_top_p", _after_top_p),
    _replies("logprobs_shifted_by_a_token", _shift),
    _replies("nan_logprobs", _scale(np.nan)),
    _replies("missing_end_token", _without_end, digests_again=False),
    _replies("reply_tokenised_again", _first_id, room="context", digests_again=False),
    Fault(name="prompt_tokenised_otherwise", room="context", engine=_OtherPrompt),
    Fault(name="answers_of_other_requests", room="engine", engine=_AnotherAnswer),
    Fault(name="stale_engine_weights", room="sync", engine=_StaleWeights),
    Fault(name="tied_head_not_updated", room="sync", engine=_StaleHead),
    Fault(
        name="lora_not_merged_at_sync",
        room="sync",
        overrides=("model.lora={type: lora, rank: 4, alpha: 64}",),
        engine=_StaleWeights,
    ),
)


class _AlteredCredit(FaultWrapper):
    def __init__(self, inner: Any, before: Callable[..., Any] | None, after: Callable[[Sample], Sample] | None) -> None:
        super().__init__(inner)
        self._before, self._after = before, after

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        given = self._before(experiences, annotations) if self._before else (experiences, annotations)
        samples = self.inner(*given)
        if self._before:
            # The samples name the experiences that the estimator should have been given.
            samples = [replace(s, experience=e) for s, e in zip(samples, experiences, strict=True)]
            if annotations.values is not None:
                samples = [replace(s, values=v) for s, v in zip(samples, annotations.values, strict=True)]
        return [self._after(sample) for sample in samples] if self._after else samples


class _AlteredBatch(FaultWrapper):
    """Updates on another batch than it was given."""

    def __init__(self, inner: Any, alter: Callable[[Batch], Batch]) -> None:
        super().__init__(inner)
        self._alter = alter

    def step(self, batch: Batch) -> StepReport:
        return self.inner.step(self._alter(batch))


class _WeightedLoss(FaultWrapper):
    """Weighs tokens by their advantages although the loss should not."""

    def __call__(self, logprobs: Any, behavior: Any, advantages: Any, turns: Any) -> Any:
        losses, details = self.inner(logprobs, behavior, advantages, turns)
        return losses * advantages, details


class _MovingReference(FaultWrapper):
    def step(self, batch: Batch) -> StepReport:
        report = self.inner.step(batch)
        self.inner.refresh_reference()
        return report


class _ForgetfulOptimizer(FaultWrapper):
    def load_state(self, folder: Path) -> None:
        self.inner.load_state(folder)
        self.inner.optimizer.state.clear()


def _move_positions(learner: Any) -> Any:
    """Double all position ids."""
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
    """Give every turn a state of its own."""
    ends = np.cumsum([len(e.turn_states) for e in experiences]).tolist()
    states = (np.arange(end - len(e.turn_states), end) for e, end in zip(experiences, ends, strict=True))
    return [
        replace(e, turn_states=row.astype(np.uint64)) for e, row in zip(experiences, states, strict=True)
    ], annotations


def _with_padding(batch: Batch) -> Batch:
    """Count prompt tokens before sampled ones as sampled."""
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
    """Samples of older weights, so that the ratios are far enough from 1."""
    return Fault(
        name=name,
        room="learn",
        overrides=(f"learn.loss={{{settings}}}", "sync.interval=2", "learn.optim.lr=0.01"),
        patch=("turnwise.learn.losses", function, wrap),
    )


def _other_loss(name: str, settings: str, wrap: Wrap) -> Fault:
    """The learner computes another loss than its settings say."""

    def replace_loss(learner: Any) -> Any:
        learner._loss = wrap(learner._loss)
        return learner

    return replace(_loss(name, settings, "", wrap), patch=None, learner=replace_loss)


def _inverted(ratio: Callable[..., Any]) -> Callable[..., Any]:
    return lambda policy, behavior: ratio(behavior, policy)


LEARNING_FAULTS = (
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
        patch=("turnwise.learn.policy", "estimate_kl", lambda f: lambda p, r, kind: f(r, p, kind)),
    ),
    Fault(
        name="value_loss_without_half",
        room="learn",
        patch=("turnwise.learn.trainer", "value_loss", lambda f: lambda *given: 2 * f(*given)),
    ),
    _loss("gspo_ratio_of_single_tokens", "type: gspo", "_mean_over_turns", lambda _: lambda moved, _turns: moved),
    _loss("cispo_with_inverted_ratio", "type: cispo", "_ratio", _inverted),
    _loss("sapo_with_inverted_ratio", "type: sapo", "_ratio", _inverted),
    _other_loss("opmd_without_its_pull", "type: opmd, tau: 0.5", lambda loss: loss.model_copy(update={"tau": 0.0})),
    _other_loss("sft_weighted_by_advantages", "type: sft", _WeightedLoss),
    Fault(name="wrong_position_ids", room="learn", learner=_move_positions),
    Fault(name="stale_reference", room="learn", overrides=_KL, learner=_MovingReference),
    Fault(name="optimizer_state_not_restored", room="learn", learner=_ForgetfulOptimizer, at_resume=True),
)


Rows = list[Experience]


class _AlteredBuffer(FaultWrapper):
    def __init__(self, inner: Any, alter: Callable[[Rows], Rows]) -> None:
        super().__init__(inner)
        self._alter = alter

    def take(self, step: int) -> Rows:
        return self._alter(self.inner.take(step))


class _Repeating(FaultWrapper):
    """Returns the previous batch."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._before: Rows = []

    def take(self, step: int) -> Rows:
        given, self._before = self._before, self.inner.take(step)
        return given or self._before


class _AlteredCollector(FaultWrapper):
    def __init__(self, inner: Any, alter: Callable[[Trajectory], Trajectory]) -> None:
        super().__init__(inner)
        self._alter = alter

    async def collect(self, tasks: Sequence[Any], **given: Any) -> list[Group]:
        groups = await self.inner.collect(tasks, **given)
        return [replace(group, trajectories=tuple(map(self._alter, group.trajectories))) for group in groups]


def _in_buffer(name: str, room: str, alter: Callable[[Rows], Rows], *overrides: str) -> Fault:
    return Fault(name=name, room=room, overrides=overrides, buffer=lambda b: _AlteredBuffer(b, alter))


def _each(alter: Callable[[Experience], Experience]) -> Callable[[Rows], Rows]:
    return lambda rows: [alter(row) for row in rows]


def _swap_rewards(rows: Rows) -> Rows:
    """Give each row the rewards of a later one with as many turns."""
    other = {len(row.turn_rewards): row for row in rows}
    swapped = []
    for row in rows:
        given = other[len(row.turn_rewards)]
        other[len(row.turn_rewards)] = row
        swapped.append(replace(row, raw_rewards=given.raw_rewards, turn_rewards=given.turn_rewards))
    return swapped


def _swap_members(rows: Rows) -> Rows:
    """Exchange the ids of two rollouts of a group, in valid order."""
    first, *rest = rows
    for place, other in enumerate(rest):
        if other.id.trajectory.group == first.id.trajectory.group and other.id.trajectory != first.id.trajectory:
            rest[place] = replace(first, id=replace(other.id, segment_index=other.id.segment_index))
            return [replace(other, id=first.id), *rest]
    return rows


def _shift_mask(row: Experience) -> Experience:
    segment = row.segment
    turn_ids = np.roll(segment.turn_ids, -1)
    return replace(row, segment=replace(segment, turn_ids=turn_ids, loss_mask=turn_ids >= 0))


def _drop_last_turn(played: Trajectory) -> Trajectory:
    if len(played.turns) < 2:
        return played
    *turns, last = played.turns
    segments = list(played.segments)
    if any(turn.segment_index == last.segment_index for turn in turns):
        segment = segments[last.segment_index]
        end = int(np.flatnonzero(segment.turn_ids == turns[-1].index)[-1]) + 1
        names = ("token_ids", "loss_mask", "behavior_logprobs", "turn_ids")
        segments[last.segment_index] = Segment(**{name: getattr(segment, name)[:end] for name in names})
    else:
        segments.pop()
    return replace(played, segments=tuple(segments), turns=tuple(turns))


def _pay_late(played: Trajectory) -> Trajectory:
    paid = [(turn.reward, turn.shaping) for turn in played.turns]
    shifted = zip(played.turns, [*paid[-1:], *paid[:-1]], strict=True)
    return replace(
        played, turns=tuple(replace(turn, reward=reward, shaping=shaping) for turn, (reward, shaping) in shifted)
    )


def hash_based_reward(turn: Any) -> float:
    """`reward.shaping` of all these runs: hardly two turns have the same reward, so exchanged ones are noticed."""
    return turn.reward + crc32(f"{turn.number} {turn.response}".encode("utf-8", "surrogatepass")) % 97 / 97


RECORD_FAULTS = (
    _in_buffer("rewards_swapped_between_trajectories", "experience", _swap_rewards),
    Fault(
        name="reward_on_the_wrong_turn",
        room="rollout",
        collector=lambda c: _AlteredCollector(c, _pay_late),
    ),
    _in_buffer(
        "reward_sign_flipped",
        "experience",
        _each(lambda r: replace(r, raw_rewards=-r.raw_rewards, turn_rewards=-r.turn_rewards)),
    ),
    Fault(name="dropped_turn", room="rollout", collector=lambda c: _AlteredCollector(c, _drop_last_turn)),
    _in_buffer("lost_record", "experience", lambda rows: rows[1:]),
    _in_buffer("swapped_group_members", "experience", _swap_members),
    _in_buffer("record_twice_in_a_batch", "experience", lambda rows: [*rows, rows[0]]),
    _in_buffer("buffer_order_changed", "experience", lambda rows: rows[::-1]),
    _in_buffer("mask_shifted_by_a_token", "context", _each(_shift_mask)),
    _in_buffer(
        "double_shaping",
        "rollout",
        _each(lambda r: replace(r, turn_rewards=2 * r.turn_rewards - r.raw_rewards)),
    ),
    _in_buffer(
        "reward_infinite_in_float32",
        "envs",
        _each(lambda r: replace(r, turn_rewards=(r.turn_rewards + np.float32(np.inf)))),
    ),
    _in_buffer("budget_taken_for_the_end", "rollout", _each(lambda r: replace(r, is_truncated=not r.is_truncated))),
    _in_buffer("states_mixed_up", "experience", _each(lambda r: replace(r, turn_states=r.turn_states + np.uint64(1)))),
    _in_buffer("version_mislabelled", "sync", _each(lambda r: replace(r, policy_version=r.policy_version + 1))),
    Fault(name="batch_of_an_older_update", room="experience", buffer=_Repeating),
)
