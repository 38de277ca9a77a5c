"""Inside the process of a rank: calls in from the pipe, answers out, output into a log, an end with the parent's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from turnwise.errors import TurnwiseError
from turnwise.learn.parallel.hosts import RankPlace


def serve(pipe: Connection, place: RankPlace, log: Path) -> None:
    """Meet the other ranks, then answer calls until the other side is gone."""
    # Ctrl-C is for the parent, which ends its ranks itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _write_into(log)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        from turnwise.learn.parallel.rank import Rank  # noqa: PLC0415 - what it prints on the way belongs into the log

        rank = Rank(place)
        pipe.send(("done", None))
    except Exception as error:  # noqa: BLE001 - the boundary: the parent decides what a failure means
        pipe.send(("error", _told(error)))
        return
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError):
            break
        pipe.send(_answer(rank, method, arguments, pipe))
    rank.leave()


def _answer(rank: Any, method: str, arguments: tuple[Any, ...], pipe: Connection) -> tuple[str, Any]:
    try:
        return "done", rank.call(method, arguments, lambda *told: pipe.send(("note", told)))
    except Exception as error:  # noqa: BLE001 - the boundary: the parent decides what a failure means
        return "error", _told(error)


def _told(error: Exception) -> tuple[str, str]:
    """A failure of turnwise's own speaks for itself; of any other the log has the whole story."""
    if not isinstance(error, TurnwiseError):
        traceback.print_exc()
    return type(error).__name__, str(error)


def _write_into(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file, stream.fileno())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    # A rank in the middle of a pass waits for others that end as well.
    os._exit(1)
