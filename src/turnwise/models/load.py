"""Model folders in, language models, configs and tokenizers out: the one place that loads them, for every package.

No Python file of a model folder is ever run, and no file outside the folder is read. Without `trust_remote_code=False`
transformers asks on the terminal whether to run the code of a folder with `auto_map`, and `yes y |` would answer it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging
from transformers.utils.peft_utils import find_adapter_config_file

from turnwise.config.schema import ModelSettings
from turnwise.config.settings import Settings
from turnwise.errors import ConfigError, ModelError
from turnwise.infra.parsing import parse_json

_JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
_FILE_LISTS = {"config.json": "configuration_files", "tokenizer_config.json": "fast_tokenizer_files"}
"""Keys of these files that name other files, which transformers then reads instead."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""In the order in which transformers looks for them."""
_INDEX = ".index.json"


def load_model(
    path: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> PreTrainedModel:
    """A causal language model from a local folder or a hub name, in `dtype` whatever its files are in.

    Without a device it goes where this machine computes best.
    """
    try:
        model = load_causal_model(path, dtype=dtype)
    except ModelError as error:
        raise ModelError(
            f"model.path '{path}' cannot be loaded as a causal language model: {error} "
            "Give a Hugging Face model folder, a hub name, or 'tiny' for the built-in model."
        ) from error
    _leave_files(model)
    _refuse_broken_weights(model, path)
    return cast(nn.Module, model).to(device or best_device())  # type: ignore[return-value]


# --- the calls of transformers that read files -----------------------------------------------------------------------


def load_config(path: str | Path, *, gguf_file: str | None = None, local_files_only: bool = False) -> PreTrainedConfig:
    """The shape of a model. Like all of these, it raises ModelError with one sentence that says what is wrong."""
    with in_words():
        _check_files(path, gguf_file)
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            str(path), gguf_file=gguf_file, local_files_only=local_files_only, trust_remote_code=False
        )
    for part in (config, config.get_text_config()):
        if "/" in str(part._attn_implementation):
            raise ModelError(
                f"its config.json asks for the attention kernel '{part._attn_implementation}', code that is fetched "
                "from the hub, which turnwise does not run. Remove `attn_implementation` from the file."
            )
    return config


def load_tokenizer_of(path: str | Path, *, gguf_file: str | None = None) -> PreTrainedTokenizerBase:
    with in_words():
        _check_files(path, gguf_file)
        return AutoTokenizer.from_pretrained(str(path), gguf_file=gguf_file, trust_remote_code=False)


def load_causal_model(path: str | Path, *, dtype: torch.dtype, gguf_file: str | None = None) -> PreTrainedModel:
    _check_before_weights(path, gguf_file)
    with in_words():
        return AutoModelForCausalLM.from_pretrained(
            str(path), dtype=dtype, gguf_file=gguf_file, trust_remote_code=False
        )


def load_classifier(path: str | Path) -> tuple[PreTrainedModel, set[str]]:
    """A sequence classifier in float32 on the best device here, and the names of weights that its files lack."""
    _check_before_weights(path)
    with in_words():
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(
            str(path), dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
    model, info = loaded
    return model.to(best_device()), set(info["missing_keys"])


def make_causal_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A model of this shape; on the device `meta` it has no weights."""
    with in_words():
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


@contextmanager
def in_words() -> Iterator[None]:
    """Whatever is wrong with a file of a model becomes a ModelError of one sentence."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # transformers, tokenizers and safetensors raise what they like about a damaged file
        raise ModelError(_describe(error)) from error
    except BaseException as error:
        # A panic of the tokenizers' Rust code, which cannot be imported, and is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise ModelError(_describe(error)) from error


def _describe(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "a file of it is nested too deeply."
    # What transformers advises there is just what is not done here.
    if "trust_remote_code" in str(error):
        return (
            "it needs its own Python code (`auto_map`), which turnwise does not run; only architectures and "
            "tokenizers of transformers are loaded."
        )
    lines = str(error).strip().splitlines()
    return f"{(lines[0] if lines else type(error).__name__).rstrip('.')}."


def _check_before_weights(path: str | Path, gguf_file: str | None = None) -> None:
    """What would be wrong about the weights, before any file of theirs is opened."""
    transformers_logging.disable_progress_bar()
    config = load_config(path, gguf_file=gguf_file)
    with in_words():
        adapter = gguf_file is None and find_adapter_config_file(str(path))
    if adapter:
        raise ModelError(
            "it holds an adapter (adapter_config.json), which is no model by itself and may name another one. Merge it "
            "into its model with peft's `merge_and_unload`, and give the folder that `save_pretrained` then writes."
        )
    folder = Path(path)
    chosen = config.to_dict().get("transformers_weights")
    present = (name for name in (chosen, *_WEIGHTS) if name and (folder / str(name)).is_file())
    if (weights := next(present, None)) and gguf_file is None:
        _check_index(folder, str(weights))


def _check_files(path: str | Path, gguf_file: str | None) -> None:
    """The JSON files of a local folder are mappings and name no file outside it; one of the hub has no folder yet."""
    folder = Path(path)
    if gguf_file is not None or not folder.is_dir():
        return
    for name in _JSON_FILES:
        if (folder / name).is_file():
            content = read_model_file(folder / name)
            _require_inside(name, content.get(_FILE_LISTS.get(name, "")) or [])


def _check_index(folder: Path, weights: str) -> None:
    """An index of shards names files that are there, in the folder."""
    _require_inside("config.json", [weights])
    if not weights.endswith(_INDEX):
        return
    shards = read_model_file(folder / weights).get("weight_map")
    if not isinstance(shards, dict):
        raise ModelError(f"{weights} has no `weight_map`, which says where each weight is.")
    _require_inside(weights, names := sorted(set(map(str, shards.values()))))
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise ModelError(f"{weights} names files that are not in the folder: {', '.join(missing[:3])}.")


def _require_inside(source: str, names: object) -> None:
    """Names that lead out of the folder are refused. Links are followed: the hub's cache is made of them."""
    if not isinstance(names, list):
        raise ModelError(f"{source} should list files, got {type(names).__name__}.")
    for name in map(str, names):
        if os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir:
            raise ModelError(f"{source} names a file outside the folder: {name}")


def read_model_file(file: Path) -> dict[str, Any]:
    """The mapping in a JSON file of a model folder."""
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file.name} is no JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file.name} must hold a mapping, got {type(content).__name__}.")
    return content


