"""Code that a config names, and whether it may be run: looking at a stranger's file must not run what it names.

A config can name classes and functions by their module (`env.type: package.module:Class`), and importing a module runs
it. Inside `block_untrusted_imports` only modules that turnwise ships are imported: any other raises
`UntrustedCodeError`, and its name is kept, so that a report can list what was not checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from turnwise.errors import TurnwiseError

T = TypeVar("T")


class UntrustedCodeError(TurnwiseError):
    """What a config names was not imported or asked, because nobody has said that it may be."""


_unseen: ContextVar[dict[str, None] | None] = ContextVar("unseen", default=None)


@contextmanager
def block_untrusted_imports(*, trusts: bool = False) -> Iterator[dict[str, None]]:
    """The names that were left alone inside, in order; with `trusts` none is."""
    unseen: dict[str, None] = {}
    token = _unseen.set(None if trusts else unseen)
    try:
        yield unseen
    finally:
        _unseen.reset(token)


def until_untrusted(found: Iterable[T]) -> Iterator[T]:
    """What there is to say, until it would take what is not looked at."""
    with suppress(UntrustedCodeError):
        yield from found


def require_trusted(name: str) -> None:
    """Raise where only a look is taken, and remember the name."""
    unseen = _unseen.get()
    if unseen is not None:
        unseen[name] = None
        raise UntrustedCodeError(f"'{name}' was not looked at: that would run it. Read it, then give --trust.")


_LAST_WORDS = frozenset({"password", "passwd", "secret", "credential", "credentials", "apikey"})
_LAST_TWO = frozenset(
    (kind, what) for kind in ("api", "access", "auth", "secret", "private", "hf", "bearer") for what in ("key", "token")
)
_ALONE = frozenset({"token", "auth", "bearer"})
_MIN_LENGTH = 8
"""A shorter value that a variable happens to have says nothing."""


def hide_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """As `${oc.env:NAME}`: the variable that has this value, or one that is named after the setting."""
    hidden = find_secrets(values)

    def hide(value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return {key: hide(inner, f"{path}.{key}" if path else str(key)) for key, inner in value.items()}
        return f"${{oc.env:{hidden[path]}}}" if path in hidden else value

    return {str(key): hide(value, str(key)) for key, value in values.items()}


def find_secrets(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The config path of each secret, and the environment variable that stands for it."""
    found: dict[str, str] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= find_secrets(value, f"{path}.")
        elif isinstance(value, str) and value:
            exported = _find_variable(value)
            if _is_secret(str(key)):
                found[path] = exported or f"TURNWISE_{re.sub(r'[^A-Za-z0-9]+', '_', path).upper()}"
            elif exported is not None and _is_secret(exported):
                found[path] = exported
    return found


def is_hidden(value: object) -> bool:
    return isinstance(value, str) and value.startswith("${oc.env:")


def _find_variable(value: str) -> str | None:
    if len(value) < _MIN_LENGTH:
        return None
    return next((name for name in sorted(os.environ) if os.environ[name] == value), None)


def _is_secret(name: str) -> bool:
    """`api_key` and `HF_TOKEN` are secrets; `api_key_env` names a variable, `eos_token` is one of the model's words."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    if not words:
        return False
    return words[-1] in _LAST_WORDS or tuple(words[-2:]) in _LAST_TWO or (len(words) == 1 and words[0] in _ALONE)
