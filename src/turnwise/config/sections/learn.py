"""`learn`: how the policy is updated: loss, critic, regularisers, optimizer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.registry import CREDITS
from turnwise.config.sections.device import Device
from turnwise.config.sections.learn_parallel import OneProcess, ParallelSettings
from turnwise.config.settings import Settings, WholeSettings


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


class LossSettings(Settings):
    type: str = "ppo_clip"
    """A registered policy loss or 'package.module:Class'."""


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
    loss: LossSettings = LossSettings()
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
        rule: Any = CREDITS.get_target(run.credit.type)
        if isinstance(self.critic, NoCritic) or rule.needs_values:
            return {}
        unasked = f"credit.type '{run.credit.type}' uses no critic: it is trained and never asked"
        return {"critic.type": f"is '{self.critic.type}' and {unasked}"}
