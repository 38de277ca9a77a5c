"""The reference engine: any Hugging Face causal language model, on the CPU or one GPU, in this process.

In: requests, whenever they come. Out: completions, each as soon as it is ready. Requests that arrive while others
decode join the batch at the next token, and a key-value row with a cache key stays for the next turn. It knows nothing
of text, episodes or rewards.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from turnwise.deps import EngineSite
from turnwise.engine import LocalEngineParams
from turnwise.engine.kv_pool import Row
from turnwise.engine.runner import ModelRunner
from turnwise.engine.sampling import draw_uniforms, sample_tokens, top_logprobs_of
from turnwise.errors import EngineError, SyncError
from turnwise.infra.digests import complete
from turnwise.infra.wait_tracking import waiting
from turnwise.models.load import chosen_device, load_model, torch_dtype
from turnwise.protocols import Weights
from turnwise.types import Alternatives, Completion, FinishReason, GenerateRequest, Metrics, Sampling


@dataclass(slots=True)
class ForwardStats:
    """Sums over all passes so far: of a straight line through their times, nothing else is needed."""

    passes: float = 0.0
    rows: float = 0.0
    rows_squared: float = 0.0
    busy_s: float = 0.0
    busy_row_s: float = 0.0
    """Of the time of each pass, times its rows."""

    def add(self, num_rows: int, seconds: float) -> None:
        self.passes += 1
        self.rows += num_rows
        self.rows_squared += num_rows * num_rows
        self.busy_s += seconds
        self.busy_row_s += seconds * num_rows

    def told(self) -> Metrics:
        return {
            "passes": self.passes,
            "rows": self.rows,
            "rows_squared": self.rows_squared,
            "busy_s": self.busy_s,
            "busy_row_s": self.busy_row_s,
        }


_DRAIN_S = 600.0
"""Longest wait for running requests; each ends by itself, after so many tokens."""


@dataclass(slots=True, eq=False)
class _Job:
    request: GenerateRequest
    future: asyncio.Future[Completion]
    uniforms: list[float]
    row: Row
    policy_version: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[tuple[list[int], list[float]]] = field(default_factory=list)

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling


class LocalEngine:
    """Continuous batching over one model; see the module's text.

    Consumes: requests appended by `generate`. Produces: resolved futures. Waits for: nothing but the event loop, which
    it yields to before each forward pass so that every runnable workflow can hand in its next request first.
    """

    Params = LocalEngineParams
    samples_in_place: ClassVar[bool] = True
    """It takes the model of its site, where there is one, and then needs no copies of its weights."""

    @classmethod
    def open(cls, settings: Any, site: EngineSite) -> LocalEngine:
        """`engine.type: local`: the model of the site, in this process; one that is given is sampled from in place."""
        model = site.model
        if model is None:
            model = load_model(
                site.model_path, torch_dtype(site.dtype), chosen_device(settings.device, "engine.device")
            )
        engine = cls(model, stop_ids=site.template.stop_ids, max_rows=settings.max_rows)
        engine._policy_version = site.policy_version
        return engine

    def __init__(self, model: PreTrainedModel, *, stop_ids: frozenset[int], max_rows: int = 512) -> None:
        self._model = model.eval()
        self._stop_ids = stop_ids
        self._max_rows = max_rows
        self._policy_version = 0
        self._pending: list[tuple[GenerateRequest, asyncio.Future[Completion]]] = []
        self._active: list[_Job] = []
        self._rows_by_key: dict[str, Row] = {}
        self._driver: asyncio.Task[None] | None = None
        self._num_updates = 0
        """Callers of `update_weights` that wait for running requests to end."""
        self._drained: list[asyncio.Future[None]] = []
        """Those who wait until the last running request has ended."""
        self._costs = ForwardStats()
        self._runner = ModelRunner(model)

    @property
    def policy_version(self) -> int:
        return self._policy_version

    def state(self) -> Metrics:
        return {
            "running": float(len(self._active)),
            "waiting": float(len(self._pending)),
            "kept_rows": float(len(self._rows_by_key)),
            "cached_tokens": float(self._runner.num_cached_tokens),
            **self._costs.told(),
        }

    async def close(self) -> None:
        """Nothing is held that does not go with the object."""

    @property
    def keeps_cache(self) -> bool:
        """Whether the model works with pooled keys and values; otherwise every token is a plain forward pass."""
        return self._runner.keeps_cache

    @property
    def max_context_tokens(self) -> int | None:
        return getattr(self._model.config, "max_position_embeddings", None)

    async def generate(self, request: GenerateRequest) -> Completion:
        limit = self.max_context_tokens
        if limit is not None and len(request.prompt_ids) + request.sampling.max_new_tokens > limit:
            raise EngineError(
                f"a prompt of {len(request.prompt_ids)} tokens and {request.sampling.max_new_tokens} new ones do not "
                f"fit into the model's {limit} positions. Lower context.max_tokens or context.max_response_tokens."
            )
        if len(request.prompt_ids) == 0:
            raise EngineError("a request needs at least one prompt token")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._pending.append((request, future))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return await future

    def release(self, cache_key: str) -> None:
        row = self._rows_by_key.pop(cache_key, None)
        if row is not None and not row.is_busy:
            self._runner.forget(row)

    def load_weights(self, weights: Weights | Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Replace the weights in place, one tensor after the other as they come; kept keys and values go.

        Tensors that are the model's own memory are not copied: whoever trains them has changed them already.
        """
        if self._active:
            raise SyncError("weights were replaced while requests were running; wait for them first")
        own = self._model.state_dict()
        if isinstance(weights, Mapping):
            _check_names(cast("Weights", weights).keys(), own.keys())
        pairs = cast("Iterable[tuple[str, Tensor]]", weights.items() if isinstance(weights, Mapping) else weights)
        seen: set[str] = set()
        # From here on nothing that was computed before may be used again, also where the stream breaks off.
        self._rows_by_key.clear()
        self._runner.release_all()
        with torch.no_grad():
            for name, tensor in pairs:
                _check_names({name}, own.keys(), is_whole=False)
                seen.add(name)
                if own[name].data_ptr() != tensor.data_ptr():
                    own[name].copy_(tensor)
        _check_names(seen, own.keys())
        self._policy_version = policy_version

    async def update_weights(self, weights: Weights | Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Replace the weights between requests: running ones end under the old weights, new ones wait meanwhile."""
        self._num_updates += 1
        try:
            await self._drain()
            self.load_weights(weights, policy_version)
        finally:
            self._num_updates -= 1

    def _notify_drained(self) -> None:
        for waiting_one in self._drained:
            if not waiting_one.done():
                waiting_one.set_result(None)
        self._drained.clear()

    async def _drain(self) -> None:
        """Wait until no request is running; none begins meanwhile."""
        if not self._active:
            return
        why = f"{len(self._active)} running requests to end before new weights"
        with waiting("the local engine", why, _DRAIN_S):
            try:
                async with asyncio.timeout(_DRAIN_S):
                    while self._active:
                        self._drained.append(asyncio.get_running_loop().create_future())
                        await self._drained[-1]
            except TimeoutError as error:
                raise SyncError(f"the local engine has waited {_DRAIN_S:g} s for {why}.") from error

    # --- the driver: one forward pass after another while there is work ------------------------------------------

    async def _drive(self) -> None:
        try:
            while self._pending or self._active:
                await self._settle()
                if not self._num_updates:
                    self._admit()
                self._decode()
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it; the loop decides what to do
            self._fail_all(error)

    async def _settle(self) -> None:
        """Let every runnable workflow hand in its next request before the pass, so that they share it."""
        seen = -1
        while len(self._pending) != seen:
            seen = len(self._pending)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _fail_all(self, error: Exception) -> None:
        failure = EngineError(f"the local engine failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        for future in [future for _, future in self._pending] + [job.future for job in self._active]:
            if not future.done():
                future.set_exception(failure)
        self._pending.clear()
        self._active.clear()
        self._notify_drained()
        self._rows_by_key.clear()
        self._runner.release_all()

    def _admit(self) -> None:
        room = self._max_rows - len(self._active)
        jobs = [self._new_job(request, future) for request, future in self._pending[:room] if not future.cancelled()]
        # Whoever waits is in one of the two lists at any time, so that a failing pass reaches everyone.
        self._active += jobs
        del self._pending[:room]
        jobs, twins = self._group_identical_prompts(jobs)
        while jobs:
            # Those whose prompts begin like another's wait for its part of the work.
            is_first = self._runner.rows_to_compute_first([job.row for job in jobs])
            self._advance([job for job, is_now in zip(jobs, is_first, strict=True) if is_now], twins)
            jobs = [job for job, is_now in zip(jobs, is_first, strict=True) if not is_now]

    def _group_identical_prompts(self, jobs: Sequence[_Job]) -> tuple[list[_Job], dict[_Job, list[_Job]]]:
        """Those to compute, and for some of them the others that ask the very same, such as siblings at the start."""
        first: dict[tuple[int, ...], _Job] = {}
        twins: defaultdict[_Job, list[_Job]] = defaultdict(list)
        others = []
        for job in jobs:
            known = first.setdefault(tuple(job.row.ids), job) if self._runner.can_copy(job.row) else job
            if known is job:
                others.append(job)
            else:
                twins[known].append(job)
        return others, twins

    def _decode(self) -> None:
        jobs = [job for job in self._active if not job.future.cancelled()]
        for job in set(self._active) - set(jobs):
            self._finish(job)
        if jobs:
            self._advance(jobs)

    def _new_job(self, request: GenerateRequest, future: asyncio.Future[Completion]) -> _Job:
        row = self._row_for(request)
        uniforms = draw_uniforms(request.seed, request.sampling.max_new_tokens)
        return _Job(request, future, uniforms, row, self._policy_version)

    def _row_for(self, request: GenerateRequest) -> Row:
        row = self._rows_by_key.get(request.cache_key) if request.cache_key is not None else None
        if row is None:
            row = Row()
            if request.cache_key is not None:
                self._rows_by_key[request.cache_key] = row
        elif row.is_busy:
            # Another request with this key is running there; this one has a row of its own, which goes with it.
            row = Row()
        self._runner.continue_with(row, request.prompt_ids.tolist())
        row.is_busy = True
        return row

    def _advance(self, jobs: Sequence[_Job], twins: Mapping[_Job, Sequence[_Job]] = MappingProxyType({})) -> None:
        """One new token for each of these rows, and for their twins, which look the same up to here."""
        started_s = time.perf_counter()
        logits = self._runner.next_logits([job.row for job in jobs])
        owners = [number for number, job in enumerate(jobs) for _ in twins.get(job, ())]
        if owners:
            copies = [twin for job in jobs for twin in twins.get(job, ())]
            self._runner.copy_rows([jobs[number].row for number in owners], [twin.row for twin in copies])
            logits = torch.cat([logits, logits[torch.tensor(owners, device=logits.device)]])
            jobs = [*jobs, *copies]
        uniforms = torch.tensor([job.uniforms[len(job.token_ids)] for job in jobs], dtype=torch.float64)
        ids, logprobs = sample_tokens(logits, [job.sampling for job in jobs], uniforms)
        # By lists: on a GPU it is here that the numbers are waited for.
        ids, logprobs = ids.tolist(), logprobs.tolist()
        others = top_logprobs_of(logits, [job.sampling for job in jobs], [job.request.alternatives for job in jobs])
        self._costs.add(len(jobs), time.perf_counter() - started_s)
        if not all(map(math.isfinite, logprobs)):
            raise EngineError(
                "the model's probabilities are not finite, so nothing can be sampled from it. Its weights are broken: "
                "look at learn/grad_norm in metrics.jsonl, or give another model.path."
            )
        for number, told in others.items():
            jobs[number].alternatives.append(told)
        for job, token, logprob in zip(jobs, ids, logprobs, strict=True):
            job.token_ids.append(token)
            job.logprobs.append(logprob)
            job.row.ids.append(token)
            hear = job.request.on_token
            if token in self._stop_ids or (hear is not None and hear(token)):
                self._finish(job, FinishReason.STOP)
            elif len(job.token_ids) == job.sampling.max_new_tokens:
                self._finish(job, FinishReason.LENGTH)

    def _finish(self, job: _Job, reason: FinishReason | None = None) -> None:
        job.row.is_busy = False
        self._active.remove(job)
        if not self._active:
            self._notify_drained()
        if reason is not None and not job.future.done():
            sampled = np.asarray(job.token_ids, dtype=np.int32), np.asarray(job.logprobs, dtype=np.float32)
            job.future.set_result(
                complete(
                    "local",
                    job.request,
                    *sampled,
                    reason,
                    policy_version=job.policy_version,
                    alternatives=Alternatives.of(job.alternatives) if job.request.alternatives else None,
                )
            )
        is_kept = job.request.cache_key is not None and self._rows_by_key.get(job.request.cache_key) is job.row
        if not is_kept:
            self._runner.forget(job.row)


def _check_names(given: Set[str], own: Set[str], *, is_whole: bool = True) -> None:
    unknown, missing = given - own, own - given if is_whole else set[str]()
    if unknown or missing:
        raise SyncError(f"weights do not fit the engine's model: unknown {sorted(unknown)}, missing {sorted(missing)}")
