"""Every setting, in pipeline order. The strings under the fields are the reference.

Sections whose keys depend on a choice (`env`, `credit`, `learn.loss`) are typed here by their base; `config/load.py`
puts the chosen class's own settings in their place before anything is validated.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.settings import Settings


class RunSettings(Settings):
    seed: int = Field(0, ge=0)
    """Everything random in a run comes from this number."""
    root: str = "runs"
    """Where new run directories are made."""


class TinySettings(Settings):
    """The default model: a small Llama-style network with a tokenizer made from the environment's own text."""

    hidden_size: PositiveInt = 128
    num_layers: PositiveInt = 2
    num_heads: PositiveInt = 4
    intermediate_size: PositiveInt = 384
    vocab_size: int = Field(512, ge=300)
    """Upper bound; 256 byte symbols and the special tokens are always in."""
    max_positions: PositiveInt = 2048


class ModelSettings(Settings):
    path: str = "tiny"
    """A Hugging Face folder or hub name, or 'tiny' for the built-in small model, made on first use."""
    tiny: TinySettings = TinySettings()


class EnvSettings(Settings):
    """Which world, and its own settings beside `type` (see `turnwise envs`)."""

    type: str
    """A registered name or 'package.module:Class'."""
    train: dict[str, str | int | float | bool | None] = {}
    """Settings that differ while training; evaluation uses the ones outside."""


class AnswerFormat(Settings):
    type: Literal["answer", "think_answer", "plain"] = "answer"
    """`<answer>…</answer>`; the same after `<think>…</think>`; or the whole reply as the action."""
    separator: str = Field("||", min_length=1)
    """Stands between the actions of one answer."""
    max_actions_per_turn: PositiveInt = 1
    """Further actions of an answer are cut."""
    forced_prefix: str = ""
    """Text put at the start of each reply for the model, never trained."""


class ContextSettings(Settings):
    window: Literal["full", "sliding", "single_turn"] = "full"
    """What the model sees: all turns, the last `window_turns`, or the current state only."""
    window_turns: PositiveInt = 4
    """Turns kept by the sliding window."""
    system_prompt: str = ""
    instructions: Literal["full", "none"] = "full"
    """Whether the first message explains rules, symbols, actions and the answer format."""
    answer: AnswerFormat = AnswerFormat()
    max_tokens: PositiveInt = 2048
    """Longest segment, reply included; an episode that would outgrow it is truncated."""
    max_response_tokens: PositiveInt = 64
    """Longest reply in one turn."""


class EngineSettings(Settings):
    type: str = "local"
    """A registered engine or 'package.module:Class'."""
    max_rows: PositiveInt = 512
    """Most sequences in one forward pass."""


class RolloutSettings(Settings):
    groups: PositiveInt = 8
    """Tasks per rollout."""
    group_size: PositiveInt = 16
    """Sibling trajectories per task."""
    max_turns: PositiveInt = 5
    max_actions: PositiveInt | None = None
    """Most environment actions in one episode; null: no limit beside max_turns."""
    workflow: str = "environment"
    """A registered workflow or 'package.module:Class'."""
    temperature: PositiveFloat = 1.0
    invalid_penalty: float = Field(-0.1, le=0)
    """Added to the reward of a turn whose answer has the wrong format or an action the environment does not know."""
    first_seed: int = Field(10_000, ge=0)
    """Task seeds count up from here, shifted by run.seed."""


class BufferSettings(Settings):
    train_batch_size: PositiveInt | None = None
    """Most experiences in one update; the rest is kept for the next. Null: everything there is."""


class NoCritic(Settings):
    type: Literal["none"] = "none"


class ValueHeadCritic(Settings):
    type: Literal["value_head"]
    """A linear layer on the actor's own trunk."""
    coef: PositiveFloat = 0.5
    """Weight of the value loss in the total."""
    clip: PositiveFloat | None = None
    """How far a value may move from its old one before the loss stops rewarding it."""


class ModelCritic(Settings):
    type: Literal["model"]
    """A second model, starting from the actor's weights."""
    lr: PositiveFloat = 1e-4
    clip: PositiveFloat | None = None


class NoKl(Settings):
    type: Literal["none"] = "none"


class KlLoss(Settings):
    type: Literal["loss"]
    """A penalty on the distance to the frozen starting policy, inside the loss."""
    coef: PositiveFloat = 0.01
    estimator: Literal["k1", "k2", "k3", "abs"] = "k3"


class OptimSettings(Settings):
    lr: PositiveFloat = 1e-6
    schedule: Literal["constant", "linear"] = "constant"
    """Stay, or fall in a straight line to `final_lr_share` at the last step."""
    final_lr_share: float = Field(0.0, ge=0, le=1)
    warmup_steps: int = Field(0, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    grad_clip: PositiveFloat = 1.0


class LearnSettings(Settings):
    steps: int = Field(100, ge=0)
    """Updates of the policy; each is one rollout and `epochs` passes over it."""
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    """Optimizer steps per epoch."""
    micro_batch_tokens: PositiveInt = 8192
    """Padded tokens per forward pass: memory against speed, never the result."""
    loss: Settings
    critic: NoCritic | ValueHeadCritic | ModelCritic = Field(NoCritic(), discriminator="type")
    kl: NoKl | KlLoss = Field(NoKl(), discriminator="type")
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    optim: OptimSettings = OptimSettings()
    num_threads: PositiveInt | None = None
    """CPU threads of torch; null leaves its own choice."""


class SyncSettings(Settings):
    style: Literal["fixed"] = "fixed"
    interval: PositiveInt = 1
    """Publish new weights every this many steps."""


class NoWarmStart(Settings):
    type: Literal["none"] = "none"


class OracleWarmStart(Settings):
    type: Literal["oracle"]
    """Imitate the environment's oracle on training tasks before reinforcement learning starts."""
    episodes: PositiveInt = 300
    steps: PositiveInt = 60
    """Optimizer steps."""
    batch_rows: PositiveInt = 256
    lr: PositiveFloat = 1e-3


class EvalSettings(Settings):
    episodes: PositiveInt = 400
    every: int = Field(0, ge=0)
    """Evaluate every this many steps; 0: only before and after."""
    temperature: float = Field(0.0, ge=0)
    """0 is greedy."""
    first_seed: int = Field(0, ge=0)


class ReportSettings(Settings):
    checkpoint_every: int = Field(0, ge=0)
    """Save every this many steps; 0: only at the end."""
    trajectories_per_step: int = Field(4, ge=0)
    tensorboard: bool = True


class TurnwiseSettings(Settings):
    """The whole configuration of a run."""

    recipe: str = ""
    run: RunSettings = RunSettings()
    model: ModelSettings = ModelSettings()
    env: EnvSettings
    context: ContextSettings = ContextSettings()
    engine: EngineSettings = EngineSettings()
    rollout: RolloutSettings = RolloutSettings()
    buffer: BufferSettings = BufferSettings()
    credit: Settings
    learn: LearnSettings
    sync: SyncSettings = SyncSettings()
    warm_start: NoWarmStart | OracleWarmStart = Field(NoWarmStart(), discriminator="type")
    eval: EvalSettings = EvalSettings()
    report: ReportSettings = ReportSettings()
