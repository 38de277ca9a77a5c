"""The training loop rebuilt by hand, to be read from top to bottom: play, record, credit, learn, publish.

A small language model learns to cross a 3x3 frozen lake, one move per turn. The library's rooms are used only where a
newcomer would not want to look first (the world, the chat template, the engine); everything between them is written out
here with the library's own types. `turnwise train` does the same with settings, checks, checkpoints and reports.

    python examples/loop_by_hand.py --steps 25 --seed 0
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import turnwise as tw
from turnwise.config.schema import TinySettings
from turnwise.context.recorder import Transcript
from turnwise.context.template import HFChatTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.engine.local import LocalEngine
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.infra.seeds import hash64
from turnwise.models.load import load_model
from turnwise.models.tiny import tiny_model_folder
from turnwise.protocols import Engine
from turnwise.types import (
    Experience,
    ExperienceId,
    GenerateRequest,
    Message,
    Sample,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    TrajectoryId,
    Turn,
)

LAKE = {"size": 3, "view": "objects", "hole_rate": 0.25}
MAX_TURNS = 6
GROUP_SIZE = 8
INVALID_PENALTY = -0.1


# --- 1. a task becomes a world ----------------------------------------------------------------------------------------


def make_world() -> tw.BaseEnv:
    """The environment speaks text: `Pa1 Gc3 Ob2` is the player on a1, the goal on c3 and a hole on b2."""
    return tw.make_env("frozen_lake", **LAKE)


# --- 2. and 3. a conversation becomes tokens, and tokens become tokens ------------------------------------------------


def make_policy(folder: Path, seed: int) -> tuple[HFChatTemplate, LocalEngine, torch.nn.Module]:
    """The chat template, an engine that samples, and a second copy of the model that learns."""
    world = make_world()
    # A tokenizer fitted to the world's own text keeps episodes short: a move and the end of turn are two tokens.
    texts = [world.reset(seed=number) for number in range(300)] + list(world.action_names or ()) * 100
    sizes = TinySettings(hidden_size=64, intermediate_size=192, max_positions=256)
    path = str(tiny_model_folder(folder, settings=sizes, seed=seed, sample_texts=texts))
    template = HFChatTemplate(load_tokenizer(path))
    engine = LocalEngine(load_model(path), stop_ids=template.stop_ids)
    return template, engine, load_model(path).train()


# --- 4. the turn loop -------------------------------------------------------------------------------------------------


async def play(template: HFChatTemplate, engine: Engine, task: Task, trajectory_id: TrajectoryId) -> Trajectory:
    """One episode. The transcript only ever grows, so what was sampled is what will be trained, token for token."""
    world, transcript, turns = make_world(), Transcript(), []
    observation = reset_env(world, task.seed, split=task.split)
    transcript.add_context(template.encode_prompt([Message("user", observation)]))
    stop_reason, is_success = StopReason.MAX_TURNS, False
    for number in range(MAX_TURNS):
        request = GenerateRequest(
            prompt_ids=transcript.current_ids,
            sampling=Sampling(temperature=1.0, max_new_tokens=3),
            # The dice belong to the episode and the turn: the batch in which the engine serves them does not matter.
            seed=hash_of(trajectory_id, number),
            cache_key=str(trajectory_id),
        )
        completion = await engine.generate(request)
        transcript.add_sampled(completion, turn_index=number)
        reply = template.decode_reply(completion.token_ids)
        result = step_env(world, reply.strip())
        turns.append(
            Turn(
                index=number,
                step=number,
                segment_index=0,
                observation=observation,
                response_text=reply,
                actions=(reply.strip(),),
                reward=result.reward,
                penalty=0.0 if result.is_valid else INVALID_PENALTY,
                policy_version=completion.policy_version,
                is_valid=result.is_valid,
                info=result.info,
            )
        )
        observation = result.text
        if result.done:
            stop_reason, is_success = StopReason.TERMINATED, bool(result.is_success)
            break
        # The bridge closes the reply, says what the world answered and opens the next reply; earlier ids stay.
        is_closed = template.is_closed(completion)
        transcript.add_context(template.encode_continuation([Message("user", observation)], reply_is_closed=is_closed))
    engine.release(str(trajectory_id))
    return Trajectory(
        id=trajectory_id,
        task=task,
        segments=transcript.segments(),
        turns=tuple(turns),
        stop_reason=stop_reason,
        is_success=is_success,
        final_observation=observation,
    )


def hash_of(trajectory_id: TrajectoryId, turn: int) -> int:
    return random.Random(f"{trajectory_id}/{turn}").getrandbits(63)


async def play_groups(
    template: HFChatTemplate, engine: Engine, seeds: Sequence[int], *, rollout: int
) -> list[Trajectory]:
    """`GROUP_SIZE` siblings of every task at once; the engine puts whatever requests are there into one batch."""
    tasks = [Task(tag="lake", seed=seed) for seed in seeds]
    episodes = [
        play(template, engine, task, TrajectoryId(rollout, task.id, sibling))
        for task in tasks
        for sibling in range(GROUP_SIZE)
    ]
    return list(await asyncio.gather(*episodes))


# --- 5. records -------------------------------------------------------------------------------------------------------


def build_experience(trajectory: Trajectory) -> Experience:
    """The one segment of a trajectory, with the reward of each turn."""
    (segment,) = trajectory.segments
    raw = np.array([turn.reward for turn in trajectory.turns], dtype=np.float32)
    penalties = np.array([turn.penalty for turn in trajectory.turns], dtype=np.float32)
    return Experience(
        id=ExperienceId(trajectory.id, 0),
        segment=segment,
        turn_indices=np.arange(len(trajectory.turns), dtype=np.int32),
        raw_rewards=raw,
        turn_rewards=raw + penalties,
        turn_states=np.array([hash64(turn.observation) for turn in trajectory.turns], dtype=np.uint64),
        turn_steps=np.arange(len(trajectory.turns), dtype=np.int32),
        policy_version=trajectory.turns[0].policy_version,
        is_last=True,
        is_truncated=trajectory.stop_reason.is_truncated,
    )


# --- 6. rewards become advantages -------------------------------------------------------------------------------------


def give_credit(experiences: Sequence[Experience]) -> list[Sample]:
    """Group-relative: a trajectory is as good as it is better than the siblings that played the same task."""
    totals: dict[str, list[float]] = {}
    for experience in experiences:
        totals.setdefault(experience.id.trajectory.group, []).append(float(experience.turn_rewards.sum()))
    samples = []
    for experience in experiences:
        siblings = np.array(totals[experience.id.trajectory.group])
        score = (experience.turn_rewards.sum() - siblings.mean()) / (siblings.std(ddof=1) + 1e-6)
        # The same number on every sampled token, and nothing on prompts and observations.
        advantages = (score * experience.segment.loss_mask).astype(np.float32)
        nothing = np.zeros_like(advantages)
        samples.append(
            Sample(
                experience=experience,
                advantages=advantages,
                returns=advantages,
                values=nothing,
                reference_logprobs=nothing,
            )
        )
    return samples


# --- 7. samples become gradients --------------------------------------------------------------------------------------


def pad(rows: Sequence[np.ndarray]) -> Tensor:
    """Rows of different lengths as one tensor, zeros on the right."""
    return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True)


def score_tokens(model: torch.nn.Module, token_ids: Tensor, mask: Tensor) -> Tensor:
    """The log-probability of every sampled token, given all tokens before it."""
    # Token t is predicted at position t - 1, so ids and mask are shifted by one against the logits.
    logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1][mask[:, 1:]]
    targets = token_ids[:, 1:][mask[:, 1:]]
    return logits.log_softmax(dim=-1).gather(1, targets[:, None]).squeeze(1)


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, samples: Sequence[Sample]) -> None:
    """PPO's clipped surrogate in two passes over the batch."""
    segments = [sample.experience.segment for sample in samples]
    token_ids = pad([segment.token_ids.astype(np.int64) for segment in segments])
    mask = pad([segment.loss_mask for segment in segments])
    behavior_logprobs = pad([segment.behavior_logprobs for segment in segments])[mask]
    advantages = pad([sample.advantages for sample in samples])[mask]
    for _ in range(2):
        ratio = (score_tokens(model, token_ids, mask) - behavior_logprobs).exp()
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        take_step(model, optimizer, -surrogate.mean())


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


