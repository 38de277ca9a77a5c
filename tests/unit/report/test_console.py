from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from turnwise.report import console as progress_module
from turnwise.report.console import (
    ProgressDisplay,
    format_count,
    format_duration,
    phase,
    print_notice,
    print_outcome,
    print_trajectory,
)
from turnwise.types import StopReason

SPLIT = {"rollout": 5.0, "env": 1.0, "learn": 3.0, "sync": 0.5, "other": 0.5}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(progress_module, "time", fake)
    return fake


def plain_console(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width)


def live_console(width: int = 80) -> Console:
    return Console(file=Terminal(), width=width, force_terminal=True, force_interactive=True, color_system=None)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --- progress -------------------------------------------------------------------------------------------------------


def test_success_that_no_step_measures_is_unknown_beside_the_return() -> None:
    console = plain_console()
    with ProgressDisplay(1, "agent", console=console) as display:
        display.update(1, {"rollout/return": 0.03, "rollout/success_unknown": 1.0}, {})
    assert text_of(console) == "agent  step 1/1  success unknown  return 0.03\n"


def test_without_a_terminal_a_line_is_printed_every_few_seconds_and_at_the_end(clock: FakeClock) -> None:
    console = plain_console()
    with ProgressDisplay(10, "frozenlake", console=console, interval_s=5) as display:
        for step in range(1, 11):
            clock.now_s += 2
            metrics = {"rollout/success": step / 10, "rollout/return": 0.5, "rollout/tokens_per_s": 1234.0}
            display.update(step, metrics, SPLIT)

    lines = text_of(console).splitlines()
    assert [line.split("step ")[1].split()[0] for line in lines] == ["1/10", "4/10", "7/10", "10/10"]
    assert lines[1] == (
        "frozenlake  step 4/10  success 25%  return 0.50  1.2k tok/s  eta 12s"
        "  |  rollout 50%  env 10%  learn 30%  sync 5%  other 5%"
    )
    assert "eta" not in lines[-1]
    assert "\x1b" not in text_of(console)


def test_missing_metrics_are_left_out(clock: FakeClock) -> None:
    console = plain_console()
    with ProgressDisplay(2, "r", console=console) as display:
        display.update(2, {}, {})
    assert text_of(console).strip() == "r  step 2/2"


def test_a_resumed_run_estimates_from_its_own_pace(clock: FakeClock) -> None:
    console = plain_console()
    with ProgressDisplay(100, "r", console=console, start_step=90) as display:
        clock.now_s += 3
        display.update(91, {}, {})
    assert "eta 27s" in text_of(console)


def test_a_forced_colour_log_is_not_redrawn() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with ProgressDisplay(2, "r", console=console) as display:
        display.update(1, {}, {})
    assert "\x1b[?25l" not in text_of(console)  # hiding the cursor is what a live display starts with
    assert "step 1/2" in text_of(console)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_on_a_terminal_bar_numbers_and_time_split_are_drawn(width: int) -> None:
    console = live_console(width)
    with ProgressDisplay(10, "a_rather_long_recipe_name", console=console) as display:
        display.update(3, {"rollout/success": 0.5}, SPLIT)
        with display.phase("evaluating") as advance:
            advance(20, 50)
            assert display._live is not None
            display._live.refresh()
    drawn = text_of(console)
    assert "\x1b[?25l" in drawn
    assert "3/10  success 50%" in drawn
    assert "rollout 50%  env 10%" in drawn
    assert "evaluating  20/50" in drawn
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[?\d]*[a-zA-Z]", "\n", drawn))
    assert max(map(len, lines)) <= width  # a line that wraps could not be redrawn


def test_a_phase_without_a_terminal_prints_its_start_and_now_and_then_its_progress(clock: FakeClock) -> None:
    console = plain_console()
    with phase(console, "evaluating [all]", interval_s=5) as advance:
        for num_done in range(1, 5):
            clock.now_s += 2
            advance(num_done, 4)
    assert text_of(console).splitlines() == ["evaluating [all] ...", "evaluating [all]: 1/4", "evaluating [all]: 4/4"]


def test_a_phase_on_a_terminal_disappears_when_done() -> None:
    console = live_console()
    with phase(console, "warm start") as advance:
        advance(1, 2)
    assert "warm start" in text_of(console)
    assert text_of(console).endswith("\x1b[2K")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (268.4, "4m28s"), (7260, "2h01m")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(999, "999"), (1234, "1.2k"), (5_600_000, "5.6M")])
def test_counts(count: float, text: str) -> None:
    assert format_count(count) == text


