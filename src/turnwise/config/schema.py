"""Every setting, in pipeline order. The strings under the fields are the reference.

Sections whose keys depend on a choice (`env`, `credit`, `learn.loss`) are typed here by their base; `config/load.py`
puts the chosen class's own settings in their place before anything is validated.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

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


class NoLora(Settings):
    type: Literal["none"] = "none"
    """All weights are trained."""


class Lora(Settings):
    type: Literal["lora"]
    """Train low-rank matrices beside the frozen weights, of the actor and of a critic that is a model."""
    rank: PositiveInt = 8
    """Inner width of the matrices."""
    alpha: PositiveFloat = 16.0
    """Their product is scaled by alpha / rank."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Names of the linear layers that are adapted, such as [q_proj, v_proj]; all: every one but the output layer."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _check_target_modules(cls, given: object) -> object:
        is_list = isinstance(given, list) and bool(given) and all(isinstance(name, str) and name for name in given)
        if given != "all-linear" and not is_list:
            raise ValueError(f"{given!r} given; expected 'all-linear' or a list of names, such as [q_proj, v_proj]")
        return given


class ModelSettings(Settings):
    path: str = "tiny"
    """A Hugging Face folder or hub name, or 'tiny' for the built-in small model, made on first use."""
    tiny: TinySettings = TinySettings()
    """Sizes of the built-in model."""
    lora: NoLora | Lora = Field(default=NoLora(), discriminator="type")
    dtype: Literal["float32", "bfloat16"] = "float32"
    """With bfloat16 the learner keeps float32 weights and computes in bfloat16; engine and reference are held in it."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of each layer for the backward pass and compute the rest again: less memory, more time."""


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


NormaliseMethod = Literal["identity", "mean", "mean_std", "asym_clip"]
NormaliseGrouping = Literal["state", "inductive", "batch"]


class NormalisationSettings(Settings):
    method: NormaliseMethod = "identity"
    """What is done to an episode's sum of rewards: nothing; minus the mean; also divided by the spread; also clipped
    to -1 and 3."""
    grouping: NormaliseGrouping = "state"
    """Whose mean and spread: the siblings' of the same task, the same environment's, or the whole batch's."""


FilterScore = Literal["reward_std", "reward_mean", "length"]


class NoFilter(Settings):
    type: Literal["none"] = "none"
    """Every group is learnt from."""


class _GroupFilter(Settings):
    by: FilterScore = "reward_std"
    """What a group is judged by: the spread or the mean of its episodes' raw rewards, or their mean number of turns."""
    max_rounds: PositiveInt = 4
    """Rollouts per update, at most, until `rollout.groups` groups have passed; 1: a filtered batch stays small."""


class TopKFilter(_GroupFilter):
    type: Literal["top_k"]
    """Learn from the best share of the groups of each rollout."""
    share: float = Field(default=0.25, gt=0, le=1)
    """How many of them: a quarter is StarPO-S."""
    order: Literal["largest", "smallest"] = "largest"
    """Whether large or small scores are best."""


class TopPFilter(_GroupFilter):
    type: Literal["top_p"]
    """Learn from the groups with the largest scores that together hold `share` of the sum of scores."""
    share: float = Field(default=0.9, gt=0, le=1)
    """Of the sum of all scores; groups with a score of 0 never pass."""


class ThresholdFilter(_GroupFilter):
    type: Literal["threshold"]
    """Learn from groups whose score lies between two bounds."""
    above: float | None = 0.0
    """Scores must be larger; null: no bound."""
    below: float | None = None
    """Scores must be smaller; null: no bound."""


class RewardSettings(Settings):
    normalisation: NormalisationSettings = NormalisationSettings()
    """Rewards on one scale, before credit; raw rewards stay as they are."""
    filter: NoFilter | TopKFilter | TopPFilter | ThresholdFilter = Field(default=NoFilter(), discriminator="type")
    """Which groups are learnt from."""


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
    warmup_steps: int = Field(default=0, ge=0)
    """Updates at the start in which the critic learns alone and the policy stays as it is."""


class ModelCritic(Settings):
    type: Literal["model"]
    """A second model, starting from the actor's weights."""
    lr: PositiveFloat = 1e-4
    """The critic's own learning rate; follows the same schedule."""
    clip: PositiveFloat | None = None
    """How far a value may move from its old one before the loss stops rewarding it."""
    warmup_steps: int = Field(default=0, ge=0)
    """Updates at the start in which the critic learns alone and the policy stays as it is."""


KlEstimator = Literal["k1", "k2", "k3", "abs"]


class NoKl(Settings):
    type: Literal["none"] = "none"
    """No reference model is loaded."""


