"""The base class of every kind of choice in the config, in pipeline order, and sections that choose a plain class.

A section of a kind is an object of the chosen component. Environments and workflows are plain classes: their sections
are made of the nested `Params` of the chosen class and the keys that the section always has.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, create_model, field_validator
from pydantic.fields import FieldInfo

from turnwise.config.component import ClassRegistry, Component, Registry, component_kind
from turnwise.config.settings import Settings
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from turnwise.credit.reference import TokenTrajectory
    from turnwise.types import Annotations, Experience, FloatArray, IntArray, Sample

    Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A section in which a registered name, or `package.module:Class`, is chosen."""

    path: str
    registry: ClassRegistry | Registry[Any]
    base: type[Settings]
    """The keys that the section always has."""
    methods: tuple[str, ...] = ()
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
    def is_component(self) -> bool:
        """Whether the section is an object of the chosen component, and needs no class made for it."""
        return isinstance(self.registry, Registry)

    @property
    def field(self) -> FieldInfo:
        """The key that chooses, with its default."""
        return self.base.model_fields[self.key]


def _spell_as_registered(choice: Choice, section: dict[str, Any]) -> object:
    """What is chosen; another system's spelling becomes the name here, with the settings that it stands for."""
    name = section.setdefault(choice.key, choice.field.default)
    if isinstance(name, str) and (alias := choice.registry.resolve_alias(name)).name != name:
        section[choice.key] = name = alias.name
        for key, value in alias.params.items():
            section.setdefault(key, value)
    return name


@cache
def _compose(
    bases: tuple[type[Settings], ...], inside: tuple[tuple[str, type[Settings]], ...], key: str | None = None
) -> type[Any]:
    """One class for equal arguments, so that equal settings compare equal wherever they were loaded."""
    section = bases[-1]
    fields: dict[str, Any] = {name: (section_class, ...) for name, section_class in inside}
    if key is not None:
        # The section's own, even where Params has a key of that name: a class may be chosen under several names.
        fields[key] = (str, section.model_fields[key])
    return create_model(section.__name__, __base__=bases, **fields)


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
        if isinstance(registry, Registry):
            return registry.find(registry.resolve_alias(name).name)
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


_KINDS = ("cpu", "cuda", "hpu", "mps", "mtia", "npu", "xla", "xpu")


def _check_device(given: str) -> str:
    kind, _, number = given.partition(":")
    if given != "auto" and (kind not in _KINDS or (":" in given and not re.fullmatch(r"[0-9]+", number))):
        raise ValueError(f"{given!r} given; expected auto, or a device as torch names it: cpu, cuda, cuda:1 …")
    return given


