"""Every pluggable name, in pipeline order: a table of strings that is also the index of the library.

In: a registered name, another system's spelling of it, a user's `package.module:Class` (or `package.module.Class`), or
`adapter:NAME` for what another package offers under NAME. Out: the object. Nothing is imported before it is chosen.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from turnwise.config.trust import refuse_stranger
from turnwise.errors import ConfigError, did_you_mean
from turnwise.infra.untrusted import tell_error

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Alias:
    """A registered name, and the settings that another system's spelling of it stands for."""

    name: str
    params: Mapping[str, object] = field(default_factory=dict[str, object])


class Registry(Mapping[str, str]):
    """Names to `module:attribute` targets, resolved on use."""

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

    def unalias(self, name: str) -> Alias:
        """What a spelling stands for; whatever is none stands for itself."""
        if name not in self:
            for spelling, alias in self.aliases.items():
                if spelling.lower() == name.lower():
                    return alias
        return Alias(name)

    def get_target(self, name: str) -> object:
        """The object behind a registered name, a spelling of it, or a path such as `package.module:Attribute`."""
        name = self.unalias(name).name
        if name in self._added:
            return self._added[name]
        if name in self.default_mapping:
            return import_target(self.default_mapping[name], self.kind, is_known=True)
        prefix, colon, rest = name.partition(":")
        if colon and prefix in self.adapters:
            if ":" in rest or prefix == "verifiers":
                # A module or an address: `function:package.module:name`, `gymnasium:module:ID`, `openenv:URL`; what
                # verifiers is given is a module too.
                refuse_stranger(name)
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
        name = self.unalias(name).name
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
        refuse_stranger(target)
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
            f"{kind} '{target}': module '{module_name}' cannot be imported: {tell_error(error)}"
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


def import_rule(target: str) -> Callable[[Any, str], str]:
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


ENVS = Registry(
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


def gives_no_rewards(env_type: str) -> bool:
    """Whether an environment leaves rewards to a judge."""
    return bool(getattr(ENVS.get_target(env_type), "is_judged", False))


CALL_PARSERS = Registry(
    "parser of tool calls",
    {
        "hermes": "turnwise.context.tool_calls:HermesCalls",
        "qwen": "turnwise.context.tool_calls:HermesCalls",
        "llama3_json": "turnwise.context.tool_calls:Llama3JsonCalls",
        "mistral": "turnwise.context.tool_calls:MistralCalls",
    },
)
ENGINES = Registry(
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
WORKFLOWS = Registry(
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
BUFFERS = Registry(
    "buffer",
    {
        "memory": "turnwise.experience.buffer:MemoryBuffer",
        "sqlite": "turnwise.experience.store:ExperienceStore",
    },
)
PRIORITIES = Registry(
    "priority",
    {
        "newest": "turnwise.experience.buffer:Newest",
        "linear_decay": "turnwise.experience.buffer:LinearDecay",
        "decay_limit_randomization": "turnwise.experience.buffer:DecayLimitRandomization",
    },
)
CREDITS = Registry(
    "credit rule",
    {
        "gae": "turnwise.credit.gae:Gae",
        "bi_level_gae": "turnwise.credit.gae:BiLevelGae",
        "turn_gae": "turnwise.credit.gae:TurnGae",
        "grpo": "turnwise.credit.group:Grpo",
        "dr_grpo": "turnwise.credit.group:DrGrpo",
        "rloo": "turnwise.credit.group:Rloo",
        "opmd": "turnwise.credit.group:Opmd",
        "reinforce": "turnwise.credit.group:Reinforce",
        "reinforce_pp": "turnwise.credit.group:ReinforcePp",
        "reinforce_pp_baseline": "turnwise.credit.group:ReinforcePpBaseline",
        "multi_step_grpo": "turnwise.credit.step_level:MultiStepGrpo",
        "step_return": "turnwise.credit.step_level:StepReturn",
        "gigpo": "turnwise.credit.step_level:Gigpo",
        "remax": "turnwise.credit.group:Remax",
    },
)
LEARNERS = Registry(
    "learner",
    {
        "ppo": "turnwise.learn.trainer:Trainer",
    },
    params={"ppo": None},
)
LOSSES = Registry(
    "policy loss",
    {
        "ppo_clip": "turnwise.learn.losses:PpoClip",
        "reinforce": "turnwise.learn.losses:ReinforceLoss",
        "gspo": "turnwise.learn.losses:Gspo",
        "cispo": "turnwise.learn.losses:Cispo",
        "sapo": "turnwise.learn.losses:Sapo",
        "opmd": "turnwise.learn.losses:OpmdLoss",
        "sft": "turnwise.learn.losses:Sft",
    },
    params={
        "ppo_clip": "turnwise.config.schema_learn:PpoClipParams",
        "reinforce": None,
        "gspo": "turnwise.config.schema_learn:GspoParams",
        "cispo": "turnwise.config.schema_learn:CispoParams",
        "sapo": "turnwise.config.schema_learn:SapoParams",
        "opmd": "turnwise.config.schema_learn:OpmdLossParams",
        "sft": None,
    },
)
TRANSPORTS = Registry(
    "weight transport",
    {
        "memory": "turnwise.sync.weight_store:MemoryMailbox",
        "checkpoint": "turnwise.sync.weight_store:CheckpointMailbox",
    },
    params={"memory": None, "checkpoint": None},
)
CALLBACKS = Registry("callback", {})
TRACKERS = Registry(
    "tracker",
    {
        "wandb": "turnwise.report.trackers:WandbTracker",
        "mlflow": "turnwise.report.trackers:MlflowTracker",
        "swanlab": "turnwise.report.trackers:SwanlabTracker",
        "trackio": "turnwise.report.trackers:TrackioTracker",
    },
)
LOOPS = Registry(
    "loop",
    {
        "serial": "turnwise.loop.serial:train_serial",
        "pipelined": "turnwise.loop.pipelined:train_pipelined",
    },
    params={"serial": None, "pipelined": None},
)
