"""Settings that follow from others: defaults implied by a choice, three switches, and the section `pretrained`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from turnwise.config.component import needs_scorer
from turnwise.config.schema import TinySettings, TurnwiseSettings, made_for
from turnwise.config.settings import RawSettings, describe_problem, written_keys
from turnwise.config.trust import UntrustedCodeError
from turnwise.errors import ConfigError

_VLLM_HEAD_WIDTH = 32
"""The narrowest attention head that vLLM has a kernel for."""


def fill_defaults(raw: RawSettings) -> RawSettings:
    """Add the choices that follow from others."""
    raw = _with_default(raw, ("credit", "type"), _default_estimator(raw))
    if _find(raw, "reward", "judge", "type") not in (None, "none"):
        raw = _with_default(raw, ("reward", "judge", "beside_env"), "leave" if needs_reward_scorer(raw) else "add")
    if _has_eval_files(raw):
        raw = _with_default(raw, ("eval", "episodes"), "all")
    if _find(raw, "cluster", "type") == "ray":
        # An actor can be lost, and its memory with it.
        raw = _with_default(raw, ("buffer", "type"), "sqlite")
    if _find(raw, "engine", "type") == "vllm":
        raw = _fit_vllm(raw)
    return raw


def _fit_vllm(raw: RawSettings) -> RawSettings:
    """vLLM samples with other kernels than the learner, so correct for it; and make heads wide enough for them."""
    raw = _with_default(raw, ("learn", "correction", "type"), "truncated")
    width = _find(raw, "model", "tiny", "hidden_size") or TinySettings().hidden_size
    is_tiny = _find(raw, "model", "path") in (None, "tiny")
    if is_tiny and isinstance(width, int) and width % _VLLM_HEAD_WIDTH == 0:
        raw = _with_default(raw, ("model", "tiny", "num_heads"), width // _VLLM_HEAD_WIDTH)
    return raw


def _has_eval_files(raw: RawSettings) -> bool:
    """Whether every environment of the run has a file for evaluation."""
    mixed = _find(raw, "mix")
    tags = mixed if isinstance(mixed, dict) else {}
    paths = [_find(raw, "env", "eval_path"), *(_find(tags, tag, "env", "eval_path") for tag in tags)]
    return all(path is not None for path in paths)


def _default_estimator(raw: RawSettings) -> str:
    """GAE with a critic, else an estimator that compares a group if there are groups."""
    if _find(raw, "learn", "critic", "type") not in (None, "none"):
        return "gae"
    return "reinforce_pp" if _find(raw, "rollout", "group_size") == 1 else "grpo"


def needs_reward_scorer(raw: RawSettings) -> bool:
    """Whether an environment of the run gives no rewards."""
    mixed = _find(raw, "mix")
    tags = mixed if isinstance(mixed, dict) else {}
    names = [_find(raw, "env", "type"), *(_find(tags, tag, "env", "type") for tag in tags)]
    # A name that is no environment is refused when the settings are validated.
    with suppress(ConfigError, UntrustedCodeError):
        return any(isinstance(name, str) and needs_scorer(name) for name in names)
    return False


def _with_default(raw: RawSettings, path: tuple[str, ...], value: object) -> RawSettings:
    """Set a value if none is given."""
    key, *inner = path
    if not inner:
        return raw if key in raw else {**raw, key: value}
    section = raw.get(key, {})
    return {**raw, key: _with_default(section, tuple(inner), value)} if isinstance(section, dict) else raw


def _find(raw: RawSettings, *path: str) -> Any:
    """The value at a path, or None; a value in place of a section is refused when the settings are validated."""
    found: Any = raw
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


SHORTHANDS = ("multi_turn", "use_reward_model", "use_reward_critic")
"""Switches that stand for choices."""


def expand_shorthands(raw: RawSettings) -> RawSettings:
    """Replace the switches by the choices that they stand for."""
    given = {name: _checked(name, raw[name]) for name in SHORTHANDS if name in raw}
    expanded = {name: value for name, value in raw.items() if name not in SHORTHANDS}
    multi_turn = given.get("multi_turn")
    if multi_turn is False:
        expanded = _single_turn(expanded)
    elif multi_turn and not expanded.get("env"):
        raise ConfigError(
            "multi_turn: true given and no environment; many turns need one. Set env.type, for example "
            "env.type=frozen_lake, or multi_turn=false for the built-in prompts."
        )
    for name, path in {"use_reward_model": ("reward", "judge"), "use_reward_critic": ("learn", "critic")}.items():
        is_wanted = given.get(name)
        if is_wanted is None and multi_turn is not None and _find(expanded, *path) is None:
            is_wanted = not multi_turn and (name != "use_reward_model" or needs_reward_scorer(expanded))
        if is_wanted is not None:
            expanded = _with(expanded, path, _switched(_find(expanded, *path), is_wanted))
    return _with_built_in_judge(expanded) if multi_turn is False else expanded


def _single_turn(raw: RawSettings) -> RawSettings:
    """One turn, of the built-in prompts where nothing else is named."""
    raw = _with(raw, ("rollout", "max_turns"), 1)
    raw = raw if raw.get("env") else {**raw, "env": {"type": "prompts"}}
    if not _is_built_in(raw) or _find(raw, "context", "answer") is not None:
        return raw
    return _with(raw, ("context", "answer"), {"type": "plain"})


def _with_built_in_judge(raw: RawSettings) -> RawSettings:
    """The built-in prompts have a built-in reward model; for other prompts a recipe must name one."""
    judge = _find(raw, "reward", "judge")
    is_unnamed = isinstance(judge, dict) and judge.get("type") == "model" and judge.get("path") is None
    return _with(raw, ("reward", "judge"), {**judge, "path": "tiny"}) if is_unnamed and _is_built_in(raw) else raw


def _is_built_in(raw: RawSettings) -> bool:
    return _find(raw, "env", "type") == "prompts" and _find(raw, "env", "path") is None


def _checked(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: {value!r} given; expected true or false.")
    return value


def _switched(choice: Any, is_wanted: bool) -> RawSettings:
    """The choice that is there if it already fits; else a model, or none."""
    current = choice if isinstance(choice, dict) else {}
    if not is_wanted:
        return {"type": "none"}
    return current if current.get("type", "none") != "none" else {**current, "type": "model"}


def _with(raw: RawSettings, path: tuple[str, str], value: object) -> RawSettings:
    section = raw.get(path[0]) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{path[0]}: {section!r} given; expected a section of settings.")
    return {**raw, path[0]: {**section, path[1]: value}}


SECTION = "pretrained"
_TINY = "tiny"
_ENDPOINT = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Keys that one source gives, over those of the layers before it."""

    keys: Mapping[str, object]
    source: str
    is_pretrained: bool = False
    """Whether they count only where `model.path` is not 'tiny', or an endpoint answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting that a section changed."""

    path: str
    before: object
    """None where there was none."""
    after: object

    def __str__(self) -> str:
        return f"{self.path}: {_word(self.before)} -> {_word(self.after)}"


