"""Bi-level GAE on 128 trajectories of 1,000 action tokens, on one core."""

from __future__ import annotations

import statistics
import time

import torch

from turnwise.credit import compute_bi_level_gae_advantage_return

NUM_REPEATS = 9


def run(num_trajectories: int = 128, num_tokens: int = 1000, num_turns: int = 10) -> dict[str, object]:
    torch.manual_seed(0)
    shape = (num_trajectories, num_tokens)
    turn_ids = (torch.arange(num_tokens) * num_turns // num_tokens).expand(shape)
    is_turn_end = torch.diff(turn_ids, dim=1, append=torch.full((num_trajectories, 1), num_turns)) != 0
    rewards = torch.randn(shape) * is_turn_end
    values, mask = torch.randn(shape), torch.ones(shape)
    seconds = []
    for _ in range(NUM_REPEATS):
        started = time.perf_counter()
        compute_bi_level_gae_advantage_return(rewards, values, mask, 0.99, 0.95, 0.9, turn_ids=turn_ids)
        seconds.append(time.perf_counter() - started)
    return {
        "benchmark": "credit",
        "trajectories": num_trajectories,
        "action_tokens": num_tokens,
        "turns": num_turns,
        "median_ms": statistics.median(seconds) * 1000,
    }
