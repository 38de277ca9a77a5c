"""Inside the process of a rank: calls in from the pipe, answers out, output into a log, an end with the parent's."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch.multiprocessing as torch_multiprocessing

from turnwise import errors
from turnwise.config.schema_learn import LearnSettings, OneProcess
from turnwise.errors import LearnError, TurnwiseError
from turnwise.infra.wait_tracking import waiting
from turnwise.learn.parallel_context import rank_devices, threads_per_rank
from turnwise.learn.workers import Note, RankPlace, ReceivedWeights
from turnwise.protocols import Weights


def serve(pipe: Connection, place: RankPlace, log: Path) -> None:
    """Meet the other ranks, then answer calls until the other side is gone."""
    # Ctrl-C is for the parent, which ends its ranks itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _write_into(log)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        from turnwise.learn.workers import Rank  # noqa: PLC0415 - what it prints on the way belongs into the log

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


_GRACE_S = 10.0
"""After the failure of one rank, the others have this long to say that they failed alike; also to end when asked."""


def start_processes(settings: LearnSettings, *, run_path: Path | None) -> RankProcesses:
    """One process per rank; returns when all have met. Logs lie in the run directory where there is one."""
    parallel = settings.parallel
    assert not isinstance(parallel, OneProcess)
    meeting = Path(tempfile.mkdtemp(prefix="turnwise-ranks-"))
    logs = meeting if run_path is None else run_path / "ranks"
    logs.mkdir(parents=True, exist_ok=True)
    places = [
        RankPlace(
            rank=rank,
            size=parallel.ranks,
            rendezvous=f"file://{meeting}/meeting",
            device=device,
            num_threads=settings.num_threads or threads_per_rank(parallel.ranks),
            timeout_s=parallel.timeout_s,
        )
        for rank, device in enumerate(rank_devices(settings.device, parallel.ranks))
    ]
    return RankProcesses(places, meeting=meeting, logs=logs, timeout_s=parallel.timeout_s)


@dataclass(slots=True)
class _Started:
    """A rank as this process sees it."""

    rank: int
    process: BaseProcess
    pipe: Connection
    log: Path


@dataclass(frozen=True, slots=True)
class _Failure:
    rank: int
    error: TurnwiseError
    is_own: bool
    """Whether turnwise raised it, in words that need no more."""


class RankProcesses:
    """`hosts.RankHosts` on this machine."""

    def __init__(self, places: Sequence[RankPlace], *, meeting: Path, logs: Path, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._is_stopped = False
        self._one_call = threading.Lock()
        """All ranks receive calls in one order."""
        context = torch_multiprocessing.get_context("spawn")
        self._ranks: list[_Started] = []
        # Also where nobody stops them: at the end of this object, and at that of the interpreter.
        self._end = weakref.finalize(self, _end_all, self._ranks, meeting)
        for place in places:
            ours, theirs = context.Pipe()
            log = logs / f"rank-{place.rank}.log"
            process = context.Process(target=serve, args=(theirs, place, log), name=f"rank {place.rank}", daemon=True)
            process.start()
            theirs.close()
            self._ranks.append(_Started(place.rank, process, ours, log))
        with waiting("the learner", "its ranks to start", self._timeout_s):
            self._collect("start", None)

    def call(self, method: str, *arguments: Any, on_note: Note | None = None) -> Any:
        words = ForkingPickler.dumps((method, arguments))
        with self._one_call:
            if self._is_stopped:
                raise LearnError(f"the ranks of learn.parallel have ended; '{method}' cannot be asked of them.")
            for started in self._ranks:
                try:
                    started.pipe.send_bytes(words)
                except OSError:
                    raise self._fail(self._died(started, method)) from None
            try:
                with waiting("the learner", f"its ranks to answer '{method}'", self._timeout_s):
                    return self._collect(method, on_note)
            except TurnwiseError:
                raise
            except BaseException:
                # Half a call: its answers would be taken for those of the next.
                self._kill()
                raise

    def weights(self) -> Weights:
        """Sent here, tensor by tensor."""
        received = ReceivedWeights()
        self.call("weights", on_note=received.hear)
        return received

    def stop(self) -> None:
        self._is_stopped = True
        self._end()

    # --- answers -------------------------------------------------------------------------------------------------

    def _collect(self, method: str, on_note: Note | None) -> Any:
        """What the first rank answers; raises when one fails, dies, or says nothing for too long."""
        deadline_s = time.monotonic() + self._timeout_s
        silent = {started.rank: started for started in self._ranks}
        failures: list[_Failure] = []
        result: Any = None
        while silent:
            ready = self._wait(list(silent.values()), deadline_s)
            if not ready:
                raise self._fail(failures[0].error if failures else self._silent(list(silent.values()), method))
            for started in ready:
                try:
                    kind, told = started.pipe.recv()
                except (EOFError, OSError):
                    raise self._fail(self._died(started, method)) from None
                if kind == "note":
                    if on_note is not None:
                        on_note(*told)
                    continue
                del silent[started.rank]
                if kind == "error":
                    failures.append(self._read_failure(started, method, *told))
                    deadline_s = min(deadline_s, time.monotonic() + _GRACE_S)
                elif started.rank == 0:
                    result = told
        if failures:
            # Ranks that all failed in words of turnwise are as they were; others may hold half an update.
            is_alike = len(failures) == len(self._ranks) and all(failure.is_own for failure in failures)
            raise failures[0].error if is_alike else self._fail(failures[0].error)
        return result

    @staticmethod
    def _wait(waiting: list[_Started], deadline_s: float) -> list[_Started]:
        """Those that have something to say, or are gone."""
        left_s = max(deadline_s - time.monotonic(), 0.0)
        ready = wait([started.pipe for started in waiting] + [s.process.sentinel for s in waiting], timeout=left_s)
        # One that is gone may have spoken before.
        return [started for started in waiting if started.pipe in ready or started.process.sentinel in ready]

    def _read_failure(self, started: _Started, method: str, kind: str, message: str) -> _Failure:
        own: Any = getattr(errors, kind, None)
        if isinstance(own, type) and issubclass(own, TurnwiseError):
            return _Failure(started.rank, own(message), is_own=True)
        return _Failure(started.rank, self._error(started, f"failed in '{method}': {kind}: {message}"), is_own=False)

    def _died(self, started: _Started, method: str) -> LearnError:
        started.process.join(_GRACE_S)
        code = started.process.exitcode
        cause = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return self._error(started, f"ended with {cause} in '{method}'")

    def _silent(self, waiting: list[_Started], method: str) -> LearnError:
        who = ", ".join(str(started.rank) for started in waiting)
        why = f"gave no answer to '{method}' within learn.parallel.timeout_s = {self._timeout_s:g} (waiting for: {who})"
        return self._error(waiting[0], why)

    def _error(self, started: _Started, what: str) -> LearnError:
        return LearnError(
            f"rank {started.rank} of {len(self._ranks)} {what}. All ranks were stopped; go on from the last checkpoint "
            f"with --resume. Its log: {started.log}{_last_line(started.log)}"
        )

    def _fail(self, error: TurnwiseError) -> TurnwiseError:
        self._kill()
        return error

    def _kill(self) -> None:
        for started in self._ranks:
            started.process.kill()
        self.stop()


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f" (its last line: {lines[-1][:300]})" if lines else ""


def _end_all(ranks: Sequence[_Started], meeting: Path) -> None:
    """Hang up, so that ranks end by themselves; those that still compute are killed."""
    for started in ranks:
        started.pipe.close()
    deadline_s = time.monotonic() + _GRACE_S
    for started in ranks:
        started.process.join(max(deadline_s - time.monotonic(), 0.0))
        if started.process.is_alive():
            started.process.kill()
            # What the system does not let go of for some reason holds up nobody else.
            started.process.join(_GRACE_S)
    shutil.rmtree(meeting, ignore_errors=True)
