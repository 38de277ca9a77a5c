"""The model and how it speaks: what its folder holds, and what its chat template is proven to do."""

from __future__ import annotations

from turnwise.app.doctor.findings import Finding, fine, problem, warning
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.schema_learn import FunctionJudgeSettings, ModelJudgeSettings
from turnwise.context.template import LearnedTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.errors import TurnwiseError
from turnwise.models.memory import read_config
from turnwise.models.resolve import SMOLLM2, find_gguf, is_hub_name, read_shape
from turnwise.rollout.env_specs import find_workflow


def examine_names() -> list[Finding]:
    """Which models can be used by their name alone."""
    try:
        find_gguf(SMOLLM2)
    except TurnwiseError as error:
        return [fine("models", f"'tiny' is built in. {error}")]
    return [fine("models", f"'tiny' is built in, '{SMOLLM2}' is installed")]


def examine_model(settings: TurnwiseSettings) -> list[Finding]:
    """The model that is trained; what cannot be loaded at all was refused before."""
    model, limit = settings.model, settings.context.max_tokens
    config = read_shape(settings)
    if model.path == "tiny":
        words, positions = "'tiny', the built-in model, made on first use", model.tiny.max_positions
    elif config is None:
        return [warning("model", f"'{model.path}' is not on this machine; it is fetched from the hub when it is used.")]
    else:
        kind = ", ".join(getattr(config, "architectures", None) or ()) or "a causal language model"
        words = f"'{model.path}', {kind}"
        positions = getattr(config and config.get_text_config(), "max_position_embeddings", None) or limit
    if positions < limit:
        return [
            warning(
                "model",
                f"{words}, reads {positions} positions and context.max_tokens is {limit}: longer episodes would fail. "
                f"Set context.max_tokens={positions} or less.",
            )
        ]
    return [fine("model", words)]


def examine_judge(settings: TurnwiseSettings) -> list[Finding]:
    """Who gives rewards, where the environment gives none."""
    judge = settings.reward.judge
    if isinstance(judge, FunctionJudgeSettings):
        return [fine("judge", f"'{judge.target}' can be called with (prompt, response)")]
    if not isinstance(judge, ModelJudgeSettings):
        return []
    path = judge.path or ""
    if path != "tiny" and is_hub_name(path) and read_config(path) is None:
        return [
            warning("reward model", f"'{path}' is not on this machine; it is fetched from the hub when it is used.")
        ]
    return [
        fine("reward model", "'tiny', the built-in one" if path == "tiny" else f"'{path}', a classifier with one label")
    ]


def examine_template(settings: TurnwiseSettings, model_path: str) -> list[Finding]:
    """What is proven of the chat template by rendering probe conversations."""
    template = LearnedTemplate(load_tokenizer(model_path, settings.context))
    if template.why_cut:
        bridge = warning(
            "template",
            f"turns cannot be bridged: {template.why_cut}. Episodes are cut into one segment per turn, which is exact "
            "and slower.",
        )
    else:
        system = "has" if template.accepts_system else "has no"
        bridge = fine(
            "template", f"appending a turn gives the tokens of the whole conversation, proven; it {system} system role"
        )
    return [bridge, *_tools(settings, template)]


def _tools(settings: TurnwiseSettings, template: LearnedTemplate) -> list[Finding]:
    try:
        needs_tools = bool(getattr(find_workflow(settings), "needs_tool_syntax", False))
    except Exception:  # noqa: BLE001 - what is wrong with the workflow is told elsewhere
        needs_tools = False
    if template.supports_tools:
        return [fine("tools", "the chat template writes tools, calls and results, and its calls can be read")]
    if not needs_tools:
        return [fine("tools", f"none are used, and could not be: {template.why_no_tools}")]
    return [
        problem(
            "tools",
            f"rollout.workflow '{settings.rollout.workflow}' uses tools, and {template.why_no_tools}. Use a model "
            "whose chat template knows tools, or another workflow.",
        )
    ]
