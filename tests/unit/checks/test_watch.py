"""Hand-made runs: each kind of trouble begins, does not begin, is told once, and comes back."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from turnwise.checks.health import HealthMonitor
from turnwise.config.schema import WatchSettings
from turnwise.errors import Finding

WINDOW, PATIENCE = 4, 3
SETTINGS = WatchSettings(window=WINDOW, patience=PATIENCE)
HEALTHY = {
    "rollout/success": 0.4,
    "rollout/return": 0.4,
    "rollout/invalid_actions": 0.05,
    "rollout/in_group_std": 0.4,
    "rollout/dead_groups": 0.2,
    "rollout/repetition": 0.1,
    "learn/entropy": 1.0,
    "learn/grad_norm": 1.0,
    "learn/clip_fraction": 0.05,
    "learn/approx_kl": 0.01,
    "learn/reference_kl": 0.1,
}
DEAD = {"rollout/in_group_std": 0.0, "rollout/dead_groups": 1.0}
FAILED = {"rollout/success": 0.0, "rollout/return": 0.0}
SOLVED = {"rollout/success": 1.0, "rollout/return": 1.0}

Rows = list[dict[str, float]]


def rows(num_steps: int, **changes: float) -> Rows:
    return [HEALTHY | {name.replace("__", "/"): value for name, value in changes.items()} for _ in range(num_steps)]


def row_of(changes: dict[str, float], num_steps: int) -> Rows:
    return [HEALTHY | changes] * num_steps


def look(steps: Iterable[dict[str, float]], settings: WatchSettings = SETTINGS, *, needs_groups: bool = True):
    watch = HealthMonitor(settings, needs_groups=needs_groups)
    return [finding for step, row in enumerate(steps, start=1) for finding in watch.check_step(step, row)]


def told(findings: list[Finding]) -> list[tuple[str, int, bool]]:
    return [(finding.kind, finding.step, finding.level == "error") for finding in findings]


START = rows(WINDOW)


# --- signs of single steps: they must last, are told once, and again only after they were gone ----------------------

SIGNS = {
    "low_spread": ("rollout__in_group_std", 0.039, 0.041),
    "low_entropy": ("learn__entropy", 0.049, 0.051),
    "repetition": ("rollout__repetition", 0.51, 0.5),
    "clipping": ("learn__clip_fraction", 0.31, 0.3),
    "large_kl": ("learn__approx_kl", 0.21, 0.2),
    "large_reference_kl": ("learn__reference_kl", 5.1, 5.0),
    "behavior_gap": ("learn__behavior_gap", 0.21, 0.2),
}


@pytest.mark.parametrize(("kind", "sign"), SIGNS.items())
def test_a_sign_is_told_once_when_it_has_lasted(kind: str, sign: tuple[str, float, float]) -> None:
    name, bad, good = sign
    assert told(look(START + rows(9, **{name: bad}))) == [(kind, WINDOW + PATIENCE, False)]
    assert look(START + rows(9, **{name: good})) == []
    unlasting = (rows(PATIENCE - 1, **{name: bad}) + rows(1, **{name: good})) * 5
    assert look(START + unlasting) == []


@pytest.mark.parametrize(("kind", "sign"), SIGNS.items())
def test_a_sign_that_was_gone_is_told_again(kind: str, sign: tuple[str, float, float]) -> None:
    name, bad, _ = sign
    lasting = rows(PATIENCE, **{name: bad})
    short_pause, pause = rows(PATIENCE - 1), rows(PATIENCE)
    assert [f.kind for f in look(START + lasting + short_pause + lasting)] == [kind]
    again = look(START + lasting + pause + lasting)
    assert [(f.kind, f.step) for f in again] == [(kind, WINDOW + PATIENCE), (kind, WINDOW + 3 * PATIENCE)]
    assert again[1].since == WINDOW + 2 * PATIENCE + 1  # a new trouble, with a beginning of its own


@pytest.mark.parametrize("kind", ["low_spread", "low_entropy", "repetition"])
def test_a_sign_is_a_collapse_where_the_outcome_does_not_stand(kind: str) -> None:
    name, bad, _ = SIGNS[kind]
    fallen = rows(WINDOW, rollout__success=0.29, **{name: bad})  # below 80 % of 0.4, not below half
    lasting = rows(PATIENCE, **{name: bad})
    first, second = [f for f in look(START + lasting + fallen) if f.kind == kind]
    assert (first.step, first.level == "error") == (WINDOW + PATIENCE, False)
    assert second.level == "error"
    assert first.since == second.since == WINDOW + 1  # one trouble, told again because it got worse
    standing = rows(WINDOW, rollout__success=0.33, **{name: bad})
    assert told(look(START + lasting + standing)) == [(kind, WINDOW + PATIENCE, False)]


@pytest.mark.parametrize("kind", ["clipping", "large_kl", "large_reference_kl", "behavior_gap"])
def test_large_updates_are_warnings_whatever_the_outcome(kind: str) -> None:
    name, bad, _ = SIGNS[kind]
    findings = look(START + rows(2 * WINDOW, rollout__success=0.29, **{name: bad}))
    assert [(f.kind, f.level == "error") for f in findings] == [(kind, False)]


@pytest.mark.parametrize("kind", ["low_spread", "low_entropy"])
def test_a_policy_that_is_sure_and_right_is_no_trouble(kind: str) -> None:
    name, bad, _ = SIGNS[kind]
    solved = rows(9, rollout__success=0.9, rollout__return=0.9)
    sure = rows(9, rollout__success=0.9, rollout__return=0.9, **{name: bad})
    assert look(START + solved + sure) == []


# --- no spread at all -----------------------------------------------------------------------------------------------


def test_a_signal_that_dies_with_the_outcome_is_a_collapse() -> None:
    findings = look(START + row_of(DEAD | FAILED, 9))
    assert {f.kind for f in findings} == {"dead_signal", "success_lost"}
    (dead, *worse) = [f for f in findings if f.kind == "dead_signal"]
    assert (dead.step, dead.since) == (WINDOW + PATIENCE, WINDOW + 1)
    assert [dead, *worse][-1].level == "error"
    assert "advantages are zero" in dead.message


def test_a_signal_that_was_never_there_is_told_and_is_no_collapse() -> None:
    assert told(look(row_of(DEAD | FAILED, 20))) == [("dead_signal", PATIENCE, False)]


def test_a_solved_task_has_no_signal_and_no_trouble() -> None:
    findings = look(START + row_of(SOLVED, WINDOW) + row_of(DEAD | SOLVED, 20))
    assert told(findings) == [("solved", 2 * WINDOW + PATIENCE, False)]
    assert "nothing left to learn" in findings[0].message


def test_credit_that_does_not_compare_siblings_needs_no_spread_of_every_group() -> None:
    steps = START + row_of(DEAD, 9)
    assert [f.kind for f in look(steps)] == ["dead_signal"]
    assert [f.kind for f in look(steps, needs_groups=False)] == ["low_spread"]


def test_spread_that_flickers_between_little_and_none_is_told() -> None:
    little = {"rollout/in_group_std": 0.001, "rollout/dead_groups": 0.9}
    flicker = row_of(DEAD, 1) + row_of(little, 1)
    assert [f.kind for f in look(START + flicker * 9)] == ["low_spread"]


def test_without_siblings_nothing_is_said_of_spread() -> None:
    alone = [{**row, "rollout/in_group_std": 0.0} for row in rows(30)]
    for row in alone:
        del row["rollout/dead_groups"]
    assert look(alone, needs_groups=False) == []


# --- gradients ------------------------------------------------------------------------------------------------------


def test_a_gradient_spike_is_told_at_once_and_measured_against_the_steps_before() -> None:
    spike, high = rows(1, learn__grad_norm=10.1), rows(1, learn__grad_norm=9.9)
    assert told(look(START + spike + rows(5))) == [("gradient_spike", WINDOW + 1, False)]
    assert look(START + high + rows(5)) == []
    assert look(rows(WINDOW - 1) + spike) == []  # nothing is known of the usual size yet
    assert "10 times its running median of 1" in look(START + spike)[0].message
    # A run whose gradients grow slowly has no spike.
    assert look([row | {"learn/grad_norm": 1.3**n} for n, row in enumerate(rows(30))]) == []


def test_spikes_that_follow_each_other_are_one_trouble() -> None:
    spike = rows(1, learn__grad_norm=50.0)
    assert len(look(START + (spike + rows(PATIENCE - 1)) * 4)) == 1
    assert len(look(START + (spike + rows(PATIENCE)) * 4)) == 4


def test_steps_without_signal_do_not_make_the_next_gradient_a_spike() -> None:
    silent = row_of({**DEAD, "learn/grad_norm": 1e-5}, 2 * WINDOW)
    assert "gradient_spike" not in [f.kind for f in look(START + silent + rows(3))]
    assert "gradient_spike" in [f.kind for f in look(START + silent + rows(3), needs_groups=False)]


# --- the outcome ----------------------------------------------------------------------------------------------------


def outcomes(name: str, values: Iterable[float], **others: float) -> Rows:
    return [HEALTHY | others | {name: value} for value in values]


def test_lost_success_is_a_collapse_since_its_best() -> None:
    rise, fall = list(np.linspace(0.2, 0.8, 10)), [0.8, 0.8, 0.6, 0.4, 0.3, 0.3, 0.3, 0.3, 0.3]
    (lost,) = look(outcomes("rollout/success", rise + fall))
    values = rise + fall
    means = {end: np.mean(values[end - WINDOW : end]) for end in range(WINDOW, len(values) + 1)}
    best = max(means, key=lambda end: means[end])
    first = min(end for end, mean in means.items() if end > best and mean < means[best] / 2)
    assert (lost.kind, lost.step, lost.since, lost.level == "error") == ("success_lost", first, best + 1, True)
    assert look(outcomes("rollout/success", rise + [0.42] * 20)) == []  # still more than half


def test_success_that_falls_from_the_first_steps_on_was_good_at_the_start_alone() -> None:
    (lost,) = look(outcomes("rollout/success", [0.5, 0.4, 0.1, 0.0] + [0.0] * 9))
    assert (lost.kind, lost.since) == ("success_lost", 1)
    assert "from 0.25 at the start" in lost.message


def test_success_that_comes_back_can_be_lost_again() -> None:
    good, bad = [0.8] * 9, [0.1] * 9
    findings = look(outcomes("rollout/success", good + bad + good + bad))
    assert [f.kind for f in findings] == ["success_lost"] * 2


def test_rare_success_that_comes_and_goes_is_not_lost() -> None:
    chances = np.random.default_rng(0).binomial(16, 0.04, size=400) / 16
    assert look(outcomes("rollout/success", chances, **{"rollout/return": 0.0}), WatchSettings()) == []


def test_where_nobody_says_what_a_success_is_the_return_counts() -> None:
    def unsaid(returns: Iterable[float]) -> Rows:
        return [{n: v for n, v in row.items() if n != "rollout/success"} for row in outcomes("rollout/return", returns)]

    rise, fall = list(np.linspace(0, 5, 20)), [0.5] * 12
    (lost,) = look(unsaid(rise + fall))
    assert (lost.kind, lost.level == "error") == ("success_lost", True)
    assert "the smoothed return has fallen" in lost.message
    dead = [row | DEAD for row in unsaid([0.0] * 9)]
    assert "no smoothed return yet" in look(dead)[0].message
    # High is no word for a return: nobody knows what would be.
    assert "solved" not in {f.kind for f in look(unsaid(rise) + [row | DEAD for row in unsaid([5.0] * 20)])}


@pytest.mark.parametrize("offset", [0.0, -50.0, 50.0])
def test_in_a_world_without_success_the_return_counts_from_where_it_began(offset: float) -> None:
    def returns(*parts: np.ndarray) -> Rows:
        noise = np.random.default_rng(0).normal(0, 0.2, size=sum(map(len, parts)))
        return outcomes("rollout/return", offset + np.concatenate(parts) + noise, **{"rollout/success": 0.0})

    up, top = np.linspace(0, 10, 20), np.full(10, 10.0)
    assert look(returns(up, top, np.full(30, 7.0))) == []
    assert told(look(returns(up, top, np.full(30, 3.0))))[0][0::2] == ("success_lost", True)
    assert look(returns(np.zeros(400)), WatchSettings()) == []  # noise gains nothing and loses nothing


def test_answers_that_lose_their_format_are_a_collapse() -> None:
    low, high = [0.02] * 9, [0.9] * 9
    (lost,) = look(outcomes("rollout/invalid_actions", low + high))
    assert (lost.kind, lost.level == "error") == ("invalid_answers", True)
    assert lost.step == len(low) + 3  # two of four steps at 0.9 are 46 %, three are 68 %
    assert lost.since == lost.step - WINDOW + 1
    assert look(outcomes("rollout/invalid_actions", [0.9] * 9 + [0.2] * 9 + [0.9] * 9)) == []  # never was good
    assert len(look(outcomes("rollout/invalid_actions", (low + high) * 2))) == 2


# --- whole runs -----------------------------------------------------------------------------------------------------


def healthy_run(seed: int, num_steps: int = 200) -> Rows:
    """Success rises to nearly everything, spread rises and falls, entropy goes, gradients are noisy."""
    rng = np.random.default_rng(seed)
    made: Rows = []
    for step in range(num_steps):
        chance = 0.02 + 0.97 / (1 + math.exp(-(step - 60) / 15))
        played = rng.binomial(1, chance, size=(16, 8))
        made.append(
            {
                "rollout/success": float(played.mean()),
                "rollout/return": float(played.mean()),
                "rollout/invalid_actions": 0.9 * math.exp(-step / 20),
                "rollout/in_group_std": float(played.std(axis=1).mean()),
                "rollout/dead_groups": float((played.std(axis=1) == 0).mean()),
                "rollout/repetition": 0.1,
                "learn/entropy": 2.0 * math.exp(-step / 40) + 0.02,
                "learn/grad_norm": float(rng.lognormal(0, 0.5)),
                "learn/clip_fraction": float(rng.uniform(0, 0.15)),
                "learn/approx_kl": float(rng.uniform(0, 0.06)),
            }
        )
    return made


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_is_left_in_peace(seed: int) -> None:
    findings = look(healthy_run(seed), WatchSettings())
    assert [f for f in findings if f.kind != "solved"] == []


def test_the_known_order_of_a_collapse_is_noticed_before_half_of_the_success_is_gone() -> None:
    """Spread dies at 40, success stays until 90, as in runs that were published."""
    fall = np.clip(0.6 - 0.01 * np.arange(80), 0, None)
    run = rows(40, rollout__success=0.6) + rows(50, rollout__success=0.6, rollout__in_group_std=0.01)
    run += outcomes("rollout/success", fall, **{"rollout/in_group_std": 0.01})
    warning, collapse, lost = look(run, WatchSettings())
    assert told([warning, collapse]) == [("low_spread", 50, False), ("low_spread", collapse.step, True)]
    assert lost.kind == "success_lost"
    assert 90 < collapse.step < lost.step
    assert warning.since == collapse.since == 41


def test_looking_again_at_what_was_recorded_goes_on_as_if_never_interrupted() -> None:
    run = healthy_run(0, 60) + rows(15, learn__entropy=0.001, rollout__success=0.1) + healthy_run(1, 60)
    run[30]["learn/grad_norm"] = math.nan
    recorded = [{k: v for k, v in row.items() if math.isfinite(v)} for row in run]  # as metrics.jsonl gives them back
    whole = look(run, SETTINGS)
    assert whole
    for cut in (1, 30, 31, 61, 64, 70, 100):
        watch = HealthMonitor(SETTINGS, needs_groups=True)
        for step, row in enumerate(recorded[:cut], start=1):
            watch.check_step(step, row)
        rest = [f for step, row in enumerate(run[cut:], start=cut + 1) for f in watch.check_step(step, row)]
        assert rest == [f for f in whole if f.step > cut]


def random_run(seed: int) -> Rows:
    """Anything may happen at any time, for a while."""
    rng = np.random.default_rng(seed)
    made: Rows = []
    while len(made) < 150:
        change: dict[str, float] = {}
        for name, bad in (*((n.replace("__", "/"), b) for n, b, _ in SIGNS.values()), ("rollout/dead_groups", 1.0)):
            if rng.random() < 0.3:
                change[name] = bad
        change["rollout/success"] = change["rollout/return"] = float(rng.choice([0.0, 0.2, 0.5, 0.9]))
        change["rollout/invalid_actions"] = float(rng.choice([0.0, 0.9]))
        made += row_of(change, int(rng.integers(1, 12)))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_every_return_that_is_asked_for_was_among_the_points_of_all_steps_between(seed: int) -> None:
    """So that whatever is needed in the end was kept on the way."""
    watch = HealthMonitor(SETTINGS, needs_groups=True)
    points: dict[int, set[int]] = {}
    for step, row in enumerate(random_run(seed), start=1):
        for finding in watch.check_step(step, row):
            target = finding.since - 1
            assert target < finding.step
            assert all(target in points[between] for between in range(max(target, 1), step))
        points[step] = watch.return_points()


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "steps", "kind"),
    [
        ({"min_spread_share": 0.5}, rows(9, rollout__in_group_std=0.15), "low_spread"),
        ({"max_repetition": 0.2}, rows(9, rollout__repetition=0.3), "repetition"),
        ({"max_grad_ratio": 3.0}, rows(1, learn__grad_norm=5.0), "gradient_spike"),
        ({"max_clip_fraction": 0.1}, rows(9, learn__clip_fraction=0.2), "clipping"),
        ({"max_kl": 0.05}, rows(9, learn__approx_kl=0.1), "large_kl"),
        ({"max_reference_kl": 1.0}, rows(9, learn__reference_kl=2.0), "large_reference_kl"),
        ({"max_behavior_gap": 0.05}, rows(9, learn__behavior_gap=0.1), "behavior_gap"),
    ],
)
def test_a_threshold_decides(setting: dict[str, float], steps: Rows, kind: str) -> None:
    assert look(START + steps) == []
    strict = SETTINGS.model_copy(update=setting)
    assert [f.kind for f in look(START + steps, strict)] == [kind]


def test_window_and_patience_decide_when() -> None:
    steps = START + rows(9, learn__approx_kl=0.3)
    assert [f.step for f in look(steps)] == [WINDOW + PATIENCE]
    assert [f.step for f in look(steps, SETTINGS.model_copy(update={"patience": 5}))] == [WINDOW + 5]

    def falls(window: int) -> list[int]:
        settings = SETTINGS.model_copy(update={"window": window})
        return [f.step for f in look(outcomes("rollout/success", [0.8] * 9 + [0.0] * 9), settings)]

    assert falls(2) == [11]
    assert falls(6) == [13]


def test_rewards_that_are_all_zero_from_the_start_are_told_once() -> None:
    watch = HealthMonitor(WatchSettings(patience=3), needs_groups=False)
    found = [watch.check_step(step, {"rollout/rewarded": 0.0}) for step in range(1, 7)]
    assert [[finding.kind for finding in step] for step in found] == [[], [], ["no_rewards"], [], [], []]
    assert "first 3 steps was zero" in found[2][0].message
    assert found[2][0].level != "error"
    paid_once = HealthMonitor(WatchSettings(patience=3), needs_groups=False)
    assert not any(paid_once.check_step(step, {"rollout/rewarded": float(step == 1)}) for step in range(1, 9))
