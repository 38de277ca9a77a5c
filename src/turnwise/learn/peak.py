"""The most memory that a run will hold at one time in this process, as a sum of named parts.

In: the models of a `MemoryReport`, the shape of the actor, and how many tokens pass and live at once. Out: parts with
their arithmetic, and the moment at which their sum is largest. It is about one process on a CPU; on a GPU the same
parts are there without those of the interpreter and the C library. It refuses to know how a run plays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from turnwise.learn.activations import LayerShape, PassSize, bytes_per_token, held_per_byte
from turnwise.learn.head import MAX_LOGITS
from turnwise.learn.memory import MemoryReport, size_words

PROCESS_BYTES = 450_000_000
"""Python, torch, transformers and a tokenizer, before any model is loaded; measured on Linux."""
_LOGIT_TABLES = 2
_FLOAT32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakPart:
    """One line of the sum."""

    name: str
    num_bytes: int
    arithmetic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The parts that are in memory together at the worst moment."""

    moment: str
    """`loading` or `learning`."""
    num_bytes: int
    parts: tuple[PeakPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much of everything there is at once."""

    pass_size: PassSize
    longest_row: int
    """Tokens of the longest row, which passes alone where it is longer than a micro-batch."""
    sampled_tokens: int
    """Of the sampled tokens in one micro-batch, at most."""
    live_tokens: int
    """Tokens whose keys and values the engine holds at once, at most."""
    is_frozen: bool
    """Adapters alone are trained."""
    is_tied: bool
    """Embedding and output layer are one matrix."""
    dtype: torch.dtype
    device: torch.device


def estimate_peak(memory: MemoryReport, shape: LayerShape, load: Load) -> Peak | None:
    """None where a model's size is not known."""
    loaded = [row for row in memory.models if row.is_loaded]
    weights = [row.weight_bytes for row in loaded]
    if any(size is None for size in weights):
        return None
    base = PeakPart(name="process", num_bytes=PROCESS_BYTES, arithmetic="Python, torch, transformers, tokenizer")
    largest = max(size or 0 for size in weights)
    loading = _peak("loading", [base, PeakPart(name="a file", num_bytes=2 * largest, arithmetic=_twice(largest))])
    models = [
        PeakPart(name=f"{row.name} {part}", num_bytes=size, arithmetic=_per_parameter(row.parameters, size))
        for row in loaded
        for part, size in (
            ("weights", row.weight_bytes),
            ("gradients", row.gradient_bytes),
            ("optimizer", row.optimizer_bytes),
        )
        if size
    ]
    learning = _peak("learning", [base, *models, *_passing(shape, load)])
    return max(loading, learning, key=lambda peak: peak.num_bytes)


def _passing(shape: LayerShape, load: Load) -> list[PeakPart]:
    """What comes and goes with a micro-batch, and the keys and values of the rollout before it."""
    tokens, per_token, terms = _largest_pass(shape, load)
    held = held_per_byte(load.device, is_frozen=load.is_frozen)
    logits = min(load.sampled_tokens * shape.vocab, MAX_LOGITS)
    key_values = shape.num_layers * 2 * shape.keys * load.dtype.itemsize
    parts = [
        PeakPart(
            name="activations",
            num_bytes=int(tokens * per_token * held),
            arithmetic=f"{tokens:,} tokens x {terms} x {held} held by the C library",
        ),
        PeakPart(
            name="logits",
            num_bytes=_LOGIT_TABLES * logits * _FLOAT32,
            arithmetic=f"{_LOGIT_TABLES} tables x {logits:,} numbers x {_FLOAT32} bytes",
        ),
        PeakPart(
            name="keys and values",
            num_bytes=load.live_tokens * key_values,
            arithmetic=f"{load.live_tokens:,} live tokens x {shape.num_layers} layers x 2 x {shape.keys} numbers "
            f"x {load.dtype.itemsize} bytes",
        ),
    ]
    if not load.is_frozen and load.is_tied:
        matrix = shape.vocab * shape.hidden
        parts.append(
            PeakPart(
                name="embedding's gradients",
                num_bytes=2 * matrix * _FLOAT32,
                arithmetic=f"as embedding and as output layer: 2 x {shape.vocab:,} x {shape.hidden:,} x 4 bytes",
            )
        )
    return parts


def _largest_pass(shape: LayerShape, load: Load) -> tuple[int, int, str]:
    """Tokens, bytes of each and how they came about: of a full micro-batch, or of the longest row alone."""
    each = bytes_per_token(shape, is_frozen=load.is_frozen, dtype=load.dtype)
    passes = [
        (tokens, each.checkpointed, each.checkpointed_terms)
        if load.pass_size.is_checkpointed(tokens)
        else (tokens, each.kept, each.terms)
        for tokens in (load.pass_size.micro_batch_tokens, load.longest_row)
    ]
    return max(passes, key=lambda one: one[0] * one[1])


def _peak(moment: str, parts: list[PeakPart]) -> Peak:
    return Peak(moment=moment, num_bytes=sum(part.num_bytes for part in parts), parts=tuple(parts))


def describe_peak(peak: Peak) -> list[str]:
    lines = [f"Most memory at one time: about {size_words(peak.num_bytes)}, while {peak.moment}:"]
    return [*lines, *(f"  {part.name:22}  {size_words(part.num_bytes):>9}  {part.arithmetic}" for part in peak.parts)]


def _twice(num_bytes: int) -> str:
    return f"2 x {size_words(num_bytes)}: the largest file, and its weights copied out of it"


def _per_parameter(parameters: int | None, num_bytes: int) -> str:
    share = num_bytes / (parameters or 1)
    return f"{(parameters or 0) / 1e6:,.2f} M parameters x {share:.3g} bytes"