# --- weights and devices ---------------------------------------------------------------------------------------------


def _leave_files(model: nn.Module) -> None:
    """Weights in memory of their own: as a view into its file, each one that changes would be held twice."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _refuse_broken_weights(model: nn.Module, path: str | Path) -> None:
    """A model with one weight that is no number says nothing sensible, and every number after it is none either."""
    # A sum is one pass without a copy; only where it is no number is every weight looked at.
    sums = ((name, tensor) for name, tensor in model.state_dict().items() if not torch.isfinite(tensor.sum()))
    broken = [name for name, tensor in sums if not torch.isfinite(tensor).all()]
    if broken:
        raise ModelError(
            f"model.path '{path}' has weights that are not finite, in {len(broken)} of {len(model.state_dict())} "
            f"tensors: {', '.join(broken[:3])}{' …' if broken[3:] else ''}. It can neither play nor learn. Give an "
            "earlier checkpoint, or load the files anew."
        )


def torch_dtype(name: str) -> torch.dtype:
    """The type behind `model.dtype`."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def chosen_device(name: str, path: str) -> torch.device:
    """The device behind a setting such as `engine.device`; `path` is where it stands."""
    if name == "auto":
        return best_device()
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    # torch is built without the device (AssertionError, NotImplementedError), or there is none of that number.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first_line = str(error).splitlines()[0]
        raise ConfigError(
            f"{path} = '{name}' given; this machine has no such device: {first_line} Give 'auto' for a GPU where there "
            "is one, 'cpu', or a device that torch knows here."
        ) from error
    return device


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold the parameters in another type. Buffers stay: positions counted in bfloat16 would be wrong ones."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def cast_frozen(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold what is not trained in `dtype`, and what is trained in float32: small updates must not be rounded away."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.float32 if parameter.requires_grad else dtype)


def checkpoint_gradients(model: PreTrainedModel, *, above_tokens: int = 0) -> None:
    """Keep the inputs of each layer alone for the backward pass, where a forward pass has more tokens than that."""
    layers = checkpointed_layers(model)
    if not layers:
        raise ModelError(
            f"model.gradient_checkpointing is true and {type(model).__name__} has no layers that can be computed "
            "again. Set it to false."
        )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in layers:
        layer._gradient_checkpointing_func = partial(_run_checkpointed, layer, layer._gradient_checkpointing_func)
    trunk = cast(nn.Module, model.base_model)
    trunk.register_forward_pre_hook(_CheckpointAbove(layers, above_tokens), with_kwargs=True)


