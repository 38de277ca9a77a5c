"""Every setting, in pipeline order. The strings under the fields are the reference.

Sections with keys that depend on a choice are typed here by the keys that they always have; `config/choices.py` adds
those of the chosen class before anything is validated.
"""

from __future__ import annotations

from pydantic import Field

from turnwise.config.sections.audit import AuditSettings
from turnwise.config.sections.buffer import BufferSettings
from turnwise.config.sections.cluster import NoCluster, RayCluster
from turnwise.config.sections.context import ContextSettings
from turnwise.config.sections.credit import CreditSettings
from turnwise.config.sections.engine import EngineSettings
from turnwise.config.sections.env import EnvSettings
from turnwise.config.sections.eval import EvalSettings
from turnwise.config.sections.learn import LearnSettings
from turnwise.config.sections.loop import LoopSettings
from turnwise.config.sections.mix import MixSettings
from turnwise.config.sections.model import ModelSettings
from turnwise.config.sections.report import ReportSettings
from turnwise.config.sections.reward import RewardSettings
from turnwise.config.sections.rollout import RolloutSettings
from turnwise.config.sections.run import RunSettings
from turnwise.config.sections.sync import SyncSettings
from turnwise.config.sections.tasks import TaskSettings
from turnwise.config.sections.warm_start import EndpointWarmStart, NoWarmStart, OracleWarmStart
from turnwise.config.sections.watch import WatchSettings
from turnwise.config.settings import Settings


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
    buffer: BufferSettings = BufferSettings()
    credit: CreditSettings = CreditSettings()
    learn: LearnSettings = LearnSettings()
    audit: AuditSettings = AuditSettings()
    sync: SyncSettings = SyncSettings()
    loop: LoopSettings = LoopSettings()
    cluster: NoCluster | RayCluster = Field(default=NoCluster(), discriminator="type")
    warm_start: NoWarmStart | OracleWarmStart | EndpointWarmStart = Field(default=NoWarmStart(), discriminator="type")
    eval: EvalSettings = EvalSettings()
    report: ReportSettings = ReportSettings()
    watch: WatchSettings = WatchSettings()

    def envs(self) -> list[EnvSettings]:
        """Every environment of the run, the main one first."""
        return [self.env, *(other.env for other in self.mix.by_tag().values())]
