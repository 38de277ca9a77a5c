"""Samples become gradients: PPO epochs over one batch, with optional critic, reference model and entropy bonus.

In: a Batch. Out: new weights and a StepReport. Losses are sums over tokens divided by a count over the whole
mini-batch, so neither packing nor the micro-batch budget nor the number of ranks changes the result. It knows nothing
of text, environments or how advantages came about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise.config import schema_learn as learning
from turnwise.config.schema import Lora, ModelSettings
from turnwise.deps import LearnerSite
from turnwise.errors import LearnError
from turnwise.infra.process_state import trim_memory
from turnwise.learn.checkpoint import read_state, write_state
from turnwise.learn.losses import estimate_kl, value_loss
from turnwise.learn.optimizer import make_adamw, make_optimizer, set_learning_rate
from turnwise.learn.pack import MicroBatch, count_sampled, pack_without_credit, split_rows, token_weights
from turnwise.learn.parallel_context import ParallelContext
from turnwise.learn.policy import (
    AdapterOffPolicy,
    AdaptiveKLController,
    ModelCritic,
    PolicyModel,
    Reference,
    TokenScores,
    freeze,
    make_critic,
    make_reference,
    zero_loss_pass,
)
from turnwise.learn.update import (
    MetricAccumulator,
    UpdateTracer,
    batch_metrics,
    has_no_gradient_at_zero_advantage,
    importance_weights,
    rows_with_gradient,
    validate_batch,
)
from turnwise.models.activations import micro_batch_limit
from turnwise.models.adapters import MergedWeights, add_adapter, fold_adapter, has_adapter, loaded_type
from turnwise.models.load import (
    checkpoint_gradients,
    checkpointed_layers,
    chosen_device,
    load_model,
    read_whole,
    torch_dtype,
)
from turnwise.protocols import PolicyLoss, SFTConfig, Weights
from turnwise.types import Annotations, Batch, Experience, FloatArray, IntArray, StepReport


def imitate(
    actor: PolicyModel,
    demonstrations: Sequence[Experience],
    how: SFTConfig,
    *,
    seed: int,
    micro_batch_tokens: int,
    team: ParallelContext | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> float:
    """Maximise the likelihood of the demonstrated tokens; returns the last step's mean loss per token."""
    team = team or ParallelContext(actor.model.device)
    batch = pack_without_credit(demonstrations)
    rng = np.random.default_rng(seed)
    trained = [p for p in actor.model.parameters() if p.requires_grad]
    optimizer = make_adamw([{"params": trained}], lr=how.lr, betas=(0.9, 0.95), weight_decay=0.0)
    loss = 0.0
    for step in range(how.steps):
        rows = rng.choice(batch.num_rows, size=min(how.batch_rows, batch.num_rows), replace=False)
        loss = add_imitation_gradient(actor, batch, rows, coef=1.0, micro_batch_tokens=micro_batch_tokens, team=team)
        team.sum_gradients(trained)
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_step is not None:
            on_step(step + 1, how.steps)
    return team.sum_numbers({"loss": loss})["loss"]


def add_imitation_gradient(
    actor: PolicyModel,
    batch: Batch,
    rows: NDArray[np.int64],
    *,
    coef: float,
    micro_batch_tokens: int,
    team: ParallelContext,
) -> float:
    """Add the gradient of `coef` times the mean loss per token of these rows; returns the bare mean loss.

    Both are this rank's share of them.
    """
    num_tokens = count_sampled(batch, rows)
    loss = 0.0
    for micro in team.micro_batches(batch, rows, micro_batch_tokens, enable_prefix_sharing=actor.enable_prefix_sharing):
        part = -actor.score(micro).logprobs.sum() / num_tokens
        (coef * part).backward()
        loss += float(part.detach())
    return loss


_LARGE_BYTES = 100_000_000
"""Weights of a model whose activations are worth giving back before a rollout."""
_PLAIN = ModelSettings()
"""Every weight trained, in float32."""