def checkpointed_layers(model: PreTrainedModel) -> list[Any]:
    """The layers that can be computed again; none where the model does not know how."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    return layers if model.supports_gradient_checkpointing else []


class _CheckpointAbove:
    """Before each forward pass: checkpoint it or not. An object, so that a copy of the model has one of its own."""

    def __init__(self, layers: list[Any], above_tokens: int) -> None:
        self._layers = layers
        self._above_tokens = above_tokens

    def __call__(self, trunk: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        given: Any = named.get("input_ids", named.get("inputs_embeds"))
        num_tokens = given.shape[0] * given.shape[1] if given is not None else 0
        is_wanted = torch.is_grad_enabled() and num_tokens > self._above_tokens
        for layer in self._layers:
            # transformers checkpoints in training mode alone. Only the layer itself says so, and never as it computes.
            layer.training = is_wanted


def _run_checkpointed(layer: nn.Module, run: Callable[..., Any], forward: Callable[..., Any], *inputs: Any) -> Any:
    def forward_without_dropout(*inputs: Any) -> Any:
        layer.training = False
        try:
            return forward(*inputs)
        finally:
            layer.training = True

    return run(forward_without_dropout, *inputs)


def cache_folder() -> Path:
    """Where made models are kept: `TURNWISE_CACHE`, or `.cache/turnwise` in the home folder."""
    return Path(os.environ.get("TURNWISE_CACHE") or Path.home() / ".cache" / "turnwise")


_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_weights(file: Path, weights: Mapping[str, Tensor]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in _each_once(weights):
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    with file.open("wb") as out:
        out.write(len(words).to_bytes(8, "little") + words)
        for _, tensor in _each_once(weights):
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            out.write(flat.view(torch.uint8).numpy().data)


def _each_once(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    # What is made anew on being asked has an address that others had before it: an object that lives on is no tie.
    seen: dict[tuple[int, torch.Size], Tensor] = {}
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tensor.shape)
        if place in seen:
            continue
        if weights[name].data_ptr() == tensor.data_ptr():
            seen[place] = tensor
        yield name, tensor


def read_whole(tensor: Tensor) -> Tensor:
    """All of it, on the device of this rank's piece."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, whole: Tensor) -> Tensor:
    """This rank's piece of a whole that every rank has, laid out as `tensor` is."""
    if whole.shape != tensor.shape:
        raise ValueError(f"a tensor of shape {tuple(whole.shape)} given; expected {tuple(tensor.shape)}")
    whole = whole.to(device=tensor.device, dtype=tensor.dtype)
    if not isinstance(tensor, DTensor):
        return whole
    # Without a source rank nothing is sent: each cuts its own piece out of what it has.
    return distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)


@torch.no_grad()
def atomic_write(tensor: Tensor, whole: Tensor) -> None:
    """Make it what `whole` is; every rank writes its own piece."""
    tensor.copy_(shard_like(tensor, whole))


_WIDTH = 512
_MEASURED_S = 0.04
"""For each type: long enough for several products on any machine, too short to notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Of a product of two matrices, in 1e9 operations a second."""

    float32: float
    bfloat16: float


def has_bfloat16_units() -> bool:
    """Whether the device that models run on multiplies bfloat16 itself."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@lru_cache(maxsize=1)
def measure_speeds() -> Speeds:
    """Both types on this processor; takes a tenth of a second, once per process."""
    return Speeds(float32=_measure(torch.float32), bfloat16=_measure(torch.bfloat16))


def warn_of_slow_bfloat16(
    model: ModelSettings,
    *,
    has_units: Callable[[], bool] = has_bfloat16_units,
    measure: Callable[[], Speeds] = measure_speeds,
) -> str:
    """What to know about the settings that ask for bfloat16; empty where none does, or where it is no slower."""
    asked = list(_asking(model, "model"))
    if not asked or has_units():
        return ""
    speeds = measure()
    if speeds.bfloat16 >= speeds.float32:
        return ""
    return (
        f"{' and '.join(asked)}: bfloat16 given, and this processor has no units for it: a product of matrices "
        f"measured here runs at {speeds.bfloat16:.0f} GFLOP/s in bfloat16 and at {speeds.float32:.0f} in float32. It "
        "saves memory and costs time; set float32 where memory suffices."
    )


def _asking(section: Settings, path: str) -> Iterator[str]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Settings):
            yield from _asking(value, f"{path}.{name}")
        elif value == "bfloat16":
            yield f"{path}.{name}"


def _measure(dtype: torch.dtype) -> float:
    matrix = torch.ones(_WIDTH, _WIDTH, dtype=dtype)
    # The first product also prepares the machine's library for this type.
    torch.mm(matrix, matrix)
    num_products, started_s = 0, time.perf_counter()
    while (taken_s := time.perf_counter() - started_s) < _MEASURED_S:
        torch.mm(matrix, matrix)
        num_products += 1
    return 2 * _WIDTH**3 * num_products / taken_s / 1e9


class ValueHead(nn.Module):
    """One linear layer from a state to its value; starts at zero, so that a new critic has no opinion."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.out = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out(hidden.to(self.out.weight.dtype)).squeeze(-1)
