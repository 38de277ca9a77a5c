"""A digest of what a learner carries from update to update, to see whether it came back from a checkpoint.

In: a learner of this process. Out: a number for each of its parts; nothing for a learner that keeps its state elsewhere
or otherwise. Of large tensors, evenly spaced values stand for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

_MAX_VALUES = 4096
"""Of one tensor."""


def digest_state(learner: Any) -> dict[str, int]:
    """Policy, critic, reference and the optimizer's moments, as far as there are any."""
    digests = {}
    for name in ("model", "critic"):
        if isinstance(module := getattr(learner, name, None), torch.nn.Module):
            digests[name] = digest_tensors(module.state_dict().values())
    reference = getattr(learner, "reference", None)
    if isinstance(module := getattr(reference, "model", None), torch.nn.Module):
        # One that lies in a file has no weights but while it is asked.
        with getattr(reference, "at_hand", nullcontext)():
            digests["reference"] = digest_tensors(module.state_dict().values())
    optimizer = getattr(learner, "optimizer", None)
    if isinstance(optimizer, torch.optim.Optimizer):
        states = optimizer.state_dict()["state"]
        moments = (states[key][name] for key in sorted(states) for name in sorted(states[key]))
        digests["optimizer"] = digest_tensors(m for m in moments if isinstance(m, Tensor))
    return digests


def digest_policy(learner: Any) -> int | None:
    """Of the weights that sample; None for a learner without a model in this process."""
    model = getattr(learner, "model", None)
    return digest_tensors(model.state_dict().values()) if isinstance(model, torch.nn.Module) else None


def digest_tensors(tensors: Iterable[Tensor]) -> int:
    digest = 0
    for tensor in tensors:
        flat = tensor.detach().flatten()
        some = flat[:: max(len(flat) // _MAX_VALUES, 1)].to("cpu", torch.float32)
        digest = crc32(some.contiguous().numpy().data.cast("B"), digest)
    return digest
