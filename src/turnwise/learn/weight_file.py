"""Weights become a safetensors file, one tensor in memory at a time.

In: names and tensors, which may be made as they are asked for. Out: the file that transformers and vLLM load. A tensor
that several names share is written once, under its first name, as transformers expects of tied weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_weights(file: Path, weights: Mapping[str, Tensor]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in _each_once(weights):
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    with file.open("wb") as out:
        out.write(len(words).to_bytes(8, "little") + words)
        for _, tensor in _each_once(weights):
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            out.write(flat.view(torch.uint8).numpy().data)


def _each_once(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    # What is made anew on being asked has an address that others had before it: an object that lives on is no tie.
    seen: dict[tuple[int, torch.Size], Tensor] = {}
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tensor.shape)
        if place in seen:
            continue
        if weights[name].data_ptr() == tensor.data_ptr():
            seen[place] = tensor
        yield name, tensor
