"""The simulated cluster against sums done by hand and the behavior of queues; its constants and its command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.scaling_sim import (
    Clock,
    Constants,
    Forecast,
    Lever,
    Placement,
    Row,
    SimulatedExplorer,
    Then,
    _fit_passes,
    calibrate,
    describe_row,
    find_levers,
    main,
    measure,
    measured_step_s,
    place,
    read_constants,
    read_counts,
    read_numbers,
    simulate,
)

from turnwise.config.load import load_settings
from turnwise.engine.local import ForwardStats
from turnwise.errors import ConfigError, RunError
from turnwise.report.run_dir import RunDirectory
from turnwise.run.api import Run, train
from turnwise.sync.sync_schedule import SyncRules

from ...small_run import SMALL_LAKE, without_plots

EVEN = Constants(episodes=8, turns=3, turn_counts=(3,), max_turns=3, reply_tokens=2, learn_s=1.0)
"""Episodes that are all alike, so that times can be added up by hand."""


def placed(max_staleness: int = 0, *, interval: int = 1, style: str = "fixed", **more: object) -> Placement:
    offset = max(0, max_staleness - interval + 1)
    rules = SyncRules(style=style, interval=interval, offset=offset, max_staleness=max_staleness)  # type: ignore[arg-type]
    return Placement(rules=rules, max_running=max_staleness + 1, **more)  # type: ignore[arg-type]


# --- the clock -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cores", "ends"), [(1.0, [2.0, 3.0]), (2.0, [1.0, 2.0]), (float("inf"), [1.0, 2.0])])
def test_work_shares_the_cores_that_there_are(cores: float, ends: list[float]) -> None:
    clock, ended = Clock(cores), []
    clock.work(1.0, lambda: ended.append(clock.now))
    clock.work(2.0, lambda: ended.append(clock.now))
    clock.run_until(lambda: len(ended) == 2)
    assert ended == pytest.approx(ends)


def test_waits_need_no_core() -> None:
    clock, ended = Clock(1.0), []
    for seconds in (3.0, 1.0, 1.0):
        clock.wait(seconds, lambda: ended.append(clock.now))
    clock.work(2.0, lambda: ended.append(clock.now))
    clock.run_until(lambda: len(ended) == 4)
    assert ended == pytest.approx([1.0, 1.0, 2.0, 3.0])


def test_a_cluster_in_which_nothing_can_happen_says_so() -> None:
    with pytest.raises(RuntimeError, match="stands still"):
        Clock(1.0).run_until(lambda: False)


# --- sums ------------------------------------------------------------------------------------------------------------


def test_the_serial_loop_is_the_sum_of_its_parts() -> None:
    constants = replace(EVEN, pass_s=0.01, row_s=0.001, turn_s=0.002, env_s=0.1, post_s=0.05, load_s=0.03, other_s=0.02)
    # Eight rows in two passes of a reply, in each of three turns; the world answers all of them at once.
    rollout_s = 3 * (2 * (0.01 + 8 * 0.001) + 8 * 0.002 + 0.1)
    assert simulate(constants, placed()).step_s == pytest.approx(rollout_s + 1.0 + 0.05 + 0.03 + 0.02)


def test_what_explores_and_what_learns_overlap_up_to_the_slower_one() -> None:
    slow_world = replace(EVEN, env_s=1.0)
    assert simulate(slow_world, placed()).step_s == pytest.approx(4.0)
    # One ahead: a rollout of three seconds beside an update of one.
    assert simulate(slow_world, placed(1)).step_s == pytest.approx(2.0)
    assert simulate(slow_world, placed(2)).step_s == pytest.approx(4 / 3, rel=0.02)
    told = simulate(slow_world, placed(3))
    assert (told.step_s, told.learn_share, told.wait_share) == pytest.approx((1.0, 1.0, 0.0), abs=1e-6)


def test_staleness_is_what_the_rules_allow_and_use() -> None:
    slow_world = replace(EVEN, env_s=1.0)
    assert simulate(slow_world, placed()).staleness_max == 0
    for bound in (1, 2):
        told = simulate(slow_world, placed(bound))
        assert 0 < told.staleness_mean <= told.staleness_max == bound
    every_third = simulate(EVEN, placed(2, interval=3))
    assert every_third.staleness_mean == pytest.approx(1.0, abs=0.15)
    assert every_third.staleness_max == 2


@pytest.mark.parametrize("style", ["dynamic_by_explorer", "dynamic_by_trainer"])
def test_every_style_goes_on(style: str) -> None:
    told = simulate(replace(EVEN, env_s=0.2), placed(2, style=style, interval=2))
    assert told.staleness_max <= 2
    assert told.step_s == pytest.approx(1.0, rel=0.05)


def test_episodes_are_dealt_out_and_the_engines_share_the_work() -> None:
    busy = replace(EVEN, row_s=0.05, learn_s=0.0)
    one = simulate(busy, placed()).step_s
    assert simulate(busy, placed(explorers=4)).step_s == pytest.approx(one / 4)
    # A pass takes its time however few are in it.
    assert simulate(replace(busy, row_s=0.0, pass_s=0.1), placed(explorers=4)).step_s == pytest.approx(0.6)
    # More explorers than episodes have nothing to play.
    assert simulate(busy, placed(explorers=16)).step_s == pytest.approx(one / 8)


def test_explorers_multiply_what_max_concurrent_bounds() -> None:
    narrow = replace(EVEN, env_s=1.0, max_concurrent=2, learn_s=0.0)
    assert [round(simulate(narrow, placed(explorers=n)).step_s, 6) for n in (1, 2, 4, 8)] == [12.0, 6.0, 3.0, 3.0]


def test_learners_share_an_update_and_pay_for_their_exchange() -> None:
    constants = replace(EVEN, learn_s=4.0, reduce_s=0.5)
    assert simulate(constants, placed(learners=1)).step_s == pytest.approx(4.0)
    assert simulate(constants, placed(learners=4)).step_s == pytest.approx(1.0 + 0.5 * 2 * 3 / 4)


def test_those_who_share_cores_slow_each_other_down() -> None:
    both_busy = replace(EVEN, row_s=0.02)
    alone = simulate(both_busy, placed(1, is_one_process=False)).step_s
    shared = simulate(both_busy, placed(1, is_one_process=False, cores=1)).step_s
    assert (alone, shared) == pytest.approx((1.0, 1.0 + 3 * 2 * 8 * 0.02), rel=0.03)


def test_what_the_process_of_an_explorer_does_beside_holds_up_its_episodes() -> None:
    writing = replace(EVEN, row_s=0.02, other_s=0.5, learn_s=0.46)
    assert simulate(writing, placed(1)).step_s > simulate(writing, placed(1, is_one_process=False)).step_s + 0.2


def test_a_server_computes_while_its_explorer_reads_and_writes() -> None:
    both = replace(EVEN, pass_s=0.1, turn_s=0.05, learn_s=0.0, env_s=0.3)
    inside, apart = (simulate(both, placed(2, is_engine_apart=is_apart)).step_s for is_apart in (False, True))
    # Of three rollouts at once the own work alone is 24 turns of 0.05 s; in one process passes come on top of it.
    assert 1.2 <= apart < 1.3 < inside


def test_weights_are_loaded_when_running_replies_have_ended_and_later_ones_wait() -> None:
    clock = Clock(float("inf"))
    explorer = SimulatedExplorer(clock, replace(EVEN, turn_counts=(1,), reply_tokens=1, pass_s=1.0, load_s=0.1))
    happened: list[tuple[str, float]] = []
    seen: list[int] = []

    def note(what: str) -> Then:
        return lambda: happened.append((what, round(clock.now, 6)))

    explorer.play([1], seen, note("first reply"))
    clock.wait(0.5, lambda: explorer.load(7, note("loaded")))
    clock.wait(0.6, lambda: explorer.play([1], seen, note("second reply")))
    clock.run_until(lambda: len(happened) == 3)
    assert happened == [("first reply", 1.0), ("loaded", 1.1), ("second reply", 2.1)]


def test_equal_seeds_give_equal_forecasts_and_lengths_are_drawn() -> None:
    drawn = replace(EVEN, turn_counts=(), turns=2.0, max_turns=5, env_s=0.1)
    assert simulate(drawn, placed(), seed=3) == simulate(drawn, placed(), seed=3)
    assert simulate(drawn, placed(), seed=3) != simulate(drawn, placed(), seed=4)
    counts = drawn.draw_turns(4000, np.random.default_rng(0))
    assert max(counts) == 5
    assert 1.8 < np.mean(counts) <= 2.0


# --- from measurements -----------------------------------------------------------------------------------------------


def test_what_no_metric_tells_is_found_from_the_measured_step() -> None:
    truth = replace(EVEN, pass_s=0.01, row_s=0.001, turn_s=0.004, env_s=0.05, turn_counts=(1, 2, 3))
    measured_s = simulate(truth, placed(), num_steps=12).step_s
    found = calibrate(replace(truth, turn_s=0.0), placed(), step_s=measured_s)
    assert found.turn_s == pytest.approx(0.004, rel=0.02)
    assert calibrate(truth, placed(), step_s=0.1).turn_s == 0.0


@pytest.mark.parametrize(("pass_s", "row_s"), [(0.002, 0.0001), (0.003, 0.0), (0.0, 0.001)])
def test_the_cost_of_passes_and_of_their_rows_is_told_apart(pass_s: float, row_s: float) -> None:
    costs, told = ForwardStats(), []
    for num_rows in (9, 7, 8, 8, 1, 30, 2):
        costs.add(num_rows, pass_s + row_s * num_rows)
        told.append({f"time/engine_{name}": value for name, value in costs.told().items()})
    assert _fit_passes(told) == pytest.approx((pass_s, row_s), abs=1e-9)
    assert _fit_passes([{}, {}]) == (0.0, 0.0)


def test_passes_that_are_all_alike_or_odd_have_a_cost_all_the_same() -> None:
    def fitted(*passes: tuple[int, float]) -> tuple[float, float]:
        costs, told = ForwardStats(), []
        for num_rows, seconds in ((1, 0.0), *passes):
            costs.add(num_rows, seconds)
            told.append({f"time/engine_{name}": value for name, value in costs.told().items()})
        return _fit_passes(told)

    assert fitted((4, 0.1), (4, 0.1)) == pytest.approx((0.1, 0.0))
    assert fitted((1, 0.3), (9, 0.1)) == pytest.approx((0.2, 0.0))
    assert fitted((1, 0.001), (9, 0.9)) == pytest.approx((0.0, 0.0901))


# --- what would help -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"learn_s": 5.0}, "learner"),
        ({"env_s": 2.0}, "environment"),
        ({"row_s": 0.2}, "explorer"),
        ({"post_s": 3.0, "load_s": 3.0}, "sync"),
        ({"buffer_s": 4.0}, "buffer"),
        ({"other_s": 4.0}, "report"),
    ],
)
def test_the_bottleneck_is_what_would_help_most(changed: dict[str, float], name: str) -> None:
    constants = replace(EVEN, **changed)
    levers = find_levers(constants, placed(), simulate(constants, placed()))
    assert levers[0].name == name
    assert levers[0].gain > 0.3


def test_it_is_told_in_plain_words() -> None:
    told = Forecast(
        step_s=1.0,
        tokens_per_s=1.0,
        staleness_mean=0.0,
        staleness_max=0,
        learn_share=0.5,
        wait_share=0.5,
        engine_share=0.1,
    )
    row = Row(
        explorers=2,
        learners=1,
        forecast=told,
        levers=(Lever(name="learner", gain=0.61), Lever(name="explorer", gain=0.1)),
        choices=(Lever(name="twice the learners", gain=0.4), Lever(name="twice the explorers", gain=0.001)),
    )
    assert describe_row(row).plain == (
        "2 explorers, 1 learner: the bottleneck is the learners: the update itself; twice as fast, there would be 61% "
        "more steps. What helps: twice the learners (+40%)."
    )
    nothing = replace(row, levers=(Lever(name="learner", gain=0.01),), choices=())
    assert describe_row(nothing).plain == "2 explorers, 1 learner: no part holds up the others by itself."


@pytest.mark.parametrize(
    ("word", "words"),
    [("lern_s=1", "Did you mean 'learn_s'"), ("learn_s=fast", "expected a number"), ("env_s=-1", "not below 0")],
)
def test_a_constant_that_is_none_is_refused(word: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_numbers([word], EVEN)


def test_constants_can_be_given() -> None:
    told = read_numbers(["learn_s=2.5", "episodes=7", "max_concurrent=3", "turns=4"], EVEN)
    assert (told.learn_s, told.episodes, told.max_concurrent, told.turns, told.turn_counts) == (2.5, 7, 3, 4.0, ())


# --- constants from a run, and the command ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with enough steps to be counted."""
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        path = tmp_path_factory.mktemp("runs") / "measured"
        return train("frozenlake", [*SMALL_LAKE, "learn.steps=7", "rollout.groups=8"], run_dir=path)