class KlLoss(Settings):
    type: Literal["loss"]
    """A penalty on the distance to the frozen starting policy, inside the loss."""
    coef: PositiveFloat = 0.01
    """Weight of the penalty."""
    estimator: KlEstimator = "k3"
    """How the distance is estimated from the sampled tokens (Schulman's k1, k2, k3, or the absolute difference)."""


class KlReward(Settings):
    type: Literal["reward"]
    """A price on the distance to the frozen starting policy, paid token by token out of the reward."""
    coef: PositiveFloat = 0.02
    """The price; with a target, the price at the start."""
    estimator: KlEstimator = "k1"
    """How the distance is estimated from the sampled tokens."""
    target: PositiveFloat | None = None
    """Mean distance per token that an adaptive price holds the policy at; null keeps the price."""
    horizon: PositiveInt = 10_000
    """Episodes over which an adaptive price may change by a fifth."""


class NoCorrection(Settings):
    type: Literal["none"] = "none"
    """Samples count as drawn from the policy that is updated."""


class ImportanceCorrection(Settings):
    type: Literal["truncated", "masked"]
    """Weigh each token by how much likelier it was before this update than when it was sampled: up to `cap`, or not at
    all where that ratio leaves 1/cap to cap."""
    cap: float = Field(default=2.0, gt=1)
    """Largest weight."""


class NoPtx(Settings):
    type: Literal["none"] = "none"
    """The policy learns from rewards alone."""


class OraclePtx(Settings):
    type: Literal["oracle"]
    """A supervised loss on the oracle's demonstrations, mixed into every optimizer step."""
    coef: PositiveFloat = 0.1
    """Its weight beside the policy loss."""
    episodes: PositiveInt = 300
    """Demonstrations, on training layouts that no rollout uses."""
    batch_rows: PositiveInt = 64
    """Rows (segments) drawn for each optimizer step."""


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
    kl: NoKl | KlLoss | KlReward = Field(default=NoKl(), discriminator="type")
    correction: NoCorrection | ImportanceCorrection = Field(default=NoCorrection(), discriminator="type")
    ptx: NoPtx | OraclePtx = Field(default=NoPtx(), discriminator="type")
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


class MixedEnv(Settings):
    """A further environment whose groups play in the same rollout and are learnt from in the same batch."""

    groups: PositiveInt = 4
    """Its tasks per rollout, beside rollout.groups."""
    max_turns: PositiveInt = 1
    """Most replies of the model in one of its episodes."""
    max_actions: PositiveInt | None = None
    """Most environment actions in one of its episodes."""
    env: EnvSettings
    """Which world, with its own settings."""
    context: ContextSettings = ContextSettings()
    """How the model is talked to there."""


class MixSettings(Settings):
    """Environments beside `env`, each under a tag of its own: `mix: {questions: {groups: 4, env: {…}}}`."""

    def by_tag(self) -> dict[str, MixedEnv]:
        return {tag: getattr(self, tag) for tag in type(self).model_fields}


class WatchSettings(Settings):
    window: PositiveInt = 10
    """Steps at the start of a run that say what is usual, and newest steps over which success is smoothed."""
    patience: PositiveInt = 10
    """Steps in a row that a sign must last before it is told, and be gone before it can be told again."""
    stop: Literal["never", "collapse"] = "never"
    """Only tell; or keep checkpoints to go back to, and end a collapsed run with the one from before its trouble."""
    min_spread_share: float = Field(default=0.1, gt=0, lt=1)
    """Least spread of returns inside groups, as a share of its median in the first `window` steps."""
    max_repetition: float = Field(default=0.5, gt=0, lt=1)
    """Largest share of repeated 3-grams inside replies."""
    max_grad_ratio: float = Field(default=10.0, gt=1)
    """Largest gradient norm, as a multiple of its median over the `window` steps before."""
    max_clip_fraction: float = Field(default=0.3, gt=0, lt=1)
    """Largest share of tokens whose ratio the loss clips."""
    max_kl: PositiveFloat = 0.2
    """Largest distance, per token, between the policy that sampled and the one that is trained."""
    max_reference_kl: PositiveFloat = 5.0
    """Largest distance, per token, between the policy and its frozen reference."""


class TurnwiseSettings(Settings):
    """The whole configuration of a run."""

    recipe: str = ""
    """How the run is called; by default the name of the recipe's file."""
    run: RunSettings = RunSettings()
    model: ModelSettings = ModelSettings()
    env: EnvSettings
    mix: MixSettings = MixSettings()
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
    watch: WatchSettings = WatchSettings()
