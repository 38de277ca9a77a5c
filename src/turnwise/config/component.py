"""What a config can choose: `Component`, its `Registry` of names, and tables of the classes that are no components.

A choice is a registered name, another system's spelling of it, a user's `package.module:Class` (or
`package.module.Class`), an entry point of an installed package, or `adapter:NAME` for what another package offers under
NAME. Nothing is imported before it is chosen.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar, cast

from pydantic import GetCoreSchemaHandler, ValidationError, create_model
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from turnwise.config.settings import Settings, WholeSettings
from turnwise.config.trust import UntrustedCodeError, require_trusted
from turnwise.errors import ConfigError, did_you_mean
from turnwise.infra.untrusted import format_error

T = TypeVar("T")
C = TypeVar("C", bound="Component")


@dataclass(frozen=True, slots=True)
class Alias:
    """A registered name, and the settings that another system's spelling of it stands for."""

    name: str
    params: Mapping[str, object] = field(default_factory=dict[str, object])


class ClassRegistry(Mapping[str, str]):
    """Names to `module:attribute` targets, resolved on use: what is created per episode, and small tables of names."""

    def __init__(
        self,
        kind: str,
        default_mapping: Mapping[str, str],
        *,
        params: Mapping[str, str | None] | None = None,
        adapters: Mapping[str, str] | None = None,
        aliases: Mapping[str, Alias] | None = None,
    ) -> None:
        self.kind = kind
        self.default_mapping = dict(default_mapping)
        self.shipped = frozenset(default_mapping)
        """The names that come with the library; others are the user's."""
        self._params = dict(params or {})
        """Where the settings of a name are, None where it has none: for targets that are slow to import."""
        self.adapters = dict(adapters or {})
        """Prefixes to functions that take the rest of a name, `gymnasium:REST`, and return the object."""
        self.aliases = dict(aliases or {})
        """What other systems call a name, in their spelling; upper and lower case do not matter."""
        self._added: dict[str, object] = {}

    def __getitem__(self, name: str) -> str:
        return repr(self._added[name]) if name in self._added else self.default_mapping[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.default_mapping | dict.fromkeys(self._added, ""))

    def __len__(self) -> int:
        return len(self.default_mapping.keys() | self._added.keys())

    def register(self, name: str, target: object) -> None:
        """Add a name at run time; `target` is the object itself or a `module:attribute` string."""
        if name in self and not _is_written_again(self._added.get(name), target):
            raise ConfigError(f"{self.kind} '{name}' is registered already; choose another name.")
        if isinstance(target, str):
            self.default_mapping[name] = target
        else:
            self._added[name] = target

    def register_module(self, name: str) -> Callable[[T], T]:
        """`register` as a decorator: `@WORKFLOWS.register_module("my_workflow")`."""

        def add(target: T) -> T:
            self.register(name, target)
            return target

        return add

    def resolve_alias(self, name: str) -> Alias:
        """What a spelling stands for; whatever is none stands for itself."""
        if name not in self:
            for spelling, alias in self.aliases.items():
                if spelling.lower() == name.lower():
                    return alias
        return Alias(name)

    def get_target(self, name: str) -> object:
        """The object behind a registered name, a spelling of it, or a path such as `package.module:Attribute`."""
        name = self.resolve_alias(name).name
        if name in self._added:
            return self._added[name]
        if name in self.default_mapping:
            return import_target(self.default_mapping[name], self.kind, is_known=True)
        prefix, colon, rest = name.partition(":")
        if colon and prefix in self.adapters:
            if ":" in rest or prefix == "verifiers":
                # A module or an address: `function:package.module:name`, `gymnasium:module:ID`, `openenv:URL`; what
                # verifiers is given is a module too.
                require_trusted(name)
            adapt = cast("Callable[[str], object]", import_target(self.adapters[prefix], self.kind, is_known=True))
            return adapt(rest)
        if colon or "." in name:
            return import_target(name, self.kind)
        raise ConfigError(
            f"there is no {self.kind} named '{name}'. {did_you_mean(name, self)} "
            f"Your own class can be given as 'package.module:Class'."
        )

    def get_params(self, name: str) -> object:
        """What is `Params` of the object behind a name; None where there is nothing."""
        name = self.resolve_alias(name).name
        if name not in self._params:
            return getattr(self.get_target(name), "Params", None)
        where = self._params[name]
        return None if where is None else import_target(where, self.kind, is_known=True)


