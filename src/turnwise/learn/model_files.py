"""Whether a path leads to a model of the right kind, told without loading a weight.

In: a model folder. Out: nothing, or a ModelError that says what is there instead. A name that may be one of the hub's
is left alone: what it means is known when it is fetched. It refuses to know what the model is for.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from turnwise.config.schema import Lora, ModelSettings
from turnwise.errors import ModelError
from turnwise.learn.adapters import add_adapter
from turnwise.learn.models import checkpoint_gradients
from turnwise.pretrained import load_config, load_tokenizer_of, make_causal_model

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


def check_held_as(config: PreTrainedConfig, settings: ModelSettings) -> None:
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
    return ", ".join(config.architectures or ()) or f"model of the type '{config.model_type}'"
