"""Whether this machine computes bfloat16 as fast as float32, measured where its units are missing.

In: the settings of `model`. Out: nothing, or a sentence with both speeds. A processor without units for bfloat16
computes it all the same, many times slower than float32. It refuses to decide: it tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from turnwise.config.schema import ModelSettings
from turnwise.config.settings import Settings

_WIDTH = 512
_MEASURED_S = 0.04
"""For each type: long enough for several products on any machine, too short to notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Of a product of two matrices, in 1e9 operations a second."""

    float32: float
    bfloat16: float


def has_bfloat16_units() -> bool:
    """Whether the device that models run on multiplies bfloat16 itself."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@lru_cache(maxsize=1)
def measure_speeds() -> Speeds:
    """Both types on this processor; takes a tenth of a second, once per process."""
    return Speeds(float32=_measure(torch.float32), bfloat16=_measure(torch.bfloat16))


def warn_of_slow_bfloat16(
    model: ModelSettings,
    *,
    has_units: Callable[[], bool] = has_bfloat16_units,
    measure: Callable[[], Speeds] = measure_speeds,
) -> str:
    """What to know about the settings that ask for bfloat16; empty where none does, or where it is no slower."""
    asked = list(_asking(model, "model"))
    if not asked or has_units():
        return ""
    speeds = measure()
    if speeds.bfloat16 >= speeds.float32:
        return ""
    return (
        f"{' and '.join(asked)}: bfloat16 given, and this processor has no units for it: a product of matrices "
        f"measured here runs at {speeds.bfloat16:.0f} GFLOP/s in bfloat16 and at {speeds.float32:.0f} in float32. It "
        "saves memory and costs time; set float32 where memory suffices."
    )


def _asking(section: Settings, path: str) -> Iterator[str]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Settings):
            yield from _asking(value, f"{path}.{name}")
        elif value == "bfloat16":
            yield f"{path}.{name}"


def _measure(dtype: torch.dtype) -> float:
    matrix = torch.ones(_WIDTH, _WIDTH, dtype=dtype)
    # The first product also prepares the machine's library for this type.
    torch.mm(matrix, matrix)
    num_products, started_s = 0, time.perf_counter()
    while (taken_s := time.perf_counter() - started_s) < _MEASURED_S:
        torch.mm(matrix, matrix)
        num_products += 1
    return 2 * _WIDTH**3 * num_products / taken_s / 1e9