def _is_written_again(old: object, new: object) -> bool:
    """Whether a class is the one before, from a cell or a module that ran once more."""
    places = [(getattr(one, "__module__", None), getattr(one, "__qualname__", None)) for one in (old, new)]
    return places[0] == places[1] != (None, None)


def import_target(target: str, kind: str, *, is_known: bool = False) -> object:
    """The object behind `module:attribute` or `module.attribute`; `kind` says in messages what it is for.

    What is not `is_known` was named by a config, and is not imported where one is only looked at.
    """
    if not is_known:
        require_trusted(target)
    module_name, _, attribute = target.partition(":") if ":" in target else target.rpartition(".")
    if not all([*module_name.split("."), attribute]):
        raise ConfigError(f"{kind} '{target}' must be a known name, or a class of your own as 'package.module:Class'.")
    if str(Path.cwd()) not in sys.path:
        # A user's plug-in usually lies beside the recipe it is named in.
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{kind} '{target}': module '{error.name}' cannot be imported. Install it or check the spelling."
        ) from error
    except Exception as error:  # a user's module may raise whatever it likes while it is imported
        raise ConfigError(
            f"{kind} '{target}': module '{module_name}' cannot be imported: {format_error(error)}"
        ) from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{kind} '{target}': module '{module_name}' has no '{attribute}'.")
    return getattr(module, attribute)


def import_reward_function(target: str) -> Callable[[str, str], Any]:
    """The user's function behind `reward.judge.target`."""
    return _import_function(target, "reward.judge.target", ("prompt", "response"))


def import_shaping(target: str) -> Callable[[Any], Any]:
    """The user's function behind `reward.shaping`."""
    return _import_function(target, "reward.shaping", ("turn",))


def import_scripted_policy(target: str) -> Callable[[Any, str], str]:
    """The user's function that plays an environment, for `turnwise eval package.module:function`."""
    return _import_function(target, "TARGET", ("env", "observation"), returns="an action")


def import_row_reward(target: str) -> Callable[[str, Mapping[str, object]], Any]:
    """The user's function behind `env.reward` of the environment `dataset`."""
    return _import_function(target, "env.reward", ("reply", "row"))


def _import_function(
    target: str, where: str, parameters: tuple[str, ...], *, returns: str = "a number"
) -> Callable[..., Any]:
    taken = ", ".join(parameters)
    expected = f"expected 'package.module:function', a function that takes ({taken}) and returns {returns}."
    module, _, name = target.partition(":")
    if not module or not name:
        raise ConfigError(f"{where}: '{target}' given; {expected}")
    function = import_target(target, f"{where}:")
    if not callable(function):
        raise ConfigError(f"{where}: '{target}' is {function!r}, which cannot be called; {expected}")
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as error:
        raise ConfigError(f"{where}: '{target}' cannot be called so ({error}); {expected}") from error
    except ValueError:
        # Some built-in functions do not tell their parameters; calling shows.
        pass
    return function


