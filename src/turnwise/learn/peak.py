"""The most memory that a run will hold at one time in this process, as a sum of named parts.

In: the models of a `MemoryReport`, the shape of the actor, and how many tokens pass and live at once. Out: parts with
their arithmetic, and the moment at which their sum is largest. It is about one process on a CPU; on a GPU the same
parts are there without those of the interpreter and the C library. It refuses to know how a run plays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from turnwise.learn.activations import LayerShape, PassSize, bytes_per_token, held_per_byte
from turnwise.learn.head import MAX_LOGITS
from turnwise.learn.memory import MemoryReport, ModelMemory, size_words

PROCESS_BYTES = 450_000_000
"""Python, torch, transformers and a tokenizer, before any model is loaded; measured on Linux."""
_LOGIT_TABLES = 2
_SAMPLING_TABLES = 3
"""Logits, their probabilities, and those in order or with the dice's numbers."""
_POOL_ROOM = 1.25
"""The engine's pool grows by half where it is full: on average so much more than is used."""
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
    """`loading`, `playing` or `learning`."""
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
    live_rows: int
    """Sequences that the engine goes on with at once."""
    is_overlapped: bool
    """Whether it plays while it learns."""
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
    played = _playing(shape, load)
    peaks = [
        _peak("loading", [base, PeakPart(name="a file", num_bytes=2 * largest, arithmetic=_twice(largest))]),
        _peak("playing", [base, *_held_by(loaded, "weights", "optimizer"), *played]),
        _peak("learning", [base, *_held_by(loaded, "weights", "gradients", "optimizer"), *_learning(shape, load)]),
    ]
    if load.is_overlapped:
        peaks.append(_peak("playing and learning", [*peaks[-1].parts, *played, *_published(memory)]))
    return max(peaks, key=lambda peak: peak.num_bytes)


def _held_by(models: Sequence[ModelMemory], *names: str) -> list[PeakPart]:
    sizes = [
        (row, name, size)
        for row in models
        for name, size in (
            ("weights", row.weight_bytes),
            ("gradients", row.gradient_bytes),
            ("optimizer", row.optimizer_bytes),
        )
        if size and name in names
    ]
    return [
        PeakPart(name=f"{row.name} {name}", num_bytes=size, arithmetic=_per_parameter(row.parameters, size))
        for row, name, size in sizes
    ]


def _published(memory: MemoryReport) -> list[PeakPart]:
    """The copy of the policy that lies between learner and engine."""
    (engine,) = (row for row in memory.models if row.name == "engine")
    size = (engine.parameters or 0) * _FLOAT32
    return [PeakPart(name="published weights", num_bytes=size, arithmetic=_per_parameter(engine.parameters, size))]


def _playing(shape: LayerShape, load: Load) -> list[PeakPart]:
    """What the engine holds while a rollout or an evaluation goes on."""
    numbers, logits = shape.num_layers * 2 * shape.keys, load.live_rows * shape.vocab
    return [
        PeakPart(
            name="keys and values",
            num_bytes=int(load.live_tokens * numbers * load.dtype.itemsize * _POOL_ROOM),
            arithmetic=f"{load.live_tokens:,} live tokens x {shape.num_layers} layers x 2 x {shape.keys} numbers "
            f"x {load.dtype.itemsize} bytes x {_POOL_ROOM} with room to grow",
        ),
        PeakPart(
            name="next logits",
            num_bytes=_SAMPLING_TABLES * logits * _FLOAT32,
            arithmetic=f"{_SAMPLING_TABLES} tables x {load.live_rows:,} rows x {shape.vocab:,} x {_FLOAT32} bytes",
        ),
    ]


def _learning(shape: LayerShape, load: Load) -> list[PeakPart]:
    """What comes and goes with a micro-batch."""
    tokens, per_byte, per_token, terms = _largest_pass(shape, load)
    logits = min(load.sampled_tokens * shape.vocab, MAX_LOGITS)
    parts = [
        PeakPart(
            name="activations",
            num_bytes=int(tokens * per_token * per_byte),
            arithmetic=f"{tokens:,} tokens x {terms} x {per_byte} held by the C library",
        ),
        PeakPart(
            name="logits",
            num_bytes=_LOGIT_TABLES * logits * _FLOAT32,
            arithmetic=f"{_LOGIT_TABLES} tables x {logits:,} numbers x {_FLOAT32} bytes",
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


def _largest_pass(shape: LayerShape, load: Load) -> tuple[int, float, int, str]:
    """Tokens, what is held for each byte, bytes of each and how they came about.

    Of a full micro-batch, or of the longest row alone.
    """
    each = bytes_per_token(shape, is_frozen=load.is_frozen, dtype=load.dtype)
    passes = []
    for tokens in (load.pass_size.micro_batch_tokens, load.longest_row):
        is_again = load.pass_size.is_checkpointed(tokens)
        held = held_per_byte(load.device, is_frozen=load.is_frozen, is_checkpointed=is_again)
        size, terms = (each.checkpointed, each.checkpointed_terms) if is_again else (each.kept, each.terms)
        passes.append((tokens, held, size, terms))
    return max(passes, key=lambda one: one[0] * one[1] * one[2])


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
