"""Which models are held in memory, what each costs, and which setting decided it.

In: the shape of a model and the settings. Out: parameters and bytes, also of the models that are not loaded. Models are
made without weights, so asking costs nothing. It counts weights, gradients and optimizer state; it knows nothing of
activations and key-value rows, whose size depends on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import PreTrainedConfig

from turnwise.config import schema_learn as learning
from turnwise.config.schema import Lora, ModelSettings, NoLora
from turnwise.config.schema_learn import FsdpRanks, LearnSettings, is_offloaded
from turnwise.errors import ModelError
from turnwise.models.adapters import add_adapter
from turnwise.models.load import ValueHead, load_config, make_causal_model, torch_dtype
from turnwise.models.reward_model import tiny_reward_config

_FLOAT32_BYTES = 4
_ADAM_BYTES = 8
"""Two float32 moments per trained parameter."""
_OF_LEARNER = ("actor", "reference", "critic")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """One model: what it takes, or would take where it is not loaded. None where its shape is not known."""

    name: str
    is_loaded: bool
    reason: str
    """The setting that decided it."""
    parameters: int | None
    weight_bytes: int | None
    gradient_bytes: int | None
    optimizer_bytes: int | None

    @property
    def total_bytes(self) -> int | None:
        return _sum([self.weight_bytes, self.gradient_bytes, self.optimizer_bytes])


def _sum(parts: list[int | None]) -> int | None:
    """The unknown makes a sum unknown."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """All models a learner of this family may need, loaded or not."""

    models: tuple[ModelMemory, ...]
    loaded_bytes: int | None
    saved_bytes: int | None
    """What the models that are not loaded would have cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Counts of parameters; all None where the model is not known."""

    plain: int | None = None
    """Of the model without adapters."""
    adapted: int | None = None
    """With adapters, where there are any."""
    trained: int | None = None
    trained_trunk: int | None = None
    """Without the output layer, which a critic never asks."""
    value_head: int | None = None


def read_config(path: str) -> PreTrainedConfig | None:
    """The shape of a model on this machine; None where there is none, such as a hub name that was never fetched."""
    try:
        return load_config(path, local_files_only=True)
    except ModelError:
        return None


def report_memory(
    config: PreTrainedConfig | None,
    model: ModelSettings,
    learn: learning.LearnSettings,
    *,
    judge_path: str | None = None,
    is_shared: bool = False,
) -> MemoryReport:
    """`config` is the shape of `model.path`; `judge_path` the reward model's folder, where there is one.

    `is_shared` where the engine samples from the actor in place.
    """
    shape, frozen_bytes = _measure(config, model.lora), torch_dtype(model.dtype).itemsize
    beside_adapters = frozen_bytes if isinstance(model.lora, Lora) else _FLOAT32_BYTES
    judge = _measure(_judge_config(judge_path), NoLora()).plain if judge_path is not None else shape.plain
    has_value_head = isinstance(learn.critic, learning.ValueHeadCritic)
    rows = (
        _trained(
            "actor",
            (True, "model.lora: its adapters are trained" if model.lora.type == "lora" else "trained in full"),
            _sum([shape.adapted, shape.value_head]) if has_value_head else shape.adapted,
            _sum([shape.trained, shape.value_head]) if has_value_head else shape.trained,
            beside_adapters,
        ),
        _frozen("engine", _engine_reason(is_shared), shape.plain, frozen_bytes),
        _frozen("reference", _reference_reason(model, learn), shape.plain, frozen_bytes),
        _trained(
            "critic",
            _critic_reason(learn),
            _sum([shape.adapted, shape.value_head]),
            _sum([shape.trained_trunk, shape.value_head]),
            beside_adapters,
        ),
        _frozen("reward model", _judge_reason(judge_path), judge, frozen_bytes),
    )
    return MemoryReport(
        models=rows,
        loaded_bytes=_sum([row.total_bytes for row in rows if row.is_loaded]),
        saved_bytes=_sum([row.total_bytes for row in rows if not row.is_loaded]),
    )


def bytes_per_rank(report: MemoryReport, learn: learning.LearnSettings) -> int | None:
    """What each rank of `learn.parallel` holds between passes: all of the learner's models, or its pieces of them."""
    held = _sum([row.total_bytes for row in report.models if row.is_loaded and row.name in _OF_LEARNER])
    if held is None or not isinstance(learn.parallel, FsdpRanks):
        return held
    return -(-held // learn.parallel.ranks)


def _judge_config(judge_path: str) -> PreTrainedConfig | None:
    return tiny_reward_config() if judge_path == "tiny" else read_config(judge_path)


def describe_in_one_line(report: MemoryReport) -> str:
    """For the start of a run."""
    loaded = ", ".join(f"{row.name} {size_words(row.total_bytes)}" for row in report.models if row.is_loaded)
    left_out = ", ".join(f"{row.name} ({row.reason})" for row in report.models if not row.is_loaded)
    saved = f"; not loaded: {left_out}: {size_words(report.saved_bytes)} saved" if left_out else ""
    return f"models: {loaded}{saved}"


def size_words(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "unknown size"
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _engine_reason(is_shared: bool) -> tuple[bool, str]:
    return not is_shared, "it samples from the actor's weights" if is_shared else "it samples from a copy of its own"


def _reference_reason(model: ModelSettings, learn: learning.LearnSettings) -> tuple[bool, str]:
    if isinstance(learn.kl, learning.NoKl):
        return False, "learn.kl is none"
    if isinstance(model.lora, Lora):
        return False, "model.lora: it is the actor with its adapters off"
    if is_offloaded(learn):
        return False, "learn.kl.offload: it lies in a file"
    return True, f"learn.kl is {learn.kl.type}"


def _critic_reason(learn: learning.LearnSettings) -> tuple[bool, str]:
    is_model = isinstance(learn.critic, learning.ModelCritic)
    beside = ", on the actor's trunk" if isinstance(learn.critic, learning.ValueHeadCritic) else ""
    return is_model, f"learn.critic is {learn.critic.type}{beside}"


def _judge_reason(judge_path: str | None) -> tuple[bool, str]:
    return judge_path is not None, "reward.judge is a model" if judge_path is not None else "reward.judge is no model"


def _measure(config: PreTrainedConfig | None, lora: NoLora | Lora) -> _Shape:
    if config is None:
        return _Shape()
    with torch.device("meta"):
        model = make_causal_model(config)
        plain = _count(model)
        if isinstance(lora, Lora):
            add_adapter(model, lora, seed=0)
        return _Shape(
            plain=plain,
            adapted=_count(model),
            trained=_count(model, is_trained=True),
            trained_trunk=_count(model.base_model, is_trained=True),
            value_head=_count(ValueHead(config.get_text_config().hidden_size)),
        )


def _count(model: nn.Module, *, is_trained: bool = False) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not is_trained)


def _trained(
    name: str, decision: tuple[bool, str], parameters: int | None, trained: int | None, frozen_bytes: int
) -> ModelMemory:
    """The learner's own: what is trained in float32 with its gradients and Adam's moments, and what is frozen."""
    frozen = None if parameters is None or trained is None else parameters - trained
    return ModelMemory(
        name=name,
        is_loaded=decision[0],
        reason=decision[1],
        parameters=parameters,
        weight_bytes=_sum([_times(trained, _FLOAT32_BYTES), _times(frozen, frozen_bytes)]),
        gradient_bytes=_times(trained, _FLOAT32_BYTES),
        optimizer_bytes=_times(trained, _ADAM_BYTES),
    )


def _frozen(name: str, decision: tuple[bool, str], parameters: int | None, bytes_each: int) -> ModelMemory:
    return ModelMemory(
        name=name,
        is_loaded=decision[0],
        reason=decision[1],
        parameters=parameters,
        weight_bytes=_times(parameters, bytes_each),
        gradient_bytes=0,
        optimizer_bytes=0,
    )


def _times(count: int | None, bytes_each: int) -> int | None:
    return None if count is None else count * bytes_each


MOST_TOKENS = 8192
"""More in one pass make nothing faster."""
FEWEST_TOKENS = 400
"""With fewer in one pass, a prompt no longer passes together with the replies of all its siblings and is computed once
for each of them; layers are rather computed again."""
CPU_BYTES = 450_000_000
"""What a process holds for one micro-batch on a CPU, where a large one is hardly faster than a small one."""
_HELD, _HELD_WITH_ADAPTERS = 1.5, 3.3
"""What the C library holds for each byte of activations: tensors come and go in other orders than their memory lies in,
and the small ones of adapters keep it from joining what is free between them. Measured on Linux."""
_HELD_CHECKPOINTED, _HELD_CHECKPOINTED_WITH_ADAPTERS = 4.5, 8.0
"""The same where layers are computed again: what is kept of a layer lies in the midst of what it has freed."""
_GPU_SHARE = 0.25
"""Of a GPU's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The widths of one decoder layer."""

    num_layers: int
    hidden: int
    inner: int
    """Width inside the feed-forward layer."""
    queries: int
    """Heads times their width."""
    keys: int
    """Key-value heads times their width."""
    heads: int
    vocab: int

    @classmethod
    def of(cls, config: PreTrainedConfig) -> LayerShape | None:
        """None where the model has no such layers."""
        text = config.get_text_config()
        if getattr(text, "num_attention_heads", None) is None:
            return None
        hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
        head_dim = int(getattr(text, "head_dim", None) or hidden // heads)
        kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
        return cls(
            num_layers=int(text.num_hidden_layers),
            hidden=hidden,
            inner=int(getattr(text, "intermediate_size", None) or 4 * hidden),
            queries=heads * head_dim,
            keys=kv_heads * head_dim,
            heads=heads,
            vocab=int(text.vocab_size),
        )

    def kept_numbers(self, *, is_frozen: bool) -> int:
        """Of one token in one layer: gate, up, their products; norms, queries, keys, values, what attention gave.

        A frozen norm needs one of its intermediate results less.
        """
        norms = 4 if is_frozen else 6
        return 4 * self.inner + norms * self.hidden + 2 * self.queries + 2 * self.keys + self.heads

    def passing_numbers(self) -> int:
        """Of one token in the layer that is being computed: gradients on their way, and attention's repeated keys."""
        return 3 * self.inner + 3 * self.hidden + 2 * self.queries


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes per token of a micro-batch."""

    kept: int
    """Where every layer's intermediate results are kept."""
    checkpointed: int
    """Where each layer's input is kept, and one layer at a time is computed again."""
    terms: str
    """How `kept` came about."""
    checkpointed_terms: str


def bytes_per_token(shape: LayerShape, *, is_frozen: bool, dtype: torch.dtype) -> TokenBytes:
    """`is_frozen`: adapters alone are trained."""
    width = dtype.itemsize
    layer, passing = shape.kept_numbers(is_frozen=is_frozen), shape.passing_numbers()
    return TokenBytes(
        kept=(shape.num_layers * layer + passing) * width,
        checkpointed=(shape.num_layers * shape.hidden + layer + passing) * width,
        terms=f"({shape.num_layers} layers x {layer:,} + {passing:,}) numbers x {width} bytes",
        checkpointed_terms=f"({shape.num_layers} layers x {shape.hidden:,} + {layer + passing:,}) numbers "
        f"x {width} bytes",
    )


def held_per_byte(device: torch.device, *, is_frozen: bool, is_checkpointed: bool) -> float:
    """How much memory a byte of activations takes there."""
    if device.type == "cuda":
        return 1.0
    if is_checkpointed:
        return _HELD_CHECKPOINTED_WITH_ADAPTERS if is_frozen else _HELD_CHECKPOINTED
    return _HELD_WITH_ADAPTERS if is_frozen else _HELD


def activation_budget(device: torch.device) -> int:
    """Bytes that one micro-batch may hold where the settings leave it open."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory * _GPU_SHARE)
    return CPU_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSize:
    """How many tokens pass at once, and above how many of them layers are computed again."""

    micro_batch_tokens: int
    checkpoint_above: int | None
    """None: never; 0: always."""

    def is_checkpointed(self, num_tokens: int) -> bool:
        return self.checkpoint_above is not None and num_tokens > self.checkpoint_above


def choose_pass_size(
    each: TokenBytes | None, budget: int, *, micro_batch_tokens: int | str, gradient_checkpointing: bool | str
) -> PassSize:
    """What `auto` means: as many tokens as the budget holds. A row that is longer alone is computed again.

    `each` is what a token holds; None where nothing is known about the model's layers.
    """
    above: int | None
    if each is None:
        above, fitting = 0 if gradient_checkpointing is True else None, MOST_TOKENS
    elif gradient_checkpointing is True:
        above, fitting = 0, budget // each.checkpointed
    elif gradient_checkpointing is False:
        above, fitting = None, budget // each.kept
    elif budget // each.kept >= FEWEST_TOKENS:
        above = fitting = budget // each.kept
    else:
        above, fitting = 0, budget // each.checkpointed
    tokens = max(1, min(MOST_TOKENS, fitting)) if isinstance(micro_batch_tokens, str) else micro_batch_tokens
    return PassSize(micro_batch_tokens=tokens, checkpoint_above=above)


def pass_size_of(
    config: PreTrainedConfig, model: ModelSettings, learn: LearnSettings, device: torch.device
) -> PassSize:
    """What the settings choose for a model of this shape, there."""
    shape, is_frozen = LayerShape.of(config), isinstance(model.lora, Lora)
    each = shape and bytes_per_token(shape, is_frozen=is_frozen, dtype=torch_dtype(model.dtype))
    return choose_pass_size(
        each and _held(each, device, is_frozen=is_frozen),
        activation_budget(device),
        micro_batch_tokens=learn.micro_batch_tokens,
        gradient_checkpointing=model.gradient_checkpointing,
    )


def _held(each: TokenBytes, device: torch.device, *, is_frozen: bool) -> TokenBytes:
    """The bytes with what the C library holds beside them."""
    kept = held_per_byte(device, is_frozen=is_frozen, is_checkpointed=False)
    checkpointed = held_per_byte(device, is_frozen=is_frozen, is_checkpointed=True)
    return replace(each, kept=int(each.kept * kept), checkpointed=int(each.checkpointed * checkpointed))


MAX_LOGITS = 1 << 22
"""Logits in memory at once; what needs no more than these keeps them for the backward pass."""


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