Device: TypeAlias = Annotated[str, AfterValidator(_check_device)]


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EndpointSettings(Settings):
    url: str
    """Its base URL, such as `https://api.openai.com/v1` or `http://127.0.0.1:8000/v1`."""
    model: str | None = Field(default=None, min_length=1)
    """Which of its models; null: the only one that it has."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; the key itself is never written down. Unset: none is sent."""
    max_concurrent: PositiveInt = 16
    """Most requests at the same time; further ones wait."""
    timeout_s: PositiveFloat = 120.0
    """Longest time for one reply, all attempts together."""
    max_retries: NonNegativeInt = 4
    """How often a request is sent again when the endpoint is busy, fails or cannot be reached; each waits longer."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, given: str) -> str:
        try:
            parts = urlsplit(given)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address, parts = False, urlsplit("")
        if not is_address:
            raise ValueError(f"'{given}' given; expected a base URL such as http://127.0.0.1:8000/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            # It may hold a key, so it is not repeated here.
            raise ValueError("a URL with more than an address and a path given; a key belongs into the environment")
        if parts.path.rstrip("/").endswith("/chat/completions"):
            raise ValueError(f"'{given}' given; expected what stands before /chat/completions")
        return given.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _check_variable(cls, given: str) -> str:
        if not _VARIABLE.fullmatch(given):
            # It may be the key itself, so it is not repeated here.
            raise ValueError(
                "no name of an environment variable given; expected one such as OPENAI_API_KEY, which holds the key"
            )
        return given


class EngineSettings(Settings):
    tells_tokens: ClassVar[bool] = True
    """Whether replies come with the ids that were sampled and their log-probs; what does not cannot be learnt from."""

    type: str = "local"
    """A registered engine or 'package.module:Class'."""


@component_kind("credit rule", "turnwise.credit", old_form=("needs_values", "needs_groups", "needs_greedy", "__call__"))
class AdvantageEstimator(Component):
    """`credit`: turns rewards into advantages. Pure: cutting a trajectory into more experiences changes nothing."""

    needs_values: ClassVar[bool] = False
    """Reads `annotations.values`, so `learn.critic` must be set."""
    needs_groups: ClassVar[bool] = False
    """Compares rollouts of a group, so `rollout.group_size` must be at least 2."""
    needs_greedy: ClassVar[bool] = False
    """Compares with one greedy rollout of the same task."""
    whitening: ClassVar[Literal["none", "from_returns"]] = "none"
    """What `reference` recomputes: the advantages, or returns. In the latter case the advantages are the returns minus
    `value_baseline`, whitened over the batch if `whitens`."""

    type: str = "grpo"
    """A registered credit rule or 'package.module:Class'. Not given, it is 'gae' with a critic (`learn.critic`), 'grpo'
    without one, and 'reinforce_pp' where also `rollout.group_size` is 1."""

    @abstractmethod
    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        """Return one sample per experience with `advantages` and `returns` per token, zero off the loss mask."""

    def reference(self, trajectories: Sequence[TokenTrajectory]) -> list[list[float]] | None:
        """Recompute one number per sampled token in plain Python, sharing nothing with `__call__`. None: not checked.

        Args:
            trajectories: Those of one group, or of the whole batch if `needs_batch`.
        """
        return None

    def needs_batch(self) -> bool:
        """Whether the advantages of a group depend on the other groups of its batch."""
        return False

    def value_baseline(self, sample: Sample) -> FloatArray | None:
        """Return what is subtracted from the returns of the sampled tokens; None: nothing."""
        return None

    def whitens(self) -> bool:
        """Whether advantages are scaled to mean 0 and variance 1 over the batch."""
        return False


@component_kind("priority", "turnwise.experience", old_form=("__call__",))
class GroupPriority(Component):
    """`buffer.priority`: which groups are trained on first."""

    type: str = "newest"
    """A registered priority or 'package.module:Class'."""

    @abstractmethod
    def __call__(self, policy_version: int, use_count: int, seed: int) -> float | None:
        """Return how urgent a group is; None: it is not used again. `seed` is that of the group and its use."""


PRIORITIES: Registry[GroupPriority] = GroupPriority.registry


@component_kind("policy loss", "turnwise.learn", old_form=("__call__",))
class PolicyLoss(Component):
    """`learn.loss`: loss of every sampled token, before aggregation."""

    type: str = "ppo_clip"
    """A registered policy loss or 'package.module:Class'."""

    @abstractmethod
    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss per token and tensors to report.

        Use tensor methods, so that the module needs no torch. `turns` numbers the turns of the tokens from 0.
        """

    def reference(self, policy: Floats, behavior: Floats, advantages: Floats, turns: IntArray) -> Floats | None:
        """Recompute the loss per token in NumPy float64. None: not checked."""
        return None


POLICY_LOSSES: Registry[PolicyLoss] = PolicyLoss.registry
LOSSES = POLICY_LOSSES
"""Old name of `POLICY_LOSSES`."""
ADVANTAGE_ESTIMATORS: Registry[AdvantageEstimator] = AdvantageEstimator.registry
CREDITS = ADVANTAGE_ESTIMATORS
"""Old name of `ADVANTAGE_ESTIMATORS`."""


class LoopSettings(Settings):
    type: str = "serial"
    """Explore and learn in turns, or with `pipelined` at the same time; or a function, 'package.module:function'."""

    @property
    def is_in_turns(self) -> bool:
        """Whether nothing is played while the policy is updated; never assumed of a function of one's own."""
        return self.type == "serial"


class EnvSettings(Settings):
    """Which world, and its own settings beside `type` (see `turnwise envs`)."""

    type: str
    """A registered name, 'package.module:Class', or another package's world such as 'gymnasium:FrozenLake-v1'."""
    train: dict[str, str | int | float | bool | None] = Field(default={})
    """Settings that differ while training; evaluation uses the ones outside."""
