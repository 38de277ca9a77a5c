"""The classes of the documents, written as they write them: environments, agents, workflows, registries, stages.

Blocks are read from the documents where they lie; only the packages that they import from, and names that a reader
fills in, are replaced. Beside each stands a copy of our own writing, for a clone alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest

import turnwise as tw
from tests.small_run import SMALL_MODEL, without_plots
from turnwise.config.component import ClassRegistry
from turnwise.rollout.agents import EnvironmentAgent

from .blocks import needs_documents, read_blocks

BLOCKS = read_blocks("python")
SHORT = {
    **{key: int(value) for key, value in (word.split("=") for word in SMALL_MODEL)},
    "learn.steps": 2,
    "eval.episodes": 2,
    "rollout.groups": 2,
    "rollout.group_size": 2,
    "report.tensorboard": False,
    "context.max_tokens": 1000,
    "context.max_response_tokens": 4,
}


def block_with(words: str) -> str:
    (found,) = [text for text in BLOCKS.values() if words in text]
    return found


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    without_plots(monkeypatch)


# --- environments -----------------------------------------------------------------------------------------------------

COUNTER = """
from turnwise import BaseEnv

class MyCustomEnv(BaseEnv):
    def reset(self, seed=None, **kwargs):
        self.left = 2
        return "say go"

    def step(self, action):
        self.left -= 1
        return "go on", 1.0, self.left == 0, {"success": self.left == 0}
"""


def run_env(source: str) -> type[tw.BaseEnv]:
    names: dict[str, Any] = {}
    exec(source, names)
    return names["MyCustomEnv"]


def test_an_environment_of_your_own_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run_env(COUNTER)
    monkeypatch.setattr("tests.documents.test_code.MyCustomEnv", made, raising=False)
    run = tw.train({"env": {"type": "tests.documents.test_code:MyCustomEnv"}}, SHORT)
    assert run.summary.steps == 2


@needs_documents
def test_the_documents_environment_is_an_environment() -> None:
    source = re.sub(r"from align_anything\S* import", "from turnwise import", block_with("class MyCustomEnv"))
    assert issubclass(run_env(source), tw.BaseEnv)


# --- agents -----------------------------------------------------------------------------------------------------------

AGENT_CONFIG = {
    "trainer": {"total_epochs": 2},
    "algorithm": {"adv_estimator": "gae"},
    "agent": {"max_turn": 2, "agent_length": 2},
    "env_template": ["FrozenLake", "FrozenLake"],
}
TRAIN = """
trainer = AgentTrainer(
    config=config,
    tokenizer=tokenizer,
    role_worker_mapping=role_worker_mapping,
    resource_pool_manager=resource_pool_manager,
    agent_cls=MyAgentClass,
    processor=processor,
    reward_fn=reward_fn,
)
trainer.init_workers()
trainer.fit()
"""


class MyAgentClass(EnvironmentAgent):
    """An agent of one's own."""


def fit(source: str) -> tw.AgentTrainer:
    settings = {key: value for key, value in SHORT.items() if key not in ("rollout.groups", "learn.steps")}
    names: dict[str, Any] = {
        "AgentTrainer": lambda **given: tw.AgentTrainer(**given, overrides=settings),
        "MyAgentClass": MyAgentClass,
        "config": AGENT_CONFIG,
        "tokenizer": None,
        "role_worker_mapping": {},
        "resource_pool_manager": object(),
        "processor": None,
        "reward_fn": lambda plays: [1.0] * len(plays),
    }
    exec(source, names)
    return names["trainer"]


@pytest.mark.slow
def test_agents_are_trained_by_the_call_of_verls_users() -> None:
    assert fit(TRAIN).settings.learn.steps == 2


@needs_documents
@pytest.mark.slow
def test_the_documents_call_of_agent_trainer_trains() -> None:
    assert fit(block_with("trainer.init_workers()")).settings.rollout.groups == 2


OVERRIDDEN = """
def init_workers(self):
    super().init_workers()
    self.multi_turn_rollout = SyncMultiTurnRollout(
        actor_rollout_wg=self.actor_rollout_wg,
        cfg=self.config,
        tokenizer=self.tokenizer,
        processor=self.processor,
        agent_cls=self.agent_cls,
    )

def _generate_multi_turn_sequences(self, gen_batch: DataProto) -> DataProto:
    gen_batch.meta_info.update({"eos_token_id": self.tokenizer.eos_token_id, "do_sample": True})
    self.multi_turn_rollout.reset()
    final_env_outs = self.multi_turn_rollout.rollout()
    rollout_batch = self.multi_turn_rollout.build_update_batch()
    return DataProto(...)
"""


def fit_overridden(source: str, monkeypatch: pytest.MonkeyPatch) -> tuple[tw.Run, int]:
    """A subclass with their two methods; `DataProto(...)` stands for what was played."""
    played: list[Any] = []
    plain = tw.SyncMultiTurnRollout.rollout
    monkeypatch.setattr(tw.SyncMultiTurnRollout, "rollout", lambda self: (played.append(plain(self)), played[-1])[1])
    names: dict[str, Any] = {
        "AgentTrainer": tw.AgentTrainer,
        "SyncMultiTurnRollout": tw.SyncMultiTurnRollout,
        "DataProto": type("DataProto", (), {"__new__": lambda cls, *_: played[-1]}),
    }
    exec("class Mine(AgentTrainer):\n" + indent(source, "    "), names)
    settings = {key: value for key, value in SHORT.items() if key not in ("rollout.groups", "learn.steps")}
    trainer = names["Mine"](AGENT_CONFIG, agent_cls=MyAgentClass, overrides=settings)
    trainer.init_workers()
    return trainer.fit(), len(played)


