"""What each rank computes on: a GPU of its own where there are GPUs, and its share of the cores."""

from __future__ import annotations

import os

import torch

from turnwise.errors import ConfigError
from turnwise.models.load import chosen_device


def rank_devices(name: str, num_ranks: int) -> list[str]:
    """The devices behind `learn.device`, one per rank."""
    device = chosen_device(name, "learn.device")
    if device.type == "cpu":
        return ["cpu"] * num_ranks
    count = torch.cuda.device_count()
    if num_ranks > count:
        raise ConfigError(
            f"learn.parallel.ranks: {num_ranks} given; this machine has {count} GPUs and each rank needs its own. "
            f"Set it to {count} or fewer, or learn.device=cpu."
        )
    return [f"{device.type}:{rank}" for rank in range(num_ranks)]


def threads_per_rank(num_ranks: int) -> int:
    """The cores that this process may use, divided: ranks that wait for each other must not fight for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // num_ranks)
