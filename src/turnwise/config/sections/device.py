"""The name of a device in the settings, checked without torch: whether this machine has it is asked when it is used."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

_KINDS = ("cpu", "cuda", "hpu", "mps", "mtia", "npu", "xla", "xpu")


def _check_device(given: str) -> str:
    kind, _, number = given.partition(":")
    if given != "auto" and (kind not in _KINDS or (":" in given and not re.fullmatch(r"[0-9]+", number))):
        raise ValueError(f"{given!r} given; expected auto, or a device as torch names it: cpu, cuda, cuda:1 …")
    return given


Device: TypeAlias = Annotated[str, AfterValidator(_check_device)]