class Component(Settings):
    """A choice in the config. Its fields are the settings of the choice, and it does the work or builds what does."""

    registry: ClassVar[Registry[Any]]
    """Of the kind; set once, on the base class of the kind, by `component_kind`."""

    def __init_subclass__(cls, *, name: str = "", aliases: Mapping[str, Mapping[str, object]] = MappingProxyType({})):
        """Give the field that chooses the registered name as its default, before pydantic collects the fields."""
        super().__init_subclass__()
        if name:
            key = cls.registry.key
            cls.__annotations__ = {**inspect.get_annotations(cls), key: "str"}
            setattr(cls, key, name)

    @classmethod
    def __pydantic_init_subclass__(
        cls, *, name: str = "", aliases: Mapping[str, Mapping[str, object]] = MappingProxyType({}), **options: Any
    ) -> None:
        super().__pydantic_init_subclass__(**options)
        if name:
            cls.registry.add(name, cls, aliases)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A field that is annotated with the base class of a kind accepts any component of that kind."""
        if "registry" in cls.__dict__:
            return core_schema.no_info_plain_validator_function(cls.registry.parse)
        return handler(source)


def component_kind(
    kind: str, package: str, *, key: str = "type", old_form: tuple[str, ...] = ()
) -> Callable[[type[C]], type[C]]:
    """Class decorator: make a class the base of a kind, with a registry of its own.

    Args:
        kind: Its name in messages.
        package: Where the components of turnwise are, and the group of entry points of other packages.
        key: The field that chooses; its default is the default component.
        old_form: What a class must have that is no component, to be adapted to one.
    """

    def make(base: type[C]) -> type[C]:
        base.registry = Registry(kind, base, package, key=key, old_form=old_form)
        base.model_rebuild(force=True)
        return base

    return make


class Registry(Generic[C]):
    """The components of one kind, by name. Nothing is imported before it is chosen."""

    def __init__(self, kind: str, base: type[C], package: str, *, key: str, old_form: tuple[str, ...]) -> None:
        self.kind = kind
        self.base = base
        self.package = package
        self.key = key
        self.old_form = old_form
        self.aliases: dict[str, Alias] = {}
        self._loaded: dict[str, type[C]] = {}
        self._adapted: dict[object, type[C]] = {}

    @property
    def default(self) -> str:
        return self.base.model_fields[self.key].default

    @property
    def shipped(self) -> Mapping[str, str]:
        """The names that come with the library, and the module of each."""
        return find_declared(self.package, self.base.__name__)

    def names(self) -> tuple[str, ...]:
        entries = (entry.name for entry in entry_points(group=self.package))
        return tuple(dict.fromkeys([*self.shipped, *self._loaded, *entries]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def add(
        self, name: str, component: type[C], aliases: Mapping[str, Mapping[str, object]] = MappingProxyType({})
    ) -> None:
        """Register a class; called by `class X(Base, name="x")`."""
        known = self._loaded.get(name)
        if known is not None and not _is_written_again(known, component):
            raise ConfigError(f"{self.kind} '{name}' is registered already; choose another name.")
        self._loaded[name] = component
        self.aliases.update({alias: Alias(name, settings) for alias, settings in aliases.items()})

    def register(self, name: str, target: object) -> None:
        """Register a class of either form, or its `module:Class`, under a name of your own."""
        found = import_target(target, self.kind, is_known=True) if isinstance(target, str) else target
        self.add(name, self._as_component(found, name))

    def find(self, name: str) -> type[C]:
        """Return the class behind a registered name, an entry point, or `package.module:Class`."""
        if name in self._loaded:
            return self._loaded[name]
        if ":" in name or "." in name:
            return self._as_component(import_target(name, self.kind), name)
        if (module := self.shipped.get(name)) is not None:
            importlib.import_module(module)
            return self._loaded[name]
        for entry in entry_points(group=self.package, name=name):
            return self._as_component(entry.load(), name)
        raise ConfigError(
            f"there is no {self.kind} named '{name}'. {did_you_mean(name, self.names())} "
            f"Your own class can be given as 'package.module:Class'."
        )

    def parse(self, raw: object) -> C:
        """`{"type": "gae", "lam": 0.9}` -> `Gae(lam=0.9)`."""
        if isinstance(raw, self.base):
            return raw
        if not isinstance(raw, Mapping):
            raise _problem(raw, f"{raw!r} given; expected a section of settings.")
        section = {self.key: self.default, **cast("Mapping[str, object]", raw)}
        name = section[self.key]
        if not isinstance(name, str):
            raise _problem(name, f"{name!r} given; expected a name such as '{self.default}'.", self.key)
        try:
            alias = self.resolve_alias(name)
            component = self.find(alias.name)
        except UntrustedCodeError:
            return self._unseen(name).model_validate({k: section[k] for k in section.keys() & self.base.model_fields})
        except ConfigError as error:
            raise _problem(name, str(error), self.key) from error
        return component.model_validate({**alias.params, **section, self.key: alias.name})

    def class_of(self, raw: object) -> type[C]:
        """The class that a section chooses, for a message about it; the base class if it cannot be found."""
        name = raw.get(self.key, self.default) if isinstance(raw, Mapping) else self.default
        try:
            return self.find(self.resolve_alias(str(name)).name)
        except (ConfigError, UntrustedCodeError):
            return self.base

    def resolve_alias(self, name: str) -> Alias:
        """What another system's spelling stands for; every other name stands for itself."""
        if name not in self._loaded and ":" not in name and name not in self.shipped:
            for module in dict.fromkeys(self.shipped.values()):  # aliases are on the classes
                importlib.import_module(module)
            for spelling, alias in self.aliases.items():
                if spelling.lower() == name.lower():
                    return alias
        return Alias(name)

    def _as_component(self, found: object, name: str) -> type[C]:
        """A class of the kind; classes of the old form (`Params`, `open`) are adapted here and nowhere else."""
        if isinstance(found, type) and issubclass(found, self.base):
            if unwritten := sorted(found.__abstractmethods__):
                words = " and ".join(unwritten)
                raise ConfigError(f"'{name}' has no {words}, which its kind must have; write {words}.")
            return found
        if not self.old_form or not callable(found):
            place = f"{self.base.__module__}.{self.base.__name__}"
            raise ConfigError(f"'{name}' is {found!r}; expected a class that extends {place}.")
        if found not in self._adapted:
            self._adapted[found] = _adapt(self, found, name)
        return self._adapted[found]

    def _unseen(self, name: str) -> type[C]:
        """Stands in for a class that may not be imported: its settings are left out, and its facts are not known."""

        def refuse(_: object) -> None:
            require_trusted(name)

        facts = {fact: property(refuse) for fact in self.base.__class_vars__ - Component.__class_vars__}
        made = type(self.base)(self.base.__name__, (self.base,), {"__module__": self.base.__module__, **facts})
        made.__abstractmethods__ = frozenset()
        return made