@pytest.mark.slow
def test_the_constants_of_a_run_are_those_of_its_metrics(measured: Run) -> None:
    directory = RunDirectory.open(measured.path)
    settings = load_settings(str(directory.config))
    constants = read_constants(directory, settings)
    rows = [row for row in measured.metrics() if row["step"] > 2]
    assert (constants.episodes, constants.max_turns) == (16, 3)
    assert constants.learn_s == pytest.approx(sum(row["time/learn_s"] for row in rows) / len(rows))
    assert 1 <= constants.turns <= 3
    assert set(constants.turn_counts) <= {1, 2, 3}
    assert constants.pass_s + constants.row_s > 0
    assert constants.sync_bytes > 1000
    assert constants.experiences > 0


@pytest.mark.slow
def test_a_forecast_of_the_run_itself_is_what_was_measured(measured: Run) -> None:
    """What no metric tells is found so; with everything else too slow there is nothing left to find."""
    directory = RunDirectory.open(measured.path)
    settings = load_settings(str(directory.config))
    constants = measure(directory, settings, env_s=0.0, cores=float("inf"))
    told_s = simulate(constants, place(settings), num_steps=12).step_s
    assert told_s == pytest.approx(measured_step_s(directory), rel=0.05) or constants.turn_s == 0.0


