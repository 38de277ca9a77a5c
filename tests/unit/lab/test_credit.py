"""What theory says about credit rules must come out of the laboratory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from turnwise.config.kinds import ADVANTAGE_ESTIMATORS, AdvantageEstimator
from turnwise.errors import ConfigError
from turnwise.lab.estimator_benchmark import TRUTH, CreditStudy, Errors, WorldReport, make_rules, run_study, study_world
from turnwise.lab.mdps import WORLDS
from turnwise.types import Annotations, Experience, Sample


def study(world: str, rule: str, *overrides: str, **options: object) -> WorldReport:
    rules = {rule: make_rules(overrides)[rule]}
    options = {"batches": 15, "critic": "exact", **options}
    return study_world(WORLDS[world], CreditStudy(world=world, **options), rules)  # type: ignore[arg-type]


def errors(world: str, rule: str, *overrides: str, **options: object) -> Errors:
    found = study(world, rule, *overrides, **options).scores[rule].errors
    assert found is not None
    return found


UNDISCOUNTED = ("bi_level_gae.high_level_gamma=1.0", "bi_level_gae.whiten=false")


@pytest.mark.slow
@pytest.mark.parametrize("world", ["corridor", "lake"])
@pytest.mark.parametrize(
    ("rule", "settings"),
    [("reinforce", ()), ("gae", ("gae.whiten=false",)), ("bi_level_gae", UNDISCOUNTED), ("rloo", ())],
)
def test_rules_without_bias_and_in_the_scale_of_the_reward(world: str, rule: str, settings: tuple[str, ...]) -> None:
    found = errors(world, rule, *settings, batches=40)
    assert found.bias == 0
    assert found.scale == pytest.approx(1, abs=0.15 if world == "lake" else 0.05)


@pytest.mark.parametrize(
    ("rule", "setting", "at_least"),
    [("reinforce", "reinforce.gamma=0.3", 0.3), ("gae", "gae.gamma=0.3", 0.3), ("multi_step_grpo", "", 1.0)],
)
def test_rules_that_forget_what_comes_later_are_biased(rule: str, setting: str, at_least: float) -> None:
    found = study("corridor", rule, *filter(None, [setting]), batches=40)
    rule_errors, truth = found.scores[rule].errors, found.scores[TRUTH]
    assert rule_errors is None or rule_errors.bias > at_least
    assert found.scores[rule].cosine < truth.cosine


def test_an_exact_critic_and_no_lambda_tell_the_truth_where_nothing_is_left_to_chance() -> None:
    report = study("corridor", "gae", "gae.lam=0.0", "gae.whiten=false")
    found = report.scores["gae"].errors
    assert found is not None
    assert [found.bias, found.offset, found.noise] == pytest.approx([0, 0, 0], abs=1e-5)
    assert report.scores["gae"].cosine == pytest.approx(report.scores[TRUTH].cosine)
    assert errors("lake", "gae", "gae.lam=0.0", "gae.whiten=false").noise > 0.1  # the ice is slippery


def test_lambda_trades_noise_for_the_errors_of_the_critic() -> None:
    trusting, doubting = (
        errors("corridor", "gae", f"gae.lam={lam}", critic="noisy", critic_noise=1.0) for lam in ("0.0", "1.0")
    )
    assert trusting.bias > 0.5
    assert doubting.bias == 0
    assert doubting.noise > trusting.noise
    assert errors("corridor", "gae", "gae.lam=0.0", critic="noisy", critic_noise=0.3).bias < trusting.bias


def test_a_mean_that_counts_oneself_shrinks_the_advantage_by_one_part_of_the_group() -> None:
    scales = [errors("corridor", "dr_grpo", group_size=n, batches=40).scale for n in (2, 8)]
    assert scales == pytest.approx([2, 8 / 7], rel=0.08)


def test_turns_with_rewards_of_their_own_want_returns_to_come_and_not_sums() -> None:
    reports = [study("corridor", rule) for rule in ("reinforce", "rloo")]
    to_come, whole = (next(s for n, s in r.scores.items() if n != TRUTH) for r in reports)
    assert to_come.cosine > whole.cosine + 0.02


# --- the study -------------------------------------------------------------------------------------------------------


def test_every_registered_rule_is_shown_in_every_world_best_gradient_first() -> None:
    calls: list[tuple[int, int]] = []
    reports = run_study(
        CreditStudy(batches=1, episodes=16), make_rules(), lambda done, total: calls.append((done, total))
    )
    assert [report.world.name for report in reports] == list(WORLDS)
    assert calls == [(n, 4) for n in (1, 2, 3, 4)]
    for report in reports:
        assert report.scores.keys() == {TRUTH, *ADVANTAGE_ESTIMATORS}
        cosines = [found.cosine for found in report.scores.values()]
        assert cosines == sorted(cosines, reverse=True)
        assert {len(e) for e in report.example.estimates.values()} == {2 * len(report.example.turns)}
        assert len(report.example.tokens) == 2 * len(report.example.turns)


class AgainstGreedy(AdvantageEstimator):
    """A user's rule: the return against the greedy play's, for turns in states that were seen more than once."""

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        states, counts = np.unique(np.concatenate([e.turn_states for e in experiences]), return_counts=True)
        often = set(states[counts > 1].tolist())
        samples = []
        for e in experiences:
            assert e.greedy_return is not None
            of_turn = [(e.turn_rewards.sum() - e.greedy_return) * (s in often) for s in e.turn_states.tolist()]
            row = np.append(of_turn, 0.0)[e.segment.turn_ids].astype(np.float32)
            samples.append(Sample(experience=e, advantages=row, returns=row, values=row, reference_logprobs=row))
        return samples


def test_a_rule_from_outside_is_measured_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADVANTAGE_ESTIMATORS, "_loaded", {**ADVANTAGE_ESTIMATORS._loaded})
    ADVANTAGE_ESTIMATORS.register("against_greedy", AgainstGreedy)
    report = study("corridor", "against_greedy", critic="noisy")
    assert report.scores["against_greedy"].cosine > 0.3


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, again, other = (study("lake", "grpo", seed=seed, batches=2).scores for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(
    ("option", "values"),
    [("group_size", (2, 8)), ("episodes", (24, 48)), ("batches", (2, 3)), ("critic_noise", (0.1, 2.0))],
)
def test_options_matter(option: str, values: tuple[float, float]) -> None:
    first, second = (study("key_door", "gae", **{"critic": "noisy", "batches": 2, option: v}).scores for v in values)
    assert first != second


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["gea.lam=1"], "'gea' is no credit rule. Did you mean 'gae'?"),
        (["gae.lamb=1"], "gae.lamb: unknown setting. Did you mean 'lam'?"),
        (["gae.lam=3.0"], "gae.lam: 3.0 given; expected less than or equal to 1."),
        (["gae"], "'gae' is not of the form"),
        (["gae=1"], "gae: 1 given; expected a setting of that rule"),
    ],
)
def test_wrong_settings_of_a_rule(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_rules(overrides)
    assert message in str(caught.value)
