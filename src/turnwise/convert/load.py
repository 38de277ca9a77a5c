"""Files and overrides in another project's words, on their way into our settings.

In: a config as it was read, with its references. Out: a Translation, or the same overrides in our words. Files that
Hydra would compose (`defaults`) are read where they lie beside the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.text import Text

from turnwise.config.load import SHORTHANDS
from turnwise.config.recipes import SHIPPED
from turnwise.config.schema import TurnwiseSettings
from turnwise.convert import trinity, verl
from turnwise.convert import verl as agent_trainer
from turnwise.convert import verl as align_anything
from turnwise.convert import verl as ragen
from turnwise.convert.environments import find_env
from turnwise.convert.table import Dialect, Line, Refusal, Translation, Unresolved, translate
from turnwise.convert.verl import ALIGN_ANYTHING_ROWS as ALIGN_ROWS

_SHARED = (*ragen.RAGEN_ROWS, *align_anything.ALIGN_ANYTHING_ROWS, *agent_trainer.AGENT_TRAINER_ROWS, *verl.VERL_ROWS)
"""These four build upon each other, and files mix their sections."""


def _of(name: str, own: tuple[Any, ...], *sections: str) -> Dialect:
    return Dialect(name=name, sections=sections, own=own, rows=_SHARED, finish=verl.finish)


ALIGN_ANYTHING = _of(
    "align-anything",
    align_anything.ALIGN_ANYTHING_ROWS,
    "train_cfgs",
    "model_cfgs",
    "env_cfgs",
    "data_cfgs",
    "logger_cfgs",
    "lora_cfgs",
    "bnb_cfgs",
    "vllm_cfgs",
    "special_tokens",
)
RAGEN = _of(
    "RAGEN",
    ragen.RAGEN_ROWS,
    "es_manager",
    "ctx_manager",
    "agent_proxy",
    "custom_envs",
    "system",
    "seed",
    "lora",
    "model_path",
    "micro_batch_size_per_gpu",
    "ppo_mini_batch_size",
    "enable_response_mask",
    "grpo_advantage_length_weight",
    "defaults",
)
AGENT_TRAINER = _of("AgentTrainer", agent_trainer.AGENT_TRAINER_ROWS, "agent", "env_template")
VERL = _of(
    "verl",
    verl.VERL_ROWS,
    "actor_rollout_ref",
    "data",
    "critic",
    "reward_model",
    "custom_reward_function",
    "ray_init",
    "ray_kwargs",
    "trainer",
    "algorithm",
)
TRINITY = Dialect(
    name="Trinity-RFT",
    sections=(
        "explorer",
        "synchronizer",
        "cluster",
        "buffer",
        "algorithm",
        "trainer",
        "model",
        "project",
        "name",
        "checkpoint_root_dir",
        "monitor",
        "data_processor",
        "service",
        "log",
        "stages",
        "mode",
        "group",
        "continue_from_checkpoint",
        "ray_namespace",
    ),
    own=trinity.ROWS,
    rows=trinity.ROWS,
    finish=trinity.finish,
)
DIALECTS = (ALIGN_ANYTHING, RAGEN, AGENT_TRAINER, VERL, TRINITY)
OUR_SECTIONS = {*TurnwiseSettings.model_fields, *SHORTHANDS, "extends", "pretrained"}


def detect_dialect(raw: Mapping[str, Any]) -> Dialect | None:
    """The dialect with the most of its sections in the file; None where all of them are ours."""
    sections = {str(key) for key in raw}
    scores = {dialect.name: len(sections & set(dialect.sections)) for dialect in DIALECTS}
    foreign = sections - OUR_SECTIONS
    if not any(foreign & set(dialect.sections) for dialect in DIALECTS):
        return None
    if "buffer" not in sections and not sections & {"explorer", "synchronizer", "cluster", "checkpoint_root_dir"}:
        # `algorithm`, `trainer` and `model` alone are words of several.
        scores[TRINITY.name] = 0
    return max(DIALECTS, key=lambda dialect: scores[dialect.name])


def describe_likeness(keys: Iterable[str]) -> str | None:
    """Whose file this may be, where its top-level keys are neither ours nor anybody's; None where all are ours."""
    foreign = [str(key) for key in keys if key not in OUR_SECTIONS]
    if not foreign:
        return None
    scores = {d.name: sum(bool(get_close_matches(key, d.sections, cutoff=0.75)) for key in foreign) for d in DIALECTS}
    name = max(scores, key=lambda name: scores[name])
    if scores[name]:
        return f"It looks like a file of {name}; its sections are listed in docs/coming_from.md."
    known = ", ".join(dialect.name for dialect in DIALECTS)
    return f"Files of {known} are understood as they stand: docs/coming_from.md."


FLAGS = {row.key.rpartition(".")[2]: row.key for row in reversed(ALIGN_ROWS) if "*" not in row.key}
"""Keys of align-anything by their last word, as its command line takes them."""


def translate_config(dialect: Dialect, config: DictConfig) -> Translation:
    """A whole file."""
    _register_resolvers()
    ours = pick_ours(dialect, config)
    return translate(dialect, {key: value for key, value in _resolve(config).items() if key not in ours})


