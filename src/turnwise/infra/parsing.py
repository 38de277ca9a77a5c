"""Parse JSON and YAML from files, requests and model replies, with a limit on how deeply values are nested.

All readers use these functions instead of `json.loads` and `yaml.safe_load`: libyaml crashes the interpreter on a text
of a few thousand levels, and what recursive code can read depends on the call stack. The limit is checked on the text,
before anything is built. Every error is a ValueError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

MAX_DEPTH = 64
"""Levels of lists and mappings. Far more than settings, records and tool schemas have, and OmegaConf can build them."""
_MAX_COPIED_NODES = 10_000
"""Values that the aliases of a YAML text may stand for, all together; the limit that OmegaConf has for a file."""
_NO_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[^"\[\]{}]++', re.DOTALL)
"""Strings and whatever else of a JSON text is no bracket."""


_DECODER = json.JSONDecoder()


class NestingError(ValueError):
    """A text is nested too deeply, or its aliases stand for too many values."""

    def __init__(self) -> None:
        super().__init__(f"it is nested too deeply: expected at most {MAX_DEPTH} levels of lists and mappings")


def parse_json(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """As `json.loads`; raises ValueError also where the text is nested more than `MAX_DEPTH` levels deep."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    check_json_depth(text)
    return json.loads(text, parse_constant=parse_constant)


def parse_finite_json(text: str | bytes) -> Any:
    """As `parse_json`; a number that is NaN or infinite, or too large for a float, becomes None."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    check_json_depth(text)
    return json.loads(text, parse_constant=lambda _: None, parse_float=_finite)


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def decode_json_at(text: str, position: int, decoder: json.JSONDecoder = _DECODER) -> tuple[Any, int]:
    """The value that begins at this position of a longer text, and where it ends; raises as `parse_json` does."""
    try:
        value, end = decoder.raw_decode(text, position)
    except RecursionError as error:
        raise NestingError from error
    check_json_depth(text[position:end])
    return value, end


def parse_yaml(text: str, *, is_fast: bool = False) -> Any:
    """As `yaml.safe_load`; raises ValueError for whatever is wrong with the text.

    If `is_fast`, libyaml parses it, which is thirty times as fast and describes mistakes less well.
    """
    import yaml  # noqa: PLC0415 - most processes that parse JSON never parse YAML

    check_yaml_depth(text)
    try:
        return yaml.load(text, Loader=yaml.CSafeLoader if is_fast and yaml.__with_libyaml__ else yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def check_json_depth(text: str) -> None:
    """Raise NestingError where a JSON text has more than `MAX_DEPTH` levels."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    brackets = _NO_BRACKETS.sub("", text)
    if max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0) > MAX_DEPTH:
        raise NestingError


def check_yaml_depth(text: str) -> None:
    """Raise NestingError where a YAML text, its aliases replaced by what they stand for, has too many levels.

    A text that is not YAML passes: the parser reports why.
    """
    # Each list and mapping, also one behind an alias, is written with at least one of these.
    if sum(map(text.count, "[{-?:")) <= MAX_DEPTH and "*" not in text:
        return
    import yaml  # noqa: PLC0415 - as above

    try:
        _check_events(yaml.parse(text, Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader))
    except yaml.YAMLError:
        return


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not come yet."""

    anchor: str | None
    height: int = 1
    size: int = 1

    def add(self, height: int, size: int) -> None:
        self.height = max(self.height, height + 1)
        self.size += size


def _check_events(events: Iterator[Any]) -> None:
    import yaml  # noqa: PLC0415 - as above

    stack = [_Open(None)]
    named: dict[str | None, tuple[int, int]] = {}
    num_copied = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append(_Open(event.anchor))
            # Until its end, whatever refers to it is inside it, and has no end.
            named[event.anchor] = (MAX_DEPTH, 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = stack.pop()
            named[closed.anchor] = (closed.height, closed.size)
            stack[-1].add(closed.height, closed.size)
        elif isinstance(event, yaml.ScalarEvent):
            named[event.anchor] = (0, 1)
            stack[-1].add(0, 1)
        elif isinstance(event, yaml.AliasEvent):
            # An anchor that is not there is an error of the parser's.
            height, size = named.get(event.anchor, (0, 0))
            num_copied += size
            stack[-1].add(height, size)
        if len(stack) + stack[-1].height - 2 > MAX_DEPTH or num_copied > _MAX_COPIED_NODES:
            raise NestingError
