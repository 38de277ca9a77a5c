"""The parts of a run whose explorers, learner and buffer are elsewhere: the loops cannot tell them from their own."""

from __future__ import annotations

from turnwise.config.schema import TurnwiseSettings
from turnwise.loop.build import (
    build_judging,
    build_tasks,
    chosen_engine,
    count_groups,
    held_out_tasks,
    join,
    load_words,
    needs_greedy,
    open_credit,
)
from turnwise.loop.cluster.collector import CrewCollector, CrewEngine, ScoringCrewEngine
from turnwise.loop.cluster.crew import Crew
from turnwise.loop.cluster.proxies import Host, ReferenceMailbox, RemoteBuffer
from turnwise.loop.open_audit import open_audit
from turnwise.loop.parts import ExploreParts, TrainParts
from turnwise.protocols import Learner
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import Journals
from turnwise.rollout.env_specs import worlds_of
from turnwise.sync.weight_store import MemoryChannel


def build_on_cluster(
    settings: TurnwiseSettings, model_path: str, directory: RunDirectory, *, crew: Crew, learner: Learner, buffer: Host
) -> TrainParts:
    """As `build_train`: the same protocols, kept by whoever is at the other end."""
    worlds, silence_s = worlds_of(settings), settings.sync.timeout_s
    engine = ScoringCrewEngine(crew) if hasattr(chosen_engine(settings), "score") else CrewEngine(crew)
    journals = Journals(directory)

    def new_proxies() -> tuple[CrewCollector, CrewCollector | None]:
        sampled = CrewCollector(crew, "train", silence_s=silence_s, journals=journals)
        return sampled, CrewCollector(crew, "greedy", silence_s=silence_s) if needs_greedy(settings) else None

    sampled, greedy = new_proxies()
    explore = ExploreParts(
        **vars(load_words(settings, model_path)),
        engine=engine,
        channel=MemoryChannel([engine]),
        judging=build_judging(settings),
        eval_proxy=CrewCollector(crew, "eval", silence_s=silence_s),
        eval_tasks=held_out_tasks(settings),
        tasks=build_tasks(settings, worlds),
        groups_per_rollout=count_groups(worlds),
        proxy=sampled,
        greedy_proxy=greedy,
        new_proxies=new_proxies,
        buffer=RemoteBuffer(buffer),
        open_mailbox=ReferenceMailbox,
    )
    audit = open_audit(settings, learner, directory.path)
    return join(explore, {"credit": open_credit(settings), "learner": learner, "audit": audit})
