from __future__ import annotations

import json
import logging
import math
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from turnwise.errors import RunError
from turnwise.report import metrics as metrics_module
from turnwise.report.metrics import JsonlSink, Sinks, Stopwatch, group_metrics
from turnwise.types import Group, Metrics, Segment, StopReason, Task


class MemorySink:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.is_closed = False

    def write(self, step: int, metrics: Metrics) -> None:
        self.steps.append(step)

    def close(self) -> None:
        self.is_closed = True


class BrokenSink(MemorySink):
    def write(self, step: int, metrics: Metrics) -> None:
        super().write(step, metrics)
        raise OSError("disk full")

    def close(self) -> None:
        raise OSError("still full")


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(metrics_module, "time", fake)
    return fake


# --- sinks ----------------------------------------------------------------------------------------------------------


def test_jsonl_sink_appends_readable_lines_at_once(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    sink = JsonlSink(path, time_offset_s=50.0)
    clock.now_s += 2.5
    sink.write(2, {"rollout/success": np.float32(0.25), "learn/grad_norm": math.nan})

    rows = [json.loads(line) for line in path.read_text().splitlines()]  # before close: a killed run keeps its lines
    sink.close()

    assert rows == [{"step": 1}, {"step": 2, "time_s": 52.5, "rollout/success": 0.25, "learn/grad_norm": None}]


def test_jsonl_sink_says_why_it_cannot_open(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is a directory"):
        JsonlSink(tmp_path)


def test_a_failing_sink_is_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    before, broken, after = MemorySink(), BrokenSink(), MemorySink()
    sinks = Sinks([before, broken, after])

    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            sinks.write(step, {"learn/loss": 1.0})

    assert before.steps == after.steps == [1, 2, 3]
    assert broken.steps == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "BrokenSink failed at step 1 and is dropped: disk full"
    ]


def test_closing_goes_on_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    last = MemorySink()
    Sinks([BrokenSink(), last]).close()
    assert last.is_closed
    assert "could not be closed: still full" in caplog.text


# --- group metrics --------------------------------------------------------------------------------------------------


def test_numbers_of_an_environment_are_those_of_the_end_of_an_episode(make_trajectory, make_turn) -> None:
    task = Task(tag="frozen_lake", seed=1)
    long = make_trajectory(
        0, turns=(make_turn(0, metrics={"moves": 1, "first": 3}), make_turn(1, metrics={"moves": 5}))
    )
    short = make_trajectory(1, turns=(make_turn(0, metrics={"moves": 2}),))
    silent = make_trajectory(2, turns=(make_turn(0),))
    found = group_metrics([Group(task=task, trajectories=(long, short, silent))])
    assert found["env/frozen_lake/moves"] == 3.5  # of those that say it
    assert found["env/frozen_lake/first"] == 3.0


def test_rewards_of_environment_and_judge_are_told_apart(make_trajectory, make_turn) -> None:
    paid = make_trajectory(0, rewards=(0.0,), turns=(make_turn(0, reward=1.5, judged=0.5),))
    unpaid = make_trajectory(1, rewards=(0.0,), turns=(make_turn(0, reward=1.0),))
    both = group_metrics([Group(task=Task(tag="frozen_lake", seed=1), trajectories=(paid, unpaid))])
    assert (both["reward/env"], both["reward/judge"], both["rollout/return"]) == (1.0, 0.25, 1.25)
    alone = group_metrics([Group(task=Task(tag="frozen_lake", seed=1), trajectories=(unpaid,))])
    assert "reward/judge" not in alone


def test_group_metrics_by_hand(make_trajectory, make_turn) -> None:
    task = Task(tag="frozen_lake", seed=1)
    win, loss = make_trajectory(0), make_trajectory(1, rewards=(0.0,), stop_reason=StopReason.MAX_TURNS)
    clumsy = make_trajectory(
        0,
        rewards=(0.0, 0.0),
        turns=(make_turn(0, penalty=-0.1), make_turn(1, is_valid=False)),
    )
    broken = make_trajectory(1, rewards=(0.0,), stop_reason=StopReason.ENV_ERROR, turns=(), segments=())
    groups = [Group(task=task, trajectories=(win, loss)), Group(task=task, trajectories=(clumsy, broken))]

    assert group_metrics(groups) == {
        "rollout/success": 0.25,
        "rollout/return": 0.25,
        "rollout/rewarded": 0.25,
        "rollout/num_turns": 5 / 4,
        "rollout/truncated": 0.25,
        "rollout/errors": 0.25,
        "rollout/in_group_std": 0.25,  # 0.5 in the first group, 0 in the second
        "rollout/pass_at_k": 0.5,
        "rollout/dead_groups": 0.0,  # of the first group alone: in the second one sibling is left
        "rollout/invalid_actions": 2 / 5,
        "rollout/response_tokens": 2.0,
        "reward/env": 0.25,
    }


def test_a_group_is_dead_where_nothing_tells_its_siblings_apart(make_trajectory, make_turn) -> None:
    task = Task(tag="frozen_lake", seed=1)

    def group(*siblings) -> Group:
        return Group(task=task, trajectories=siblings)

    def dead(*groups: Group) -> float | None:
        return group_metrics(groups).get("rollout/dead_groups")

    win, other_win, loss = make_trajectory(0), make_trajectory(1), make_trajectory(2, rewards=(0.0,))
    fined = make_trajectory(3, turns=(make_turn(0, penalty=-0.1),))
    failed = make_trajectory(4, rewards=(0.0,), stop_reason=StopReason.ENV_ERROR)
    assert dead(group(win, other_win), group(win, loss), group(loss, loss), group(win, loss)) == 0.5
    assert dead(group(loss, fined)) == 0.0  # the return is the same; what is learnt from is not
    assert dead(group(win, other_win, failed)) == 1.0  # nothing is learnt from a failure
    assert dead(group(win), group(win, failed)) is None
    # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 are not the same float.
    assert dead(group(make_trajectory(0, rewards=(0.1, 0.2, 0.3)), make_trajectory(1, rewards=(0.3, 0.2, 0.1)))) == 1.0


def replies(make_trajectory, *replies: str) -> Group:
    """One segment with two given tokens before each reply; a letter is a token."""
    rows = [(ord(letter), turn) for turn, reply in enumerate(replies) for letter in "xx" + reply]
    given = [place < 2 for reply in replies for place in range(2 + len(reply))]
    segment = Segment(
        token_ids=np.array([token for token, _ in rows], dtype=np.int32),
        loss_mask=~np.array(given),
        behavior_logprobs=np.zeros(len(rows), dtype=np.float32),
        turn_ids=np.where(given, -1, [turn for _, turn in rows]).astype(np.int32),
    )
    return Group(task=Task(tag="frozen_lake", seed=1), trajectories=(make_trajectory(segments=(segment,)),))


@pytest.mark.parametrize(
    ("texts", "repetition"),
    [
        (["abcdef"], 0.0),
        (["aaaaaa"], 3 / 4),  # four 3-grams, one of them new
        (["ababab", "xyz"], 2 / 5),  # aba bab (aba) (bab); xyz
        (["abc", "abc"], 0.0),  # the same move in two turns is no repetition
        (["ab", "ca", "bc"], None),  # too short, and never joined over turns or with what was given
    ],
)
def test_repetition_is_counted_inside_replies(make_trajectory, texts: list[str], repetition: float | None) -> None:
    assert group_metrics([replies(make_trajectory, *texts)]).get("rollout/repetition") == pytest.approx(repetition)


def test_success_is_split_by_tag_only_where_there_are_several(make_trajectory) -> None:
    lake = Group(task=Task(tag="frozen_lake", seed=1), trajectories=(make_trajectory(),))
    bandit = Group(task=Task(tag="bandit", seed=1), trajectories=(make_trajectory(tag="bandit", rewards=(0.0,)),))
    split = {
        name: value for name, value in group_metrics([lake, bandit]).items() if name.startswith("rollout/success/")
    }
    assert split == {"rollout/success/bandit": 0.0, "rollout/success/frozen_lake": 1.0}
    assert not any(name.startswith("rollout/success/") for name in group_metrics([lake]))


def test_success_that_nobody_says_is_no_metric_whatever_was_earned(make_trajectory) -> None:
    task = Task(tag="frozen_lake", seed=1)
    silent = [make_trajectory(n, rewards=(0.01, 0.02), is_success=None) for n in range(2)]
    broken = make_trajectory(2, is_success=None, stop_reason=StopReason.WORKFLOW_ERROR)
    found = group_metrics([Group(task=task, trajectories=(*silent, broken))])
    assert found["rollout/success_unknown"] == 1.0
    assert not {"rollout/success", "rollout/pass_at_k"} & found.keys()
    other = Group(task=Task(tag="bandit", seed=1), trajectories=(make_trajectory(tag="bandit", is_success=None),))
    split = group_metrics([Group(task=task, trajectories=(make_trajectory(),)), other])
    assert {name for name in split if name.startswith("rollout/success/")} == {"rollout/success/frozen_lake"}


def test_a_share_of_successes_is_over_the_episodes_that_say_it(make_trajectory) -> None:
    task = Task(tag="frozen_lake", seed=1)
    win, loss, silent = (make_trajectory(n, is_success=said) for n, said in enumerate((True, False, None)))
    broken = make_trajectory(3, is_success=None, stop_reason=StopReason.WORKFLOW_ERROR)
    groups = [Group(task=task, trajectories=plays) for plays in ((win, silent), (silent, silent), (loss, broken))]
    found = group_metrics(groups)
    assert found["rollout/success"] == pytest.approx(1 / 3)  # the failure counts, as it does in an environment
    assert found["rollout/success_unknown"] == pytest.approx(1 / 2)
    assert found["rollout/pass_at_k"] == pytest.approx(1 / 2)  # of the two groups of which anything is known


def test_no_groups_and_no_turns_give_no_nan(make_trajectory) -> None:
    assert group_metrics([]) == {}
    empty = Group(task=Task(tag="bandit", seed=1), trajectories=())
    failed = Group(task=Task(tag="bandit", seed=1), trajectories=(make_trajectory(turns=(), segments=()),))
    assert all(math.isfinite(value) for value in group_metrics([empty, failed]).values())


# --- stopwatch ------------------------------------------------------------------------------------------------------


def test_nested_sections_subtract_from_the_outer_one(clock: FakeClock) -> None:
    watch = Stopwatch()
    clock.now_s += 1
    with watch.section("rollout"):
        clock.now_s += 2
        with watch.section("env"):
            clock.now_s += 4
        clock.now_s += 8
    with watch.section("learn"):
        clock.now_s += 16
    with watch.section("evaluate"):
        clock.now_s += 32

    assert watch.time_split() == {"rollout": 10, "env": 4, "learn": 16, "sync": 0, "other": 33}
    assert watch.seconds("evaluate") == 32


def test_an_open_section_counts_until_now_and_only_once(clock: FakeClock) -> None:
    watch = Stopwatch()
    with watch.section("sync"):
        clock.now_s += 3
        assert watch.time_split()["sync"] == 3
        clock.now_s += 2
    assert watch.time_split() == {"rollout": 0, "env": 0, "learn": 0, "sync": 5, "other": 0}


def test_a_section_that_raises_is_closed(clock: FakeClock) -> None:
    watch = Stopwatch()
    with suppress(KeyError), watch.section("learn"):
        clock.now_s += 1
        raise KeyError
    clock.now_s += 5
    assert watch.time_split()["learn"] == 1


def test_crossed_sections_are_refused(clock: FakeClock) -> None:
    watch = Stopwatch()
    outer, inner = watch.section("rollout"), watch.section("env")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(AssertionError, match="ended while"):
        outer.__exit__(None, None, None)
