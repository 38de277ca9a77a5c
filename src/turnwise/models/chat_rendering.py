"""Render chat templates within limits on memory and time.

A chat template is a program that comes with a model. transformers runs it in Jinja's sandbox, which bounds neither the
texts that it builds nor its loops: `{{ 'a' * 10**10 }}` takes all memory. Here each operation of a template that makes
something is checked before and counted after. What an ordinary template writes stays the same.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any

from jinja2 import Environment, Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

_MAX_SOURCE = 1_000_000
_MAX_SIZE = 20_000_000
"""Characters or items that one operation may make, and all operations of one conversation together."""
_MIN_COST = 50
"""Of each operation, in characters: what makes little still takes time."""
_MAX_CPU_S = 3.0
"""For one conversation, which takes milliseconds. Time of the thread, which does not pass while a machine is busy."""
_WIDTH = re.compile(r"\d{5,}")
_SHALLOW = frozenset(
    {
        "length", "count", "first", "last", "list", "selectattr", "rejectattr", "select", "reject", "default", "d",
        "items", "reverse", "attr", "map", "sort", "dictsort", "unique", "groupby", "min", "max",
    }
)  # fmt: skip
"""Filters that take a list as it is; all others may write it out."""


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[Mapping[str, object]],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    chat_template: str | None = None,
    add_generation_prompt: bool = False,
) -> str:
    """The text of a conversation. Raises what the template raises, and SecurityError beyond the limits."""
    token = _budget.set(_Budget())
    try:
        text = tokenizer.apply_chat_template(
            turns,  # type: ignore[arg-type]
            tools=tools,  # type: ignore[arg-type]
            chat_template=chat_template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
    finally:
        _budget.reset(token)
    return str(text)


class _Budget:
    """What one conversation may still take."""

    def __init__(self) -> None:
        self._left = _MAX_SIZE
        self._end_s = time.thread_time() + _MAX_CPU_S

    def spend(self, size: int) -> None:
        self._left -= size + _MIN_COST
        if self._left < 0 or time.thread_time() > self._end_s:
            raise _too_much()


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)


def _spend(size: int) -> None:
    if (budget := _budget.get()) is not None:
        budget.spend(size)


def _too_much() -> SecurityError:
    return SecurityError(f"it makes more than {_MAX_SIZE:,} characters, or takes too long")


def _measure(value: object) -> int:
    """Characters that a value has when it is written out, about; no more of them are counted than there may be."""
    size, waiting = 0, [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Mapping):
            waiting += [*found.keys(), *found.values()]
            size += 2 * len(found)
        elif isinstance(found, list | tuple | set | frozenset):
            waiting += found
            size += 2 * len(found)
        else:
            size += _length(found)
        if size > _MAX_SIZE:
            raise _too_much()
    return size


def _length(value: object) -> int:
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    return len(value) if isinstance(value, str | bytes | Sequence | Mapping) else 1


def _check(values: Iterable[object], measure: Callable[[object], int] = _length) -> None:
    """What an operation makes of these is at most about their product: a width, a count, a text put in everywhere."""
    sizes = [value if isinstance(value, int) else measure(value) for value in values]
    if math.prod(max(abs(size), 1) for size in sizes) > _MAX_SIZE:
        raise _too_much()


def _check_format(form: object) -> None:
    if isinstance(form, str) and _WIDTH.search(form):
        raise _too_much()


def _at_hand(value: object) -> object:
    """What is made while it is read has no length before."""
    return list(_counted(value)) if isinstance(value, Iterator) else value


def _counted(values: Iterable[Any], cost: int = 0) -> Iterator[Any]:
    for value in values:
        _spend(cost)
        yield value


def _bounded_filter(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    is_shallow = name in _SHALLOW

    @wraps(apply)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        given = args if is_shallow else tuple(map(_at_hand, args))
        # To some filters Jinja passes its own state first.
        values = [value for value in given if not isinstance(value, Context | EvalContext | Environment)]
        _check([*values, *kwargs.values()], _length if is_shallow else _measure)
        if name == "format":
            _check_format(values[0])
        made = apply(*given, **kwargs)
        _spend(_length(made))
        return made

    return bounded


class _BoundedCode(CodeGenerator):
    """Code that counts what Jinja's sandbox does not ask about: loops, slices, `~`."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        if node.recursive:
            self.fail("recursive loops are not supported in chat templates", node.lineno)
        constant = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        count = nodes.EnvironmentAttribute("counted")
        node.iter = nodes.Call(count, [node.iter, nodes.Const(constant)], [], None, None).set_lineno(node.lineno)
        super().visit_For(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self.write("environment.spent(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    code_generator_class = _BoundedCode
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            # A float may be as large as it likes.
            _check([_length(left) * abs(right) if isinstance(left, int) and isinstance(right, int) else 1])
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
            values = right.values() if isinstance(right, Mapping) else right if isinstance(right, tuple) else (right,)
            _check([left, *values], _measure)
        elif operator == "*":
            is_number = isinstance(left, int) and isinstance(right, int)
            _check([_length(left), _length(right)] if is_number else [left, right])
        made = super().call_binop(context, operator, left, right)
        _spend(_length(made))
        return made

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        # Jinja wraps `str.format`.
        method = getattr(obj, "__wrapped__", obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes):
            given = tuple(map(_at_hand, args))
            _check([owner, *given, *kwargs.values()], _measure)
            if method.__name__ in ("format", "format_map"):
                _check_format(owner)
        else:
            given = args
            _check(value for value in [*args, *kwargs.values()] if isinstance(value, int))
        made = super().call(context, obj, *given, **kwargs)
        _spend(_length(made))
        return made

    @staticmethod
    def counted(values: Any, cost: int) -> Iterator[Any]:
        return _counted(values, cost)

    @staticmethod
    def spent(value: Any) -> Any:
        _spend(_length(value))
        return value

    @staticmethod
    def joined(parts: tuple[Any, ...]) -> str:
        _spend(sum(map(_measure, parts)))
        return "".join(map(str, parts))

    @staticmethod
    def written(value: Any) -> Any:
        _spend(_measure(value))
        return value


@lru_cache(maxsize=64)
def _compile(source: str) -> Template:
    """As transformers compiles it, with its filters and functions."""
    if len(source) > _MAX_SOURCE:
        raise SecurityError(f"it has {len(source):,} characters; expected at most {_MAX_SOURCE:,}")
    theirs = chat_template_utils._cached_compile_jinja_template("").environment
    env = _BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[type(part) for part in theirs.extensions.values()]
    )
    env.filters = {name: _bounded_filter(name, apply) for name, apply in theirs.filters.items()}
    env.globals = dict(theirs.globals)
    env.finalize = env.written
    return env.from_string(source)


# Whatever renders a tokenizer's template in this process goes through this function of transformers.
chat_template_utils._compile_jinja_template = _compile
