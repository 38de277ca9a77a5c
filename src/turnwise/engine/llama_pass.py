"""The forward pass of Llama-shaped models (Llama, Qwen2) in as few operations as possible.

In: new tokens and where they stand in the pool. Out: the logits behind each row's last token. Small models on a CPU
spend most of a decoding step between operations, so projections that read the same input are one matrix each, and the
output layer runs at the last token only. Weights stay those of the Hugging Face model: its own parameters become views
into the joined matrices. The engine proves the result against the model's own forward pass before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from turnwise.engine.kv_pool import SlotPool


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    norm_in: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    norm_mid: Tensor
    gate_up: Tensor
    down: Tensor


class LlamaPass:
    """One forward pass over pooled key-value rows."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        self._trunk = model.model
        self._head: Tensor = model.lm_head.weight  # type: ignore[assignment]
        self._norm_eps = float(config.rms_norm_eps)
        self._num_heads = int(config.num_attention_heads)
        self._num_kv_heads = int(config.num_key_value_heads)
        self._layers = [_join(layer) for layer in self._trunk.layers]  # type: ignore[union-attr]
        self._cos, self._sin = self._rotations(0)

    def __call__(self, input_ids: Tensor, last: Tensor, pool: SlotPool) -> Tensor:
        """[rows, vocabulary] for `input_ids` [rows, new]; `last` [rows] is each row's last real column."""
        plan = pool.plan
        if plan.num_keys > len(self._cos):
            self._cos, self._sin = self._rotations(plan.num_keys)
        # Right padding may stand behind the last key that is asked for; it is never read.
        positions = plan.positions.clamp(max=len(self._cos) - 1)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        mask = plan.attention_mask()
        x = F.embedding(input_ids, self._trunk.embed_tokens.weight)  # type: ignore[union-attr]
        for index, layer in enumerate(self._layers):
            x = x + self._attend(layer, index, x, cos, sin, mask, pool)
            h = F.rms_norm(x, x.shape[-1:], layer.norm_mid, self._norm_eps)
            gate, up = F.linear(h, layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        x = x[torch.arange(len(x), device=x.device), last]
        return F.linear(F.rms_norm(x, x.shape[-1:], self._trunk.norm.weight, self._norm_eps), self._head)  # type: ignore[union-attr]

    def _attend(
        self, layer: _Layer, index: int, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, pool: SlotPool
    ) -> Tensor:
        rows, new, _ = x.shape
        h = F.rms_norm(x, x.shape[-1:], layer.norm_in, self._norm_eps)
        heads = self._num_heads + 2 * self._num_kv_heads
        qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(rows, new, heads, -1).transpose(1, 2)
        qk, v = qkv[:, : -self._num_kv_heads], qkv[:, -self._num_kv_heads :]
        left, right = qk.chunk(2, dim=-1)
        qk = qk * cos + torch.cat((-right, left), dim=-1) * sin
        keys, values = pool.update(qk[:, self._num_heads :], v, index)
        attended = F.scaled_dot_product_attention(
            qk[:, : self._num_heads], keys, values, attn_mask=mask, enable_gqa=self._num_heads != self._num_kv_heads
        )
        return F.linear(attended.transpose(1, 2).reshape(rows, new, -1), layer.out)

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
    parts = [attention.q_proj, attention.k_proj, attention.v_proj]  # type: ignore[union-attr]
    has_bias = parts[0].bias is not None  # type: ignore[union-attr]
    return _Layer(
        norm_in=layer.input_layernorm.weight,  # type: ignore[union-attr, arg-type]
        qkv=_joined(parts, "weight"),  # type: ignore[arg-type]
        qkv_bias=_joined(parts, "bias") if has_bias else None,  # type: ignore[arg-type]
        out=attention.o_proj.weight,  # type: ignore[union-attr, arg-type]
        norm_mid=layer.post_attention_layernorm.weight,  # type: ignore[union-attr, arg-type]
        gate_up=_joined([mlp.gate_proj, mlp.up_proj], "weight"),  # type: ignore[union-attr, list-item]
        down=mlp.down_proj.weight,  # type: ignore[union-attr, arg-type]
    )


def _joined(modules: Sequence[nn.Linear], name: str) -> Tensor:
    """One tensor for all of them, of which each module's own parameter becomes a part: new weights reach both."""
    parts = [getattr(module, name) for module in modules]
    joined = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, joined.split([len(part) for part in parts]), strict=True):
        part.data = view
    return joined
