"""Settings of the sections `learn` and `reward`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from turnwise.config.component import needs_scorer
from turnwise.config.kinds import POLICY_LOSSES, Device, PolicyLoss
from turnwise.config.settings import Settings, WholeSettings

_TIMEOUT_S = 1800.0


class OneProcess(Settings):
    type: Literal["none"] = "none"
    """The process of the loop learns itself."""
    ranks: PositiveInt = 1
    """Always 1."""

    @field_validator("ranks")
    @classmethod
    def _check_ranks(cls, given: int) -> int:
        if given > 1:
            raise ValueError(f"{given} given and learn.parallel.type is 'none'. Set the type to 'fsdp' or 'ddp'")
        return given


class DdpRanks(Settings):
    type: Literal["ddp"]
    """Every rank holds all weights and learns from its share of the rows; gradients are summed."""
    ranks: PositiveInt = 2
    """Processes that learn together, each on a device of its own where there are GPUs."""
    timeout_s: PositiveFloat = _TIMEOUT_S
    """The longest that ranks may take to start, or for one update or checkpoint."""


class FsdpRanks(Settings):
    type: Literal["fsdp"]
    """Weights, gradients and optimizer lie in pieces on the ranks; a layer is put together while it computes."""
    ranks: PositiveInt = 2
    """Processes that learn together, each on a device of its own where there are GPUs."""
    cpu_offload: bool = False
    """Keep the pieces in the memory of the machine and not on the GPUs: less memory there, and slower."""
    timeout_s: PositiveFloat = _TIMEOUT_S
    """The longest that ranks may take to start, or for one update or checkpoint."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return self.idle("cpu_offload", why="when learn.device is 'cpu'") if run.learn.device == "cpu" else {}


ParallelSettings = OneProcess | DdpRanks | FsdpRanks


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
    offload: bool = False
    """Keep the frozen policy in a file while nobody asks it: less memory in an update, and it is read once a step,
    and once more by the audit (`audit.is_on`)."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return _idle_offload(self, run)


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
    offload: bool = False
    """Keep the frozen policy in a file while nobody asks it: less memory in an update, and it is read once a step,
    and once more by the audit (`audit.is_on`)."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        horizon = self.idle("horizon", why=f"without {path}.target") if self.target is None else {}
        return horizon | _idle_offload(self, run)


def _idle_offload(kl: KlLoss | KlReward, run: WholeSettings) -> dict[str, str]:
    if run.model.lora.type == "lora":
        return kl.idle("offload", why="with model.lora: the frozen policy is the actor with its adapters off")
    if run.learn.parallel.type == "fsdp":
        return kl.idle("offload", why="with learn.parallel.type 'fsdp', whose ranks hold pieces (see cpu_offload)")
    return {}


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


class FilePtx(Settings):
    type: Literal["file"]
    """A supervised loss on prompts and responses of a file, mixed into every optimizer step."""
    path: str
    """A JSON list or JSON lines of objects."""
    prompt_field: str = Field(default="prompt", min_length=1)
    """The key of the prompt."""
    response_field: str = Field(default="response", min_length=1)
    """The key of the response; every row must have one."""
    coef: PositiveFloat = 0.1
    """Its weight beside the policy loss."""
    batch_rows: PositiveInt = 64
    """Rows drawn for each optimizer step."""


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
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Stay, or fall to `final_lr_share` at the last step: in a straight line, or along half a cosine."""
    final_lr_share: float = Field(default=0.0, ge=0, le=1)
    """Share of `lr` that a falling schedule ends with."""
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

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.schedule != "constant":
            return {}
        return self.idle("final_lr_share", why=f"with {path}.schedule 'constant'")


Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"]


class LearnSettings(Settings):
    type: str = "ppo"
    """A registered learner or 'package.module:Class'."""
    steps: int = Field(default=100, ge=0)
    """Updates of the policy; each is one rollout and `epochs` passes over it."""
    epochs: PositiveInt = 1
    """Passes over each batch."""
    minibatches: PositiveInt = 1
    """Optimizer steps per epoch."""
    device: Device = "auto"
    """Where the learner computes: cpu, cuda, cuda:1, ...; auto takes a GPU where there is one."""
    micro_batch_tokens: PositiveInt | Literal["auto"] = "auto"
    """Padded tokens per forward pass: memory against speed, never the result. auto: as many as 450 MB
    (on a GPU: a quarter of its memory) have room for, at most 8192."""
    loss: PolicyLoss = Field(default_factory=lambda: POLICY_LOSSES.parse({}))
    """The policy loss, by `type`."""
    aggregation: Aggregation = "token_mean"
    """Every token weighs the same; or every trajectory does, with the sum or the mean of its tokens."""
    critic: NoCritic | ValueHeadCritic | ModelCritic = Field(default=NoCritic(), discriminator="type")
    kl: NoKl | KlLoss | KlReward = Field(default=NoKl(), discriminator="type")
    correction: NoCorrection | ImportanceCorrection = Field(default=NoCorrection(), discriminator="type")
    ptx: NoPtx | OraclePtx | FilePtx = Field(default=NoPtx(), discriminator="type")
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    optim: OptimSettings = OptimSettings()
    parallel: ParallelSettings = Field(default=OneProcess(), discriminator="type")
    num_threads: PositiveInt | None = None
    """CPU threads of torch; null leaves its own choice: with ranks, the cores divided by them."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if isinstance(self.critic, NoCritic) or run.credit.needs_values:
            return {}
        unasked = f"credit.type '{run.credit.type}' uses no critic: it is trained and never asked"
        return {"critic.type": f"is '{self.critic.type}' and {unasked}"}


