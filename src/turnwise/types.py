"""Data types of the training pipeline, in the order data flows through it.

All types are frozen: a stage returns the next type and never fills a field in later. Per-token arrays of one type have
equal length, checked on construction. The running example is a two-turn episode with a vocabulary of words::

    turn 0   prompt  <user> P_OG <assistant>          sampled  Right <end>       the world answers: reward 0
    turn 1   bridge  <user> _POG <assistant>          sampled  Down  <end>       the world answers: reward 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from turnwise.chat_types import (
    Asked,
    ImagePart,  # noqa: F401
    Message,  # noqa: F401
    Part,  # noqa: F401
    TextPart,  # noqa: F401
    ToolCall,  # noqa: F401
    ToolSchema,  # noqa: F401
)
from turnwise.provenance import Origin, Provenance


@dataclass(frozen=True, slots=True, order=True)
class TrajectoryId:
    """Structured, printable, sortable: `7/frozen_lake/train/10003/2` is sibling 2 of that task in rollout 7."""

    rollout: int
    task_id: str
    sibling: int

    def __str__(self) -> str:
        return f"{self.rollout}/{self.task_id}/{self.sibling}"

    @property
    def group(self) -> str:
        return f"{self.rollout}/{self.task_id}"

    @property
    def tag(self) -> str:
        return self.task_id.rsplit("/", 2)[0]


@dataclass(frozen=True, slots=True, order=True)
class ExperienceId:
    trajectory: TrajectoryId
    segment_index: int

    def __str__(self) -> str:
        return f"{self.trajectory}#{self.segment_index}"


class FinishReason(StrEnum):
    STOP = "stop"
    """A stop token was sampled; it is the last token of the completion."""
    LENGTH = "length"


class StopReason(StrEnum):
    """Why an episode ended, in the order in which the causes are checked (see `rollout/episode.py`)."""

    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    WORKFLOW_ERROR = "workflow_error"
    TIMEOUT = "timeout"
    TERMINATED = "terminated"
    ENV_TRUNCATED = "env_truncated"
    MAX_ACTIONS = "max_actions"
    MAX_TURNS = "max_turns"
    CONTEXT_OVERFLOW = "context_overflow"

    @property
    def is_error(self) -> bool:
        return self in _ERRORS

    @property
    def is_truncated(self) -> bool:
        """A budget ended the episode, so its last state still has a value."""
        return not self.is_error and self is not StopReason.TERMINATED


_ERRORS = frozenset((StopReason.ENV_ERROR, StopReason.ENGINE_ERROR, StopReason.WORKFLOW_ERROR, StopReason.TIMEOUT))


MAX_ALTERNATIVES = 20
"""What every engine that tells them tells; more is asked at one's own risk."""
IMPOSSIBLE_LOGPROB = -9999.0
"""How OpenAI's APIs write minus infinity, for which JSON has no word."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alternatives:
    """Per token of a completion, the likeliest first, of the distribution that the token was drawn from.

    A greedy reply was drawn from none: its alternatives are those of the model at temperature 1. Example for `Right
    <end>`, two asked for: `token_ids=[[Right, Down], [<end>, Up]]`, `logprobs=[[-1.2, -1.3], [-0.1, -4.0]]`.
    """

    token_ids: NDArray[np.int32]
    """[tokens, alternatives]; fewer than were asked for where the vocabulary has no more."""
    logprobs: NDArray[np.float32]
    """Of the same shape; minus infinity where top-k or top-p left no other token to draw."""

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 2 or self.token_ids.shape != self.logprobs.shape:
            raise ValueError(f"Alternatives: ids {self.token_ids.shape} and log-probs {self.logprobs.shape} differ")

    def __len__(self) -> int:
        return len(self.token_ids)

    @classmethod
    def of(cls, rows: list[tuple[list[int], list[float]]]) -> Self:
        """From the ids and log-probs at each place."""
        shape = len(rows), len(rows[0][0]) if rows else 0
        return cls(
            token_ids=np.asarray([ids for ids, _ in rows], dtype=np.int32).reshape(shape),
            logprobs=np.asarray([logprobs for _, logprobs in rows], dtype=np.float32).reshape(shape),
        )

    def first(self, num_tokens: int) -> Self:
        """Those of a reply that is cut there."""
        return type(self)(token_ids=self.token_ids[:num_tokens], logprobs=self.logprobs[:num_tokens])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdateTrace:
    """In the order of the Batch; per-token arrays are 0 off its loss mask.

    Example, two epochs over `Right <end>` after a good episode: `first_ratios=[1, 1]`, `last_ratios=[1.3, 1.1]`,
    `is_clipped=[True, False]`.
    """

    proximal_logprobs: NDArray[np.float32]
    """Under the learner's weights when this update first met the token."""
    proximal_steps: NDArray[np.int32]
    """[rows] how many optimizer steps of this update those weights had behind them; 0: the policy before the update."""
    first_ratios: NDArray[np.float32]
    """The loss's ratio in the first epoch; that of a loss without one is policy over behaviour."""
    last_ratios: NDArray[np.float32]
    """The same in the last epoch."""
    entropies: NDArray[np.float32]
    """Of the whole distribution the token was drawn from, in the first epoch."""
    is_clipped: NDArray[np.bool_]
    """Whether the loss clipped it in the last epoch; a loss that says nothing about it clips none."""
    first_losses: NDArray[np.float32] | None = None
    """What the token added to the sum that was minimised, in the first epoch; it is not written down."""
    first_distances: NDArray[np.float32] | None = None
    """How far it was from the reference by the loss's own estimate, in the first epoch; NaN where the loss has none."""

    def __post_init__(self) -> None:
        per_token = (self.proximal_logprobs, self.first_ratios, self.last_ratios, self.entropies, self.is_clipped)
        if len(lengths := {len(array) for array in per_token}) > 1:
            raise ValueError(f"UpdateTrace: per-token arrays differ in length: {sorted(lengths)}")


