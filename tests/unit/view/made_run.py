"""A run directory that no model made: metrics, episodes and a learning record that fit each other, in milliseconds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from turnwise.learn.pack import pack
from turnwise.report.manifest import collect_manifest
from turnwise.report.run_dir import RunDirectory
from turnwise.report.token_log import TokenLogWriter
from turnwise.report.token_log_codec import UpdateRecord
from turnwise.report.trajectories import TrajectoryWriter
from turnwise.types import (
    Annotations,
    Experience,
    ExperienceId,
    Sample,
    Segment,
    StepReport,
    StopReason,
    Task,
    Trajectory,
    TrajectoryId,
    Turn,
    UpdateTrace,
)
from turnwise.view.policy_query import PolicyPrediction, PolicyQuery

CONFIG = """\
recipe: made
run: {seed: 3}
env:
  type: frozen_lake
  size: 4
  view: grid
  symbols: {player: P, ice: _, hole: O, goal: G, fallen: X, arrived: √}
credit: {type: gae}
learn: {steps: 4}
loop: {type: serial}
engine: {type: local}
"""
LAKE = "P_O_\n__O_\n____\nO__G"
REPLIES = ("<think>I walk.</think><answer>Right</answer>", "<answer>Down</answer>")


def make_run(
    path: Path,
    *,
    steps: int = 3,
    groups: int = 2,
    siblings: int = 2,
    replies: Sequence[str] = REPLIES,
    has_ended: bool = True,
    has_trace: bool = True,
) -> Path:
    """Every step has `groups` of `siblings`; the later the step, the more of them succeed."""
    manifest = collect_manifest("made", 3, command=["turnwise", "train"])
    directory = RunDirectory.create(path, config_yaml=CONFIG, manifest=manifest)
    for step in range(1, steps + 1):
        add_step(directory, step, groups=groups, siblings=siblings, replies=replies, has_trace=has_trace)
    if has_ended:
        directory.summary.write_text(json.dumps(_summary(steps)))
    return path


def add_step(
    directory: RunDirectory,
    step: int,
    *,
    groups: int = 2,
    siblings: int = 2,
    replies: Sequence[str] = REPLIES,
    has_trace: bool = True,
) -> None:
    """What one more step of a run writes."""
    rng = np.random.default_rng(step)
    episodes = [
        _episode(rng, TrajectoryId(step, f"frozen_lake/train/{100 * step + group}", sibling), replies, sibling < step)
        for group in range(groups)
        for sibling in range(siblings)
    ]
    TrajectoryWriter(directory.trajectories, max_per_step=len(episodes)).write(step, episodes)
    TokenLogWriter(directory.learning_record, "all").write(step, _learn(rng, step, episodes, has_trace=has_trace))
    success = float(np.mean([episode.is_success for episode in episodes]))
    row = {"step": step, "time_s": 2.0 * step, "rollout/success": success, "rollout/return": success}
    row |= {"learn/entropy": 1 / step, "time/rollout_s": 1.5, "time/learn_s": 0.5, "rollout/tokens_per_s": 99.0}
    with directory.metrics.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _episode(rng: np.random.Generator, name: TrajectoryId, replies: Sequence[str], is_success: bool) -> Trajectory:
    turn_ids = np.concatenate([[-1, -1, -1, turn, turn, turn] for turn in range(len(replies))]).astype(np.int32)
    mask = turn_ids >= 0
    segment = Segment(
        token_ids=rng.integers(0, 300, len(mask)).astype(np.int32),
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -rng.random(len(mask)), 0).astype(np.float32),
        turn_ids=turn_ids,
    )
    rewards = [0.0] * (len(replies) - 1) + [float(is_success)]
    turns = tuple(
        Turn(
            index=index,
            segment_index=0,
            observation=LAKE,
            response_text=reply,
            actions=("Right",),
            reward=rewards[index],
            penalty=0.0,
            policy_version=name.rollout - 1,
            step=index,
        )
        for index, reply in enumerate(replies)
    )
    tag, split, seed = name.task_id.rsplit("/", 2)
    return Trajectory(
        id=name,
        task=Task(tag=tag, seed=int(seed), split=split),
        segments=(segment,),
        turns=turns,
        stop_reason=StopReason.TERMINATED if is_success else StopReason.MAX_TURNS,
        is_success=is_success,
        final_observation=LAKE,
    )


def _learn(rng: np.random.Generator, step: int, episodes: Sequence[Trajectory], *, has_trace: bool) -> UpdateRecord:
    samples = []
    for episode in episodes:
        (segment,) = episode.segments
        rewards = np.array([turn.reward for turn in episode.turns], dtype=np.float32)
        experience = Experience(
            id=ExperienceId(episode.id, 0),
            segment=segment,
            turn_indices=np.arange(len(rewards), dtype=np.int32),
            raw_rewards=rewards,
            turn_rewards=rewards,
            turn_states=np.arange(len(rewards), dtype=np.uint64),
            turn_steps=np.arange(len(rewards), dtype=np.int32),
            policy_version=step - 1,
            is_last=True,
            is_truncated=not episode.is_success,
        )
        names = ("advantages", "returns", "values", "reference_logprobs")
        samples.append(Sample(experience=experience, **{name: _column(rng, segment.loss_mask) for name in names}))
    batch = pack(samples)
    columns = {name: _column(rng, batch.loss_mask) for name in ("proximal_logprobs", "first_ratios", "last_ratios")}
    trace = UpdateTrace(
        **columns,
        entropies=_column(rng, batch.loss_mask),
        is_clipped=batch.loss_mask & (rng.random(len(batch.loss_mask)) < 0.2),
        proximal_steps=np.zeros(batch.num_rows, dtype=np.int32),
    )
    experiences = [sample.experience for sample in samples]
    annotations = Annotations(
        values=tuple(sample.values for sample in samples),
        reference_logprobs=tuple(sample.reference_logprobs for sample in samples),
        token_penalties=None,
    )
    report = StepReport(policy_version=step, metrics={}, trace=trace if has_trace else None)
    return UpdateRecord.of(samples, batch, report, annotated=experiences, annotations=annotations)


def _column(rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, rng.normal(size=len(mask)), 0).astype(np.float32)


def _summary(steps: int) -> dict[str, object]:
    return {
        "recipe": "made",
        "env": "frozen_lake",
        "seed": 3,
        "steps": steps,
        "wall_s": 2.0 * steps,
        "setup_s": 0.1,
        "success_before": 0.25,
        "success_after": 0.75,
        "success_before_interval": [0.1, 0.4],
        "success_after_interval": [0.6, 0.9],
        "return_before": 0.25,
        "return_after": 0.75,
        "eval_episodes": 100,
        "baselines": {"random": 0.1, "oracle": 1.0},
        "tokens_sampled": 1234,
        "tokens_trained": 1200,
        "time_split": {"rollout": 4.0, "env": 0.5, "learn": 1.0, "sync": 0.1, "other": 0.4},
        "policy_version": steps,
        "failures": {"EnvError: the lake has melted": 2},
    }


class FakeVoice:
    """Says three tokens, the last of which cannot be drawn, and goes on with two."""

    def __init__(self) -> None:
        self.asked: list[PolicyQuery] = []

    def ask(self, question: PolicyQuery) -> PolicyPrediction:
        self.asked.append(question)
        logprobs = (math.log(0.75), math.log(0.25), -math.inf)
        return PolicyPrediction(token_ids=(7, 8, 9), logprobs=logprobs, continuation_ids=(7, 2))


def add_checkpoint(run: Path, step: int, *, policy_version: int) -> Path:
    folder = RunDirectory.open(run).step_checkpoint(step)
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / "config.json").write_text("{}")
    (folder / "progress.json").write_text(json.dumps({"step": step, "policy_version": policy_version}))
    return folder


def forget_success(path: Path) -> None:
    """As if nobody had said whether an episode succeeded."""
    directory = RunDirectory.open(path)
    for file in directory.trajectories.glob("*.jsonl"):
        records = [json.loads(line) | {"is_success": None} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    kept = [{name: value for name, value in row.items() if name != "rollout/success"} for row in rows]
    directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in kept))
    if directory.summary.exists():
        names = ("success_before", "success_after", "success_before_interval", "success_after_interval")
        directory.summary.write_text(json.dumps(json.loads(directory.summary.read_text()) | dict.fromkeys(names)))