@pytest.mark.slow
def test_a_subclass_may_play_the_rollouts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    run, num_played = fit_overridden(OVERRIDDEN, monkeypatch)
    assert (run.summary.steps, num_played) == (2, 2)


@needs_documents
@pytest.mark.slow
def test_the_documents_methods_of_agent_trainer_train(monkeypatch: pytest.MonkeyPatch) -> None:
    source = block_with("def init_workers") + "\n" + block_with("def _generate_multi_turn_sequences")
    run, num_played = fit_overridden(source, monkeypatch)
    assert (run.summary.steps, num_played) == (2, 2)


REWARD_STEP = """
def reward_model_step(self, groups):
    self.num_asked += len(groups)
    return super().reward_model_step(groups)
"""


def test_the_reward_step_is_a_method_of_ppo_trainer() -> None:
    names: dict[str, Any] = {"PPOTrainer": tw.PPOTrainer}
    exec("class Mine(PPOTrainer):\n    num_asked = 0\n" + indent(REWARD_STEP, "    "), names)
    trainer = names["Mine"]({"env": {"type": "frozen_lake"}}, SHORT)
    trainer.train()
    assert trainer.num_asked == 4


# --- workflows --------------------------------------------------------------------------------------------------------

HOUSEHOLD_WORKFLOW = """
class StepWiseAlfworldWorkflow(RewardPropagationWorkflow):
    def step(self, step_num):
        if self.done:
            return False
        self.memory.append({"role": "user", "content": format_observation(self.observation)})
        reply = self.model.chat(self.memory)[0].response_text
        self.memory.append({"role": "assistant", "content": reply})
        self.observation, reward, self.done, info = self.env.step(parse_action(reply))
        if self.done:
            self.final_reward = reward
        return not self.done

    def reward(self, exps):
        return self.final_reward
"""
START = """
    def __init__(self, **given):
        super().__init__(**given)
        self.env = make_env("alfworld")
        self.observation, self.done, self.final_reward, self.memory = self.env.reset(seed=0), False, -0.1, []

    @property
    def max_step_num(self):
        return 3
"""
"""What the documents leave out as `...`."""


def define_workflow(source: str) -> type[tw.Workflow]:
    head, _, rest = source.partition(":\n")
    names: dict[str, Any] = {
        "RewardPropagationWorkflow": tw.RewardPropagationWorkflow,
        "make_env": tw.make_env,
        "format_observation": lambda text: f"Observation: {text}",
        "parse_action": lambda text: text.strip(),
        "Experience": tw.Experience,
        "list": list,
    }
    exec(f"{head}:{START}\n{rest.replace('    ...', '')}", names)
    return names["StepWiseAlfworldWorkflow"]


def train_workflow(made: type[tw.Workflow], monkeypatch: pytest.MonkeyPatch) -> tw.Run:
    monkeypatch.setattr("tests.documents.test_code.Workflow", made, raising=False)
    config = {
        "env": {"type": "alfworld"},
        "rollout": {"workflow": "tests.documents.test_code:Workflow"},
        "credit": {"type": "multi_step_grpo"},
    }
    return tw.train(config, SHORT)


@pytest.mark.slow
def test_a_workflow_of_steps_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    assert train_workflow(define_workflow(HOUSEHOLD_WORKFLOW), monkeypatch).summary.steps == 2


@needs_documents
@pytest.mark.slow
def test_the_documents_workflow_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    made = define_workflow(block_with("class StepWiseAlfworldWorkflow"))
    assert train_workflow(made, monkeypatch).summary.steps == 2


@needs_documents
def test_the_documents_registry_is_a_registry() -> None:
    names: dict[str, Any] = {"Registry": ClassRegistry}
    exec(block_with("WORKFLOWS = Registry("), names)
    assert "step_wise_alfworld_workflow" in names["WORKFLOWS"]


def test_a_registry_takes_dotted_paths_and_a_decorator() -> None:
    workflows = ClassRegistry("workflows", default_mapping={"lake": "turnwise.rollout.workflow.EnvironmentWorkflow"})
    assert workflows.get_target("lake").__name__ == "EnvironmentWorkflow"  # type: ignore[attr-defined]

    @workflows.register_module("mine")
    class Mine(tw.Workflow):
        pass

    assert workflows.get_target("mine") is Mine


@needs_documents
def test_the_switches_of_the_documents_decide_what_is_loaded() -> None:
    """Their two lines, on a config of theirs, and what is loaded here for the same file."""
    source = block_with("self.use_reward_model = not self.multi_turn")
    for multi_turn, critic in ((True, False), (True, True), (False, None)):
        given = {} if critic is None else {"use_reward_critic": critic}
        cfgs = SimpleNamespace(model_cfgs=SimpleNamespace(**given))
        names: dict[str, Any] = {"self": SimpleNamespace(multi_turn=multi_turn, cfgs=cfgs)}
        exec(source, names)
        settings = tw.PPOTrainer({"train_cfgs": {"multi_turn": multi_turn}, "model_cfgs": given}).settings
        assert names["self"].use_reward_model == (settings.reward.judge.type == "model")
        assert names["self"].use_reward_critic == (settings.learn.critic.type == "model")