def split_layer(keys: Mapping[str, object], source: str) -> list[Layer]:
    """The keys of a source, and after them its section, where it has one."""
    own = {key: value for key, value in keys.items() if key != SECTION}
    section = keys.get(SECTION)
    if section is not None and not isinstance(section, Mapping):
        raise ConfigError(f"{SECTION}: {section!r} given; expected a section of settings.")
    model = (section or {}).get("model")
    if isinstance(model, Mapping) and "path" in model:
        raise ConfigError(
            f"{SECTION}.model.path: {model['path']!r} given; the section applies where another model is chosen, so it "
            "cannot choose one. Set model.path beside it."
        )
    layers = [Layer(keys=own, source=source)]
    return [*layers, Layer(keys=section, source=f"{SECTION} of {source}", is_pretrained=True)] if section else layers


def give_way(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, of which no section switches off what a later layer has settings for: those say that it is wanted."""
    return [
        replace(layer, keys=_without_idle(layer.keys, layers[number + 1 :])) if layer.is_pretrained else layer
        for number, layer in enumerate(layers)
    ]


def _without_idle(section: Mapping[str, object], later: Sequence[Layer]) -> RawSettings:
    def is_wanted(name: str) -> bool:
        said = [layer.keys.get(name) for layer in later if not layer.is_pretrained]
        return any(isinstance(keys, Mapping) and keys and "type" not in keys for keys in said)

    return {name: keys for name, keys in section.items() if keys != {"type": "none"} or not is_wanted(name)}


def applies_to(raw: Mapping[str, object]) -> bool:
    """Whether the policy is pretrained: another model than 'tiny', or one behind an endpoint."""
    model, engine = raw.get("model"), raw.get("engine")
    is_asked = isinstance(engine, Mapping) and engine.get("type") == _ENDPOINT
    return is_asked or (isinstance(model, Mapping) and model.get("path", _TINY) != _TINY)


def without_tiny(raw: RawSettings) -> RawSettings:
    """Drop the sizes of the built-in model, which is not made if a section applies."""
    model = raw.get("model")
    if not isinstance(model, Mapping):
        return raw
    return {**raw, "model": {key: value for key, value in model.items() if key != _TINY}}


def refuse_broken(raw: RawSettings, section: Mapping[str, object]) -> None:
    """Raise what is wrong inside a section alone; `raw` are all keys up to and with it."""
    try:
        settings_class = made_for(raw)
    except ConfigError as error:
        if _holds(section, str(error).partition(" ")[0].rstrip(":").split(".")):
            raise ConfigError(f"{SECTION}.{error}") from error
        return
    try:
        settings_class.model_validate(raw)
    except ValidationError as error:
        found = [dict(problem) for problem in error.errors() if _holds(section, written_keys(raw, problem["loc"]))]
        lines = [f"{SECTION}.{describe_problem(problem, settings_class, raw)}" for problem in found]
        if lines:
            several = ["the settings have several problems:", *lines]
            raise ConfigError("\n  ".join(several) if lines[1:] else lines[0]) from error


def find_changes(before: TurnwiseSettings, after: TurnwiseSettings) -> tuple[Change, ...]:
    """Every setting that differs, in the order of the pipeline; keys of a choice that is gone are left out."""
    old = dict(_flatten(before.model_dump(mode="json")))
    new = dict(_flatten(after.model_dump(mode="json")))
    return tuple(
        Change(path=path, before=old.get(path), after=value)
        for path, value in new.items()
        if not path.startswith(f"model.{_TINY}.") and (path not in old or old[path] != value)
    )


def describe_in_comment(changes: Sequence[Change]) -> str:
    """The comment above the resolved settings; empty if nothing was changed."""
    if not changes:
        return ""
    paths = ", ".join(change.path for change in changes)
    return f"# from the section '{SECTION}' of the recipe, because '{_TINY}' does not answer: {paths}\n"


def _holds(section: Mapping[str, object], path: Sequence[str]) -> bool:
    """Whether a section says something about a path."""
    inner: Any = section
    for key in path:
        if not isinstance(inner, Mapping) or key not in inner:
            return False
        inner = inner[key]
    return bool(path)


def _flatten(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _word(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)