def _problem(given: object, message: str, *keys: str) -> ValidationError:
    """A mistake at a key of the section, in the form in which pydantic adds the path of the section."""
    kind = PydanticCustomError("component", "{message}", {"message": message})
    return ValidationError.from_exception_data("component", [{"type": kind, "loc": keys, "input": given}])


_DECLARED = re.compile(r"^class (\w+)\(([^)]*)", re.MULTILINE)
_NAME = re.compile(r'\bname="(\w+)"')


@cache
def find_declared(package: str, base: str) -> Mapping[str, str]:
    """Names written as `class X(Base, name="x")` in a package, and the module of each: read, not imported."""
    spec = find_spec(package)
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    bases_of: dict[str, set[str]] = {}
    named: dict[str, tuple[str, str]] = {}
    for folder in folders:
        for file in sorted([*folder.glob("*.py"), *folder.glob("*/__init__.py")]):
            parts = file.relative_to(folder).with_suffix("").parts
            module = ".".join([package, *(part for part in parts if part != "__init__")])
            for written, bases in _DECLARED.findall(file.read_text("utf-8")):
                bases_of[written] = set(re.findall(r"\w+", bases.partition("=")[0]))
                if name := _NAME.search(bases):
                    named[written] = name[1], module

    def extends(written: str) -> bool:
        return written == base or any(extends(each) for each in bases_of.get(written, ()))

    return dict(place for written, place in named.items() if extends(written))


