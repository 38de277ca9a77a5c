"""Which part of a large update is kept: whole groups, the same ones in whatever order they come."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.report.token_log_codec import UpdateRecord, choose_rows, take_rows
from turnwise.types import Experience

from .learnt_batches import make_learnt


def num_tokens(experiences: list[Experience]) -> int:
    return sum(len(e.segment) for e in experiences)


def chosen(learnt: UpdateRecord, share: object) -> list[Experience]:
    return [learnt.experiences[row] for row in choose_rows(learnt.experiences, share)]  # type: ignore[arg-type]


def test_everything_nothing_and_what_fits() -> None:
    learnt = make_learnt(groups=6)
    everything = list(learnt.experiences)
    assert chosen(learnt, "all") == chosen(learnt, num_tokens(everything)) == everything
    assert chosen(learnt, "none") == []
    some = chosen(learnt, num_tokens(everything) - 1)
    assert 0 < num_tokens(some) < num_tokens(everything)


def test_groups_that_fill_the_bound_exactly_fit() -> None:
    learnt = make_learnt(groups=6)
    first = chosen(learnt, 60)
    assert {e.id for e in chosen(learnt, num_tokens(first))} == {e.id for e in first}
    assert len(chosen(learnt, num_tokens(first) - 1)) < len(first)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 999), share=st.integers(1, 300), shuffle=st.randoms())
def test_a_share_holds_whole_groups_within_its_bound_whatever_the_order(seed: int, share: int, shuffle: object) -> None:
    experiences = list(make_learnt(seed, groups=5, siblings=3).experiences)
    kept = [experiences[row] for row in choose_rows(experiences, share)]
    mixed = list(experiences)
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    assert {e.id for e in kept} == {mixed[row].id for row in choose_rows(mixed, share)}
    trajectories, groups = {e.id.trajectory for e in kept}, {e.id.trajectory.group for e in kept}
    assert trajectories
    # A trajectory is whole in any case.
    assert {e.id for e in experiences if e.id.trajectory in trajectories} == {e.id for e in kept}
    if len(groups) > 1 or num_tokens([e for e in experiences if e.id.trajectory.group in groups]) <= share:
        assert {e.id for e in experiences if e.id.trajectory.group in groups} == {e.id for e in kept}
    assert num_tokens(kept) <= share or len(trajectories) == 1


def test_groups_are_drawn_without_regard_to_their_place() -> None:
    """Over many updates every place in the batch is kept about equally often."""
    counts = np.zeros(5)
    for seed in range(300):
        experiences = make_learnt(seed, groups=5, siblings=1).experiences
        groups = list(dict.fromkeys(e.id.trajectory.group for e in experiences))
        for group in {experiences[row].id.trajectory.group for row in choose_rows(experiences, 40)}:
            counts[groups.index(group)] += 1
    assert counts.min() > 0.7 * counts.max()


def test_some_rows_are_the_same_rows_as_in_the_whole() -> None:
    learnt = make_learnt(groups=4, has_penalties=True)
    rows = np.array([1, 2, 5])
    part = take_rows(learnt, rows)
    assert part.batch.num_rows == len(part.experiences) == 3
    assert take_rows(learnt, np.arange(learnt.batch.num_rows)) is learnt
    assert part.trace is not None
    assert learnt.trace is not None
    np.testing.assert_array_equal(part.trace.proximal_steps, learnt.trace.proximal_steps[rows])
    assert part.token_penalties is not None
    for new, old in enumerate(rows):
        here = slice(part.batch.row_starts[new], part.batch.row_starts[new + 1])
        there = slice(learnt.batch.row_starts[old], learnt.batch.row_starts[old + 1])
        assert part.experiences[new] is learnt.experiences[old]
        np.testing.assert_array_equal(part.token_penalties[here], learnt.token_penalties[there])  # type: ignore[index]
        for whole, some in ((learnt.batch, part.batch), (learnt.trace, part.trace)):
            for field in fields(whole):
                is_per_token = field.name not in ("row_starts", "trajectory_of_row", "proximal_steps")
                if is_per_token and getattr(whole, field.name) is not None:
                    np.testing.assert_array_equal(getattr(some, field.name)[here], getattr(whole, field.name)[there])
    ids = [e.id.trajectory for e in part.experiences]
    assert part.batch.trajectory_of_row.tolist() == [list(dict.fromkeys(ids)).index(i) for i in ids]