class Trainer:
    """`learn.type: ppo`: actor, optional critic and reference, one optimizer."""

    takes_team = True
    """`open` may be given the ranks that learn together with this one (`learn.parallel`)."""

    @classmethod
    def open(cls, settings: learning.LearnSettings, site: LearnerSite, team: ParallelContext | None = None) -> Trainer:
        team = team or ParallelContext(chosen_device(settings.device, "learn.device"))
        return cls(
            load_model(site.model_path, dtype=loaded_type(site.model), device=team.loads_on),
            settings,
            site.loss,
            temperature=site.temperature,
            seed=site.seed,
            model_settings=site.model,
            team=team,
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
        team: ParallelContext | None = None,
    ) -> None:
        self.team = team or ParallelContext(model.device)
        self.settings = settings
        self.seed = seed
        if isinstance(model_settings.lora, Lora):
            add_adapter(model, model_settings.lora, seed=seed, frozen_in=loaded_type(model_settings))
        # Without dropout: the policy that is trained must be the one that sampled.
        self.actor = PolicyModel(model.eval(), temperature, torch_dtype(model_settings.dtype))
        self.critic = make_critic(settings.critic, self.actor)
        self.reference = make_reference(settings, self.actor)
        self.is_base_folded = False
        """Whether the frozen weights beside the adapters are no longer those of `model.path`."""
        self._pass_size = micro_batch_limit(model.config, model_settings, settings, self.team.device)
        above = self._pass_size.checkpoint_above
        if above is not None and (model_settings.gradient_checkpointing is True or checkpointed_layers(model)):
            checkpoint_gradients(model, above_tokens=above)
            if isinstance(self.critic, ModelCritic):
                checkpoint_gradients(self.critic.trunk, above_tokens=above)
        self.kl_price = AdaptiveKLController(settings.kl) if isinstance(settings.kl, learning.KlReward) else None
        self.policy_version = 0
        self.rng = np.random.default_rng(seed)
        self._loss = loss
        self._is_silent_at_zero = has_no_gradient_at_zero_advantage(loss, settings)
        self._supervised: Batch | None = None
        self._charged: dict[str, float] = {}
        self._device = self.team.device
        self._is_large = model.get_memory_footprint() >= _LARGE_BYTES
        self._hand_over()
        self.optimizer = self._make_optimizer()

    # --- what others ask of it -----------------------------------------------------------------------------------

    @property
    def model(self) -> PreTrainedModel:
        """The policy itself, for an engine of this process that samples from it in place."""
        return self.actor.model

    def weights(self) -> Weights:
        """The policy's weights under the names of the plain model; adapters are merged tensor by tensor, when asked."""
        weights = MergedWeights(self.model) if has_adapter(self.model) else self.model.state_dict()
        return self.team.gather(weights, self.model)

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
            values=split_rows(values, batch),
            reference_logprobs=split_rows(reference, batch),
            token_penalties=split_rows(penalties, batch),
        )

    @torch.no_grad()
    def logprobs_of(self, experiences: Sequence[Experience], of: str = "policy") -> Sequence[FloatArray]:
        """What the policy of this moment, or its `reference`, makes of stored tokens; asking changes nothing."""
        batch, model = pack_without_credit(experiences), {"policy": self.actor, "reference": self.reference}[of]
        return split_rows(self._logprobs(model, batch) if model else batch.advantages, batch) or ()

    def score(self, token_ids: IntArray) -> FloatArray:
        """How likely the policy of this moment finds each token after the first, at temperature 1."""
        ids = torch.as_tensor(token_ids, dtype=torch.long, device=self._device)
        return self.actor.score_text(ids).float().cpu().numpy()

    # In a thread whose gradients an environment may have switched off.
    @torch.enable_grad()
    def step(self, batch: Batch) -> StepReport:
        """One update: `epochs` passes over the batch in `minibatches` optimizer steps each."""
        validate_batch(batch)
        meter = MetricAccumulator(self.team)
        self._return_freed_memory()
        set_learning_rate(self.optimizer, self.settings, self.policy_version)
        if len(self._rows_that_teach(batch, np.arange(batch.num_rows))) == 0:
            meter.note("policy_loss", 0.0)
            meter.note("grad_norm", 0.0)
            return self._report(batch, meter, None)
        batch, importance = self._correct(batch, meter)
        is_corrected = not isinstance(self.settings.correction, learning.NoCorrection)
        proximal = batch.behavior_logprobs if is_corrected else None
        tracer = UpdateTracer(batch, num_epochs=self.settings.epochs, proximal_logprobs=proximal)
        for epoch in range(self.settings.epochs):
            tracer.begin_epoch(epoch)
            order = self.rng.permutation(batch.num_rows)
            for rows in np.array_split(order, min(self.settings.minibatches, len(order))):
                self._update(batch, importance, rows, meter, tracer)
        self._return_freed_memory()
        return self._report(batch, meter, tracer)

    def _report(self, batch: Batch, meter: MetricAccumulator, tracer: UpdateTracer | None) -> StepReport:
        """Without a tracer the update was skipped: weights and optimizer stay, and it counts as one all the same.

        So the schedule, the staleness of samples and the loops are those of a run in which it was made.
        """
        self.policy_version += 1
        how = {"lr": self.optimizer.param_groups[0]["lr"], "skipped": float(tracer is None)}
        metrics = self._charged | meter.means() | batch_metrics(batch) | how
        return StepReport(
            policy_version=self.policy_version,
            metrics={f"learn/{name}": value for name, value in metrics.items()},
            trace=tracer.finish(self.team) if tracer is not None else None,
        )

    @torch.enable_grad()
    def imitate(
        self, demonstrations: Sequence[Experience], how: SFTConfig, on_step: Callable[[int, int], None]
    ) -> float:
        """Maximise the likelihood of what was demonstrated; the result is also the reference."""
        loss = imitate(
            self.actor,
            demonstrations,
            how,
            seed=self.seed,
            micro_batch_tokens=self._pass_size.micro_batch_tokens,
            team=self.team,
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
        elif self.reference is not None:
            freeze(self.reference, self.model)

    # --- before an update ----------------------------------------------------------------------------------------

    def _values(self, batch: Batch) -> FloatArray:
        assert self.critic is not None
        values = np.zeros(len(batch.token_ids), dtype=np.float32)
        for micro in self._micro_batches(batch, np.arange(batch.num_rows)):
            values[micro.source] = self.critic(micro, self.actor.states(micro)).float().cpu().numpy()
        return self.team.sum_array(values)

    def _logprobs(self, model: Reference, batch: Batch) -> FloatArray:
        logprobs = np.zeros(len(batch.token_ids), dtype=np.float32)
        with model.loaded():
            for micro in self._micro_batches(batch, np.arange(batch.num_rows)):
                logprobs[micro.source] = model.score(micro).logprobs.cpu().numpy()
        return self.team.sum_array(logprobs)

    def _price_distance(self, batch: Batch, reference_logprobs: FloatArray) -> FloatArray | None:
        if self.kl_price is None:
            return None
        coef, count = self.kl_price.coef, int(batch.trajectory_of_row.max()) + 1
        penalties, distance = self.kl_price.charge(
            batch.behavior_logprobs, reference_logprobs, batch.loss_mask, num_trajectories=count
        )
        self._charged = {"kl_coef": coef, "reference_kl": distance}
        return penalties

    @torch.no_grad()
    def _correct(self, batch: Batch, meter: MetricAccumulator) -> tuple[Batch, FloatArray]:
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
        self,
        batch: Batch,
        importance: FloatArray,
        rows: NDArray[np.int64],
        meter: MetricAccumulator,
        tracer: UpdateTracer,
    ) -> None:
        weights = token_weights(batch, rows, self.settings.aggregation)  # of all rows, whichever have a gradient
        scored = self._rows_that_teach(batch, rows)
        num_tokens = sum(int(np.count_nonzero(weights[slice(*batch.row_starts[row : row + 2])])) for row in scored)
        if num_tokens == 0:
            return
        self.optimizer.zero_grad(set_to_none=True)
        for micro in self._micro_batches(batch, scored):
            with torch.set_grad_enabled(not self._is_critic_alone):
                scores = self.actor.score(micro)
            if micro.num_action_tokens == 0:
                zero_loss_pass(micro, scores, self.critic)
                continue
            weight, share = (torch.as_tensor(a[micro.source], device=self._device) for a in (importance, weights))
            token_losses = self._token_losses(micro, scores, weight, num_tokens, meter, tracer) * share
            tracer.note_losses(micro, token_losses)
            token_losses.sum().backward()
            # Before the first optimizer step the policy is the one that sampled: the gap should be rounding only.
            if tracer.num_steps == 0 and isinstance(self.settings.correction, learning.NoCorrection):
                gap = (scores.logprobs.detach() - micro.behavior_logprobs).abs()
                meter.note_share("behavior_gap", float(gap.sum()) / num_tokens)
        self._add_supervised_gradient(meter)
        self._apply_gradients(meter)
        tracer.end_minibatch(rows)

    def _rows_that_teach(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows_with_gradient(batch, rows) if self._is_silent_at_zero else rows

    @property
    def _is_critic_alone(self) -> bool:
        critic = self.settings.critic
        return not isinstance(critic, learning.NoCritic) and self.policy_version < critic.warmup_steps

    def _add_supervised_gradient(self, meter: MetricAccumulator) -> None:
        ptx = self.settings.ptx
        if self._supervised is None or isinstance(ptx, learning.NoPtx) or self._is_critic_alone:
            return
        num_rows = self._supervised.num_rows
        rows = self.rng.choice(num_rows, size=min(ptx.batch_rows, num_rows), replace=False)
        loss = add_imitation_gradient(
            self.actor,
            self._supervised,
            rows,
            coef=ptx.coef,
            micro_batch_tokens=self._pass_size.micro_batch_tokens,
            team=self.team,
        )
        meter.add_share("ptx_loss", torch.tensor(loss), 1)

    def _token_losses(
        self,
        micro: MicroBatch,
        scores: TokenScores,
        importance: Tensor,
        num_tokens: int,
        meter: MetricAccumulator,
        tracer: UpdateTracer,
    ) -> Tensor:
        """[N] everything that is minimised, token by token."""
        policy_loss, details = self._loss(scores.logprobs, micro.behavior_logprobs, micro.advantages, micro.turn)
        tracer.note(micro, scores, details)
        policy_loss = policy_loss * importance
        total = policy_loss
        if self.settings.entropy_coef:
            total = total - self.settings.entropy_coef * scores.entropies
        moved = scores.logprobs.detach() - micro.behavior_logprobs
        shown = details | {
            "policy_loss": policy_loss,
            "entropy": scores.entropies,
            "approx_kl": moved.exp() - 1 - moved,
        }
        if isinstance(self.settings.kl, learning.KlLoss):
            shown["reference_kl"] = estimate_kl(scores.logprobs, micro.reference_logprobs, self.settings.kl.estimator)
            tracer.note_distances(micro, shown["reference_kl"])
            total = total + self.settings.kl.coef * shown["reference_kl"]
        if self.critic is not None:
            shown["value_loss"] = self._value_loss(micro, scores)
            # A critic of its own has its own learning rate, so its weight in the sum is 1.
            total = total + getattr(self.settings.critic, "coef", 1.0) * shown["value_loss"]
        for name, per_token in shown.items():
            meter.add_share(name, per_token.detach().sum(), num_tokens)
        return total

    def _value_loss(self, micro: MicroBatch, scores: TokenScores) -> Tensor:
        assert self.critic is not None
        assert not isinstance(self.settings.critic, learning.NoCritic)
        values = self.critic(micro, scores.hidden)
        return value_loss(values, micro.values, micro.returns, self.settings.critic.clip)

    def _apply_gradients(self, meter: MetricAccumulator) -> None:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.team.sum_gradients(parameters)
        norm = read_whole(nn.utils.clip_grad_norm_(parameters, self.settings.optim.grad_clip))
        if not torch.isfinite(norm):
            raise LearnError(
                f"the gradient norm is {norm.item()}; the weights are left as they were. "
                "Lower learn.optim.lr, or look at learn/approx_kl and learn/ratio in metrics.jsonl."
            )
        self.optimizer.step()
        # Not needed before the next update; a rollout can use their memory.
        self.optimizer.zero_grad(set_to_none=True)
        meter.count_step(norm)

    def _return_freed_memory(self) -> None:
        """Rollout and update leave each other what they no longer need; a small model has nothing to speak of."""
        if self._is_large:
            trim_memory()

    # --- parts ---------------------------------------------------------------------------------------------------

    def _micro_batches(self, batch: Batch, rows: NDArray[np.int64]) -> Iterator[MicroBatch]:
        tokens, shares = self._pass_size.micro_batch_tokens, self.actor.enable_prefix_sharing
        for micro in self.team.micro_batches(batch, rows, tokens, enable_prefix_sharing=shares):
            yield micro
            # What one pass leaves scattered would make the next one grow.
            self._return_freed_memory()

    def _hand_over(self) -> None:
        """The team takes the models over, before there is an optimizer of what they then consist of."""
        self.team.hold(self.actor.entry, self.actor.dtype)
        if self.critic is not None:
            self.team.hold(self.critic, self.actor.dtype)
        if isinstance(self.reference, PolicyModel):
            self.team.hold(self.reference.entry, self.reference.dtype)

    def _make_optimizer(self) -> torch.optim.AdamW:
        actor = [p for p in self.actor.model.parameters() if p.requires_grad]
        critic = [p for p in self.critic.parameters() if p.requires_grad] if self.critic is not None else []
        return make_optimizer(actor, critic, self.settings)
