"""The registered choices: sections whose keys are their own and those of the class that is chosen in them.

In: the keys of a file. Out: a settings class in which each such section is made of the chosen class's `Params` and the
section's own keys. One table says where the choices are and what they choose from; no chosen class is known by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

from pydantic import create_model
from pydantic.fields import FieldInfo

from turnwise.config.registry import (
    BUFFERS,
    CREDITS,
    ENGINES,
    ENVS,
    LEARNERS,
    LOOPS,
    LOSSES,
    PRIORITIES,
    TRANSPORTS,
    WORKFLOWS,
    Registry,
)
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.sections.buffer import BufferSettings, PrioritySettings
from turnwise.config.sections.credit import CreditSettings
from turnwise.config.sections.engine import EngineSettings
from turnwise.config.sections.env import EnvSettings
from turnwise.config.sections.learn import LearnSettings, LossSettings
from turnwise.config.sections.loop import LoopSettings
from turnwise.config.sections.mix import MixedEnv, MixSettings
from turnwise.config.sections.rollout import RolloutSettings
from turnwise.config.sections.sync import SyncSettings
from turnwise.config.settings import Settings
from turnwise.config.trust import DistrustError
from turnwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A section in which a registered name, or `package.module:Class`, is chosen."""

    path: str
    registry: Registry
    base: type[Settings]
    """The keys that the section always has."""
    methods: tuple[str, ...]
    """What a chosen class must have, as its protocol says; none: a function is chosen."""
    key: str = "type"
    """The key that chooses."""
    takes_params: bool = True
    """Whether the chosen class's own settings stand in the section."""
    takes_functions: bool = True
    """Whether a function that makes the object will do in place of its class."""
    has_fixed_default: bool = True
    """Whether its default is the same for all runs; where it follows from other choices, `fitted.py` fills it in."""
    also_own: tuple[str, ...] = ()
    """Keys of the section that speak of the chosen class, and go with it."""

    @property
    def field(self) -> FieldInfo:
        """The key that chooses, with its default."""
        return self.base.model_fields[self.key]


_ENV = Choice(path="env", registry=ENVS, base=EnvSettings, methods=("reset", "step"), also_own=("train",))
CHOICES = (
    _ENV,
    Choice(
        path="engine",
        registry=ENGINES,
        base=EngineSettings,
        methods=("open", "generate", "release", "update_weights", "state", "close"),
    ),
    Choice(
        path="rollout",
        key="workflow",
        registry=WORKFLOWS,
        base=RolloutSettings,
        methods=("run",),
        takes_params=False,
        takes_functions=False,
    ),
    Choice(
        path="buffer",
        registry=BUFFERS,
        base=BufferSettings,
        methods=("open", "is_shared", "add", "take", "is_ready", "has_group", "__len__", "rewind"),
    ),
    Choice(path="buffer.priority", registry=PRIORITIES, base=PrioritySettings, methods=("__call__",)),
    Choice(path="credit", registry=CREDITS, base=CreditSettings, methods=("__call__",), has_fixed_default=False),
    Choice(
        path="learn",
        registry=LEARNERS,
        base=LearnSettings,
        methods=("open", "annotate", "step", "imitate", "supervise", "weights", "save_state", "load_state"),
    ),
    Choice(path="learn.loss", registry=LOSSES, base=LossSettings, methods=("__call__",)),
    Choice(
        path="sync",
        key="method",
        registry=TRANSPORTS,
        base=SyncSettings,
        methods=("open", "is_shared", "post", "newest", "fetch", "request", "requested"),
    ),
    Choice(path="loop", registry=LOOPS, base=LoopSettings, methods=()),
)
"""In pipeline order. `mix.TAG.env` is chosen as `env` is."""


def made_for(raw: dict[str, Any]) -> type[TurnwiseSettings]:
    """The settings class for the choices of `raw`, in which choices that it does not make are filled in."""
    made = _classes(CHOICES, raw)
    outermost = {path: section_class for path, section_class in made.items() if "." not in path}
    return _compose((TurnwiseSettings,), (*outermost.items(), ("mix", _mix_class(_section(raw, "mix")))))


def read_section(path: str, words: dict[str, Any]) -> Any:
    """One section with its choices, from what `model_dump` said of it: for a process that needs no other."""
    raw = {path: words}
    choices = [choice for choice in CHOICES if choice.path == path or choice.path.startswith(f"{path}.")]
    return _classes(choices, raw)[path].model_validate(raw[path])


def _classes(choices: Iterable[Choice], raw: dict[str, Any]) -> dict[str, type[Settings]]:
    """Their sections, by path; inner ones first, for they stand in the outer ones."""
    made: dict[str, type[Settings]] = {}
    for choice in sorted(choices, key=lambda choice: -choice.path.count(".")):
        section = reduce(_section, choice.path.split("."), raw)
        inside = {path.rpartition(".")[2]: made[path] for path in made if path.rpartition(".")[0] == choice.path}
        made[choice.path] = _section_class(choice, section, choice.path, inside)
    return made


