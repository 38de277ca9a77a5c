"""Every setting, in pipeline order. The strings under the fields are the reference.

Sections whose keys depend on a choice (`env`, `credit`, `learn.loss`) are typed here by their base; `config/load.py`
puts the chosen class's own settings in their place before anything is validated.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.settings import Settings


class RunSettings(Settings):
    seed: int = Field(default=0, ge=0)
    """Everything random in a run comes from this number."""
    root: str = "runs"
    """Where new run directories are made."""


class TinySettings(Settings):
    """The default model: a small Llama-style network with a tokenizer made from the environment's own text."""

    hidden_size: PositiveInt = 128
    """Width of the network."""
    num_layers: PositiveInt = 2
    num_heads: PositiveInt = 4
    """Attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt = 384
    """Width inside the feed-forward layers."""
    vocab_size: int = Field(default=512, ge=300)
    """Upper bound; 256 byte symbols and the special tokens are always in."""
    max_positions: PositiveInt = 2048
    """Longest sequence the network can read."""


class ModelSettings(Settings):
    path: str = "tiny"
    """A Hugging Face folder or hub name, or 'tiny' for the built-in small model, made on first use."""
    tiny: TinySettings = TinySettings()
    """Sizes of the built-in model."""


class EnvSettings(Settings):
    """Which world, and its own settings beside `type` (see `turnwise envs`)."""

    type: str
    """A registered name or 'package.module:Class'."""
    train: dict[str, str | int | float | bool | None] = Field(default={})
    """Settings that differ while training; evaluation uses the ones outside."""


class AnswerFormat(Settings):
    type: Literal["answer", "think_answer", "plain"] = "answer"
    """`<answer>…</answer>`; the same after `<think>…</think>`; or the whole reply as the action."""
    separator: str = Field(default="||", min_length=1)
    """Stands between the actions of one answer."""
    max_actions_per_turn: PositiveInt = 1
    """Further actions of an answer are cut."""
    is_strict: bool = False
    """Refuse an answer with text before or after the tags; otherwise such text is ignored."""
    forced_prefix: str = ""
    """Text put at the start of each reply for the model, never trained."""


class ContextSettings(Settings):
    window: Literal["full", "sliding", "single_turn"] = "full"
    """What the model sees: all turns, the last `window_turns`, or the current state only."""
    window_turns: PositiveInt = 4
    """Turns kept by the sliding window."""
    system_prompt: str = ""
    """First message of every conversation; empty: none."""
    instructions: Literal["full", "none"] = "full"
    """Whether the first message explains rules, symbols, actions and the answer format."""
    answer: AnswerFormat = AnswerFormat()
    """How a reply says what to do."""
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
    """Most replies of the model in one episode."""
    max_actions: PositiveInt | None = None
    """Most environment actions in one episode; null: no limit beside max_turns."""
    workflow: str = "environment"
    """A registered workflow or 'package.module:Class'."""
    temperature: PositiveFloat = 1.0
    """Of sampling while exploring; the learner scores tokens at the same temperature."""
    invalid_penalty: float = Field(default=-0.1, le=0)
    """Added to the reward of a turn whose answer has the wrong format or an action the environment does not know."""
    first_seed: int = Field(default=10_000, ge=0)
    """Task seeds count up from here, shifted by run.seed."""


class NoJudge(Settings):
    type: Literal["none"] = "none"
    """The environment's own rewards count."""


class FunctionJudgeSettings(Settings):
    type: Literal["function"]
    """Your own function (prompt, response) -> number scores each reply."""
    target: str
    """Where the function is: 'package.module:function'."""
    success_above: float = 0.0
    """An episode whose score is above this counts as a success."""


class ModelJudgeSettings(Settings):
    type: Literal["model"]
    """A reward model, a sequence classifier with one label, scores each conversation."""
    path: str | None = None
    """A Hugging Face folder or hub name, or 'tiny' for the built-in small model, trained on first use."""
    batch_rows: PositiveInt = 64
    """Conversations in one forward pass: memory against speed, never the result."""
    max_tokens: PositiveInt = 1024
    """Longest conversation it reads, or the model's own limit; of a longer one the beginning is cut."""
    success_above: float = 0.0
    """An episode whose score is above this counts as a success."""


class RewardSettings(Settings):
    judge: NoJudge | FunctionJudgeSettings | ModelJudgeSettings = Field(default=NoJudge(), discriminator="type")


