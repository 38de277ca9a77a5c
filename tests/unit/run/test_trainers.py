"""Trainers to extend: the stages of a step, agents of one's own, and the call that users of verl know."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import turnwise as tw
from tests.unit.run.test_run import same_weights, untimed
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, RewardError, TurnwiseError, WorkflowError
from turnwise.loop.components import TrainerComponents
from turnwise.report.trajectories import read_trajectories
from turnwise.rollout.agents import EnvironmentAgent, GenBatch
from turnwise.run import run_setup as set_up
from turnwise.types import Batch, Group, StepReport, StepResult, Trajectory

from ...small_run import without_plots


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


def small() -> dict[str, Any]:
    """The overrides of a small run as a mapping of values."""
    return {
        "model.tiny": {"hidden_size": 16, "intermediate_size": 32, "num_layers": 1, "num_heads": 2},
        "learn.steps": 2,
        "learn.minibatches": 2,
        "rollout.groups": 3,
        "rollout.group_size": 2,
        "rollout.max_turns": 3,
        "eval.episodes": 5,
        "eval.every": 0,
        "report.checkpoint_every": 0,
        "report.tensorboard": False,
        "report.trajectories_per_step": 6,
        "warm_start.episodes": 6,
        "warm_start.steps": 2,
    }


def counted(run: tw.Run) -> list[dict[str, float]]:
    """The metrics without those that count seconds, and without the digest of weights."""
    return [
        {key: value for key, value in row.items() if not key.endswith(("_s", "audit/weights"))} for row in untimed(run)
    ]


# --- stages -----------------------------------------------------------------------------------------------------------


class Noted(tw.PPOTrainer):
    """Does nothing otherwise, and writes down what it is asked."""

    asked: list[str]

    async def rollout(self, parts: Any, tasks: Any, step: int, **options: Any) -> list[Group]:
        self.asked.append(f"rollout {step}")
        return await super().rollout(parts, tasks, step, **options)

    def reward_model_step(self, groups: list[Group]) -> list[Group]:
        self.asked.append("reward_model_step")
        return super().reward_model_step(groups)

    def shape_rewards(self, parts: Any, experiences: Any) -> Any:
        self.asked.append("shape_rewards")
        return super().shape_rewards(parts, experiences)

    def compute_advantages(self, parts: Any, experiences: Any, annotations: Any) -> Any:
        self.asked.append("compute_advantages")
        return super().compute_advantages(parts, experiences, annotations)

    def pack(self, samples: Any) -> Batch:
        self.asked.append("pack")
        return super().pack(samples)

    def rl_step(self, parts: TrainerComponents, batch: Batch) -> StepReport:
        self.asked.append("rl_step")
        return super().rl_step(parts, batch)

    async def evaluate(self, parts: Any, advance: Any = None) -> Any:
        self.asked.append("evaluate")
        return await super().evaluate(parts, advance)


STEP = ["reward_model_step", "shape_rewards", "compute_advantages", "pack", "rl_step"]


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["serial", "pipelined"])
def test_every_stage_is_asked_in_order_and_changes_nothing_by_itself(tmp_path: Path, loop: str) -> None:
    overrides = {**small(), "loop.type": loop, "sync.max_staleness": 0}
    plain = tw.train("frozenlake", overrides, run_dir=tmp_path / "plain")
    trainer = Noted("frozenlake", overrides, run_dir=tmp_path / "own")
    trainer.asked = []
    run = trainer.train()
    assert trainer.asked == ["evaluate", "rollout 1", *STEP, "rollout 2", *STEP, "evaluate"]
    assert counted(run) == counted(plain)
    assert same_weights(run, plain)


class Generous(tw.PPOTrainer):
    def reward_model_step(self, groups: list[Group]) -> list[Group]:
        return [
            replace(
                group,
                trajectories=tuple(
                    replace(play, turns=tuple(replace(turn, reward=7.0) for turn in play.turns))
                    for play in group.trajectories
                ),
            )
            for group in groups
        ]


@pytest.mark.slow
def test_a_stage_of_ones_own_is_what_is_learnt_from(tmp_path: Path) -> None:
    run = Generous("frozenlake", {**small(), "learn.steps": 1}, run_dir=tmp_path / "run").train()
    played = list(read_trajectories(run.path / "trajectories/step-000001.jsonl"))
    assert {turn.reward for play in played for turn in play.turns} == {7.0}


async def bare_loop(parts: object, watch: object, *, start_step: int, on_step: object) -> None:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"loop.type": f"{__name__}:bare_loop"}, "loop.type: .* takes no 'stages'"),
        ({"run.mode": "train", "buffer.type": "sqlite", "sync.method": "checkpoint"}, "run.mode: 'train' given"),
    ],
)
def test_what_would_leave_the_stages_out_is_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tw.PPOTrainer("frozenlake", overrides)


def test_a_config_may_be_settings_or_omegaconf_and_nothing_else() -> None:
    settings = load_settings("bandit", {"learn.steps": 3})
    assert tw.PPOTrainer(settings).settings == settings
    written = OmegaConf.create(
        {**settings.model_dump(mode="json"), "learn": {"steps": "${run.seed}"}, "run": {"seed": 4}}
    )
    assert tw.PPOTrainer(written).settings.learn.steps == 4  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="config: int given"):
        tw.PPOTrainer(3)  # type: ignore[arg-type]


# --- agents -----------------------------------------------------------------------------------------------------------


class Lake(EnvironmentAgent):
    pass


class Unfinished(tw.BaseAgent):
    def reset(self) -> StepResult:
        raise NotImplementedError


class Recorded(tw.AgentTrainer):
    batches: Sequence[GenBatch] = ()

    def _generate_multi_turn_sequences(self, gen_batch: GenBatch) -> list[Group]:
        gen_batch.meta_info.update({"do_sample": True})
        self.batches = [*self.batches, gen_batch]
        return super()._generate_multi_turn_sequences(gen_batch)


@pytest.mark.slow
def test_agents_are_tried_and_trained_with_models_that_are_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = set_up.open_components
    monkeypatch.setattr(set_up, "open_components", lambda *a, **k: built.append("models") or build(*a, **k))
    trainer = Recorded("agent_class", small(), agent_cls=Lake, run_dir=tmp_path / "tried")
    with pytest.raises(WorkflowError, match="call init_workers"):
        _ = trainer.multi_turn_rollout
    trainer.init_workers()
    trainer.multi_turn_rollout.reset()
    assert len(trainer.multi_turn_rollout.rollout()) == 3
    assert trainer.multi_turn_rollout.build_update_batch()
    run = trainer.fit()
    assert built == ["models"]
    assert [(batch.step, len(batch.tasks)) for batch in trainer.batches] == [(1, 3), (2, 3)]
    # What was tried leaves no trace, and the hook by itself changes nothing.
    plain = tw.train(
        "agent_class",
        {**small(), "rollout.workflow_args.agent_cls": f"{__name__}:Lake"},
        run_dir=tmp_path / "plain",
    )
    # Which requests share a batch depends on threads, so numbers are equal but for their last digits.
    for mine, other in zip(counted(run), counted(plain), strict=True):
        assert mine == pytest.approx(other, rel=1e-2, abs=1e-4)


def by_length(trajectories: list[Trajectory]) -> list[Any]:
    """A number for the end, or one for each turn."""
    return [[0.5] * len(one.turns) if number % 2 else -float(len(one.turns)) for number, one in enumerate(trajectories)]


@pytest.mark.slow
def test_the_call_of_verl_trains_and_what_means_nothing_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {
        **{section: value for section, value in _nested(small()).items() if section not in ("rollout", "warm_start")},
        "rollout": {"group_size": 2},
        "trainer": {"total_epochs": 2},
        "algorithm": {"adv_estimator": "gae"},
        "agent": {"max_turn": 2, "agent_length": 3},
        "env_template": ["FrozenLake", {"env_type": "Bandit"}, "FrozenLake"],
    }
    with caplog.at_level(logging.WARNING, logger="turnwise.run"):
        trainer = tw.AgentTrainer(
            config=OmegaConf.create(config),
            tokenizer=None,
            role_worker_mapping={"actor": object()},
            resource_pool_manager=object(),
            agent_cls=Lake,
            processor=object(),
            reward_fn=by_length,
            run_dir=tmp_path / "run",
        )
    (warning,) = (record.getMessage() for record in caplog.records if record.name == "turnwise.run")
    assert "role_worker_mapping, resource_pool_manager, processor have no meaning here" in warning
    trainer.init_workers()
    run = trainer.fit()
    played = list(read_trajectories(run.path / "trajectories/step-000002.jsonl"))
    assert [play.task.tag for play in played] == ["frozen_lake"] * 4 + ["Bandit_1"] * 2
    assert all(len(play.turns) <= 2 for play in played)
    expected = by_length(played)
    for play, score in zip(played, expected, strict=True):
        rewards = [turn.reward for turn in play.turns]
        assert rewards == (score if isinstance(score, list) else [*[0.0] * (len(rewards) - 1), score])
        assert all("env_reward" in turn.metrics for turn in play.turns)
    assert run.summary.steps == 2


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.partition(".")
        nested.setdefault(section, {})[name] = value
    return nested


@pytest.mark.parametrize(
    ("agent_cls", "message"),
    [
        (None, "agent_cls: None given; expected a class with reset, get_llm_prompts"),
        (3, "agent_cls: 3 given"),
        (int, "agent_cls: <class 'int'> is no class of agents: it has no reset, get_llm_prompts, get_env_outputs"),
        ("Lake", "agent_cls is 'Lake'; expected 'package.module:Class'"),
        ("no_such_module:Lake", "module 'no_such_module' cannot be imported"),
        (by_length, "is no class of agents"),
        (Unfinished, "cannot be made; write get_env_outputs, get_llm_prompts"),
        (type("Inner", (Lake,), {}), "Write the class at the top level of a module"),
    ],
)
def test_a_wrong_class_of_agents_is_refused_at_once(agent_cls: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tw.AgentTrainer("agent_class", agent_cls=agent_cls)


def test_positions_are_those_of_the_call_and_a_word_too_many_gets_the_closest() -> None:
    trainer = tw.AgentTrainer("agent_class", None, None, None, f"{__name__}:Lake")
    assert trainer.agent_cls is Lake
    with pytest.raises(ConfigError, match=r"takes no 'reward_func'\. Did you mean 'reward_fn'"):
        tw.AgentTrainer("agent_class", agent_cls=Lake, reward_func=by_length)
    with pytest.raises(ConfigError, match="reward_fn: 3 given; expected a function"):
        tw.AgentTrainer("agent_class", agent_cls=Lake, reward_fn=3)  # type: ignore[arg-type]


class Forgetful(tw.AgentTrainer):
    def _generate_multi_turn_sequences(self, gen_batch: GenBatch) -> list[Group]:
        return super()._generate_multi_turn_sequences(gen_batch)[1:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "given", "error", "message"),
    [
        (Forgetful, {}, WorkflowError, "a Group for each of the 3 tasks"),
        (tw.AgentTrainer, {"reward_fn": lambda plays: plays}, RewardError, "expected a number, or one for each of its"),
        (tw.AgentTrainer, {"reward_fn": lambda plays: [1.0]}, RewardError, "one score for each of 6 trajectories"),
    ],
)
def test_a_stage_that_breaks_its_word_ends_the_run_with_a_reason(
    tmp_path: Path, trainer: Any, given: dict[str, Any], error: type[TurnwiseError], message: str
) -> None:
    overrides = {**small(), "eval.episodes": 0, "warm_start.type": "none"}
    del overrides["warm_start.episodes"], overrides["warm_start.steps"]
    with pytest.raises(error, match=message):
        trainer("agent_class", overrides, agent_cls=Lake, run_dir=tmp_path / "run", **given).fit()
