"""Every setting, in pipeline order. The strings under the fields are the reference.

Sections whose keys depend on a choice (`env`, `buffer.priority`, `credit`, `learn.loss`) are typed here by their base;
`config/load.py` puts the chosen class's own settings in their place before anything is validated.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.buffering import BufferSettings
from turnwise.config.learning import LearnSettings, ModelSettings, NoWarmStart, OracleWarmStart
from turnwise.config.playing import (
    ContextSettings,
    EngineSettings,
    EnvSettings,
    MixSettings,
    RewardSettings,
    RolloutSettings,
    TaskSettings,
)
from turnwise.config.settings import Settings
from turnwise.config.sync import LoopSettings, SyncSettings


class RunSettings(Settings):
    seed: int = Field(default=0, ge=0)
    """Everything random in a run comes from this number."""
    mode: Literal["both", "explore", "train", "eval"] = "both"
    """What this process does: explore and train; only play and store; only learn from what is stored; or evaluate the
    newest policy of --run-dir, or `model.path`."""
    root: str = "runs"
    """Where new run directories are made."""


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
    tasks: TaskSettings = TaskSettings()
    context: ContextSettings = ContextSettings()
    engine: EngineSettings = EngineSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    buffer: BufferSettings
    credit: Settings
    learn: LearnSettings
    sync: SyncSettings = SyncSettings()
    loop: LoopSettings = LoopSettings()
    warm_start: NoWarmStart | OracleWarmStart = Field(default=NoWarmStart(), discriminator="type")
    eval: EvalSettings = EvalSettings()
    report: ReportSettings = ReportSettings()
    watch: WatchSettings = WatchSettings()