def _adapt(registry: Registry[C], found: Callable[..., Any], name: str) -> type[C]:
    """A component from a class with nested `Params` that is called or opened with its section, or from a function."""
    base, params = registry.base, getattr(found, "Params", None) or Settings
    if not (isinstance(params, type) and issubclass(params, Settings)):
        raise ConfigError(
            f"'Params' of '{name}' is {params!r}; expected a subclass of turnwise.config.settings.Settings."
        )
    if twice := (params.model_fields.keys() & base.model_fields.keys()) - {registry.key}:
        raise ConfigError(
            f"'Params' of '{name}' has {', '.join(map(repr, sorted(twice)))}, which the section has already; "
            "choose another name."
        )
    # Not hasattr: every class can be called, its objects only where it says so.
    written = set(dir(found)) - getattr(found, "__abstractmethods__", frozenset[str]())
    if isinstance(found, type) and (missing := [each for each in registry.old_form if each not in written]):
        raise ConfigError(
            f"'{name}' has no {', '.join(missing)}; expected a class with {', '.join(registry.old_form)}."
        )
    bases = (base,) if params is Settings else (params, base)
    chosen: Any = (str, base.model_fields[registry.key])
    made: type[Any] = create_model(base.__name__, __base__=bases, __module__=base.__module__, **{registry.key: chosen})
    for fact in (base.__class_vars__ - Component.__class_vars__) & written:
        setattr(made, fact, getattr(found, fact))
    own: dict[str, object] = _called(found) if "__call__" in vars(base) else _opened(found)

    def idle_settings(self: Settings, path: str, run: WholeSettings) -> dict[str, str]:
        return base.idle_settings(cast("C", self), path, run) | params.idle_settings(self, path, run)

    for key, member in {**own, "idle_settings": idle_settings}.items():
        setattr(made, key, member)
    made.__abstractmethods__ = frozenset()
    return made


def _called(found: Callable[..., Any]) -> dict[str, object]:
    made = cached_property(lambda self: found(self))
    made.__set_name__(Component, "_made")

    def call(self: Any, *arguments: Any) -> Any:
        return self._made(*arguments)

    return {"_made": made, "__call__": call}


def _opened(found: Any) -> dict[str, object]:
    def build(self: Any, deps: Any) -> Any:
        return found.open(self, deps)

    return {"build": build}


ENVS = ClassRegistry(
    "environment",
    {
        "frozen_lake": "turnwise.envs.frozen_lake:FrozenLake",
        "bandit": "turnwise.envs.bandit:Bandit",
        "sokoban": "turnwise.envs.sokoban:Sokoban",
        "countdown": "turnwise.envs.countdown:Countdown",
        "prompts": "turnwise.envs.prompts:Prompts",
        "dataset": "turnwise.envs.prompts:Dataset",
        "webshop": "turnwise.envs.webshop:WebShop",
        "alfworld": "turnwise.envs.alfworld:AlfWorld",
        "metamathqa": "turnwise.envs.metamathqa:MetaMathQA",
    },
    adapters={
        "function": "turnwise.envs.adapters.function_env:adapt_function",
        "gem": "turnwise.envs.adapters.gem_env:adapt_gem",
        "gymnasium": "turnwise.envs.adapters.gymnasium_env:adapt_gymnasium",
        "openenv": "turnwise.envs.adapters.openenv_env:adapt_openenv",
        "reasoning_gym": "turnwise.envs.adapters.reasoning_gym_env:adapt_reasoning_gym",
        "textarena": "turnwise.envs.adapters.textarena_env:adapt_textarena",
        "verifiers": "turnwise.envs.adapters.verifiers_env:adapt_verifiers",
    },
    aliases={
        "FrozenLake": Alias("frozen_lake"),
        "Bandit": Alias("bandit"),
        "Sokoban": Alias("sokoban"),
        "SimpleSokoban": Alias("sokoban", {"rows": 6, "columns": 6, "num_boxes": 1}),
        "LargerSokoban": Alias("sokoban", {"rows": 8, "columns": 8, "num_boxes": 2}),
        "SokobanDifferentGridVocab": Alias("sokoban", {"rows": 6, "columns": 6, "num_boxes": 1}),
        "BanditTest": Alias("bandit", {"names": ["Trader", "Librarian"]}),
        "Countdown": Alias("countdown"),
        "MetaMathQA": Alias("metamathqa"),
        "WebShop": Alias("webshop"),
        "ALFWorld": Alias("alfworld"),
    },
)


def needs_scorer(env_type: str) -> bool:
    """Whether an environment leaves rewards to a judge."""
    return bool(getattr(ENVS.get_target(env_type), "is_judged", False))


