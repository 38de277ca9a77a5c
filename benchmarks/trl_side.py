"""The same lakes, model, prompts and size of an update in TRL's `GRPOTrainer`: one side of `benchmarks.peers`.

TRL generates (its own `_generate_single_turn`, as its own loop over tools calls it) and learns; a `rollout_func` lets
it play. What a user would have to write for that, turns, prompts, parsing and masks, is taken from turnwise, so that
both sides read and sample the same kind of tokens. Log-probs of the rollout are made up: without vLLM, TRL does not
read them.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.context.manager import ContextManager
from turnwise.loop.build import build_states, build_tasks, load_words
from turnwise.loop.policies import resolve_model
from turnwise.rollout.env_manager import EnvStateManager
from turnwise.rollout.env_specs import all_envs
from turnwise.rollout_io import EnvInput, EnvOutput, LmOutput
from turnwise.types import Completion, FinishReason, Trajectory


class Clock(TrainerCallback):
    """How long each update took, the rollout before it included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._began_s = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began_s)


class Player:
    """Plays whole groups turn by turn; worlds answer one by one, or side by side in threads."""

    def __init__(self, settings: TurnwiseSettings, model: str, *, side_by_side: bool) -> None:
        worlds = all_envs(settings)
        template = load_words(settings, model).template
        self._settings = settings
        self._stop_ids = template.stop_ids
        self._tasks = build_tasks(settings, worlds)
        self._states: EnvStateManager = build_states(settings, worlds, "train", group_size=settings.rollout.group_size)
        self._context = ContextManager(template, {world.tag: world.context for world in worlds})
        self._pool = ThreadPoolExecutor(64) if side_by_side else None

    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        running = self._states.begin(self._tasks.take(self._settings.rollout.groups))
        while running:
            asked = self._context.get_lm_inputs(running)
            replies, _ = trainer._generate_single_turn(
                [one.prompt_ids.tolist() for one in asked], None, {}, trainer.num_generations
            )
            outputs = [
                LmOutput(env_id=one.env_id, completion=self._complete(reply))
                for one, reply in zip(asked, replies, strict=True)
            ]
            running = self._step(self._context.get_env_inputs(outputs))
        played = self._context.formulate_rollouts(self._states.get_rollout_states())
        assert len(played) == len(prompts)
        return _as_rollout(played)

    def _complete(self, reply: list[int]) -> Completion:
        is_stopped = bool(reply) and reply[-1] in self._stop_ids
        return Completion(
            token_ids=np.asarray(reply, dtype=np.int32),
            behavior_logprobs=np.zeros(len(reply), dtype=np.float32),
            finish_reason=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
            policy_version=0,
        )

    def _step(self, env_inputs: list[EnvInput]) -> list[EnvOutput]:
        if self._pool is None:
            return self._states.step(env_inputs)
        answers = self._pool.map(lambda given: self._states.step([given]), env_inputs)
        return [output for going_on in answers for output in going_on]


def _as_rollout(played: list[Trajectory]) -> dict[str, Any]:
    rows: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": [], "earned": []}
    for trajectory in played:
        (segment,) = trajectory.segments
        first = int(np.argmax(segment.loss_mask))
        rows["prompt_ids"].append(segment.token_ids[:first].tolist())
        rows["completion_ids"].append(segment.token_ids[first:].tolist())
        rows["logprobs"].append(segment.behavior_logprobs[first:].tolist())
        rows["env_mask"].append(segment.loss_mask[first:].astype(int).tolist())
        rows["earned"].append(trajectory.episode_return)
    return rows


def train(overrides: list[str], steps: int, *, side_by_side: bool) -> list[float]:
    """Seconds of each update."""
    settings = load_settings("grpo", overrides)
    assert settings.learn.num_threads is not None
    torch.set_num_threads(settings.learn.num_threads)
    model = resolve_model(settings)
    groups, size, clock = settings.rollout.groups, settings.rollout.group_size, Clock()
    with TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            processing_class=load_words(settings, model).tokenizer,
            reward_funcs=lambda completions, earned, **_: earned,
            train_dataset=Dataset.from_list([{"prompt": "lake"}] * (groups * steps)),
            rollout_func=Player(settings, model, side_by_side=side_by_side),
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                learning_rate=settings.learn.optim.lr,
                beta=0.0,
                num_generations=size,
                per_device_train_batch_size=groups * size,
                max_completion_length=settings.context.max_response_tokens,
                temperature=settings.rollout.temperature,
                max_steps=steps,
            ),
        )
        trainer.train()
    return clock.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--side-by-side", action="store_true")
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    print(json.dumps(train(given.overrides, given.steps, side_by_side=given.side_by_side)))


if __name__ == "__main__":
    main()
