"""Episodes of 20 steps as training data: concatenated, step by step, and step by step with prefixes merged.

Every call sees the whole conversation so far, so without merging the tokens of an episode grow with the square of its
steps. Tokens and the time of one update of the default model, as ratios to the concatenated form.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.config.schema import TinySettings
from turnwise.config.schema_learn import LearnSettings
from turnwise.credit.step_level import MultiStepGrpo
from turnwise.experience.build import merge_prefixes
from turnwise.learn.losses import PpoClip
from turnwise.learn.pack import pack
from turnwise.learn.trainer import Trainer
from turnwise.types import Annotations, Experience, ExperienceId, Segment, TrajectoryId

NUM_REPEATS = 3
_SIZES = TinySettings()


def run(
    num_episodes: int = 16, num_steps: int = 20, prompt_tokens: int = 12, reply_tokens: int = 8
) -> dict[str, object]:
    rng = np.random.default_rng(0)
    lengths = (prompt_tokens, reply_tokens)
    episodes = [_play(rng, number, num_steps, *lengths) for number in range(num_episodes)]
    step_wise = [row for episode in episodes for row in _one_per_call(episode, *lengths)]
    forms = {"concatenated": lambda: episodes, "step_wise": lambda: step_wise}
    forms["merged"] = lambda: merge_prefixes(step_wise)
    tokens = {name: sum(len(row.segment) for row in rows()) for name, rows in forms.items()}
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(NUM_REPEATS):
        for name, rows in forms.items():
            trainer = _trainer(num_steps * sum(lengths))
            started = time.perf_counter()
            trainer.step(pack(MultiStepGrpo()(rows(), Annotations())))
            seconds[name].append(time.perf_counter() - started)
    update_s = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "benchmark": "prefix_merge",
        "episodes": num_episodes,
        "steps": num_steps,
        "tokens": tokens,
        "token_ratio": {name: round(count / tokens["concatenated"], 3) for name, count in tokens.items()},
        "update_s": {name: round(spent, 4) for name, spent in update_s.items()},
        "update_ratio": {name: round(spent / update_s["concatenated"], 3) for name, spent in update_s.items()},
    }


def _trainer(max_tokens: int) -> Trainer:
    config = LlamaConfig(
        vocab_size=_SIZES.vocab_size,
        hidden_size=_SIZES.hidden_size,
        intermediate_size=_SIZES.intermediate_size,
        num_hidden_layers=_SIZES.num_layers,
        num_attention_heads=_SIZES.num_heads,
        max_position_embeddings=max_tokens,
        pad_token_id=0,
    )
    return Trainer(LlamaForCausalLM(config), LearnSettings(), PpoClip(), temperature=1.0, seed=0)


def _play(rng: np.random.Generator, number: int, num_steps: int, prompt_tokens: int, reply_tokens: int) -> Experience:
    """A whole episode in one row."""
    turn = np.repeat(np.arange(num_steps), prompt_tokens + reply_tokens)
    is_sampled = np.tile(np.arange(prompt_tokens + reply_tokens) >= prompt_tokens, num_steps)
    rewards = rng.integers(0, 2, size=num_steps).astype(np.float32)
    steps = np.arange(num_steps, dtype=np.int32)
    return Experience(
        id=ExperienceId(TrajectoryId(1, f"words/train/{number // 8}", number % 8), 0),
        segment=Segment(
            token_ids=rng.integers(1, _SIZES.vocab_size, size=len(turn)).astype(np.int32),
            loss_mask=is_sampled,
            behavior_logprobs=np.where(is_sampled, -5.0, 0.0).astype(np.float32),
            turn_ids=np.where(is_sampled, turn, -1).astype(np.int32),
        ),
        turn_indices=steps,
        raw_rewards=rewards,
        turn_rewards=rewards,
        turn_states=steps.astype(np.uint64),
        turn_steps=steps,
        policy_version=0,
        is_last=True,
        is_truncated=False,
    )


def _one_per_call(episode: Experience, prompt_tokens: int, reply_tokens: int) -> Sequence[Experience]:
    """The same episode as its workflow records it: each call with all that was said before."""
    segment, rows = episode.segment, []
    for turn in episode.turn_indices.tolist():
        end = (turn + 1) * (prompt_tokens + reply_tokens)
        is_own = segment.turn_ids[:end] == turn
        one = slice(turn, turn + 1)
        rows.append(
            Experience(
                id=ExperienceId(episode.id.trajectory, turn),
                segment=Segment(
                    token_ids=segment.token_ids[:end],
                    loss_mask=is_own,
                    behavior_logprobs=np.where(is_own, segment.behavior_logprobs[:end], 0).astype(np.float32),
                    turn_ids=np.where(is_own, turn, -1).astype(np.int32),
                ),
                turn_indices=episode.turn_indices[one],
                raw_rewards=episode.raw_rewards[one],
                turn_rewards=episode.turn_rewards[one],
                turn_states=episode.turn_states[one],
                turn_steps=episode.turn_steps[one],
                policy_version=0,
                is_last=turn == len(episode.turn_indices) - 1,
                is_truncated=False,
            )
        )
    return rows


if __name__ == "__main__":
    print(run())
