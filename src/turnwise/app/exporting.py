"""`turnwise export-model`: a run's policy as an ordinary Hugging Face folder, with a card that says what it learnt.

In: a run and a step of it. Out: a folder with weights, tokenizer, chat template, generation settings and README.md,
whole or not there, and on the hub where that is asked for. A checkpoint's policy is a plain model already, adapters
merged: nothing is computed here.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import GenerationConfig

from turnwise.app.model_card import write_card
from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, RunError
from turnwise.infra.atomic_files import whole_folder
from turnwise.loop.build import load_words
from turnwise.loop.policies import newest_checkpoint
from turnwise.report.run_dir import RunDirectory


class Hub(Protocol):
    """What is asked of `huggingface_hub.HfApi`."""

    def create_repo(self, repo_id: str, *, exist_ok: bool, private: bool) -> Any: ...
    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> Any: ...


def export_model(
    run: str | Path, folder: str | Path, *, step: int | None = None, push: str | None = None, hub: Hub | None = None
) -> Path:
    """Write the policy of a step (by default the last) into a new folder, and upload it as `push`."""
    directory, target = RunDirectory.open(Path(run)), Path(folder)
    checkpoint = _find_checkpoint(directory, step)
    _refuse_taken(target)
    if push is not None:
        _check_name(push)
    # The checkpoint's tokenizer has the run's chat template already.
    settings = load_settings(str(directory.config), ["context.template=null"])
    with whole_folder(target) as unfinished:
        shutil.copytree(checkpoint / "policy", unfinished, dirs_exist_ok=True)
        _write_generation(settings, unfinished)
        number = int(checkpoint.name.removeprefix("step-"))
        (unfinished / "README.md").write_text(write_card(settings, directory, number), encoding="utf-8")
    if push is not None:
        _upload(hub or HfApi(), push, target, f"{settings.recipe}, step {number}")
    return target


def _find_checkpoint(directory: RunDirectory, step: int | None) -> Path:
    if step is None:
        return newest_checkpoint(directory)
    saved = directory.checkpoint_steps()
    if step not in saved:
        known = ", ".join(map(str, saved)) or "none"
        raise ConfigError(f"--step: {step} given; run {directory.path} has checkpoints of these steps: {known}.")
    return directory.step_checkpoint(step)


def _refuse_taken(target: Path) -> None:
    if target.is_dir() and any(target.iterdir()):
        raise ConfigError(f"'{target}' is not empty, and nothing is overwritten. Give a new folder.")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"'{target}' is a file. Give a new folder.")


def _check_name(name: str) -> None:
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(
            f"--push: '{name}' given; expected a name on the hub, such as owner/model. {error}"
        ) from error


def _write_generation(settings: TurnwiseSettings, folder: Path) -> None:
    """As the run sampled: others would otherwise not know which token ends a reply."""
    words = load_words(settings, str(folder))
    temperature = settings.rollout.temperature
    GenerationConfig(
        do_sample=temperature > 0,
        temperature=temperature if temperature > 0 else None,
        max_new_tokens=settings.context.max_response_tokens,
        eos_token_id=sorted(words.template.stop_ids),
        pad_token_id=words.tokenizer.pad_token_id,
        bos_token_id=words.tokenizer.bos_token_id,
    ).save_pretrained(str(folder))


def _upload(hub: Hub, name: str, folder: Path, message: str) -> None:
    try:
        hub.create_repo(name, exist_ok=True, private=True)
        hub.upload_folder(repo_id=name, folder_path=str(folder), commit_message=message)
    except Exception as error:  # the network, the hub and one's rights there may be wrong in many ways
        lines = str(error).strip().splitlines()
        raise RunError(
            f"the model is in {folder}, and could not be uploaded as '{name}': "
            f"{(lines[0] if lines else type(error).__name__).rstrip('.')}. Log in with `hf auth login`, then upload it "
            f"with: hf upload {name} {folder}"
        ) from error