IntArray: TypeAlias = NDArray[np.int32]
FloatArray: TypeAlias = NDArray[np.float32]
BoolArray: TypeAlias = NDArray[np.bool_]
Metrics: TypeAlias = Mapping[str, float]
Info: TypeAlias = Mapping[str, object]
"""What an environment says beside the reward, for people; what the house acts on has a type of its own."""


# --- 1. tasks and worlds --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an episode is about; `Task(tag="frozen_lake", seed=10003)` is the fourth layout of a run from seed 10000."""

    tag: str
    """Which environment specification plays it."""
    seed: int
    """Chooses the layout; shared by all siblings of a group."""
    split: str = "train"

    @property
    def id(self) -> str:
        return f"{self.tag}/{self.split}/{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The world's answer to one action, normalised: `terminated` by the world, `truncated` by its own time limit.

    An action is valid if it means something here, and effective if it changed anything.
    """

    text: str
    reward: float
    terminated: bool
    truncated: bool
    is_valid: bool = True
    is_effective: bool = True
    is_success: bool | None = None
    """Whether the task is solved now; None: the world does not say."""
    metrics: Metrics = field(default_factory=dict)
    """Numbers of the environment's own."""
    info: Info = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


# --- 2. tokens ------------------------------------------------------------------------------------------------------


