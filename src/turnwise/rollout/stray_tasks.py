"""Tasks that a program starts and never looks at again: their failures are heard here, and not in the next run.

A framework may leave tasks behind that fail after the program has ended, often because the episode was cut short.
Python tells of such a failure when the task is collected, on stderr, in the middle of whatever runs by then. What
became of the episode is on its trajectory already, so that failure is worth a line for whoever debugs, and no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any

log = logging.getLogger(__name__)

_EPISODE: ContextVar[str] = ContextVar("turnwise_episode", default="")
"""The episode that the current task plays; whatever a program starts inherits it."""


def begin_episode(name: str) -> None:
    """From here on tasks that are started in this one are the episode's."""
    _EPISODE.set(name)
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_start)


def _start(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)  # type: ignore[arg-type]
    if _EPISODE.get():
        task.add_done_callback(_hear)
    return task


def _hear(task: asyncio.Task[Any]) -> None:
    """Asking for the exception is what keeps Python from telling it later; whoever awaits the task still gets it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("a task of an episode failed: %s", task.get_name(), exc_info=error)
