"""The forward pass of Llama-shaped models (Llama, Qwen2) in as few operations as possible.

In: new tokens and the plan of their pass. Out: the logits behind each row's last token. Small models on a CPU
spend most of a decoding step between operations, so projections that read the same input are one matrix each, and the
output layer runs at the last token only. Weights stay those of the Hugging Face model, adapters included. The engine
proves the result against the model's own forward pass before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from turnwise.engine.kv_pool import AttentionPlan, BlockLayer, BlockPool, attend


@dataclass(frozen=True, slots=True, eq=False)
class _LowRank:
    """The adapter of one of the layers: which columns of the input's low-rank image it takes and where it adds."""

    ranks: slice
    outputs: slice
    up: Tensor
    scale: float


class Projection:
    """`y = x W + b`, and where layers are adapted `+ scale (x A) B` in their part of y."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        plain: list[Any] = [getattr(layer, "base_layer", layer) for layer in layers]
        self.weight = _joined([layer.weight for layer in plain])
        self.bias = _joined([layer.bias for layer in plain]) if plain[0].bias is not None else None
        adapters = [_adapter(layer) for layer in layers]
        downs = [down for down, _, _ in filter(None, adapters)]
        self._down = _joined(downs) if downs else None
        self._low_ranks = list(_place(adapters, [len(layer.weight) for layer in plain]))

    def __call__(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        if self._down is not None:
            inner = F.linear(x, self._down).flatten(0, -2)
            rows = y.view(-1, y.shape[-1])
            for part in self._low_ranks:
                rows[:, part.outputs].addmm_(inner[:, part.ranks], part.up.t(), alpha=part.scale)
        return y


def _adapter(layer: Any) -> tuple[Tensor, Tensor, float] | None:
    """Down and up matrix and scale of an adapted layer, as peft keeps them."""
    if not hasattr(layer, "lora_A"):
        return None
    (name,) = layer.active_adapters
    return layer.lora_A[name].weight, layer.lora_B[name].weight, float(layer.scaling[name])


def _place(adapters: Sequence[tuple[Tensor, Tensor, float] | None], sizes: Sequence[int]) -> Iterator[_LowRank]:
    rank = output = 0
    for adapter, size in zip(adapters, sizes, strict=True):
        if adapter is not None:
            down, up, scale = adapter
            yield _LowRank(slice(rank, rank + len(down)), slice(output, output + size), up, scale)
            rank += len(down)
        output += size


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One tensor for all of them, of which each parameter becomes a part: new weights reach both."""
    if len(parts) == 1:
        return parts[0]
    joined = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, joined.split([len(part) for part in parts]), strict=True):
        part.data = view
    return joined


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    norm_in: Tensor
    qkv: Projection
    out: Projection
    norm_mid: Tensor
    gate_up: Projection
    down: Projection


class LlamaPass:
    """One forward pass over paged keys and values."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        self._trunk = model.model
        self._head: Tensor = model.lm_head.weight  # type: ignore[assignment]
        self._norm_eps = float(config.rms_norm_eps)
        self._num_heads = int(config.num_attention_heads)
        self._num_kv_heads = int(config.num_key_value_heads)
        self._layers = [_join(layer) for layer in self._trunk.layers]  # type: ignore[union-attr]
        self._cos, self._sin = self._rotations(0)

    def __call__(self, input_ids: Tensor, pool: BlockPool) -> Tensor:
        """[rows, vocabulary] for `input_ids` [rows, new], by the plan of the pool."""
        plan = pool.plan
        if plan.num_keys > len(self._cos):
            self._cos, self._sin = self._rotations(plan.num_keys)
        cos, sin = self._cos[plan.positions][:, None], self._sin[plan.positions][:, None]
        mask = self._mask(plan)
        x = F.embedding(input_ids, self._trunk.embed_tokens.weight)  # type: ignore[union-attr]
        for index, layer in enumerate(self._layers):
            x = x + self._attend(layer, index, x, cos, sin, mask, pool)
            h = F.rms_norm(x, x.shape[-1:], layer.norm_mid, self._norm_eps)
            gate, up = layer.gate_up(h).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        x = x[torch.arange(len(x), device=x.device), plan.last]
        return F.linear(F.rms_norm(x, x.shape[-1:], self._trunk.norm.weight, self._norm_eps), self._head)  # type: ignore[union-attr]

    def _asks_blocks(self, plan: AttentionPlan) -> bool:
        """In half precision keys are gathered: scores that leave a matrix product have lost too many digits."""
        return plan.is_short and self._head.dtype.itemsize >= 4

    def _mask(self, plan: AttentionPlan) -> Tensor | None:
        """What new tokens may not see, where blocks are asked; what they may, where keys are gathered; or no more than
        their order."""
        if plan.is_from_start:
            return None
        return plan.hidden() if self._asks_blocks(plan) else plan.attention_mask()

    def _attend(
        self, layer: _Layer, index: int, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, pool: BlockPool
    ) -> Tensor:
        rows, new, _ = x.shape
        h = F.rms_norm(x, x.shape[-1:], layer.norm_in, self._norm_eps)
        heads = self._num_heads + 2 * self._num_kv_heads
        qkv = layer.qkv(h).view(rows, new, heads, -1).transpose(1, 2)
        qk, v = qkv[:, : -self._num_kv_heads], qkv[:, -self._num_kv_heads :]
        left, right = qk.chunk(2, dim=-1)
        qk = qk * cos + torch.cat((-right, left), dim=-1) * sin
        q, k = qk[:, : self._num_heads], qk[:, self._num_heads :]
        blocks = pool.layers[index]
        assert isinstance(blocks, BlockLayer)
        if mask is not None and self._asks_blocks(pool.plan):
            attended = attend(q, *blocks.write(k, v), pool.plan, mask)
        else:
            is_grouped = self._num_heads != self._num_kv_heads
            attended = F.scaled_dot_product_attention(
                q, *blocks.update(k, v), attn_mask=mask, is_causal=mask is None, enable_gqa=is_grouped
            )
        return layer.out(attended.transpose(1, 2).reshape(rows, new, -1))

    def _rotations(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions up to a power of two, from the model's own module."""
        size = max(64, 1 << max(num_positions - 1, 0).bit_length())
        weight: Tensor = self._trunk.embed_tokens.weight  # type: ignore[union-attr, assignment]
        positions = torch.arange(size, device=weight.device)[None]
        cos, sin = self._trunk.rotary_emb(weight[:1, None], position_ids=positions)  # type: ignore[union-attr, operator]
        return cos[0], sin[0]


def fits(model: PreTrainedModel) -> bool:
    """Whether the model has just the parts that this pass computes."""
    if type(model) not in (LlamaForCausalLM, Qwen2ForCausalLM):
        return False
    config = model.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    is_plain = rope == "default" and config.hidden_act == "silu" and not getattr(config, "mlp_bias", False)
    return is_plain and not getattr(config, "use_sliding_window", False) and model.lm_head.bias is None  # type: ignore[union-attr]


def _join(layer: nn.Module) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        norm_in=layer.input_layernorm.weight,  # type: ignore[union-attr, arg-type]
        qkv=Projection([attention.q_proj, attention.k_proj, attention.v_proj]),  # type: ignore[union-attr, list-item]
        out=Projection([attention.o_proj]),  # type: ignore[union-attr, list-item]
        norm_mid=layer.post_attention_layernorm.weight,  # type: ignore[union-attr, arg-type]
        gate_up=Projection([mlp.gate_proj, mlp.up_proj]),  # type: ignore[union-attr, list-item]
        down=Projection([mlp.down_proj]),  # type: ignore[union-attr, list-item]
    )
