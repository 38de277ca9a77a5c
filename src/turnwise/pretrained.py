"""Model folders in, language models, configs and tokenizers out: the one place that loads them, for every package.

No Python file of a model folder is ever run, and no file outside the folder is read. Without `trust_remote_code=False`
transformers asks on the terminal whether to run the code of a folder with `auto_map`, and `yes y |` would answer it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.peft_utils import find_adapter_config_file

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
    with _in_words():
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
    with _in_words():
        _check_files(path, gguf_file)
        return AutoTokenizer.from_pretrained(str(path), gguf_file=gguf_file, trust_remote_code=False)


def load_causal_model(path: str | Path, *, dtype: torch.dtype, gguf_file: str | None = None) -> PreTrainedModel:
    _check_before_weights(path, gguf_file)
    with _in_words():
        return AutoModelForCausalLM.from_pretrained(
            str(path), dtype=dtype, gguf_file=gguf_file, trust_remote_code=False
        )


def load_classifier(path: str | Path) -> tuple[PreTrainedModel, set[str]]:
    """A sequence classifier in float32 on the best device here, and the names of weights that its files lack."""
    _check_before_weights(path)
    with _in_words():
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(
            str(path), dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
    model, info = loaded
    return model.to(best_device()), set(info["missing_keys"])


def make_causal_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A model of this shape; on the device `meta` it has no weights."""
    with _in_words():
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


@contextmanager
def _in_words() -> Iterator[None]:
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
    with _in_words():
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
            content = _read_mapping(folder / name)
            _require_inside(name, content.get(_FILE_LISTS.get(name, "")) or [])


def _check_index(folder: Path, weights: str) -> None:
    """An index of shards names files that are there, in the folder."""
    _require_inside("config.json", [weights])
    if not weights.endswith(_INDEX):
        return
    shards = _read_mapping(folder / weights).get("weight_map")
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


def _read_mapping(file: Path) -> dict[str, Any]:
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