NormaliseMethod = Literal["identity", "mean", "mean_std", "asym_clip"]


NormaliseGrouping = Literal["state", "inductive", "batch"]


class NormalisationSettings(Settings):
    method: NormaliseMethod = "identity"
    """What is done to an episode's sum of rewards: nothing; minus the mean; also divided by the spread; also clipped
    to -1 and 3."""
    grouping: NormaliseGrouping = "state"
    """Whose mean and spread: the siblings' of the same task, the same environment's, or the whole batch's."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return self.idle("grouping", why=f"with {path}.method 'identity'") if self.method == "identity" else {}


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


class NoScorer(Settings):
    type: Literal["none"] = "none"
    """The environment's own rewards count."""


BesideEnv = Literal["add", "fill", "leave"]


class _JudgeSettings(Settings):
    weight: PositiveFloat = 1.0
    """What a score is multiplied with before it is learnt from."""
    beside_env: BesideEnv = "add"
    """In an environment with rewards of its own: add the score to them; fill in for an episode in which they are all
    zero; or leave it alone. Not given, it is 'leave' in a run that also has an environment without rewards (`mix`)."""
    success_above: float = 0.0
    """In an environment without rewards of its own, an episode whose score is above this counts as a success."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if any(needs_scorer(env.type) for env in run.envs()):
            return {}
        return self.idle("success_above", why="in environments that say themselves what a success is")


class FunctionScorerSettings(_JudgeSettings):
    type: Literal["function"]
    """Your own function (prompt, response) -> number scores each reply."""
    target: str
    """Where the function is: 'package.module:function'."""


class ModelScorerSettings(_JudgeSettings):
    type: Literal["model"]
    """A reward model, a sequence classifier with one label, scores each conversation."""
    path: str | None = None
    """A Hugging Face folder or hub name, or 'tiny' for the built-in small model, trained on first use."""
    batch_rows: PositiveInt = 64
    """Conversations in one forward pass: memory against speed, never the result."""
    max_tokens: PositiveInt = 1024
    """Longest conversation it reads, or the model's own limit; of a longer one the beginning is cut."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        idle = super().idle_settings(path, run)
        own_prompts = getattr(run.env, "path", None)
        if self.path == "tiny" and (own_prompts or not needs_scorer(run.env.type)):
            where = "the prompts of env.path mean" if own_prompts else f"'{run.env.type}' mean"
            idle["path"] = f"'tiny' has learnt from the built-in prompts alone: its scores for {where} nothing"
        return idle


class RewardSettings(Settings):
    judge: NoScorer | FunctionScorerSettings | ModelScorerSettings = Field(default=NoScorer(), discriminator="type")
    """Who gives rewards where the environment gives none, or beside those of the environment."""
    shaping: str | None = None
    """Your own function 'package.module:function' of a played turn: it returns the reward that is learnt from in place
    of the raw one. Only in training."""
    normalisation: NormalisationSettings = NormalisationSettings()
    """Rewards on one scale, before credit; raw rewards stay as they are."""
    filter: NoFilter | TopKFilter | TopPFilter | ThresholdFilter = Field(default=NoFilter(), discriminator="type")
    """Which groups are learnt from."""


def is_offloaded(settings: LearnSettings) -> bool:
    """Ranks that hold pieces have a way of their own."""
    return not isinstance(settings.kl, NoKl) and settings.kl.offload and settings.parallel.type != "fsdp"
