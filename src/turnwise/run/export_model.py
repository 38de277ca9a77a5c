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

from turnwise import __version__
from turnwise.config.component import ENVS
from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, RunError
from turnwise.infra.atomic_files import atomic_dir
from turnwise.loop.build import load_words
from turnwise.loop.policies import newest_checkpoint
from turnwise.models.resolve import NAMES, is_hub_name
from turnwise.report.run_dir import RunDirectory, Summary
from turnwise.report.statistics import format_proportion, recorded_interval
from turnwise.rollout.env_specs import all_envs

_BASES = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Names of ours that are models of the hub."""

_ABOUT = (
    "A language model that was trained over many turns with reinforcement learning. Success is the share of held-out "
    "episodes, with its 95 % interval over tasks."
)
_FORMAT = "The folder has config.json, safetensors and tokenizer files: the format that transformers and vLLM load."

_LOAD = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER")
tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "..."}], add_generation_prompt=True, return_tensors="pt", return_dict=True
)
print(tokenizer.decode(model.generate(**prompt)[0]))
```"""


def write_card(settings: TurnwiseSettings, directory: RunDirectory, step: int) -> str:
    summary = directory.read_summary() if directory.summary.exists() else None
    facts = [
        ("recipe", settings.recipe),
        ("environment", settings.env.type),
        ("data", _data(settings)),
        ("seed", str(settings.run.seed)),
        ("base model", _base(settings) or settings.model.path),
        ("trained", "low-rank adapters, merged" if settings.model.lora.type == "lora" else "all weights"),
        ("step", str(step)),
        *_results(settings, directory, summary, step),
        ("licence", _licence(settings)),
        ("made with", f"turnwise {__version__}"),
    ]
    context = settings.context
    return "\n".join(
        [
            *_front_matter(settings),
            f"# {settings.recipe} on {settings.env.type}",
            "",
            _ABOUT,
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in facts),
            "",
            "## Use",
            "",
            _LOAD,
            "",
            f"A reply had at most {context.max_response_tokens} tokens, in the answer format `{context.answer.type}`.",
            _FORMAT,
            "",
        ]
    )


def _results(
    settings: TurnwiseSettings, directory: RunDirectory, summary: Summary | None, step: int
) -> list[tuple[str, str]]:
    """Of the step that is exported: its own evaluation, or that of the end of the run."""
    if summary is None:
        return [("success", "not known: the run is not finished")]
    row = {int(row["step"]): row for row in directory.read_metrics()}.get(step, {})
    success, mean_return = row.get("eval/success"), row.get("eval/return")
    ends = recorded_interval(row, summary.eval_episodes // settings.eval.samples)
    if step == summary.steps:
        success, mean_return, ends = summary.success_after, summary.return_after, summary.success_after_interval
    if success is None and mean_return is None:
        told = [("success", "not evaluated at this step")]
    else:
        told = [("success", format_proportion(success, ends))]
    if success is None and mean_return is not None:
        told.append(("return", f"{mean_return:.3f}"))
    if summary.success_before is not None:
        told.append(
            ("success before training", format_proportion(summary.success_before, summary.success_before_interval))
        )
    elif summary.return_before is not None:
        told.append(("return before training", f"{summary.return_before:.3f}"))
    told += [(f"success of {name}", f"{share:.2f}") for name, share in summary.baselines.items()]
    return [*told, ("held-out episodes", str(summary.eval_episodes))]


def _data(settings: TurnwiseSettings) -> str:
    """What the episodes were made from, as each environment says it."""
    told = {world.tag: getattr(ENVS.get_target(world.env.type), "data", "") for world in all_envs(settings)}
    return "; ".join(f"{tag}: {data}" if len(told) > 1 else data for tag, data in told.items()) or "not known"


def _licence(settings: TurnwiseSettings) -> str:
    """Nothing is claimed for weights that others made."""
    if settings.model.path == "tiny":
        return "trained from nothing: yours to choose"
    return f"that of the base model, {_base(settings) or settings.model.path}; see there"


def _front_matter(settings: TurnwiseSettings) -> list[str]:
    """The lines that the hub reads."""
    base = _base(settings)
    return [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        *([f"base_model: {base}"] if base else []),
        "tags: [turnwise, reinforcement-learning]",
        "---",
        "",
    ]


def _base(settings: TurnwiseSettings) -> str:
    """The base model's name on the hub; empty where it has none."""
    path = settings.model.path
    return _BASES.get(path, path if path not in NAMES and "/" in path and is_hub_name(path) else "")


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
    with atomic_dir(target) as unfinished:
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
