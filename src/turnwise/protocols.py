"""Interfaces between packages (`typing.Protocol`), in pipeline order.

A room takes its collaborators as these protocols; `loop/build.py` puts the concrete ones together. What a config can
name is opened as `deps.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from turnwise.errors import RewardError
from turnwise.types import (
    Annotations,
    Batch,
    Completion,
    Experience,
    GenerateRequest,
    Group,
    IntArray,
    Message,
    Metrics,
    Sample,
    StepReport,
    Task,
    ToolCall,
    ToolSchema,
    Trajectory,
    TrajectoryId,
)

if TYPE_CHECKING:
    from torch import Tensor


class TaskSource(Protocol):
    """Where tasks come from: deterministic from a seed, resumable from `state`."""

    def take(self, num_tasks: int, *, besides: Sequence[Task] = ()) -> list[Task]:
        """The next tasks, none of them twice and none of `besides`, which are in the same exploration."""
        ...

    def feedback(self, groups: Sequence[Group]) -> None:
        """All groups of an exploration, when it has ended."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Plain numbers, lists and mappings: they are written to checkpoints as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Env(Protocol):
    """A world of text. `step` returns Gymnasium's five values, or four: observation, reward, done, info."""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str: ...

    def step(self, action: str) -> tuple[Any, ...]: ...

    def render(self) -> str: ...

    def close(self) -> None: ...


