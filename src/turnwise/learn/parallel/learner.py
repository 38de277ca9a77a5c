"""The learner that the loop holds where several processes learn: it calls them and has no model of its own.

In and out: what `protocols.Learner` says. An update of N ranks is that of one process; where it is computed
differs, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from turnwise.config.schema_learn import LearnSettings
from turnwise.deps import LearnerSite
from turnwise.learn.parallel.hosts import RankHosts, RankTask, StartRanks
from turnwise.protocols import Imitation, Weights
from turnwise.types import Annotations, Batch, Experience, FloatArray, IntArray, StepReport


class ParallelLearner:
    """`learn.parallel`: the learner of `learn.type` in every rank, and nothing here but their handles."""

    @classmethod
    def open(cls, settings: LearnSettings, site: LearnerSite, start: StartRanks) -> ParallelLearner:
        hosts = start(settings, run_path=site.run_path)
        try:
            return cls(hosts, settings, site)
        except BaseException:
            hosts.stop()
            raise

    def __init__(self, hosts: RankHosts, settings: LearnSettings, site: LearnerSite) -> None:
        self._hosts = hosts
        self.policy_version = 0
        task = RankTask(
            learn=settings.model_dump(),
            model=site.model,
            model_path=site.model_path,
            temperature=site.temperature,
            seed=site.seed,
        )
        hosts.call("open", task)

    def annotate(self, experiences: Sequence[Experience]) -> Annotations:
        return self._hosts.call("annotate", list(experiences))

    def step(self, batch: Batch) -> StepReport:
        report: StepReport = self._hosts.call("step", batch)
        self.policy_version = report.policy_version
        return report

    def imitate(
        self, demonstrations: Sequence[Experience], how: Imitation, on_step: Callable[[int, int], None]
    ) -> float:
        return self._hosts.call("imitate", list(demonstrations), how, on_note=on_step)

    def supervise(self, demonstrations: Sequence[Experience]) -> None:
        self._hosts.call("supervise", list(demonstrations))

    def weights(self) -> Weights:
        return self._hosts.weights()

    def logprobs_of(self, experiences: Sequence[Experience], of: str = "policy") -> Sequence[FloatArray]:
        return self._hosts.call("logprobs_of", list(experiences), of)

    def score(self, token_ids: IntArray) -> FloatArray:
        return self._hosts.call("score", token_ids)

    def save_state(self, folder: Path) -> None:
        # Ranks need not work in the folder that this process works in.
        self._hosts.call("save_state", folder.resolve())

    def load_state(self, folder: Path) -> None:
        self.policy_version = self._hosts.call("load_state", folder.resolve())

    def close(self) -> None:
        """The ranks end."""
        self._hosts.stop()
