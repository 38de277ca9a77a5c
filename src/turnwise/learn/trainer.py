"""Samples become gradients: PPO epochs over one batch, with optional critic, reference model and entropy bonus.

In: a Batch. Out: new weights and a StepReport. Losses are sums over tokens divided by a count over the whole
mini-batch, so neither packing nor the micro-batch budget changes the result. It knows nothing of text, environments
or how advantages came about.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise.config.sections import learn as learning
from turnwise.config.sections.model import Lora, ModelSettings
from turnwise.errors import LearnError
from turnwise.learn.adapters import add_adapter, fold_adapter, has_adapter, merged_weights
from turnwise.learn.checkpoint import read_state, write_state
from turnwise.learn.correction import importance_weights
from turnwise.learn.kl import KlPrice
from turnwise.learn.losses import estimate_kl, value_loss
from turnwise.learn.models import cast_parameters, checkpoint_gradients
from turnwise.learn.pack import MicroBatch, micro_batches, pack_without_credit, token_weights
from turnwise.learn.policy import (
    AdapterOffPolicy,
    Critic,
    ModelCritic,
    PolicyModel,
    Reference,
    TokenScores,
    TrunkCritic,
)
from turnwise.learn.schedule import learning_rate_share
from turnwise.learn.tracer import UpdateTracer
from turnwise.learn.warm_start import add_imitation_gradient, imitate
from turnwise.pretrained import load_model, torch_dtype
from turnwise.protocols import Imitation, PolicyLoss, Weights
from turnwise.sites import LearnerSite
from turnwise.types import Annotations, Batch, Experience, FloatArray, StepReport

_PLAIN = ModelSettings()
"""Every weight trained, in float32."""


class Trainer:
    """`learn.type: ppo`: actor, optional critic and reference, one optimizer."""

    @classmethod
    def open(cls, settings: learning.LearnSettings, site: LearnerSite) -> Trainer:
        return cls(
            load_model(site.model_path),
            settings,
            site.loss,
            temperature=site.temperature,
            seed=site.seed,
            model_settings=site.model,
        )

    def __init__(
        self,
        model: PreTrainedModel,
        settings: learning.LearnSettings,
        loss: PolicyLoss,
        *,
        temperature: float,
        seed: int,
        model_settings: ModelSettings = _PLAIN,
    ) -> None:
        self.settings = settings
        self.seed = seed
        if isinstance(model_settings.lora, Lora):
            add_adapter(model, model_settings.lora, seed=seed)
        # Without dropout: the policy that is trained must be the one that sampled.
        self.actor = PolicyModel(model.eval(), temperature, torch_dtype(model_settings.dtype))
        self.critic = _make_critic(settings.critic, self.actor)
        self.reference = _make_reference(settings.kl, self.actor)
        self.is_base_folded = False
        """Whether the frozen weights beside the adapters are no longer those of `model.path`."""
        if model_settings.gradient_checkpointing:
            checkpoint_gradients(model)
            if isinstance(self.critic, ModelCritic):
                checkpoint_gradients(self.critic.trunk)
        self.kl_price = KlPrice(settings.kl) if isinstance(settings.kl, learning.KlReward) else None
        self.policy_version = 0
        self.rng = np.random.default_rng(seed)
        self._loss = loss
        self._supervised: Batch | None = None
        self._charged: dict[str, float] = {}
        self._device = model.device
        self.optimizer = self._make_optimizer()

    # --- what others ask of it -----------------------------------------------------------------------------------

    def weights(self) -> Weights:
        """The policy's weights under the names of the plain model, adapters merged."""
        return merged_weights(self.actor.model) if has_adapter(self.actor.model) else self.actor.model.state_dict()

    @torch.no_grad()
    def annotate(self, experiences: Sequence[Experience]) -> Annotations:
        """Critic values and reference log-probs of stored experiences, under the weights of this moment."""
        if self.critic is None and self.reference is None:
            return Annotations()
        batch = pack_without_credit(experiences)
        values = self._values(batch) if self.critic is not None else None
        reference = self._logprobs(self.reference, batch) if self.reference is not None else None
        penalties = self._price_distance(batch, reference) if reference is not None else None
        return Annotations(
            values=_split(values, batch),
            reference_logprobs=_split(reference, batch),
            token_penalties=_split(penalties, batch),
        )

    def step(self, batch: Batch) -> StepReport:
        """One update: `epochs` passes over the batch in `minibatches` optimizer steps each."""
        if not batch.loss_mask.any():
            raise LearnError("the batch has no sampled tokens; nothing can be learnt from it.")
        meter = _Meter()
        self._set_learning_rate()
        batch, importance = self._correct(batch, meter)
        is_corrected = not isinstance(self.settings.correction, learning.NoCorrection)
        proximal = batch.behavior_logprobs if is_corrected else None
        tracer = UpdateTracer(batch, num_epochs=self.settings.epochs, proximal_logprobs=proximal)
        for epoch in range(self.settings.epochs):
            tracer.begin_epoch(epoch)
            order = self.rng.permutation(batch.num_rows)
            for rows in np.array_split(order, min(self.settings.minibatches, len(order))):
                self._update(batch, importance, rows, meter, tracer)
        self.policy_version += 1
        metrics = self._charged | meter.means() | _batch_metrics(batch) | {"lr": self.optimizer.param_groups[0]["lr"]}
        return StepReport(
            policy_version=self.policy_version,
            metrics={f"learn/{name}": value for name, value in metrics.items()},
            trace=tracer.finish(),
        )

    def imitate(
        self, demonstrations: Sequence[Experience], how: Imitation, on_step: Callable[[int, int], None]
    ) -> float:
        """Maximise the likelihood of what was demonstrated; the result is also the reference."""
        loss = imitate(
            self.actor,
            demonstrations,
            how,
            seed=self.seed,
            micro_batch_tokens=self.settings.micro_batch_tokens,
            on_step=on_step,
        )
        self.refresh_reference()
        return loss

    def save_state(self, folder: Path) -> None:
        write_state(self, folder)

    def load_state(self, folder: Path) -> None:
        read_state(self, folder)

    def supervise(self, demonstrations: Sequence[Experience]) -> None:
        """Mix these into every optimizer step (`learn.ptx`)."""
        self._supervised = pack_without_credit(demonstrations)

    def refresh_reference(self) -> None:
        """Freeze the policy of this moment as the reference (after a warm start)."""
        if isinstance(self.reference, AdapterOffPolicy):
            fold_adapter(self.actor.model, seed=self.seed)
            self.is_base_folded = True
            # The moments it has kept belong to the adapters that were folded away.
            self.optimizer = self._make_optimizer()
        else:
            self.reference = _make_reference(self.settings.kl, self.actor)

    # --- before an update ----------------------------------------------------------------------------------------

    def _values(self, batch: Batch) -> FloatArray:
        assert self.critic is not None
        values = np.zeros(len(batch.token_ids), dtype=np.float32)
        for micro in self._micro_batches(batch, np.arange(batch.num_rows)):
            values[micro.source] = self.critic.values(micro, self.actor.states(micro)).float().cpu().numpy()
        return values

    def _logprobs(self, model: Reference, batch: Batch) -> FloatArray:
        logprobs = np.zeros(len(batch.token_ids), dtype=np.float32)
        for micro in self._micro_batches(batch, np.arange(batch.num_rows)):
            logprobs[micro.source] = model.score(micro).logprobs.cpu().numpy()
        return logprobs

    def _price_distance(self, batch: Batch, reference_logprobs: FloatArray) -> FloatArray | None:
        if self.kl_price is None:
            return None
        coef = self.kl_price.coef
        num_trajectories = int(batch.trajectory_of_row.max()) + 1
        penalties, distance = self.kl_price.charge(
            batch.behavior_logprobs, reference_logprobs, batch.loss_mask, num_trajectories=num_trajectories
        )
        self._charged = {"kl_coef": coef, "reference_kl": distance}
        return penalties

    @torch.no_grad()
    def _correct(self, batch: Batch, meter: _Meter) -> tuple[Batch, FloatArray]:
        """The batch with ratios taken against the policy of this moment, and what each token then weighs."""
        if isinstance(self.settings.correction, learning.NoCorrection):
            return batch, np.ones(len(batch.token_ids), dtype=np.float32)
        proximal = self._logprobs(self.actor, batch)
        weights = importance_weights(proximal, batch.behavior_logprobs, self.settings.correction)
        gaps = np.abs(proximal - batch.behavior_logprobs)[batch.loss_mask]
        meter.note("behavior_gap", float(gaps.mean()))
        meter.note("importance", float(weights[batch.loss_mask].mean()))
        return replace(batch, behavior_logprobs=proximal), weights

    # --- one optimizer step --------------------------------------------------------------------------------------

    def _update(
        self, batch: Batch, importance: FloatArray, rows: NDArray[np.int64], meter: _Meter, tracer: UpdateTracer
    ) -> None:
        weights = token_weights(batch, rows, self.settings.aggregation)
        num_tokens = int(np.count_nonzero(weights))
        if num_tokens == 0:
            return
        self.optimizer.zero_grad(set_to_none=True)
        for micro in self._micro_batches(batch, rows):
            with torch.set_grad_enabled(not self._is_critic_alone):
                scores = self.actor.score(micro)
            token_importance = torch.as_tensor(importance[micro.source], device=self._device)
            token_losses = self._token_losses(micro, scores, token_importance, num_tokens, meter, tracer)
            (token_losses * torch.as_tensor(weights[micro.source], device=self._device)).sum().backward()
            # Before the first optimizer step the policy is the one that sampled: the gap should be rounding only.
            if tracer.num_steps == 0 and isinstance(self.settings.correction, learning.NoCorrection):
                gap = (scores.logprobs.detach() - micro.behavior_logprobs).abs()
                meter.note("behavior_gap", float(gap.sum()) / num_tokens)
        self._add_supervised_gradient(meter)
        self._apply_gradients(meter)
        tracer.end_minibatch(rows)

    @property
    def _is_critic_alone(self) -> bool:
        critic = self.settings.critic
        return not isinstance(critic, learning.NoCritic) and self.policy_version < critic.warmup_steps

    def _add_supervised_gradient(self, meter: _Meter) -> None:
        ptx = self.settings.ptx
        if self._supervised is None or isinstance(ptx, learning.NoPtx) or self._is_critic_alone:
            return
        num_rows = self._supervised.num_rows
        rows = self.rng.choice(num_rows, size=min(ptx.batch_rows, num_rows), replace=False)
        loss = add_imitation_gradient(
            self.actor, self._supervised, rows, coef=ptx.coef, micro_batch_tokens=self.settings.micro_batch_tokens
        )
        meter.add("ptx_loss", torch.tensor(loss), 1)

    def _token_losses(
        self,
        micro: MicroBatch,
        scores: TokenScores,
        importance: Tensor,
        num_tokens: int,
        meter: _Meter,
        tracer: UpdateTracer,
    ) -> Tensor:
        """[N] everything that is minimised, token by token."""
        policy_loss, details = self._loss(scores.logprobs, micro.behavior_logprobs, micro.advantages, micro.turn)
        tracer.note(micro, scores, details)
        policy_loss = policy_loss * importance
        total = policy_loss - self.settings.entropy_coef * scores.entropies
        moved = scores.logprobs.detach() - micro.behavior_logprobs
        shown = details | {
            "policy_loss": policy_loss,
            "entropy": scores.entropies,
            "approx_kl": moved.exp() - 1 - moved,
        }
        if isinstance(self.settings.kl, learning.KlLoss):
            shown["reference_kl"] = estimate_kl(scores.logprobs, micro.reference_logprobs, self.settings.kl.estimator)
            total = total + self.settings.kl.coef * shown["reference_kl"]
        if self.critic is not None:
            shown["value_loss"] = self._value_loss(micro, scores)
            # A critic of its own has its own learning rate, so its weight in the sum is 1.
            total = total + getattr(self.settings.critic, "coef", 1.0) * shown["value_loss"]
        for name, per_token in shown.items():
            meter.add(name, per_token.detach().sum(), num_tokens)
        return total

    def _value_loss(self, micro: MicroBatch, scores: TokenScores) -> Tensor:
        assert self.critic is not None
        assert not isinstance(self.settings.critic, learning.NoCritic)
        values = self.critic.values(micro, scores.hidden)
        return value_loss(values, micro.values, micro.returns, self.settings.critic.clip)

    def _apply_gradients(self, meter: _Meter) -> None:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.optim.grad_clip)
        if not torch.isfinite(norm):
            raise LearnError(
                f"the gradient norm is {norm.item()}; the weights are left as they were. "
                "Lower learn.optim.lr, or look at learn/approx_kl and learn/ratio in metrics.jsonl."
            )
        self.optimizer.step()
        meter.add("grad_norm", norm, 1)
        meter.count_step()

    # --- parts ---------------------------------------------------------------------------------------------------

    def _micro_batches(self, batch: Batch, rows: NDArray[np.int64]) -> Iterator[MicroBatch]:
        return micro_batches(batch, rows, self.settings.micro_batch_tokens, self._device)

    def _make_optimizer(self) -> torch.optim.AdamW:
        actor = [p for p in self.actor.model.parameters() if p.requires_grad]
        critic = [p for p in self.critic.parameters() if p.requires_grad] if self.critic is not None else []
        optim = self.settings.optim
        if isinstance(self.settings.critic, learning.ModelCritic):
            share = self.settings.critic.lr / optim.lr
            groups = [{"params": actor, "share": 1.0}, {"params": critic, "share": share}]
        else:
            groups = [{"params": [*actor, *critic], "share": 1.0}]
        return torch.optim.AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), weight_decay=optim.weight_decay)

    def _set_learning_rate(self) -> None:
        share = learning_rate_share(self.settings.optim, self.policy_version, self.settings.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.optim.lr * share * group["share"]


class _Meter:
    """Sums over micro-batches, averaged over optimizer steps; notes are summed once per update."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._notes: defaultdict[str, float] = defaultdict(float)
        self._num_steps = 0

    def note(self, name: str, value: float) -> None:
        self._notes[name] += value

    def add(self, name: str, total: Tensor, count: int) -> None:
        self._sums[name] += float(total) / count

    def count_step(self) -> None:
        self._num_steps += 1

    def means(self) -> dict[str, float]:
        steps = max(self._num_steps, 1)
        return {name: total / steps for name, total in self._sums.items()} | dict(self._notes)


def _make_critic(
    settings: learning.NoCritic | learning.ValueHeadCritic | learning.ModelCritic, actor: PolicyModel
) -> Critic | None:
    match settings:
        case learning.NoCritic():
            return None
        case learning.ValueHeadCritic():
            return TrunkCritic(actor.model).to(actor.model.device)
        case learning.ModelCritic():
            return ModelCritic(actor.model, actor.dtype).to(actor.model.device)


def _make_reference(
    settings: learning.NoKl | learning.KlLoss | learning.KlReward, actor: PolicyModel
) -> Reference | None:
    if isinstance(settings, learning.NoKl):
        return None
    if has_adapter(actor.model):
        return AdapterOffPolicy(actor)
    frozen = copy.deepcopy(actor.model).eval().requires_grad_(False)
    if actor.dtype == torch.bfloat16:
        cast_parameters(frozen, actor.dtype)
    return PolicyModel(frozen, actor.temperature)


def _batch_metrics(batch: Batch) -> dict[str, float]:
    mask = batch.loss_mask
    returns, values = batch.returns[mask], batch.values[mask]
    spread = float(returns.var())
    explained = 1 - float((returns - values).var()) / spread if spread > 0 else 0.0
    return {
        "tokens": float(len(batch.token_ids)),
        "action_tokens": float(mask.sum()),
        "rows": float(batch.num_rows),
        "mean_return": float(returns.mean()),
        "explained_variance": explained,
    }


def _split(flat: FloatArray | None, batch: Batch) -> tuple[FloatArray, ...] | None:
    return None if flat is None else tuple(np.split(flat, batch.row_starts[1:-1]))
