"""The README.md of an exported model: what it is, what it was trained on, how good it is, and how it is loaded.

In: the settings and the records of a run, and a step. Out: text. It says only what the run has on record.
"""

from __future__ import annotations

from turnwise import __version__
from turnwise.config.component import ENVS
from turnwise.config.schema import TurnwiseSettings
from turnwise.models.resolve import NAMES, is_hub_name
from turnwise.report.run_dir import RunDirectory, Summary
from turnwise.report.statistics import recorded_interval, show_share
from turnwise.rollout.env_specs import worlds_of

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
        told = [("success", show_share(success, ends))]
    if success is None and mean_return is not None:
        told.append(("return", f"{mean_return:.3f}"))
    if summary.success_before is not None:
        told.append(("success before training", show_share(summary.success_before, summary.success_before_interval)))
    elif summary.return_before is not None:
        told.append(("return before training", f"{summary.return_before:.3f}"))
    told += [(f"success of {name}", f"{share:.2f}") for name, share in summary.baselines.items()]
    return [*told, ("held-out episodes", str(summary.eval_episodes))]


def _data(settings: TurnwiseSettings) -> str:
    """What the episodes were made from, as each environment says it."""
    told = {world.tag: getattr(ENVS.get_target(world.env.type), "data", "") for world in worlds_of(settings)}
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