@pytest.mark.slow
def test_the_command_tells_a_table_words_and_json(measured: Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(measured.path), "--explorers", "1,2", "--learners", "1,2", "--env-seconds", "0.5"]
    assert main([*words, "learn_s=0.01"]) == 0
    shown = capsys.readouterr().out
    assert "N x M" in shown
    assert "2 explorers, 2 learners: the bottleneck is the environments" in shown
    assert "sync.max_staleness=1" in shown
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["explorers"], row["learners"]) for row in told["rows"]] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert told["constants"]["env_s"] == 0.5
    assert {row["bottleneck"] for row in told["rows"]} == {"environment"}


@pytest.mark.slow
def test_a_run_that_is_too_short_is_refused(measured: Run, tmp_path: Path) -> None:
    short = tmp_path / "short"
    shutil.copytree(measured.path, short)
    metrics = short / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(RunError, match="has 2 steps with their times; expected more than 2"):
        read_constants(RunDirectory.open(short), load_settings(str(short / "config.yaml")))


def test_without_a_run_constants_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--explorers", "4", "--json", "learn_s=3", "row_s=0.001", "reply_tokens=8"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["bottleneck"] == "learner"
    assert row["step_s"] > 3


def test_the_rules_of_a_placement_are_those_of_the_settings() -> None:
    def of(*words: str) -> tuple[int | None, int, bool]:
        placement = place(load_settings("frozenlake", words))
        return placement.rules.max_staleness, placement.max_running, placement.is_one_process  # type: ignore[attr-defined]

    apart = ("run.mode=explore", "buffer.type=sqlite", "sync.method=checkpoint")
    assert of() == (0, 1, True)
    assert of("sync.interval=3") == (2, 1, True)
    assert of("loop.type=pipelined") == (1, 2, True)
    assert of("loop.type=pipelined", "sync.max_staleness=4") == (4, 5, True)
    assert of(*apart) == (None, 2, False)
    assert of(*apart, "sync.max_staleness=2") == (2, 3, False)
    bounded = place(load_settings("frozenlake"), max_staleness=2)
    assert (bounded.max_running, bounded.rules.required_version(5)) == (3, 2)


@pytest.mark.parametrize("text", ["0", "1,x", "", "-1,2", "1,,2"])
def test_numbers_of_explorers_are_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--explorers: .* expected numbers above 0"):
        read_counts(text, "--explorers")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--cores", "0"], "--cores must be at least 0, got 0"),
        (["--env-seconds", "-1"], "--env-seconds must be at least 0, got -1"),
        (["/nowhere"], "nowhere"),
        (["lern_s=1"], "Did you mean 'learn_s'"),
    ],
)
def test_what_does_not_belong_here_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert told in capsys.readouterr().err