class CallParser(Protocol):
    """How one family of models writes tool calls. Every text gives an answer; what is not well-formed is text."""

    def read(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """What a reply says beside its calls, and the calls; without calls the text comes back as it is."""
        ...

    def write(self, calls: Sequence[ToolCall]) -> str:
        """The calls as such a model writes them."""
        ...


class ChatTemplate(Protocol):
    """A conversation becomes tokens. Bridging never changes earlier ids."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The token ids that end a reply; the engine stops after sampling one of them."""
        ...

    @property
    def end_of_turn_id(self) -> int | None:
        """The token that closes a reply in a rendered conversation; None where it is not a single token."""
        ...

    @property
    def rewrites_history(self) -> bool:
        """Whether earlier turns are rendered differently later, so that each turn needs a segment of its own."""
        ...

    @property
    def longest_token(self) -> int:
        """The most characters that one token stands for: what a text has at least, before it is cut into tokens."""
        ...

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> IntArray:
        """The whole conversation up to and including the header of the next reply."""
        ...

    def encode_continuation(
        self, messages: Sequence[Message], *, reply_is_closed: bool, tools: Sequence[ToolSchema] = ()
    ) -> IntArray:
        """From the end of a reply to the header of the next: over results of tools, a user's message, or both."""
        ...

    def can_extend(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> bool:
        """Whether there is a bridge with these messages; if not, the whole conversation begins a new segment."""
        ...

    def is_closed(self, completion: Completion) -> bool:
        """Whether a sampled reply ended as the template ends one; if not, the bridge closes it."""
        ...

    def encode_text(self, text: str) -> IntArray: ...

    def decode_reply(self, token_ids: IntArray) -> str:
        """The reply as text, without the end-of-turn token."""
        ...

    def parse_reply(self, text: str) -> Message:
        """The assistant's message that a reply says: its text, and the tools that it calls."""
        ...

    def render_tool_calls(self, calls: Sequence[ToolCall]) -> str:
        """Calls as a reply of this model spells them: `parse_reply` reads the same ones from it."""
        ...

    def tool_call_prefix(self, name: str = "") -> str:
        """How a reply begins that calls a tool: up to its name, or up to the arguments of the tool that is named."""
        ...


Weights: TypeAlias = "Mapping[str, Tensor]"


class Engine(Protocol):
    """Tokens in, tokens out: the log-probs are those of exactly the ids that come back."""

    @property
    def policy_version(self) -> int: ...

    async def generate(self, request: GenerateRequest) -> Completion: ...

    def release(self, cache_key: str) -> None:
        """No request with this key will follow; whatever is kept for it may go."""
        ...

    async def update_weights(self, weights: Weights, policy_version: int) -> None:
        """Every request is served by one version: running ones end first, later ones see the new weights.

        They are copied: the caller goes on changing its own.
        """
        ...

    def state(self) -> Metrics:
        """What it is doing, in numbers such as `running` and `waiting`, for whoever watches."""
        ...

    async def close(self) -> None:
        """No request will follow."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class PolicyVersion:
    """Which weights: those after so many steps of the loop.

    Example: `PolicyVersion(step=7, policy_version=6)` where one of seven steps had nothing to learn from.
    """

    step: int
    policy_version: int


class Judge(Protocol):
    """What finished conversations are worth, where the world itself gives no rewards."""

    def score(self, conversations: Sequence[Sequence[Message]]) -> Sequence[float | RewardError]:
        """One score per conversation, in order; an error stands where one could not be scored, and hurts no other."""
        ...


class Collector(Protocol):
    """Plays tasks in groups: what the loops need of `AgentProxy`."""

    @property
    def env_seconds(self) -> float:
        """Time spent inside environments so far."""
        ...

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        rollout: int,
        on_done: Callable[[Trajectory], None] | None = None,
        known: Mapping[TrajectoryId, Trajectory] = MappingProxyType({}),
    ) -> list[Group]: ...


class Buffer(Protocol):
    """Keeps experiences between exploring and learning; groups stay whole."""

    is_shared: ClassVar[bool]
    """Whether processes of one run that open it each see the same experiences, and find them after a crash."""

    def add(self, experiences: Sequence[Experience]) -> None:
        """Whole groups; one that was added before is not added again."""
        ...

    def take(self, step: int) -> list[Experience]:
        """The groups of highest priority for update number `step`: as many as fit into a batch, and at least one."""
        ...

    def is_ready(self, step: int) -> bool:
        """Whether there is a full batch for that update; without a batch size, whether there is anything."""
        ...

    def has_group(self, group_id: str) -> bool:
        """Whether such a group has ever been added; also where it was used up or dropped since."""
        ...

    @property
    def num_dropped(self) -> int:
        """Experiences that a full buffer has dropped so far."""
        ...

    def __len__(self) -> int:
        """Experiences that the update after the last one could take."""
        ...

    def rewind(self, step: int, *, plays_again: bool) -> None:
        """As it was after update `step`, for a run that goes on from there; a loop that `plays_again` what came after
        has it forgotten. A buffer of a new process has nothing to do."""
        ...


class CreditRule(Protocol):
    """Rewards become advantages. Pure; cutting a trajectory into several experiences changes nothing."""

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]: ...


class PolicyLoss(Protocol):
    """The loss of each sampled token, before aggregation, and what to report about it; `turns` numbers their turns."""

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTConfig:
    """How demonstrations are imitated before reinforcement learning."""

    steps: int
    """Optimizer steps."""
    batch_rows: int
    """Rows per optimizer step."""
    lr: float


class Learner(Protocol):
    """Samples become gradients; its whole state is in its checkpoints."""

    @property
    def policy_version(self) -> int:
        """Grows by one with every update."""
        ...

    def annotate(self, experiences: Sequence[Experience]) -> Annotations:
        """What credit may ask of the learner about stored experiences, under the weights of this moment."""
        ...

    def step(self, batch: Batch) -> StepReport: ...

    def imitate(
        self, demonstrations: Sequence[Experience], how: SFTConfig, on_step: Callable[[int, int], None]
    ) -> float:
        """Learn to say what was demonstrated, before any update; returns the last loss. `on_step(done, total)`."""
        ...

    def supervise(self, demonstrations: Sequence[Experience]) -> None:
        """Mix these into every update (`learn.ptx`)."""
        ...

    def weights(self) -> Weights:
        """The policy's, under the names of the plain model."""
        ...

    def save_state(self, folder: Path) -> None:
        """Everything it needs to go on; a Hugging Face model in `folder/policy`, without its tokenizer."""
        ...

    def load_state(self, folder: Path) -> None:
        """As it was when the folder was saved, the policy included."""
        ...


class Channel(Protocol):
    """Weights become the next policy: returns when the engines serve that version."""

    async def publish(self, weights: Weights, policy_version: int) -> int: ...


class Mailbox(Protocol):
    """Where the trainer leaves weights and the explorer leaves requests; both may be in other processes."""

    is_shared: ClassVar[bool]
    """Whether it reaches from one process of a run to another."""

    def post(self, mark: PolicyVersion, weights: Weights) -> None:
        """Leave a copy in place of what lies there, and ring: the caller goes on changing its own."""
        ...

    def newest(self) -> PolicyVersion | None:
        """What lies there, cheaply; None before the first post."""
        ...

    def fetch(self) -> tuple[PolicyVersion, Weights]:
        """What lies there; it stays."""
        ...

    def request(self, step: int) -> None:
        """Ask for the weights of this step or a later one."""
        ...

    def requested(self) -> int | None:
        """The newest request; None before the first."""
        ...


class Sink(Protocol):
    """Takes the metrics of a step; never raises into the loop."""

    def write(self, step: int, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


# Documented names of earlier versions, for one release.
Imitation, PolicyMark = SFTConfig, PolicyVersion

__all__ = [
    "Buffer",
    "CallParser",
    "Channel",
    "ChatTemplate",
    "Collector",
    "CreditRule",
    "Engine",
    "Env",
    "Imitation",
    "Judge",
    "Learner",
    "Mailbox",
    "PolicyLoss",
    "PolicyMark",
    "PolicyVersion",
    "SFTConfig",
    "Sink",
    "TaskSource",
    "Weights",
]