def pick_ours(dialect: Dialect, config: DictConfig) -> DictConfig:
    """The sections of a file that speak in our words: they may stand beside those of a project that has none such."""
    raw = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=False))
    ours = {key: value for key, value in raw.items() if key in OUR_SECTIONS and key not in dialect.sections}
    return cast(DictConfig, OmegaConf.create(ours))


def translate_overrides(config: DictConfig) -> Translation:
    """Single keys that change settings of our own: nothing follows from what they leave out."""
    raw = _resolve(config)
    dialect = next((d for d in DIALECTS if {*raw} & {*d.sections}), ALIGN_ANYTHING)
    return translate(dialect, raw, is_partial=True)


def foreign_key(key: str, dialect: Dialect | None) -> str | None:
    """The whole key that an override means in another project's words; None where it speaks in ours."""
    first = key.partition(".")[0]
    if dialect is not None and dialect.find(key):
        return key
    if first in OUR_SECTIONS:
        return None
    if any(first in other.sections for other in DIALECTS):
        return key
    return FLAGS.get(key)


def find_composed(config: DictConfig, folder: Path) -> list[Path]:
    """The files beside this one that its `defaults` names, in order."""
    names = config.get("defaults")
    if not isinstance(names, ListConfig):
        return []
    files = [folder / f"{name}.yaml" for name in names if isinstance(name, str) and name != "_self_"]
    return [file for file in files if file.is_file()]


def _resolve(config: DictConfig) -> dict[str, Any]:
    """Plain values. A reference that leads nowhere is kept as one: its key may have no meaning here anyway."""
    return {str(key): _resolve_value(config, key) for key in config}


def _resolve_value(parent: DictConfig, key: Any) -> Any:
    try:
        value = parent[key]
        if isinstance(value, DictConfig):
            return _resolve(value)
        return OmegaConf.to_container(value, resolve=True) if isinstance(value, ListConfig) else value
    except (OmegaConfBaseException, RecursionError, TypeError, ValueError, ZeroDivisionError):
        raw = cast("dict[Any, Any]", OmegaConf.to_container(parent, resolve=False))
        return Unresolved(text=str(raw.get(key)))


def _register_resolvers() -> None:
    """RAGEN's own."""
    for name, compute in _RESOLVERS.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_resolver(name, compute)


_RESOLVERS: Mapping[str, Any] = {
    "mul": lambda a, b: a * b,
    "int_div": lambda a, b: a // b,
    "not": lambda a: not a,
}


_STYLES = {"mapped": "green", "no meaning": "dim", "refused": "bold red"}
_HEADS = {"mapped": "mapped", "no meaning": "without meaning here", "refused": "refused"}


def describe_translation(translation: Translation) -> Text:
    """One line for every key of the file, by what became of it."""
    text = Text(f"a file of {translation.dialect}\n")
    for kind, style in _STYLES.items():
        lines = [line for line in translation.lines if line.kind == kind]
        if lines:
            text.append(f"{_HEADS[kind]} ({len(lines)})\n", style="bold")
        for line in lines:
            text.append(f"  {line.key}: {_short(line.value)}", style=style)
            text.append(f"  {_fate(line)}\n", style="dim" if kind != "refused" else "")
    return text


def _fate(line: Line) -> str:
    if line.kind != "mapped":
        return line.note
    return f"-> {line.to}" + (f" ({line.note})" if line.note else "")


def to_translation_rows(translation: Translation) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {"key": line.key, "given": line.value, "kind": line.kind, "to": line.to, "note": line.note}
        for line in translation.lines
    ]


def to_recipe(translation: Translation, source: str) -> str:
    """The file in our words, as somebody would write it: only what it says."""
    told = [line for line in translation.lines if line.kind == "no meaning" and line.value is not None]
    head = [
        f"# Made from {source}, a file of {translation.dialect}.",
        *(f"# Left out: {line.key}: {line.note}." for line in told),
    ]
    body = yaml.safe_dump(translation.nested(), sort_keys=False, allow_unicode=True)
    return "\n".join([*head, body])


def default_recipe(overrides: Sequence[str]) -> str:
    """The recipe that flags alone are about: that of the environment they name, or of their number of turns."""
    given = [(key, value) for key, _, value in (word.partition("=") for word in overrides)]
    meant = {foreign_key(key, None) or key: value for key, value in given}
    name = meant.get("env_cfgs.env_name") or meant.get("env.type")
    if name:
        return _recipe_of(name)
    is_single = meant.get("train_cfgs.multi_turn", meant.get("multi_turn", "")).lower() == "false"
    return "single_turn_ppo" if is_single else "frozenlake"


def _recipe_of(name: str) -> str:
    try:
        env = find_env(name)[0]
    except Refusal:
        # Said with its config path when the settings are loaded.
        return "frozenlake"
    recipe = env.replace("_", "")
    return recipe if (SHIPPED / f"{recipe}.yaml").is_file() else "frozenlake"


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