def _check_equal_lengths(owner: object, **arrays: NDArray[np.generic]) -> None:
    # Made for every row of a rollout: the words are only put together where something is wrong.
    if len(set(map(len, arrays.values()))) > 1:
        lengths = {name: len(array) for name, array in arrays.items()}
        raise ValueError(f"{type(owner).__name__}: per-token arrays differ in length: {lengths}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """One unbroken, append-only token sequence: exactly what the engine saw and sampled.

    The example as one segment (`.` marks 0 and -1)::

        token_ids          <user> P_OG <assistant> Right <end> <user> _POG <assistant> Down <end>
        loss_mask            .     .       .         1     1     .     .       .         1    1
        behavior_logprobs    0     0       0       -1.2  -0.1    0     0       0       -0.9 -0.1
        turn_ids             .     .       .         0     0     .     .       .         1    1
    """

    token_ids: IntArray
    loss_mask: BoolArray
    """True on exactly the tokens the policy sampled, the sampled end-of-turn included."""
    behavior_logprobs: FloatArray
    """Log-probability under the distribution each token was really sampled from; 0 where `loss_mask` is false."""
    turn_ids: IntArray
    """The turn of each sampled token, counted over the whole trajectory; -1 where `loss_mask` is false."""

    def __post_init__(self) -> None:
        _check_equal_lengths(
            self,
            token_ids=self.token_ids,
            loss_mask=self.loss_mask,
            behavior_logprobs=self.behavior_logprobs,
            turn_ids=self.turn_ids,
        )
        if np.count_nonzero((self.turn_ids >= 0) != self.loss_mask):
            raise ValueError("Segment: turn_ids must be >= 0 on exactly the tokens whose loss_mask is true")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_action_tokens(self) -> int:
        return int(self.loss_mask.sum())

    def sampled_turns(self) -> list[int]:
        """The turns with tokens in here, ascending."""
        turns = self.turn_ids[self.loss_mask]
        # The tokens of a turn lie side by side: one of each is enough, and sorting them all would take longest.
        later = turns[1:]
        return sorted({*turns[:1].tolist(), *later[later != turns[:-1]].tolist()})


# --- 3. engines -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to draw tokens. Temperature 0 is greedy."""

    temperature: float = 1.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the likeliest tokens up to this mass; 1 keeps all."""
    max_new_tokens: int = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest:
    """Tokens in: one prompt to continue."""

    prompt_ids: IntArray
    sampling: Sampling
    seed: int
    """Chooses the random numbers of this request alone, so that the batch it lands in does not matter."""
    cache_key: str | None = None
    """Requests with one key extend each other; an engine may keep a key-value row for them until `release`."""
    asked: Asked | None = None
    """The conversation that the ids spell, for an engine that is asked in messages; others read the ids alone."""
    on_token: Callable[[int], bool] | None = None
    """Hears each token as it is sampled; true ends the reply. An engine that gives whole replies never calls it."""
    alternatives: int = 0
    """How many of the likeliest tokens to tell at every place of the reply; what is sampled is the same."""


NO_POLICY = -1
"""The `policy_version` of what no policy of ours has sampled: it may be shown and imitated, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """Tokens out: what was sampled, with the log-probability of exactly these ids.

    Example, turn 0: `token_ids=[Right, <end>]`, `behavior_logprobs=[-1.2, -0.1]`, `finish_reason=stop`.
    """

    token_ids: IntArray
    behavior_logprobs: FloatArray
    finish_reason: FinishReason
    policy_version: int
    text: str | None = None
    """The whole reply as an endpoint gave it, where the ids only stand for it; None: the ids are what was sampled."""
    origin: Origin | None = None
    """Who sampled it, with a digest; None: the engine does not say."""
    alternatives: Alternatives | None = None
    """One row per token; None: none were asked for, or the engine does not tell."""

    def __post_init__(self) -> None:
        _check_equal_lengths(self, token_ids=self.token_ids, behavior_logprobs=self.behavior_logprobs)
        if self.alternatives is not None and len(self.alternatives) != len(self.token_ids):
            raise ValueError(f"Completion: {len(self.token_ids)} tokens, alternatives to {len(self.alternatives)}")


# --- 4. rollout -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call and the environment's answer to it.

    Example, turn 1: `observation="_POG"`, `response_text="Down"`, `actions=("Down",)`, `reward=1.0`, `segment_index=0`.
    """

    index: int
    segment_index: int
    observation: str
    response_text: str
    actions: tuple[str, ...]
    reward: float
    """Raw: from the environment and from a judge."""
    penalty: float
    """For a reply without a valid answer, beside the reward (zero or negative)."""
    policy_version: int
    step: int
    """The step of the workflow that made this call; where one step calls once, the same as `index`."""
    judged: float | None = None
    """The part of `reward` that a judge gave; None where none was asked."""
    shaping: float | None = None
    """What `reward.shaping` adds to the raw reward; None where nobody was asked."""
    is_valid: bool = True
    """Whether the reply was well formed, and its actions mean something there."""
    is_effective: bool = True
    metrics: Metrics = field(default_factory=dict)
    info: Info = field(default_factory=dict)
    origin: Origin | None = None
    seal: int | None = None  # a digest over its place, state and rewards

    @property
    def learnt_reward(self) -> float:
        """What is learnt from: the raw reward, shaping and penalty."""
        return self.reward + (self.shaping or 0.0) + self.penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One play of a task. A failure is data here, never an exception.

    Example: one segment (see `Segment`), two turns with rewards 0 and 1, `stop_reason=terminated`, `is_success=True`.
    """

    id: TrajectoryId
    task: Task
    segments: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    is_success: bool | None
    """Whether the goal was reached; None: nobody said."""
    final_observation: str = ""
    failure: str = ""
    """What went wrong, where `stop_reason` is an error."""

    @property
    def episode_return(self) -> float:
        """Sum of raw rewards."""
        return float(sum(turn.reward for turn in self.turns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The sibling trajectories of one task."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    greedy: Trajectory | None = None
    """The same task played greedily, for credit that measures against it; never trained on."""


# --- 5. experience --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experience:
    """One training record: a segment with the rewards of the turns it holds.

    Example: `segment` as above, `turn_indices=[0, 1]`, `raw_rewards=[0, 1]`, `turn_rewards=[0, 1]`. Cut into one
    experience per turn, the second would hold `turn_indices=[1]` and `raw_rewards=[1]`.
    """

    id: ExperienceId
    segment: Segment
    turn_indices: IntArray
    """Turns with sampled tokens in this segment, ascending, counted over the trajectory."""
    raw_rewards: FloatArray
    turn_rewards: FloatArray
    """Raw rewards after shaping (penalties, normalisation); what credit is computed from."""
    turn_states: NDArray[np.uint64]
    """A fingerprint of the state each turn was played from: equal states of one task have equal numbers."""
    turn_steps: IntArray
    """The step each turn belongs to, ascending: its own index, unless one step of a workflow made several calls."""
    policy_version: int
    """The oldest version that sampled any of its tokens."""
    is_last: bool
    """Whether the trajectory ends with this segment."""
    is_truncated: bool
    """Whether a budget, not the world, ended the trajectory."""
    greedy_return: float | None = None
    """What the greedy play of the same task earned, shaped; None where it was not played."""
    provenance: Provenance | None = None
    """Who sampled its turns, with digests; None: nobody said."""

    def __post_init__(self) -> None:
        _check_equal_lengths(
            self,
            turn_indices=self.turn_indices,
            raw_rewards=self.raw_rewards,
            turn_rewards=self.turn_rewards,
            turn_states=self.turn_states,
            turn_steps=self.turn_steps,
        )
        seen = self.segment.sampled_turns()
        if seen != self.turn_indices.tolist():
            raise ValueError(f"{self.id}: turns in the segment {seen} are not turn_indices {self.turn_indices}")


# --- 6. credit ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """What the learner knows about stored experiences, per experience and per token, beside them and never inside.

    `values[i][t]` is the critic's value of the state just before token t; all arrays are 0 off the loss mask.
    """

    values: tuple[FloatArray, ...] | None = None
    reference_logprobs: tuple[FloatArray, ...] | None = None
    token_penalties: tuple[FloatArray, ...] | None = None
    """Shaping per token, zero or negative for an honest distance: the price of leaving the reference."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """An experience with credit, per token; zero off the loss mask.

    Example with GRPO: `advantages` is the same number on `Right <end> Down <end>` and 0 elsewhere.
    """

    experience: Experience
    advantages: FloatArray
    returns: FloatArray
    """What the critic should have said; equal to `advantages` where there is no critic."""
    values: FloatArray
    """The critic's values the credit was computed with, for value clipping; 0 without a critic."""
    reference_logprobs: FloatArray
    """0 without a reference model."""

    def __post_init__(self) -> None:
        _check_equal_lengths(
            self,
            segment=self.experience.segment.token_ids,
            advantages=self.advantages,
            returns=self.returns,
            values=self.values,
            reference_logprobs=self.reference_logprobs,
        )


# --- 7. learning ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Packed arrays for one update: the rows of all samples laid end to end.

    Example: two samples of 10 and 7 tokens give `row_starts=[0, 10, 17]` and `token_ids` of length 17.
    """

    row_starts: NDArray[np.int64]
    trajectory_of_row: NDArray[np.int64]
    """Rows with equal numbers are parts of one trajectory."""
    token_ids: IntArray
    loss_mask: BoolArray
    turn_ids: IntArray
    behavior_logprobs: FloatArray
    reference_logprobs: FloatArray
    advantages: FloatArray
    returns: FloatArray
    values: FloatArray

    @property
    def num_rows(self) -> int:
        return len(self.row_starts) - 1

    @property
    def row_lengths(self) -> NDArray[np.int64]:
        return np.diff(self.row_starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one update did."""

    policy_version: int
    metrics: Metrics
    trace: UpdateTrace | None = None
    """Of every token; None where a learner does not tell."""
