"""Random updates for the tests of the learning record: groups, siblings, rows, turns and everything said about them."""

from __future__ import annotations

import numpy as np

from turnwise.learn.pack import pack
from turnwise.report.token_log_codec import UpdateRecord
from turnwise.types import Annotations, Experience, ExperienceId, Sample, Segment, StepReport, TrajectoryId, UpdateTrace


def make_learnt(
    seed: int = 0,
    *,
    groups: int = 2,
    siblings: int = 2,
    has_critic: bool = True,
    has_reference: bool = True,
    has_penalties: bool = False,
    has_trace: bool = True,
    vocabulary: int = 50_000,
) -> UpdateRecord:
    rng = np.random.default_rng(seed)
    samples, penalties = [], []
    for group in range(groups):
        for sibling in range(siblings):
            for experience in _play(rng, TrajectoryId(3, f"lake/train/{seed}{group}", sibling), vocabulary):
                mask = experience.segment.loss_mask
                credit = {name: _column(rng, mask) for name in ("advantages", "returns")}
                credit["values"] = _column(rng, mask) * has_critic
                credit["reference_logprobs"] = _column(rng, mask) * has_reference
                samples.append(Sample(experience=experience, **credit))
                penalties.append(_column(rng, mask))
    batch = pack(samples)
    trace = _trace(rng, batch.loss_mask, batch.num_rows) if has_trace else None
    experiences = [sample.experience for sample in samples]
    blank = tuple(sample.values for sample in samples)
    annotations = Annotations(
        values=blank if has_critic else None,
        reference_logprobs=blank if has_reference else None,
        token_penalties=tuple(penalties) if has_penalties else None,
    )
    report = StepReport(policy_version=seed + 1, metrics={}, trace=trace)
    return UpdateRecord.of(samples, batch, report, annotated=experiences, annotations=annotations)


def _play(rng: np.random.Generator, trajectory: TrajectoryId, vocabulary: int) -> list[Experience]:
    """A trajectory of one or two rows, with one to three turns each."""
    turns_of_row = [int(rng.integers(1, 4)) for _ in range(int(rng.integers(1, 3)))]
    is_truncated, greedy = bool(rng.integers(2)), [None, float(rng.normal())][int(rng.integers(2))]
    experiences, turn = [], 0
    for index, num_turns in enumerate(turns_of_row):
        turns = np.arange(turn, turn + num_turns, dtype=np.int32)
        turn += num_turns
        # Turns may follow each other without a given token in between.
        turn_ids = np.concatenate([[-1], *([*[-1] * rng.integers(0, 4), *[t] * rng.integers(1, 5)] for t in turns)])
        turn_ids = turn_ids.astype(np.int32)
        mask = turn_ids >= 0
        experiences.append(
            Experience(
                id=ExperienceId(trajectory, index),
                segment=Segment(
                    token_ids=rng.integers(0, vocabulary, size=len(mask), dtype=np.int32),
                    loss_mask=mask,
                    behavior_logprobs=_column(rng, mask),
                    turn_ids=turn_ids,
                ),
                turn_indices=turns,
                raw_rewards=rng.normal(size=num_turns).astype(np.float32),
                turn_rewards=rng.normal(size=num_turns).astype(np.float32),
                turn_states=rng.integers(0, 2**63, size=num_turns, dtype=np.uint64) * np.uint64(2),
                turn_steps=turns,
                policy_version=int(rng.integers(0, 9)),
                is_last=index == len(turns_of_row) - 1,
                is_truncated=is_truncated,
                greedy_return=greedy,
            )
        )
    return experiences


def _column(rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, rng.normal(size=len(mask)), 0).astype(np.float32)


def _trace(rng: np.random.Generator, mask: np.ndarray, num_rows: int) -> UpdateTrace:
    return UpdateTrace(
        proximal_logprobs=_column(rng, mask),
        proximal_steps=rng.integers(0, 3, size=num_rows, dtype=np.int32),
        first_ratios=np.exp(_column(rng, mask)) * mask,
        last_ratios=np.exp(_column(rng, mask)) * mask,
        entropies=np.abs(_column(rng, mask)),
        is_clipped=mask & (rng.random(len(mask)) < 0.3),
    )
