"""What the managers of a rollout hand to each other while episodes run: by env id, before there is a Trajectory.

`EnvStateManager` gives EnvOutputs, `ContextManager` makes LmInputs of them, the engine's answers come back as LmOutputs
and become EnvInputs; in the end a RolloutState says how an episode ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from turnwise.types import Completion, Info, IntArray, Metrics, StopReason, Task, TrajectoryId


class Record:
    """Lets a typed record be read like the dictionaries that users of other systems know: `entry["env_id"]`."""

    __slots__ = ()

    def __getitem__(self, key: str) -> object:
        if key in {f.name for f in fields(self)}:  # type: ignore[arg-type]
            return getattr(self, key)
        raise KeyError(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvDescription:
    """What an environment says about itself in an episode, for the first message to the model."""

    instructions: str = ""
    legend: str = ""
    action_names: tuple[str, ...] | None = None
    """None where any text is an action."""


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
    actions_left: int
    llm_response: str = ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvInput(Record):
    """What the policy wants one environment to do."""

    env_id: int
    actions: tuple[str, ...]
    llm_response: str = ""
    is_well_formed: bool = True
    """False where the answer did not have the required format; costs the format penalty."""


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
