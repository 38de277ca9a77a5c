"""Questions about checkpoints are answered by a process of their own, one at a time and within a deadline.

The process loads a model with the first question and holds at most one; it goes when nobody has asked for a while, and
is ended when an answer takes too long. So the page stays small and quick, a model that does not fit hurts nobody, and
a run that trains beside it comes first.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from turnwise.errors import EngineError, ModelError, RunError, TurnwiseError
from turnwise.infra.atomic_files import verify_checksums
from turnwise.types import GenerateRequest, Sampling
from turnwise.view.policy_query import PolicyPrediction, PolicyQuery

_DEADLINE_S = 120.0
"""For an answer, loading included."""
_IDLE_S = 600.0
"""After so long without a question the model goes."""
_MEMORY_SHARE = 0.5
"""Of what is free: more is left to whoever trains here."""


class PolicyProcess:
    """Asks models on disk for a page; for any number of threads."""

    def __init__(self, *, deadline_s: float = _DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._lock = Lock()
        self._door = Lock()
        """For whoever starts or ends the process: it may be ended while a question holds the other lock."""
        self._is_closed = False
        self._pipe: Connection | None = None
        self._process: BaseProcess | None = None

    def ask(self, question: PolicyQuery) -> PolicyPrediction:
        if not self._lock.acquire(timeout=self._deadline_s):
            raise EngineError(f"other questions have kept the model busy for {self._deadline_s:g} seconds. Ask again.")
        try:
            answer = self._exchange(question)
        except (EOFError, OSError) as error:
            self._end()
            raise EngineError(
                "the process that holds the model has died under the question; the machine may be out of memory."
            ) from error
        finally:
            self._lock.release()
        if isinstance(answer, PolicyPrediction):
            return answer
        raise EngineError(str(answer))

    def close(self) -> None:
        """End the process for good: a question that waits for its turn is refused."""
        with self._door:
            self._is_closed = True
        self._end()

    def _end(self) -> None:
        with self._door:
            process, self._process = self._process, None
            pipe, self._pipe = self._pipe, None
        if process is not None:
            # Whoever waits for its answer hears at once that none will come.
            process.kill()
            process.join()
        if pipe is not None:
            pipe.close()

    def _exchange(self, question: PolicyQuery) -> object:
        pipe = self._open_pipe()
        pipe.send(question)
        if not pipe.poll(self._deadline_s):
            self._end()
            raise EngineError(
                f"no answer within {self._deadline_s:g} seconds, loading included: the model is too large for what "
                "this machine has to spare. The question was given up."
            )
        return pipe.recv()

    def _open_pipe(self) -> Connection:
        """To the process, which is started where there is none."""
        process, pipe = self._process, self._pipe
        if process is not None and pipe is not None and process.is_alive():
            return pipe
        self._end()
        with self._door:
            if self._is_closed:
                raise EngineError("the page has been ended, and asks nobody any more.")
            # A fresh interpreter: threads of the server do not survive a fork.
            context = multiprocessing.get_context("spawn")
            pipe, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), name="policy of the page", daemon=True)
            process.start()
            theirs.close()
            self._process, self._pipe = process, pipe
            return pipe


def _serve(pipe: Connection) -> None:
    """The process: one question after the other, until nobody has any."""
    os.nice(5)
    holder = _Holder()
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while pipe.poll(_IDLE_S):
            question = pipe.recv()
            try:
                pipe.send(holder.answer(question))
            except TurnwiseError as error:
                pipe.send(str(error))
            except Exception as error:  # noqa: BLE001 - told to whoever asked; the next question starts afresh
                holder = _Holder()
                pipe.send(f"the model failed: {type(error).__name__}: {error}")


class _Holder:
    """At most one model."""

    def __init__(self) -> None:
        self._key: tuple[Path, str, int] | None = None
        self._engine: Any = None

    def answer(self, question: PolicyQuery) -> PolicyPrediction:
        self._load(question)
        return asyncio.run(self._ask(question))

    async def _ask(self, question: PolicyQuery) -> PolicyPrediction:
        prompt = np.asarray(question.prefix_ids, dtype=np.int32)
        here = Sampling(temperature=question.temperature, max_new_tokens=1)
        greedy = Sampling(temperature=0.0, max_new_tokens=self._room(question))
        told, on = await asyncio.gather(
            self._engine.generate(
                GenerateRequest(prompt_ids=prompt, sampling=here, seed=0, alternatives=question.num_alternatives)
            ),
            self._engine.generate(GenerateRequest(prompt_ids=prompt, sampling=greedy, seed=0)),
        )
        return PolicyPrediction(
            token_ids=tuple(told.alternatives.token_ids[0].tolist()),
            logprobs=tuple(told.alternatives.logprobs[0].tolist()),
            continuation_ids=tuple(on.token_ids.tolist()),
        )

    def _room(self, question: PolicyQuery) -> int:
        """New tokens that still fit behind the prefix; one where none does: the engine then says so."""
        limit = self._engine.max_context_tokens
        left = question.max_new_tokens if limit is None else limit - len(question.prefix_ids)
        return max(1, min(question.max_new_tokens, left))

    def _load(self, question: PolicyQuery) -> None:
        folder = question.folder / "policy"
        # A run that was resumed may have written the same step anew.
        key = (folder, question.dtype, (question.folder / "progress.json").stat().st_mtime_ns if folder.is_dir() else 0)
        if key == self._key:
            return
        self._key = self._engine = None
        if not folder.is_dir():
            raise RunError(f"{folder} is gone: the run has removed this checkpoint. Choose another one.")
        _refuse_large(folder)
        if damage := verify_checksums(question.folder, under="policy/"):
            raise RunError(f"{question.folder} is damaged ({damage}). Choose another checkpoint.")
        self._engine = _open_engine(folder, question.dtype)
        self._key = key


def _refuse_large(folder: Path) -> None:
    from turnwise.checks.plan import free_host_bytes  # noqa: PLC0415 - torch, for this process alone

    size, free = sum(file.stat().st_size for file in folder.glob("*.safetensors")), free_host_bytes()
    if free is not None and size > _MEMORY_SHARE * free:
        raise ModelError(
            f"the model in {folder} takes {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free here; the "
            f"page takes at most {_MEMORY_SHARE:.0%} of that. Open the page on a machine with more memory."
        )


def _open_engine(folder: Path, dtype: str) -> Any:
    import torch  # noqa: PLC0415 - the page itself needs none of it

    from turnwise.context.template import HFChatTemplate  # noqa: PLC0415
    from turnwise.context.tokenizer import load_tokenizer  # noqa: PLC0415
    from turnwise.engine.local import LocalEngine  # noqa: PLC0415
    from turnwise.models.load import load_model, torch_dtype  # noqa: PLC0415

    # Never on a GPU: whoever trains here may have planned with all of its memory.
    model = load_model(folder, torch_dtype(dtype), torch.device("cpu"))
    return LocalEngine(model, stop_ids=HFChatTemplate(load_tokenizer(str(folder))).stop_ids)
