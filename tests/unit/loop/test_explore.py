"""A step's rollouts: refilled after a filter, played greedily beside, mixed from several environments."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.small_run import SMALL_LAKE, SMALL_MODEL, build_components, without_plots
from turnwise.checks.settings import check_settings
from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, LearnError, TaskError
from turnwise.experience.build import build_experiences
from turnwise.hooks import RolloutResult
from turnwise.loop.components import TrainComponents
from turnwise.loop.step import EmptyBatchGuard, collect
from turnwise.loop.warm_start import mix_in_demonstrations
from turnwise.run.api import Run, train

BANDIT = {
    "env": {"type": "bandit", "eval_names": ["Phoenix", "Dragon"]},
    "context": {"window": "single_turn", "instructions": "none", "answer": {"type": "plain"}, "max_response_tokens": 2},
    "credit": {"type": "dr_grpo"},
}


def settings_of(*overrides: str) -> TurnwiseSettings:
    small = [*SMALL_MODEL, "rollout.groups=3", "rollout.group_size=2", "rollout.max_turns=1", "eval.episodes=2"]
    settings = load_settings(BANDIT, [*small, *overrides])
    check_settings(settings)
    return settings


def explored(*overrides: str, step: int = 1) -> tuple[TrainComponents, RolloutResult]:
    components = build_components(settings_of(*overrides))
    return components, asyncio.run(collect(components.explorer, step, components.hooks))


def seeds(groups: list[Any]) -> list[int]:
    return [group.task.seed for group in groups]


def test_without_a_filter_one_round_is_played_and_kept() -> None:
    _, result = explored()
    assert len(result.played) == 3
    assert result.kept == result.played


@pytest.mark.parametrize(("max_rounds", "expected"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_filter_is_refilled_until_the_batch_is_full_or_its_rounds_are_used_up(max_rounds: int, expected: int) -> None:
    filtered = ["reward.filter.type=top_k", "reward.filter.share=0.34", f"reward.filter.max_rounds={max_rounds}"]
    _, result = explored(*filtered)
    # A third of three groups passes in each round.
    assert len(result.kept) == expected
    assert len(result.played) == 3 * expected
    assert len(set(seeds(result.played))) == len(result.played)


def test_rounds_throw_dice_of_their_own() -> None:
    _, result = explored("reward.filter.type=threshold", "reward.filter.above=99", "reward.filter.max_rounds=2")
    first, second = (
        [s.token_ids.tolist()[-2:] for g in groups for t in g.trajectories for s in t.segments]
        for groups in (result.played[:3], result.played[3:])
    )
    assert first != second


def test_a_surplus_beyond_a_full_batch_is_cut() -> None:
    _, result = explored("reward.filter.type=threshold", "reward.filter.by=length", "reward.filter.above=0.5")
    assert len(result.kept) == 3


def test_a_filter_that_drops_everything_stops_the_run_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plots(monkeypatch)
    never = ["reward.filter.type=threshold", "reward.filter.above=99", "reward.filter.max_rounds=1"]
    few = [*SMALL_MODEL, "rollout.groups=2", "rollout.group_size=2", "rollout.max_turns=1", "eval.episodes=2"]
    run = train(BANDIT, [*few, *never, "learn.steps=4"], run_dir=tmp_path / "short")
    assert [row["rollout/groups_kept"] for row in run.metrics()[1:]] == [0.0] * 4
    assert run.summary.policy_version == 0
    with pytest.raises(LearnError, match=r"reward\.filter in 5 steps in a row, up to step 5"):
        train(BANDIT, [*few, *never, "learn.steps=9"], run_dir=tmp_path / "long")


def test_a_kept_group_without_anything_to_learn_from_is_an_error_at_once() -> None:
    _, result = explored()
    guard = EmptyBatchGuard()
    guard.check(7, result, build_experiences(result.kept))
    with pytest.raises(LearnError, match="no episode of step 7"):
        guard.check(7, result, [])


def test_remax_plays_every_task_greedily_beside_its_group() -> None:
    components, result = explored("credit.type=remax")
    assert components.explorer.collectors.greedy is not None
    for group in result.kept:
        assert group.greedy is not None
        assert group.greedy.task == group.task
    experiences = build_experiences(result.kept)
    greedy_of = {g.task.id: sum(t.reward + t.penalty for t in g.greedy.turns) for g in result.kept if g.greedy}
    assert [e.greedy_return for e in experiences] == [
        pytest.approx(greedy_of[e.id.trajectory.task_id]) for e in experiences
    ]
    assert len(experiences) == 6
    assert explored()[0].explorer.collectors.greedy is None


def test_a_greedy_play_is_the_same_every_time() -> None:
    (_, one), (_, other) = (explored("credit.type=remax", f"run.seed={seed}") for seed in (0, 0))
    assert [g.greedy.turns for g in one.kept if g.greedy] == [g.greedy.turns for g in other.kept if g.greedy]


# --- several environments in one batch --------------------------------------------------------------------------------

LAKE = (
    "mix={lake: {groups: 2, max_turns: 3, env: {type: frozen_lake, size: 3}, "
    "context: {window: single_turn, max_response_tokens: 3}}}"
)


def test_mixed_environments_play_in_one_rollout_each_in_its_own_way() -> None:
    components, result = explored(LAKE)
    assert components.explorer.num_groups == 5
    assert [g.task.tag for g in result.played] == ["bandit"] * 3 + ["lake"] * 2
    for group in result.played:
        turns = [len(t.turns) for t in group.trajectories]
        tokens = [s.num_action_tokens for t in group.trajectories for s in t.segments]
        if group.task.tag == "bandit":
            assert set(turns) == {1}
            assert max(tokens) <= 2
        else:
            assert max(turns) > 1
            assert max(tokens) == 3
    assert {t.tag for t in components.explorer.rollout.eval_tasks} == {"bandit", "lake"}


def test_a_mixed_batch_is_learnt_from_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    small = [*SMALL_MODEL, "rollout.groups=2", "rollout.group_size=2", "rollout.max_turns=1", "eval.episodes=2"]
    run = train(BANDIT, [*small, LAKE, "learn.steps=1"], run_dir=tmp_path / "run")
    row = run.metrics()[-1]
    assert {"rollout/success/bandit", "rollout/success/lake"} <= row.keys()
    assert row["learn/rows"] > 4
    assert Run(tmp_path / "run").settings.mix.by_tag()["lake"].env.type == "frozen_lake"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("mix={bandit: {env: {type: bandit}}}", ["mix.bandit", "differ from env.type"]),
        ("mix={lake: {env: {type: frozen_lak}}}", ["mix.lake.env.type", "frozen_lake"]),
        ("mix={lake: {env: {type: frozen_lake, sise: 3}}}", ["mix.lake.env", "size"]),
        ("mix={lake: {env: {type: frozen_lake, train: {size: 1}}}}", ["mix.lake.env.train", "size"]),
        ("mix={lake: 3}", ["mix.lake", "expected a section"]),
        ("mix={lake: {groups: 2}}", ["mix.lake.env.type is missing"]),
    ],
)
def test_a_wrong_mix_is_named_with_its_path(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        settings_of(override)
    for word in words:
        assert word in str(raised.value)


# --- shaping and the supervised mix reach the update ----------------------------------------------------------------


def losses(tmp_path: Path, name: str, *overrides: str) -> dict[str, float]:
    return train("frozenlake", [*SMALL_LAKE, *overrides], run_dir=tmp_path / name).metrics()[-1]


@pytest.mark.slow
def test_settings_of_the_update_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    plain = losses(tmp_path, "plain")
    assert "learn/ptx_loss" not in plain
    mixed = losses(tmp_path, "ptx", "learn.ptx.type=oracle", "learn.ptx.episodes=4")
    assert mixed["learn/ptx_loss"] > 0
    priced = losses(tmp_path, "kl", "learn.kl.type=reward", "learn.kl.coef=5.0", "learn.kl.estimator=abs")
    assert priced["learn/kl_coef"] == 5.0
    assert priced["learn/credit_target"] != plain["learn/credit_target"]
    shifted = losses(tmp_path, "norm", "reward.normalisation.method=mean", "reward.normalisation.grouping=batch")
    assert shifted["learn/credit_target"] != plain["learn/credit_target"]


# --- a supervised mix from a file ------------------------------------------------------------------------------------


def write_rows(path: Path, text: str) -> str:
    path.write_text(text)
    return f"learn.ptx={{type: file, path: {path}, prompt_field: ask, response_field: say}}"


def test_a_file_of_responses_is_mixed_in_token_for_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    given: list[Any] = []
    monkeypatch.setattr("turnwise.learn.trainer.Trainer.supervise", lambda _self, rows: given.extend(rows))
    rows = write_rows(tmp_path / "rows.jsonl", '{"ask": "Who?", "say": "Me."}\n{"ask": "Why?", "say": "So."}\n')
    small = [*SMALL_MODEL, "rollout.groups=2", "rollout.group_size=2", "rollout.max_turns=1", "eval.episodes=2"]
    train(BANDIT, [*small, rows, "learn.steps=0"], run_dir=tmp_path / "run")
    rollout = build_components(settings_of()).explorer.rollout
    said = [rollout.template.decode_reply(e.segment.token_ids[e.segment.loss_mask]) for e in given]
    assert said == ["Me.", "So."]
    assert [rollout.tokenizer.decode(e.segment.token_ids[~e.segment.loss_mask]).count("W") for e in given] == [1, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"ask": "Who?"}\n', ["learn.ptx.path: row 1", "'say'", "learn.ptx.response_field"]),
        ('{"question": "Who?", "say": "Me."}\n', ["line 1", "learn.ptx.prompt_field"]),
        ('{"ask": "Who?", "say": "' + "Me and you. " * 300 + '"}\n', ["context.max_tokens", "'Who?'"]),
        ("", ["holds no prompts", "learn.ptx.path"]),
    ],
)
def test_a_bad_row_of_the_mix_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    components = build_components(settings_of(write_rows(tmp_path / "rows.jsonl", text)))
    with pytest.raises((ConfigError, TaskError)) as raised:
        asyncio.run(mix_in_demonstrations(components.trainer, components.explorer.rollout.template))
    for word in words:
        assert word in str(raised.value)
