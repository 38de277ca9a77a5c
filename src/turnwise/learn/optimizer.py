"""The optimizer, and how its learning rate moves over a run.

In: parameters, `learn.optim` and a step. Out: AdamW, and the share of the rate at that step.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from turnwise.config.schema_learn import LearnSettings, ModelCritic, OptimSettings
from turnwise.infra.parsing import parse_json
from turnwise.learn.parallel_context import ParallelContext
from turnwise.models.load import shard_like


def learning_rate_share(optim: OptimSettings, step: int, num_steps: int) -> float:
    """The share of `learn.optim.lr` at a step counted from 0."""
    warm = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    if optim.schedule == "constant":
        return warm
    left = max(0.0, 1 - step / max(num_steps, 1))
    if optim.schedule == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return warm * (optim.final_lr_share + (1 - optim.final_lr_share) * left)


def set_learning_rate(optimizer: torch.optim.Optimizer, learn: LearnSettings, step: int) -> None:
    """The rates of an optimizer that was made here, at a step counted from 0."""
    share = learning_rate_share(learn.optim, step, learn.steps)
    for group in optimizer.param_groups:
        group["lr"] = learn.optim.lr * share * group["share"]


def make_optimizer(
    actor: Sequence[nn.Parameter], critic: Sequence[nn.Parameter], learn: LearnSettings
) -> torch.optim.AdamW:
    """AdamW over what is trained; `share` of a group is its rate in terms of the actor's."""
    optim = learn.optim
    groups: list[dict[str, Any]] = [{"params": [*actor, *critic], "share": 1.0}]
    if isinstance(learn.critic, ModelCritic):
        groups = [{"params": [*actor], "share": 1.0}, {"params": [*critic], "share": learn.critic.lr / optim.lr}]
    return make_adamw(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), weight_decay=optim.weight_decay)


def make_adamw(groups: Sequence[dict[str, Any]], **rates: Any) -> torch.optim.AdamW:
    """Parameter by parameter: made for all at once, its intermediate results would be as large as the model."""
    is_on_gpu = any(p.is_cuda for group in groups for p in group["params"])
    how: dict[str, Any] = {"fused": True} if is_on_gpu else {"foreach": False}
    return torch.optim.AdamW(groups, **rates, **how)


_WHOLE, _PIECES, _STEPS = "optimizer.pt", "optimizer", "steps.json"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def write_optimizer(optimizer: torch.optim.AdamW, folder: Path, team: ParallelContext) -> None:
    if team.size == 1 and not team.is_sharded:
        # Through a file of our own: it says why it cannot be written.
        with (folder / _WHOLE).open("wb") as file:
            torch.save(optimizer.state_dict(), file)
        return
    kept = {number: optimizer.state[p] for number, p in enumerate(_parameters(optimizer)) if p in optimizer.state}
    pieces = {_name(number, moment): state[moment] for number, state in kept.items() for moment in _MOMENTS}
    if team.is_first:
        # Another rank may have been here before, for its pieces.
        (folder / _PIECES).mkdir(parents=True, exist_ok=True)
        steps = {number: float(state["step"]) for number, state in kept.items()}
        (folder / _PIECES / _STEPS).write_text(json.dumps(steps))
    # Before its first step an optimizer remembers nothing.
    if pieces:
        save(pieces, storage_writer=HuggingFaceStorageWriter(str(folder / _PIECES), save_distributed=True))


def read_optimizer(optimizer: torch.optim.AdamW, folder: Path, team: ParallelContext) -> None:
    """As it was when the folder was written, by a team of whatever kind and size."""
    if (folder / _PIECES).is_dir():
        _read_pieces(optimizer, folder / _PIECES, is_alone=team.size == 1)
        return
    whole = torch.load(folder / _WHOLE, weights_only=True, map_location="cpu")
    if team.is_sharded:
        _cut(optimizer, whole["state"])
    else:
        optimizer.load_state_dict(whole)


def _read_pieces(optimizer: torch.optim.AdamW, folder: Path, *, is_alone: bool) -> None:
    parameters = _parameters(optimizer)
    steps = {int(number): step for number, step in parse_json((folder / _STEPS).read_text()).items()}
    pieces = {_name(n, moment): torch.zeros_like(parameters[n]) for n in steps for moment in _MOMENTS}
    if pieces:
        with warnings.catch_warnings():
            # That one process reads what several wrote is no accident.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(pieces, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=is_alone)
    optimizer.state.clear()
    for number, step in steps.items():
        moments: dict[str, Any] = {moment: pieces[_name(number, moment)].detach() for moment in _MOMENTS}
        optimizer.state[parameters[number]] = {"step": _count(optimizer, parameters[number], step)} | moments


def _cut(optimizer: torch.optim.AdamW, whole: dict[int, dict[str, Tensor]]) -> None:
    """This rank's pieces of what one process wrote."""
    parameters = _parameters(optimizer)
    optimizer.state.clear()
    for number, state in whole.items():
        own = parameters[number]
        moments: dict[str, Any] = {moment: shard_like(own, state[moment]).detach() for moment in _MOMENTS}
        optimizer.state[own] = {"step": _count(optimizer, own, float(state["step"]))} | moments


def _count(optimizer: torch.optim.AdamW, parameter: Tensor, step: float) -> Tensor:
    """Where it computes for all parameters at once, AdamW counts beside them; else in the machine's memory."""
    device = parameter.device if optimizer.defaults["fused"] else "cpu"
    return torch.tensor(step, dtype=torch.float32, device=device)


def _parameters(optimizer: torch.optim.AdamW) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _name(number: int, moment: str) -> str:
    return f"{number}.{moment}"