CALL_PARSERS = ClassRegistry(
    "parser of tool calls",
    {
        "hermes": "turnwise.context.tool_calls:HermesToolCallParser",
        "qwen": "turnwise.context.tool_calls:HermesToolCallParser",
        "llama3_json": "turnwise.context.tool_calls:Llama3JsonCalls",
        "mistral": "turnwise.context.tool_calls:MistralCalls",
    },
)
ENGINES = ClassRegistry(
    "engine",
    {
        "local": "turnwise.engine.local:LocalEngine",
        "openai": "turnwise.engine.openai:OpenAiEngine",
        "scripted": "turnwise.engine.scripted:ScriptedEngine",
        "vllm": "turnwise.engine.vllm:VllmEngine",
    },
    params={
        "local": "turnwise.engine:LocalEngineParams",
        "openai": "turnwise.engine:OpenAiEngineParams",
        "scripted": "turnwise.engine:ScriptedEngineParams",
        "vllm": "turnwise.engine:VllmEngineParams",
    },
)
WORKFLOWS = ClassRegistry(
    "workflow",
    {
        "environment": "turnwise.rollout.workflow:EnvironmentWorkflow",
        "step_wise_environment": "turnwise.rollout.workflow:StepWiseEnvironmentWorkflow",
        "reward_propagation_environment": "turnwise.rollout.workflow:RewardPropagationEnvironmentWorkflow",
        "single_turn": "turnwise.rollout.workflow:SingleTurnWorkflow",
        "tool_calling": "turnwise.rollout.tool_calling:ToolCallingWorkflow",
        "mcp_tools": "turnwise.rollout.mcp:McpToolsWorkflow",
        "react": "turnwise.rollout.prompt_workflows:ReactWorkflow",
        "plan_and_act": "turnwise.rollout.prompt_workflows:PlanAndActWorkflow",
        "best_of_n": "turnwise.rollout.prompt_workflows:BestOfNWorkflow",
        "summarized_memory": "turnwise.rollout.prompt_workflows:SummarizedMemoryWorkflow",
        "reflect_and_retry": "turnwise.rollout.prompt_workflows:ReflectAndRetryWorkflow",
        "self_play": "turnwise.rollout.self_play:SelfPlayWorkflow",
        "league": "turnwise.rollout.self_play:LeagueWorkflow",
        "agent": "turnwise.rollout.agents:AgentWorkflow",
        "openai_program": "turnwise.serve.openai_program:OpenAiProgramWorkflow",
    },
    aliases={
        "step_wise_alfworld_workflow": Alias("reward_propagation_environment"),
        "alfworld_workflow": Alias("environment"),
        "frozen_lake_workflow": Alias("environment"),
        "webshop_workflow": Alias("environment"),
        "math_boxed_workflow": Alias("single_turn"),
        "math_eval_workflow": Alias("single_turn"),
        "simple_workflow": Alias("single_turn"),
        "math_workflow": Alias("single_turn"),
    },
)
BUFFERS = ClassRegistry(
    "buffer",
    {
        "memory": "turnwise.experience.buffer:MemoryBuffer",
        "sqlite": "turnwise.experience.store:SqliteBuffer",
    },
)
LEARNERS = ClassRegistry(
    "learner",
    {
        "ppo": "turnwise.learn.trainer:Trainer",
    },
    params={"ppo": None},
)
TRANSPORTS = ClassRegistry(
    "weight transport",
    {
        "memory": "turnwise.sync.weight_store:MemoryWeightStore",
        "checkpoint": "turnwise.sync.weight_store:FileWeightStore",
    },
    params={"memory": None, "checkpoint": None},
)
CALLBACKS = ClassRegistry("callback", {})
TRACKERS = ClassRegistry(
    "tracker",
    {
        "wandb": "turnwise.report.trackers:WandbTracker",
        "mlflow": "turnwise.report.trackers:MlflowTracker",
        "swanlab": "turnwise.report.trackers:SwanlabTracker",
        "trackio": "turnwise.report.trackers:TrackioTracker",
    },
)
LOOPS = ClassRegistry(
    "loop",
    {
        "serial": "turnwise.loop.serial:train_serial",
        "pipelined": "turnwise.loop.pipelined:train_pipelined",
    },
    params={"serial": None, "pipelined": None},
)
