"""What the managers of a rollout hand to each other while episodes run: by env id, before there is a Trajectory.

`EnvStateManager` gives EnvOutputs, `ContextManager` makes LmInputs of them, the engine's answers come back as LmOutputs
and become EnvInputs; in the end a RolloutState says how an episode ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Self

from turnwise.errors import WorkflowError, did_you_mean
from turnwise.types import Completion, Info, IntArray, Metrics, StopReason, Task, TrajectoryId


class Record(Mapping[str, Any]):
    """Lets a typed record be used as the dictionary that users of other systems know, and a dictionary as the record.

    `entry["env_id"]`, `in`, `get`, `keys`, `items` and `dict(entry)` read it; what is a tuple in the record is a list
    there. `EnvOutput.read(entry)` takes a record or a plain dictionary.
    """

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        if key not in _field_names(type(self)):
            raise KeyError(f"{type(self).__name__} has no '{key}'. {did_you_mean(str(key), self)}")
        value = getattr(self, key)
        return list(value) if isinstance(value, tuple) else value

    def __iter__(self) -> Iterator[str]:
        return iter(_field_names(type(self)))

    def __len__(self) -> int:
        return len(_field_names(type(self)))

    # A mapping's own comparison would go through arrays; records that compare by value say so themselves.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @classmethod
    def read(cls, given: object) -> Self:
        """The record itself, or one made of a dictionary with its keys; what else stands in there is left out."""
        if isinstance(given, cls):
            return given
        needed = [f.name for f in fields(cls) if f.default is f.default_factory is MISSING]  # type: ignore[arg-type]
        if not isinstance(given, Mapping):
            raise WorkflowError(
                f"{type(given).__name__} given; expected {cls.__name__}, or a dictionary with {', '.join(needed)}."
            )
        found = cls._adapt({name: given[name] for name in _field_names(cls) if name in given})
        if missing := [repr(name) for name in needed if name not in found]:
            raise WorkflowError(
                f"{cls.__name__}: the given dictionary has no {', '.join(missing)}; it has "
                f"{', '.join(map(repr, given)) or 'nothing'}."
            )
        return cls(**found)

    @classmethod
    def _adapt(cls, found: dict[str, Any]) -> dict[str, Any]:
        """What a plain dictionary holds, in the types of the record; keys may be missing."""
        return found


@cache
def _field_names(record: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record))


def _with_actions(found: dict[str, Any]) -> dict[str, Any]:
    actions = found.get("actions", ())
    if not isinstance(actions, Sequence) or isinstance(actions, str):
        raise WorkflowError(f"'actions' is {actions!r}; expected a list of strings.")
    return found | {"actions": tuple(str(action) for action in actions)}


def _with_history(found: dict[str, Any]) -> dict[str, Any]:
    if "history" not in found:
        return found
    history = found["history"]
    if not isinstance(history, Sequence) or isinstance(history, str) or not history:
        raise WorkflowError(f"'history' is {history!r}; expected a list of turns, of which the last is the state now.")
    return found | {"history": tuple(HistoryEntry.read(entry) for entry in history)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvDescription:
    """What an environment says about itself in an episode, for the first message to the model."""

    instructions: str = ""
    legend: str = ""
    action_names: tuple[str, ...] | None = None
    """None where any text is an action."""
    example: str = ""
    """An action to show the answer format with, where any text is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """What is worth keeping of a turn beside its tokens."""

    state: str | None = None
    """What the world said before it; None: the last message that the model was given."""
    reward: float = 0.0
    """Raw."""
    penalty: float = 0.0
    """Shaping, zero or negative."""
    actions: tuple[str, ...] = ()
    """The actions that were executed."""
    is_valid: bool = True
    is_effective: bool = True
    metrics: Metrics = field(default_factory=dict)
    """Numbers of the environment's own."""
    info: Info = field(default_factory=dict)
    """Whatever else there is to say, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry(TurnFacts, Record):
    """One turn as the environment saw it. The last entry of a running episode has a state and no answer yet."""

    state: str = ""
    actions_left: int = 0
    llm_response: str = ""

    @classmethod
    def _adapt(cls, found: dict[str, Any]) -> dict[str, Any]:
        if "state" not in found:
            raise WorkflowError(f"HistoryEntry: a turn has no 'state'; it has {', '.join(found) or 'nothing'}.")
        return _with_actions(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvOutput(Record):
    """What one environment has to say after `reset` or `step`: its ids and its whole history."""

    env_id: int
    group_id: int
    tag: str
    history: tuple[HistoryEntry, ...]
    penalty: float
    """Sum of the penalties so far (zero or negative)."""
    about: EnvDescription = EnvDescription()

    @classmethod
    def _adapt(cls, found: dict[str, Any]) -> dict[str, Any]:
        return _with_history(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvInput(Record):
    """What the policy wants one environment to do."""

    env_id: int
    actions: tuple[str, ...]
    llm_response: str = ""
    is_well_formed: bool = True
    """False where the answer did not have the required format; costs the format penalty."""

    @classmethod
    def _adapt(cls, found: dict[str, Any]) -> dict[str, Any]:
        # Whoever gives no action has not answered in the format.
        return {"is_well_formed": bool(found.get("actions")), **_with_actions(found)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LmInput(Record):
    """What one episode wants the engine to continue."""

    env_id: int
    prompt_ids: IntArray
    max_new_tokens: int
    cache_key: str
    """The prompts of one episode share a key: an engine may keep what it has computed for them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LmOutput(Record):
    """What the engine answered to one episode."""

    env_id: int
    completion: Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState(EnvOutput):
    """How an episode ended, as the environments know it; tokens are added by the context."""

    id: TrajectoryId
    task: Task
    stop_reason: StopReason
    is_success: bool
    failure: str
    metrics: Metrics
    """`<tag>/success`, `<tag>/num_actions`, `<tag>/pass@<group_size>`, and the shares of turns that were
    valid and effective."""

    @classmethod
    def _adapt(cls, found: dict[str, Any]) -> dict[str, Any]:
        """An output that does not say how it ended was cut off where it stands, as by a budget."""
        found = _with_history(found)
        if not {"env_id", "group_id", "tag", "history"} <= found.keys():
            return found
        task = found.get("task") or Task(tag=found["tag"], seed=found["group_id"])
        return {
            "task": task,
            "id": TrajectoryId(0, task.id, found["env_id"]),
            "stop_reason": StopReason.MAX_TURNS,
            "is_success": False,
            "failure": "",
            "metrics": {},
            **found,
        }