class BufferSettings(Settings):
    train_batch_size: PositiveInt | None = None
    """Most experiences in one update; the rest is kept for the next. Null: everything there is."""


class NoCritic(Settings):
    type: Literal["none"] = "none"
    """No values are estimated."""


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
    """The critic's own learning rate; follows the same schedule."""
    clip: PositiveFloat | None = None
    """How far a value may move from its old one before the loss stops rewarding it."""


class NoKl(Settings):
    type: Literal["none"] = "none"
    """No reference model is loaded."""


class KlLoss(Settings):
    type: Literal["loss"]
    """A penalty on the distance to the frozen starting policy, inside the loss."""
    coef: PositiveFloat = 0.01
    """Weight of the penalty."""
    estimator: Literal["k1", "k2", "k3", "abs"] = "k3"
    """How the distance is estimated from the sampled tokens (Schulman's k1, k2, k3, or the absolute difference)."""


class OptimSettings(Settings):
    lr: PositiveFloat = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear"] = "constant"
    """Stay, or fall in a straight line to `final_lr_share` at the last step."""
    final_lr_share: float = Field(default=0.0, ge=0, le=1)
    """Share of `lr` that the linear schedule ends with."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which the rate rises from 0 in a straight line."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Adam's memory of the gradient."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Adam's memory of its square."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decay towards zero."""
    grad_clip: PositiveFloat = 1.0
    """Largest norm of the gradient in one optimizer step."""


Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"]


class LearnSettings(Settings):
    steps: int = Field(default=100, ge=0)
    """Updates of the policy; each is one rollout and `epochs` passes over it."""
    epochs: PositiveInt = 1
    """Passes over each batch."""
    minibatches: PositiveInt = 1
    """Optimizer steps per epoch."""
    micro_batch_tokens: PositiveInt = 8192
    """Padded tokens per forward pass: memory against speed, never the result."""
    loss: Settings
    """The policy loss, by `type`."""
    aggregation: Aggregation = "token_mean"
    """Every token weighs the same; or every trajectory does, with the sum or the mean of its tokens."""
    critic: NoCritic | ValueHeadCritic | ModelCritic = Field(default=NoCritic(), discriminator="type")
    kl: NoKl | KlLoss = Field(default=NoKl(), discriminator="type")
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    optim: OptimSettings = OptimSettings()
    num_threads: PositiveInt | None = None
    """CPU threads of torch; null leaves its own choice."""


class SyncSettings(Settings):
    style: Literal["fixed"] = "fixed"
    """When new weights reach the engine: at fixed steps."""
    interval: PositiveInt = 1
    """Publish new weights every this many steps."""


class NoWarmStart(Settings):
    type: Literal["none"] = "none"
    """Reinforcement learning starts from the model as it is."""


class OracleWarmStart(Settings):
    type: Literal["oracle"]
    """Imitate the environment's oracle on training tasks before reinforcement learning starts."""
    episodes: PositiveInt = 300
    """Demonstrations, on training layouts that no rollout uses."""
    steps: PositiveInt = 60
    """Optimizer steps."""
    batch_rows: PositiveInt = 256
    """Rows (segments) per optimizer step."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the imitation."""


class EvalSettings(Settings):
    episodes: PositiveInt = 400
    """Held-out episodes, always the same."""
    every: int = Field(default=0, ge=0)
    """Evaluate every this many steps; 0: only before and after."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    first_seed: int = Field(default=0, ge=0)
    """Evaluation tasks count up from here, whatever run.seed is."""


class ReportSettings(Settings):
    checkpoint_every: int = Field(default=0, ge=0)
    """Save every this many steps; 0: only at the end."""
    trajectories_per_step: int = Field(default=4, ge=0)
    """How many are written to trajectories/ each step, tokens included."""
    tensorboard: bool = True
    """Write TensorBoard event files."""


class TurnwiseSettings(Settings):
    """The whole configuration of a run."""

    recipe: str = ""
    """How the run is called; by default the name of the recipe's file."""
    run: RunSettings = RunSettings()
    model: ModelSettings = ModelSettings()
    env: EnvSettings
    context: ContextSettings = ContextSettings()
    engine: EngineSettings = EngineSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    buffer: BufferSettings = BufferSettings()
    credit: Settings
    learn: LearnSettings
    sync: SyncSettings = SyncSettings()
    warm_start: NoWarmStart | OracleWarmStart = Field(default=NoWarmStart(), discriminator="type")
    eval: EvalSettings = EvalSettings()
    report: ReportSettings = ReportSettings()
