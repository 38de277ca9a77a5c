"""What can play becomes a policy that is ready to: a run's newest checkpoint, or any model in the setting of a recipe.

In: a run directory, a checkpoint's policy folder, a model as `model.path` takes it, or the URL of an endpoint. Out: the
parts that play it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.envs.safe_calls import closing_env, reset_env
from turnwise.errors import ConfigError, RunError, did_you_mean
from turnwise.infra.atomic_files import verify_checksums
from turnwise.loop.build import open_rollout
from turnwise.loop.components import RolloutComponents
from turnwise.models.load import cache_folder
from turnwise.models.resolve import NAMES, find_gguf, is_hub_name, resolve_path
from turnwise.models.tiny import CHAT_TEMPLATE, tiny_model_folder
from turnwise.report.run_dir import RunDirectory, settings_file_of
from turnwise.rollout.env_specs import all_envs, sample_tokenizer_corpus


def resolve_model(settings: TurnwiseSettings) -> str:
    """The folder or hub name of the model that `model.path` means; the built-in model is made on first use."""
    if settings.model.path != "tiny":
        return resolve_path(settings.model.path)
    texts = [text for world in all_envs(settings) for text in sample_tokenizer_corpus(world)]
    folder = tiny_model_folder(
        cache_folder() / "models",
        settings=settings.model.tiny,
        seed=settings.run.seed,
        sample_texts=texts,
    )
    return str(folder)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Who plays, and in which setting."""

    settings: TurnwiseSettings
    model: str | None
    """A folder; None: the model of the settings."""

    def resolve(self) -> str:
        """The folder or hub name to load; may convert or fetch it."""
        return self.model or resolve_model(self.settings)


def find_policy(
    target: str | Path, overrides: Sequence[str] = (), *, recipe: str | Mapping[str, object] | None = None
) -> Found:
    """A run in its own setting, a model or an endpoint in that of a recipe; nothing is loaded."""
    if is_endpoint(str(target)):
        return _find_endpoint(str(target), overrides, recipe)
    path = _policy_in(Path(target).expanduser())
    config = settings_file_of(path)
    is_whole_run = config is not None and config.parent == path
    folder = newest_checkpoint(RunDirectory.open(path)) / "policy" if is_whole_run else path
    if config is not None and recipe is None:
        _refuse_other_model(overrides)
        # The tokenizer of a checkpoint has the run's chat template already, and its file may be elsewhere by now.
        return Found(settings=load_settings(str(config), ["context.template=null", *overrides]), model=str(folder))
    recipe = recipe or "frozenlake"
    if path.is_dir() and (config is not None or _is_built_in(path)):
        return Found(settings=load_settings(recipe, overrides), model=str(folder))
    named = str(target)
    _refuse_missing_run(path)
    if not is_model_reference(named):
        raise RunError(
            f"'{path}' is neither a run directory nor a model folder, a GGUF file, a name such as 'smollm2' or "
            "'owner/model', or the URL of an endpoint. Check the path."
        )
    _refuse_other_model(overrides)
    return Found(settings=load_settings(recipe, [f"model.path={json.dumps(named)}", *overrides]), model=None)


def _refuse_missing_run(path: Path) -> None:
    """A name in a folder of runs means a run, never a model on the hub."""
    beside = [] if path.exists() else sorted(found.parent.name for found in path.parent.glob("*/config.yaml"))
    if beside and path.name != str(path):
        raise RunError(f"there is no run '{path}'. {did_you_mean(path.name, beside)}")


def is_endpoint(target: str) -> bool:
    """Whether a word of a command means an OpenAI-compatible endpoint."""
    return target.startswith(("http://", "https://"))


def explained(env_name: str, params: Mapping[str, object], *, called: str) -> dict[str, object]:
    """The setting of an environment for a model that knows nothing of it: everything is told, with room to answer."""
    return {
        "recipe": called,
        "env": {"type": env_name, **params},
        "rollout": {"max_turns": 10},
        "context": {"instructions": "full", "max_tokens": 4096, "max_response_tokens": 128},
    }


def _find_endpoint(url: str, overrides: Sequence[str], recipe: str | Mapping[str, object] | None) -> Found:
    for key in ("engine.type", "engine.url"):
        if any(word.partition("=")[0].strip() == key for word in overrides):
            raise ConfigError(f"{key}: given beside the URL of an endpoint, which says it; leave it out.")
    chosen = ["engine.type=openai", f"engine.url={json.dumps(url)}"]
    return Found(settings=load_settings(recipe or "frozenlake", [*chosen, *overrides]), model=None)


def is_model_reference(target: str) -> bool:
    """Whether a word of a command means a model: a folder, a GGUF file, a name of ours, or `owner/model`."""
    if Path(target).expanduser().is_dir() or target in NAMES:
        return True
    if target.endswith((".yaml", ".yml")):
        return False
    return find_gguf(target) is not None or ("/" in target and is_hub_name(target))


def open_policy(found: Found, *, split: str = "eval") -> RolloutComponents:
    """A policy ready to play the tasks of a split."""
    settings = found.settings
    # A split that does not exist would fail every episode and look like a policy that never succeeds.
    for world in all_envs(settings):
        with closing_env(world.make(split)) as env:
            reset_env(env, seed=settings.eval.first_seed, split=split)
    return open_rollout(settings, found.resolve(), split=split)


def newest_checkpoint(directory: RunDirectory) -> Path:
    """The newest one whose policy is as it was written; a damaged one is passed over with a word."""
    for step in reversed(directory.checkpoint_steps()):
        checkpoint = directory.step_checkpoint(step)
        damage = verify_checksums(checkpoint, under="policy/")
        if damage is None:
            return checkpoint
        log.warning("%s is damaged (%s); the one before it is used", checkpoint, damage)
    found = "no checkpoint that is sound" if directory.checkpoint_steps() else "no checkpoint yet"
    raise RunError(f"run {directory.path} has {found}. Let it finish, or train with report.checkpoint_every set.")


def _policy_in(path: Path) -> Path:
    """A checkpoint stands for the policy that it holds; everything else for itself."""
    is_checkpoint = path.absolute().parent.name == "checkpoints" and (path / "policy").is_dir()
    return path / "policy" if is_checkpoint else path


def find_run(target: str | Path) -> Path | None:
    """The run that a target is, or is a checkpoint of; None where it is of none."""
    if is_endpoint(str(target)):
        return None
    config = settings_file_of(_policy_in(Path(target).expanduser()))
    return None if config is None else config.parent


def _is_built_in(folder: Path) -> bool:
    """Whether it is a built-in model, whatever it has learnt: recipes are made for it."""
    template = folder / "chat_template.jinja"
    return template.is_file() and template.read_bytes() == CHAT_TEMPLATE.encode()


def _refuse_other_model(overrides: Sequence[str]) -> None:
    if any(word.partition("=")[0].strip() == "model.path" for word in overrides):
        raise ConfigError("model.path: given beside a policy that brings its own model; leave it out.")
