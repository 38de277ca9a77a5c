"""What an optimizer remembers, on disk: whole in one file, or in pieces that a team of any size puts together.

In: AdamW and a folder. Out: `optimizer.pt` from a team of one (`torch.load(weights_only=True)`), `optimizer/` from
others: torch's distributed checkpoint with safetensors files, each rank its own piece. Parameters are counted in the
order of the optimizer, which is that of the model whatever the team.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from turnwise.infra.parsing import parse_json
from turnwise.learn.parallel.team import Team
from turnwise.models.load import piece_like

_WHOLE, _PIECES, _STEPS = "optimizer.pt", "optimizer", "steps.json"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def write_optimizer(optimizer: torch.optim.AdamW, folder: Path, team: Team) -> None:
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


def read_optimizer(optimizer: torch.optim.AdamW, folder: Path, team: Team) -> None:
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
        moments: dict[str, Any] = {moment: piece_like(own, state[moment]).detach() for moment in _MOMENTS}
        optimizer.state[own] = {"step": _count(optimizer, own, float(state["step"]))} | moments


def _count(optimizer: torch.optim.AdamW, parameter: Tensor, step: float) -> Tensor:
    """Where it computes for all parameters at once, AdamW counts beside them; else in the machine's memory."""
    device = parameter.device if optimizer.defaults["fused"] else "cpu"
    return torch.tensor(step, dtype=torch.float32, device=device)


def _parameters(optimizer: torch.optim.AdamW) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _name(number: int, moment: str) -> str:
    return f"{number}.{moment}"