# --- trajectories ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_a_trajectory_keeps_grids_and_escapes_models(make_trajectory, make_turn, width: int) -> None:
    console = plain_console(width)
    turns = (
        make_turn(0, observation="P_O\n__G", response_text="[bold]go[/bold] [/oops] :smile: \x1b[31mred", penalty=-0.1),
        make_turn(1, reward=1.0, actions=()),
    )
    print_trajectory(console, make_trajectory(turns=turns, final_observation="__O\n_√_"))

    text = text_of(console)
    lines = text.splitlines()
    row = next(number for number, line in enumerate(lines) if line.startswith("P_O"))
    assert lines[row + 1].startswith("__G")
    assert "[bold]go[/bold] [/oops] :smile: \\x1b[31mred" in text
    assert "\x1b" not in text
    assert "turn 1 of 2  Down  reward 0  penalty -0.1" in text
    assert "turn 2 of 2  no action  reward 1" in text
    assert "__O\n_√_\nsuccess  return 1  2 turns  ended: terminated" in text
    assert ("[bold]go" in lines[row]) is (width == 120)  # side by side only where there is room


def test_a_failed_trajectory_says_why(make_trajectory) -> None:
    console = plain_console()
    failed = make_trajectory(turns=(), stop_reason=StopReason.ENV_ERROR, is_success=False, failure="EnvError: [lost]")
    print_trajectory(console, failed)
    assert "no success  return 0  0 turns  ended: env_error\nEnvError: [lost]" in text_of(console)


def test_the_ending_of_an_episode_that_does_not_say_it(make_trajectory) -> None:
    console = plain_console()
    print_trajectory(console, make_trajectory(is_success=None))
    assert "success unknown  return 1  2 turns" in text_of(console)


def test_a_notice_is_shown_as_it_is() -> None:
    console = plain_console()
    print_notice(console, "set [rollout.groups] higher")
    assert "note set [rollout.groups] higher" in text_of(console)


# --- outcome --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_the_outcome_holds_the_essentials(make_summary, width: int) -> None:
    console = plain_console(width)
    run_dir = Path(
        "/a/rather/deep/folder/that/makes/the/path/longer/than/eighty/columns/runs/frozenlake-20260102-120000"
    )
    print_outcome(
        console,
        make_summary(),
        run_dir=run_dir,
        plot_path=run_dir / "plots" / "learning_curve.png",
        next_commands=["turnwise eval RUN", "turnwise show RUN [id]"],
    )
    text = text_of(console)
    for expected in ("18.5% → 79.0%", "on 200 held-out episodes", "0.02 → 0.71", "4m28s (set-up 9s)", "412.3k sampled"):
        assert expected in text
    names = ["random", "hole blind", "this run", "oracle"]  # worst first
    assert sorted(names, key=text.index) == names
    assert f"run    {run_dir}\n" in text  # whole, so that it can be copied
    assert f"curve  {run_dir}/plots/learning_curve.png\n" in text
    assert "next   turnwise eval RUN\n       turnwise show RUN [id]\n" in text


def test_the_outcome_of_a_stopped_run_says_so(make_summary) -> None:
    found = {"step": 40, "kind": "low_entropy", "message": "entropy is 0.01"}
    for stopped, expected in ((None, "Training finished"), ({**found, "returned_to_step": 20}, "Training stopped")):
        console = plain_console()
        summary = make_summary(findings=[found], stopped=stopped)
        print_outcome(console, summary, run_dir=Path("r"), plot_path=None, next_commands=[])
        text = text_of(console)
        assert f"{expected}: frozenlake" in text
        assert ("low_entropy at step 40" in text) == (stopped is not None)
        assert "1, in findings.jsonl" in text


def test_panel_shows_return_if_success_is_not_reported(make_summary) -> None:
    console = plain_console()
    silent = dict.fromkeys(("success_before", "success_after"))
    told = {"return": 0.5, "episodes": 3, "success": None, "success_interval": None}
    summary = make_summary(**silent, envs={"one": told, "other": {**told, "success": 0.5}})
    print_outcome(console, summary, run_dir=Path("r"), plot_path=None, next_commands=[])
    text = text_of(console)
    for expected in (
        "return  0.020 → 0.710",
        "on 200 held-out episodes",
        "success  unknown: not reported by the workflow",
    ):
        assert expected in text
    assert [line.split()[-2] for line in text.splitlines() if "this run" in line] == ["unknown"]
    assert "success unknown, return 0.50" in text
    assert "success 50.0%, return 0.50" in text


def test_an_outcome_without_evaluation_claims_nothing(make_summary) -> None:
    console = plain_console()
    unknown = dict.fromkeys(("success_before", "success_after", "return_before", "return_after"))
    print_outcome(console, make_summary(**unknown, baselines={}), run_dir=Path("r"), plot_path=None, next_commands=[])
    text = text_of(console)
    assert "trained, not evaluated" in text
    assert "%" not in text
    assert "curve" not in text