def _section_class(
    choice: Choice, section: dict[str, Any], path: str, inside: Mapping[str, type[Settings]]
) -> type[Settings]:
    if choice.field.is_required() and choice.key not in section:
        known = ", ".join(sorted(choice.registry))
        raise ConfigError(f"{path}.{choice.key} is missing. Choose an {choice.registry.kind}: {known}.")
    name = _spell_as_registered(choice, section)
    try:
        params = params_class(choice, name, path) if choice.takes_params else Settings
    except DistrustError:
        # Which keys it has is known to its class alone: they are left out with it.
        params = Settings
        for key in section.keys() - choice.base.model_fields.keys():
            del section[key]
    bases = (choice.base,) if params is Settings else (params, choice.base)
    return _compose(bases, tuple(inside.items()), choice.key)


def _spell_as_registered(choice: Choice, section: dict[str, Any]) -> object:
    """What is chosen; another system's spelling becomes the name here, with the settings that it stands for."""
    name = section.setdefault(choice.key, choice.field.default)
    if isinstance(name, str) and (alias := choice.registry.unalias(name)).name != name:
        section[choice.key] = name = alias.name
        for key, value in alias.params.items():
            section.setdefault(key, value)
    return name


@cache
def _compose(
    bases: tuple[type[Settings], ...], inside: tuple[tuple[str, type[Settings]], ...], key: str | None = None
) -> type[Any]:
    """One class for equal arguments, so that equal settings compare equal whoever loaded them."""
    section = bases[-1]
    fields: dict[str, Any] = {name: (section_class, ...) for name, section_class in inside}
    if key is not None:
        # The section's own, even where Params has a key of that name: a class may be chosen under several names.
        fields[key] = (str, section.model_fields[key])
    return create_model(section.__name__, __base__=bases, **fields)


def _mix_class(mix: dict[str, Any]) -> type[MixSettings]:
    """One field for each tag, typed by the environment chosen there."""
    tags = {}
    for tag in mix:
        env = _section(_section(mix, tag, f"mix.{tag}"), "env", f"mix.{tag}.env")
        tags[tag] = _compose((MixedEnv,), (("env", _section_class(_ENV, env, f"mix.{tag}.env", {})),))
    return _compose((MixSettings,), tuple(tags.items()))


def _section(raw: dict[str, Any], key: str, path: str | None = None) -> dict[str, Any]:
    section = raw.setdefault(key, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{path or key}: {section!r} given; expected a section of settings.")
    return section


def params_class(choice: Choice, name: object, path: str) -> type[Settings]:
    """The own settings of what is chosen; plain `Settings` where it has none."""
    where, registry = f"{path}.{choice.key}", choice.registry
    if not isinstance(name, str):
        raise ConfigError(f"{where}: {name!r} given; expected a name such as '{next(iter(registry))}'.")
    try:
        params = registry.get_params(name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    if params is None:
        return Settings
    if not (isinstance(params, type) and issubclass(params, Settings)):
        raise ConfigError(
            f"{where}: 'Params' of '{name}' is {params!r}; expected a subclass of turnwise.config.settings.Settings."
        )
    if twice := (params.model_fields.keys() & choice.base.model_fields.keys()) - {choice.key}:
        raise ConfigError(
            f"{where}: 'Params' of '{name}' has {', '.join(map(repr, sorted(twice)))}, which {path} has already; "
            "choose another name."
        )
    return params


def without_switched(base: dict[str, Any], new: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The base without the keys of choices that `new` makes anew: what is chosen instead has other keys."""
    kept = dict(base)
    for key in base.keys() & new.keys():
        old, change = base[key], new[key]
        if isinstance(old, dict) and isinstance(change, dict):
            inner = f"{path}.{key}" if path else key
            kept[key] = without_switched(_keys_that_stay(old, change, inner), change, inner)
    return kept


def _keys_that_stay(old: dict[str, Any], change: dict[str, Any], path: str) -> dict[str, Any]:
    choice = choice_at(path)
    if choice is None:
        is_switched = "type" in old and "type" in change and old["type"] != change["type"]
        return {} if is_switched else old
    # Without a fixed default, keys that were given without a choice belong to whatever is chosen in the end.
    was_chosen = choice.has_fixed_default or choice.key in old
    names = [given.get(choice.key, choice.field.default) for given in (old, change)]
    chosen = [choice.registry.unalias(name).name if isinstance(name, str) else name for name in names]
    is_switched = choice.key in change and chosen[0] != chosen[1]
    if not (was_chosen and is_switched and choice.takes_params):
        return old
    section_keys = choice.base.model_fields.keys() - set(choice.also_own)
    return {key: value for key, value in old.items() if key in section_keys}


def choice_at(path: str) -> Choice | None:
    """What is chosen in the section at a path; None where nothing is."""
    is_mixed = path.startswith("mix.") and path.endswith(".env")
    return _ENV if is_mixed else next((choice for choice in CHOICES if choice.path == path), None)


def chosen_in(settings: TurnwiseSettings) -> Iterator[tuple[str, Choice, str]]:
    """Every choice of a run: the config path of the key, and what is chosen there."""
    for choice in CHOICES:
        section: Any = reduce(getattr, choice.path.split("."), settings)
        yield f"{choice.path}.{choice.key}", choice, getattr(section, choice.key)
    for tag, other in settings.mix.by_tag().items():
        yield f"mix.{tag}.env.{_ENV.key}", _ENV, other.env.type
