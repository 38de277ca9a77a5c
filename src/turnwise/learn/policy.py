"""The models as the learner sees them: scores of sampled tokens, never a full table of logits.

In: a micro-batch. Out: log-probs, entropies and values at the sampled tokens. Rows are padded on the right, so causal
attention alone keeps real tokens from seeing padding and no mask is needed. Trunk and output layer may compute in
bfloat16; softmax and values are float32.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from turnwise.config import schema_learn as learning
from turnwise.config.schema_learn import KlReward, is_offloaded
from turnwise.errors import ModelError
from turnwise.learn.losses import estimate_kl
from turnwise.learn.pack import MicroBatch
from turnwise.learn.prefix_sharing import enable_prefix_sharing, forward_shared
from turnwise.models.adapters import adapter_off, has_adapter
from turnwise.models.load import ValueHead, cache_folder, cast_parameters
from turnwise.models.memory import MAX_LOGITS
from turnwise.types import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """How states become logits."""

    layer: nn.Module
    temperature: float
    dtype: torch.dtype = torch.float32
    """In which the product is computed."""
    cap: float | None = None
    """Where the model squeezes its logits between -cap and cap."""

    def score(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """[N] log-probs and [N] entropies for `hidden` [N, hidden] and `targets` [N]."""
        layer = self.layer
        num_rows = rows_at_once(getattr(layer, "out_features", None) or self.logits(hidden[:1]).shape[-1])
        if len(hidden) <= num_rows:
            return self._score_kept(hidden, targets)
        if isinstance(layer, nn.Linear) and layer.bias is None and self.cap is None:
            return _Scores.apply(hidden, layer.weight, targets, self, num_rows)  # type: ignore[return-value]
        parts = [
            checkpoint(self._score_kept, h, t, use_reentrant=False)
            for h, t in zip(hidden.split(num_rows), targets.split(num_rows), strict=True)
        ]
        logprobs, entropies = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def logits(self, hidden: Tensor) -> Tensor:
        with computing_in(self.dtype, hidden.device):
            logits = self.layer(hidden)
        # Half precision loses the tail of a softmax.
        logits = logits.float() if logits.dtype.itemsize < 4 else logits
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def _score_kept(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        table = torch.log_softmax(self.logits(hidden) / self.temperature, dim=-1)
        logprobs = table.gather(1, targets[:, None]).squeeze(1)
        return logprobs, -(table.exp() * table).sum(dim=-1)


def rows_at_once(vocab_size: int) -> int:
    """How many tokens' logits are in memory at a time."""
    return max(1, MAX_LOGITS // vocab_size)


def computing_in(dtype: torch.dtype, device: torch.device) -> torch.autocast:
    """Matrix products in bfloat16 over float32 weights; with float32 everything is as the weights are."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def _chunks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


def _shifted_logits(head: Head, hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits less the largest of their row, which no softmax sees."""
    with computing_in(head.dtype, hidden.device):
        table = F.linear(hidden, weight)
    table = table.float() if table.dtype.itemsize < 4 else table
    table = table.div_(head.temperature)
    return table.sub_(table.amax(dim=-1, keepdim=True))


def _to_logits(
    table: Tensor, targets: Tensor, entropies: Tensor, of_logprob: Tensor | None, of_entropy: Tensor | None
) -> Tensor:
    """The gradient at tempered logits, in the memory of `table`, which holds them shifted.

    With p the distribution and H its entropy: d log p[t] = 1[t] - p, and d H = -p (log p + H).
    """
    logprobs = table.sub_(table.logsumexp(dim=-1, keepdim=True))
    if of_entropy is None:
        table = logprobs.exp_().mul_(0 if of_logprob is None else -of_logprob[:, None])
    else:
        slope = logprobs + entropies[:, None]
        slope.mul_(of_entropy[:, None])
        if of_logprob is not None:
            slope.add_(of_logprob[:, None])
        table = logprobs.exp_().mul_(slope).neg_()
    if of_logprob is not None:
        table[torch.arange(len(table), device=table.device), targets] += of_logprob
    return table


class _Scores(torch.autograd.Function):
    """The same numbers as `Head._score_kept`, of more tokens than their logits could be kept for."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, head: Head, num_rows: int) -> Any:
        logprobs, entropies = [], []
        for rows in _chunks(len(hidden), num_rows):
            table = _shifted_logits(head, hidden[rows], weight)
            chosen = table.gather(1, targets[rows, None]).squeeze(1)
            powers = table.exp()
            total = powers.sum(dim=-1)
            logprobs.append(chosen - total.log())
            entropies.append(total.log() - powers.mul_(table).sum(dim=-1) / total)
        ctx.save_for_backward(hidden, weight, targets, torch.cat(entropies))
        ctx.head, ctx.num_rows = head, num_rows
        ctx.set_materialize_grads(False)
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        hidden, weight, targets, entropies = ctx.saved_tensors
        to_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for rows in _chunks(len(hidden), ctx.num_rows):
            own = [None if gradient is None else gradient[rows] for gradient in gradients]
            table = _shifted_logits(ctx.head, hidden[rows], weight)
            table = _to_logits(table, targets[rows], entropies[rows], *own).div_(ctx.head.temperature)
            table = table.to(ctx.head.dtype)
            if to_hidden is not None:
                to_hidden[rows] = table @ weight.to(ctx.head.dtype)
            if to_weight is not None and table.dtype == torch.float32:
                to_weight.addmm_(table.t(), hidden[rows])
            elif to_weight is not None:
                to_weight += table.t() @ hidden[rows].to(ctx.head.dtype)
        return to_hidden, None if to_weight is None else to_weight.to(weight.dtype), None, None, None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """Over the N sampled tokens of a micro-batch."""

    logprobs: Tensor
    entropies: Tensor
    hidden: Tensor
    """[N, hidden] the trunk's state from which each token was predicted."""


class ForwardWrapper(nn.Module):
    """The way into a model: whatever reads its weights in a pass is called through here.

    Where they lie in pieces, they are put together for such a call; a call of a part of the model would miss that.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, read: Callable[..., Any], given: Any) -> Any:
        """`read` returns a tensor, or a tuple of tensors."""
        return read(given)


class PolicyModel:
    """A causal language model split into trunk and head, so that the head runs at sampled tokens only."""

    def __init__(self, model: PreTrainedModel, temperature: float, dtype: torch.dtype = torch.float32) -> None:
        self.model = model
        self.entry = ForwardWrapper(model)
        self.temperature = temperature
        self.dtype = dtype
        self._head = Head(layer=_head(model), temperature=temperature, dtype=dtype, cap=_logit_cap(model))
        self.enable_prefix_sharing = enable_prefix_sharing(model)
        """Whether rows may be given as families."""

    def loaded(self, *, changing: bool = False) -> AbstractContextManager[None]:
        """Within, it can be asked; and given other weights, if `changing`."""
        return nullcontext()

    def states(self, micro: MicroBatch) -> Tensor:
        """[N, hidden] the trunk's states from which the sampled tokens were predicted."""
        return self.entry(self._read_states, micro)

    def score(self, micro: MicroBatch) -> TokenScores:
        logprobs, entropies, hidden = self.entry(self._read_scores, micro)
        return TokenScores(logprobs=logprobs, entropies=entropies, hidden=hidden)

    @torch.no_grad()
    def score_text(self, token_ids: Tensor) -> Tensor:
        """[N - 1] log-probs of all tokens of one row but the first, at temperature 1."""
        return self.entry(self._read_text, token_ids)

    def _read_states(self, micro: MicroBatch) -> Tensor:
        return predicting_states(self.model, micro, self.dtype)

    def _read_scores(self, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self._read_states(micro)
        return *self._head.score(hidden, micro.targets), hidden

    def _read_text(self, token_ids: Tensor) -> Tensor:
        trunk = cast(nn.Module, self.model.base_model)
        with computing_in(self.dtype, token_ids.device):
            states = trunk(input_ids=token_ids[None], use_cache=False).last_hidden_state[0, :-1]
        return replace(self._head, temperature=1.0).score(states, token_ids[1:])[0]


def predicting_states(model: PreTrainedModel, micro: MicroBatch, dtype: torch.dtype = torch.float32) -> Tensor:
    """[N, hidden] the trunk's last state one position before each sampled token."""
    trunk = cast(nn.Module, model.base_model)
    with computing_in(dtype, micro.input_ids.device):
        if micro.families is None:
            states = trunk(input_ids=micro.input_ids, use_cache=False).last_hidden_state
        else:
            assert micro.positions is not None
            states = forward_shared(trunk, micro.input_ids, micro.positions, micro.families)
    return states.flatten(0, 1)[micro.state]


def _head(model: PreTrainedModel) -> nn.Module:
    return cast(nn.Module, model.get_output_embeddings())


def _logit_cap(model: PreTrainedModel) -> float | None:
    """Prove on a probe that head(trunk(x)), or that squeezed, gives the model's own logits."""
    ids = torch.arange(1, 6, device=model.device)[None]
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        plain = _head(model)(cast(nn.Module, model.base_model)(input_ids=ids).last_hidden_state)
    if torch.allclose(whole, plain, atol=1e-4):
        return None
    if cap := getattr(model.config.get_text_config(), "final_logit_softcapping", None):
        return float(cap)
    raise ModelError(
        f"{type(model).__name__} changes its logits behind the output layer in a way turnwise does not know; "
        "its log-probs would be wrong."
    )


class TrunkCritic(nn.Module):
    """`learn.critic: {type: value_head}`: values read off the actor's own trunk."""

    def __init__(self, actor: PreTrainedModel) -> None:
        super().__init__()
        self.head = ValueHead(actor.config.get_text_config().hidden_size)

    def forward(self, micro: MicroBatch, actor_hidden: Tensor) -> Tensor:
        return self.head(actor_hidden)


class ModelCritic(nn.Module):
    """`learn.critic: {type: model}`: a model of its own, starting from the actor's weights."""

    def __init__(self, actor: PreTrainedModel, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
        self.trunk = copy.deepcopy(actor)
        self.head = ValueHead(actor.config.get_text_config().hidden_size)

    def forward(self, micro: MicroBatch, actor_hidden: Tensor) -> Tensor:
        return self.head(predicting_states(self.trunk, micro, self.dtype))


Critic = TrunkCritic | ModelCritic
"""Called with a micro-batch and the actor's states, it gives the values of the sampled tokens."""


def make_critic(
    settings: learning.NoCritic | learning.ValueHeadCritic | learning.ModelCritic, actor: PolicyModel
) -> Critic | None:
    match settings:
        case learning.NoCritic():
            return None
        case learning.ValueHeadCritic():
            return TrunkCritic(actor.model).to(actor.model.device)
        case learning.ModelCritic():
            return ModelCritic(actor.model, actor.dtype).to(actor.model.device)


def zero_loss_pass(micro: MicroBatch, scores: TokenScores, critic: nn.Module | None) -> None:
    """The same way back without a token to learn from: no loss is asked about nothing."""
    total = scores.logprobs.sum()
    if critic is not None:
        total = total + critic(micro, scores.hidden).sum()
    total.backward()


class AdapterOffPolicy:
    """The reference of an actor with adapters: the actor itself with its adapters switched off, so no second model."""

    def __init__(self, actor: PolicyModel) -> None:
        self._actor = actor
        self.loaded = actor.loaded

    @torch.no_grad()
    def score(self, micro: MicroBatch) -> TokenScores:
        with adapter_off(self._actor.model):
            return self._actor.score(micro)


class OffloadedPolicy(PolicyModel):
    """Frozen. Outside of `loaded` its parameters are empty, and a question would fail."""

    def __init__(self, model: PreTrainedModel, temperature: float) -> None:
        super().__init__(model, temperature)
        cache_folder().mkdir(parents=True, exist_ok=True)
        # Without a name: it ends with the process, however that ends. Not in the system's folder for temporary files,
        # which may itself be memory.
        self._file: Any = tempfile.TemporaryFile(dir=cache_folder())  # noqa: SIM115 - open as long as it lives
        self._put_away(changed=True)

    @contextmanager
    def loaded(self, *, changing: bool = False) -> Iterator[None]:
        self._file.seek(0)
        stored: dict[str, Tensor] = torch.load(self._file, map_location=self.model.device, weights_only=True)
        for name, parameter in self.model.named_parameters():
            parameter.data = stored.pop(name)
        try:
            yield
        finally:
            self._put_away(changed=changing)

    def _put_away(self, *, changed: bool) -> None:
        parameters = dict(self.model.named_parameters())
        if changed:
            self._file.seek(0)
            self._file.truncate()
            torch.save({name: parameter.data for name, parameter in parameters.items()}, self._file)
            self._file.flush()
        for parameter in parameters.values():
            parameter.data = parameter.data.new_empty(0)


Reference = PolicyModel | AdapterOffPolicy


def make_reference(settings: learning.LearnSettings, actor: PolicyModel) -> Reference | None:
    if isinstance(settings.kl, learning.NoKl):
        return None
    if has_adapter(actor.model):
        return AdapterOffPolicy(actor)
    frozen = copy.deepcopy(actor.model).eval().requires_grad_(False)
    if actor.dtype == torch.bfloat16:
        cast_parameters(frozen, actor.dtype)
    make = OffloadedPolicy if is_offloaded(settings) else PolicyModel
    return make(frozen, actor.temperature)


def freeze(reference: PolicyModel, policy: PreTrainedModel) -> None:
    """The reference is from now on what the policy is at this moment."""
    with reference.loaded(changing=True), torch.no_grad():
        for frozen, own in zip(reference.model.parameters(), policy.parameters(), strict=True):
            frozen.copy_(own)


_MAX_CHANGE = 0.2
"""The largest relative error that moves an adaptive price (Ziegler et al., arXiv 1909.08593)."""


class AdaptiveKLController:
    """What a nat of distance costs now."""

    def __init__(self, settings: KlReward) -> None:
        self._settings = settings
        self.coef = settings.coef

    def charge(
        self,
        behavior_logprobs: FloatArray,
        reference_logprobs: FloatArray,
        loss_mask: BoolArray,
        *,
        num_trajectories: int,
    ) -> tuple[FloatArray, float]:
        """Penalties per token at the price of this moment, and the mean distance; the price adapts afterwards."""
        behavior, reference = torch.as_tensor(behavior_logprobs), torch.as_tensor(reference_logprobs)
        distance = estimate_kl(behavior, reference, self._settings.estimator).numpy() * loss_mask
        penalties = (-self.coef * distance).astype(np.float32)
        mean = float(distance.sum() / max(int(loss_mask.sum()), 1))
        self._adapt(mean, num_trajectories)
        return penalties, mean

    def _adapt(self, mean_distance: float, num_trajectories: int) -> None:
        if self._settings.target is None:
            return
        error = min(max(mean_distance / self._settings.target - 1, -_MAX_CHANGE), _MAX_CHANGE)
        self.coef *= 1 + error * num_trajectories / self._settings.horizon
