"""The models as the learner sees them: scores of sampled tokens, never a full table of logits.

In: a micro-batch. Out: log-probs, entropies and values at the sampled tokens. Rows are padded on the right, so causal
attention alone keeps real tokens from seeing padding and no mask is needed. Trunk and output layer may compute in
bfloat16; softmax and values are float32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise.config import schema_learn as learning
from turnwise.errors import ModelError
from turnwise.learn.families import run_families, shares_prompts
from turnwise.learn.head import Head
from turnwise.learn.head import computing_in as _computing_in
from turnwise.learn.pack import MicroBatch
from turnwise.models.load import ValueHead


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """Over the N sampled tokens of a micro-batch."""

    logprobs: Tensor
    entropies: Tensor
    hidden: Tensor
    """[N, hidden] the trunk's state from which each token was predicted."""


class Entry(nn.Module):
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
        self.entry = Entry(model)
        self.temperature = temperature
        self.dtype = dtype
        self._head = Head(layer=_head(model), temperature=temperature, dtype=dtype, cap=_logit_cap(model))
        self.shares_prompts = shares_prompts(model)
        """Whether rows may be given as families."""

    def at_hand(self, *, changing: bool = False) -> AbstractContextManager[None]:
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
        with _computing_in(self.dtype, token_ids.device):
            states = trunk(input_ids=token_ids[None], use_cache=False).last_hidden_state[0, :-1]
        return replace(self._head, temperature=1.0).score(states, token_ids[1:])[0]


def predicting_states(model: PreTrainedModel, micro: MicroBatch, dtype: torch.dtype = torch.float32) -> Tensor:
    """[N, hidden] the trunk's last state one position before each sampled token."""
    trunk = cast(nn.Module, model.base_model)
    with _computing_in(dtype, micro.input_ids.device):
        if micro.families is None:
            states = trunk(input_ids=micro.input_ids, use_cache=False).last_hidden_state
        else:
            assert micro.positions is not None
            states = run_families(trunk, micro.input_ids, micro.positions, micro.families)
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


def pass_idly(micro: MicroBatch, scores: TokenScores, critic: nn.Module | None) -> None:
    """The same way back without a token to learn from: no loss is asked about nothing."""
    total = scores.logprobs.sum()
    if critic is not None:
        total = total + critic(micro, scores.hidden).sum()
    total.backward()