# --- before learning from rewards: what an answer looks like ----------------------------------------------------------


def random_moves(template: HFChatTemplate) -> ScriptedEngine:
    """Stands in for a model and answers with any move: it knows the format and nothing about the lake."""
    moves = make_world().action_names or ()
    replies = [[*template.encode_text(move), template.end_of_turn_id] for move in moves]
    return ScriptedEngine(lambda request: random.Random(request.seed).choice(replies), stop_ids=template.stop_ids)


def imitate(model: torch.nn.Module, trajectories: Sequence[Trajectory]) -> None:
    """Supervised steps on random play, over the same tokens and the same mask as the update above."""
    segments = [trajectory.segments[0] for trajectory in trajectories]
    token_ids = pad([segment.token_ids.astype(np.int64) for segment in segments])
    mask = pad([segment.loss_mask for segment in segments])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(20):
        take_step(model, optimizer, -score_tokens(model, token_ids, mask).mean())


# --- the loop ---------------------------------------------------------------------------------------------------------


async def train(steps: int, num_groups: int, seed: int) -> None:
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        template, engine, model = make_policy(Path(folder), seed)
    first_task = seed * 1_000_000
    shown = range(first_task, first_task + num_groups)
    imitate(model, await play_groups(template, random_moves(template), shown, rollout=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(1, steps + 1):
        # 8. weights become the next policy: the engine samples with what the learner knows now.
        engine.load_weights(model.state_dict(), policy_version=step - 1)
        tasks = range(first_task + step * num_groups, first_task + (step + 1) * num_groups)
        trajectories = await play_groups(template, engine, tasks, rollout=step)
        samples = give_credit([build_experience(trajectory) for trajectory in trajectories])
        update(model, optimizer, samples)
        reward = np.mean([trajectory.episode_return for trajectory in trajectories])
        turns = np.mean([len(trajectory.turns) for trajectory in trajectories])
        print(f"step {step:3d}   mean reward {reward:.3f}   mean turns {turns:.2f}   {'#' * round(40 * reward)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small language model on a 3x3 frozen lake, by hand.")
    parser.add_argument("--steps", type=int, default=25, help="updates of the policy (default: 25)")
    parser.add_argument("--groups", type=int, default=24, help="tasks per step (default: 24)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the tasks, the model and the dice (default: 0)")
    options = parser.parse_args()
    asyncio.run(train(options.steps, options.groups, options.seed))


if __name__ == "__main__":
    main()
