"""A model of a few thousand weights, random batches and trainers for the tests of this room."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.config.schema import ModelSettings
from turnwise.config.schema_learn import LearnSettings, OptimSettings
from turnwise.learn.losses import PpoClip
from turnwise.learn.pack import MicroBatch, micro_batches, pack
from turnwise.learn.trainer import Trainer
from turnwise.types import Batch, Experience, ExperienceId, Sample, Segment, TrajectoryId

VOCAB = 23
CPU = torch.device("cpu")


class ShapeRecorder(TorchDispatchMode):
    """The shape of every tensor that any operation makes, those of the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.shapes |= {tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        return result


def make_model(seed: int = 0) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def make_experience(rng: np.random.Generator, number: int = 0, *, length: int | None = None) -> Experience:
    """Random tokens; two turns of sampled tokens behind a prompt of at least one token."""
    length = length or int(rng.integers(5, 12))
    turn_ids = np.full(length, -1, dtype=np.int32)
    middle = length // 2
    turn_ids[1:middle] = 0
    turn_ids[middle + 1 :] = 1
    mask = turn_ids >= 0
    indices = np.unique(turn_ids[mask]).astype(np.int32)
    rewards = rng.normal(size=len(indices)).astype(np.float32)
    return Experience(
        id=ExperienceId(TrajectoryId(0, "lake/train/0", number), 0),
        segment=Segment(
            token_ids=rng.integers(1, VOCAB, size=length).astype(np.int32),
            loss_mask=mask,
            behavior_logprobs=np.where(mask, rng.uniform(-4, -2, size=length), 0).astype(np.float32),
            turn_ids=turn_ids,
        ),
        turn_indices=indices,
        raw_rewards=rewards,
        turn_rewards=rewards,
        turn_states=indices.astype(np.uint64),
        turn_steps=indices,
        policy_version=0,
        is_last=True,
        is_truncated=False,
    )


def make_samples(seed: int = 0, num_rows: int = 6, **fixed: float) -> list[Sample]:
    """Random credit per token, zero off the mask; `advantages=0` and the like fix a column."""
    rng = np.random.default_rng(seed)
    samples = []
    for number in range(num_rows):
        experience = make_experience(rng, number)
        mask = experience.segment.loss_mask

        def column(name: str, mask: Any = mask) -> Any:
            drawn = rng.normal(size=len(mask))
            return np.where(mask, fixed.get(name, drawn), 0).astype(np.float32)

        samples.append(
            Sample(
                experience=experience,
                advantages=column("advantages"),
                returns=column("returns"),
                values=column("values"),
                reference_logprobs=column("reference_logprobs"),
            )
        )
    return samples


def make_batch(seed: int = 0, num_rows: int = 6, **fixed: float) -> Batch:
    return pack(make_samples(seed, num_rows, **fixed))


def one_micro_batch(batch: Batch) -> MicroBatch:
    (micro,) = micro_batches(batch, np.arange(batch.num_rows), 10**9, CPU)
    return micro


def make_trainer(model: Any = None, *, temperature: float = 1.0, seed: int = 0, **learn: Any) -> Trainer:
    """`optim` and `model_settings` may be mappings; a gradient is never clipped unless asked for."""
    model_settings = ModelSettings.model_validate(learn.pop("model_settings", {}))
    optim = OptimSettings.model_validate({"lr": 1e-2, "grad_clip": 1e9} | learn.pop("optim", {}))
    loss = learn.pop("loss", PpoClip())
    settings = LearnSettings.model_validate({"optim": optim, "steps": 10} | learn)
    return Trainer(
        model if model is not None else make_model(),
        settings,
        loss,
        temperature=temperature,
        seed=seed,
        model_settings=model_settings,
    )


def gradients(trainer: Trainer, batch: Batch) -> dict[str, torch.Tensor]:
    """The gradients of one update that is then not made."""
    named = list(trainer.actor.model.named_parameters())
    if trainer.critic is not None:
        named += [(f"critic.{name}", p) for name, p in trainer.critic.named_parameters()]
    found: dict[str, torch.Tensor] = {}

    def look(*_a: Any, **_k: Any) -> None:
        found.update({name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named})

    trainer.optimizer.step = look  # type: ignore[method-assign]
    trainer.step(batch)
    return found


def copy_of(module: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def is_equal(before: dict[str, torch.Tensor], module: Any) -> bool:
    now = module.state_dict()
    return before.keys() == now.keys() and all(torch.equal(before[name], now[name]) for name in before)
