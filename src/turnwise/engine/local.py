"""The reference engine: any Hugging Face causal language model, on the CPU or one GPU, in this process.

In: requests, whenever they come. Out: completions, each as soon as it is ready. Requests that arrive while others
decode join the batch at the next token, and a key-value row with a cache key stays for the next turn. It knows nothing
of text, episodes or rewards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from turnwise.config.sections.engine import LocalEngineParams
from turnwise.engine.kv_pool import SlotPool
from turnwise.engine.llama_pass import LlamaPass, fits
from turnwise.engine.sampling import draw_uniforms, sample_tokens
from turnwise.errors import EngineError, SyncError
from turnwise.pretrained import load_model, torch_dtype
from turnwise.sites import EngineSite
from turnwise.types import Completion, FinishReason, GenerateRequest, Metrics, Sampling

_PREFILL_TOKENS = 16_384
"""Most padded tokens in one forward pass; bounds memory without slowing small models down."""
_CACHE_TOLERANCE = 1e-3
_HALF_CACHE_TOLERANCE = 0.05
"""Of the largest logit, where weights are in half precision: rounding is below 1 %, a wrong mask above 15 %."""


@dataclass(slots=True, eq=False)
class _Row:
    """A sequence with a slot in the pool: `ids[:num_cached]` have their keys and values there."""

    slot: int
    ids: list[int] = field(default_factory=list)
    num_cached: int = 0
    is_busy: bool = False
    """Whether a request is running on it."""


@dataclass(slots=True, eq=False)
class _Job:
    request: GenerateRequest
    future: asyncio.Future[Completion]
    uniforms: list[float]
    row: _Row
    policy_version: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling


class LocalEngine:
    """Continuous batching over one model; see the module's text.

    Consumes: requests appended by `generate`. Produces: resolved futures. Waits for: nothing but the event loop, which
    it yields to before each forward pass so that every runnable workflow can hand in its next request first.
    """

    Params = LocalEngineParams

    @classmethod
    def open(cls, settings: Any, site: EngineSite) -> LocalEngine:
        """`engine.type: local`: the model of the site, in this process."""
        model = load_model(site.model_path, torch_dtype(site.dtype))
        engine = cls(model, stop_ids=site.template.stop_ids, max_rows=settings.max_rows)
        engine._policy_version = site.policy_version
        return engine

    def __init__(self, model: PreTrainedModel, *, stop_ids: frozenset[int], max_rows: int = 512) -> None:
        self._model = model.eval()
        self._device = model.device
        self._stop_ids = stop_ids
        self._max_rows = max_rows
        self._policy_version = 0
        self._pending: list[tuple[GenerateRequest, asyncio.Future[Completion]]] = []
        self._active: list[_Job] = []
        self._rows_by_key: dict[str, _Row] = {}
        self._driver: asyncio.Task[None] | None = None
        self._num_updates = 0
        """Callers of `update_weights` that wait for running requests to end."""
        self._pool = self._new_pool()
        self._longest_pooled = _attention_window(model)
        """Behind a window, layers forget and the pool does not; the probe is too short to show it."""
        self._short_pass = LlamaPass(model) if fits(model) else None
        if self._short_pass is not None and not self._is_cache_exact():
            self._short_pass = None
        self.keeps_cache = self._short_pass is not None or self._is_cache_exact()
        """Whether the model works with pooled key-value rows; otherwise every token is a plain forward pass."""

    @property
    def policy_version(self) -> int:
        return self._policy_version

    def state(self) -> Metrics:
        return {
            "running": float(len(self._active)),
            "waiting": float(len(self._pending)),
            "kept_rows": float(len(self._rows_by_key)),
        }

    async def close(self) -> None:
        """Nothing is held that does not go with the object."""

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
            self._pool.release(row.slot)

    def load_weights(self, weights: Mapping[str, Tensor], policy_version: int) -> None:
        """Replace the weights in place. Kept key-value rows belong to the old weights and go."""
        if self._active:
            raise SyncError("weights were replaced while requests were running; wait for them first")
        own = self._model.state_dict()
        unknown, missing = weights.keys() - own.keys(), own.keys() - weights.keys()
        if unknown or missing:
            raise SyncError(
                f"weights do not fit the engine's model: unknown {sorted(unknown)}, missing {sorted(missing)}"
            )
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
        self._rows_by_key.clear()
        self._pool = self._new_pool()
        self._policy_version = policy_version

    async def update_weights(self, weights: Mapping[str, Tensor], policy_version: int) -> None:
        """Replace the weights between requests: running ones end under the old weights, new ones wait meanwhile."""
        self._num_updates += 1
        try:
            while self._active:
                await asyncio.sleep(0)
            self.load_weights(weights, policy_version)
        finally:
            self._num_updates -= 1

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
        self._rows_by_key.clear()
        self._pool = self._new_pool()

    def _admit(self) -> None:
        room = self._max_rows - len(self._active)
        jobs = [self._new_job(request, future) for request, future in self._pending[:room] if not future.cancelled()]
        # Rows of similar length share a pass: less padding.
        jobs.sort(key=lambda job: len(job.row.ids) - job.row.num_cached)
        # Whoever waits is in one of the two lists at any time, so that a failing pass reaches everyone.
        self._active += jobs
        del self._pending[:room]
        for chunk in _chunks_within(jobs, _PREFILL_TOKENS):
            self._advance(chunk)

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

    def _row_for(self, request: GenerateRequest) -> _Row:
        row = self._rows_by_key.get(request.cache_key) if request.cache_key is not None else None
        if row is None:
            row = _Row(self._pool.acquire())
            if request.cache_key is not None:
                self._rows_by_key[request.cache_key] = row
        elif row.is_busy:
            # Another request with this key is running there; this one has a row of its own, which goes with it.
            row = _Row(self._pool.acquire())
        prompt = request.prompt_ids.tolist()
        # At least the last prompt token is computed again: its logits choose the first new token.
        row.num_cached = min(_common_prefix(row.ids[: row.num_cached], prompt), len(prompt) - 1)
        row.ids = prompt
        row.is_busy = True
        return row

    def _advance(self, jobs: Sequence[_Job]) -> None:
        """One forward pass for these rows and one new token for each."""
        # In slot order, rows that lie side by side in the pool are read without a copy.
        jobs = sorted(jobs, key=lambda job: job.row.slot)
        logits = self._next_logits([job.row for job in jobs])
        uniforms = torch.tensor([job.uniforms[len(job.token_ids)] for job in jobs], dtype=torch.float64)
        ids, logprobs = sample_tokens(logits, [job.sampling for job in jobs], uniforms)
        for job, token, logprob in zip(jobs, ids.tolist(), logprobs.tolist(), strict=True):
            job.token_ids.append(token)
            job.logprobs.append(logprob)
            job.row.ids.append(token)
            if token in self._stop_ids:
                self._finish(job, FinishReason.STOP)
            elif len(job.token_ids) == job.sampling.max_new_tokens:
                self._finish(job, FinishReason.LENGTH)

    def _finish(self, job: _Job, reason: FinishReason | None = None) -> None:
        job.row.is_busy = False
        self._active.remove(job)
        if reason is not None and not job.future.done():
            job.future.set_result(
                Completion(
                    token_ids=np.asarray(job.token_ids, dtype=np.int32),
                    behavior_logprobs=np.asarray(job.logprobs, dtype=np.float32),
                    finish_reason=reason,
                    policy_version=job.policy_version,
                )
            )
        is_kept = job.request.cache_key is not None and self._rows_by_key.get(job.request.cache_key) is job.row
        if not is_kept:
            self._pool.release(job.row.slot)

    # --- forward passes ------------------------------------------------------------------------------------------

    def _new_pool(self) -> SlotPool:
        return SlotPool(self._model.config.get_text_config().num_hidden_layers)

    def _next_logits(self, rows: Sequence[_Row]) -> Tensor:
        """[rows, vocabulary] from the pool where it is exact, else from whole sequences."""
        if not self.keeps_cache:
            return self._plain_logits([row.ids for row in rows])
        longest = self._longest_pooled
        is_plain = [longest is not None and len(row.ids) > longest for row in rows]
        if not any(is_plain):
            return self._pooled_logits(rows)
        order = sorted(range(len(rows)), key=lambda i: is_plain[i])
        pooled = [rows[i] for i in order if not is_plain[i]]
        logits = self._plain_logits([rows[i].ids for i in order if is_plain[i]])
        if pooled:
            logits = torch.cat([self._pooled_logits(pooled), logits])
        return logits[torch.tensor(order).argsort()]

    @torch.inference_mode()
    def _pooled_logits(self, rows: Sequence[_Row]) -> Tensor:
        new_ids = [row.ids[row.num_cached :] for row in rows]
        last = torch.tensor([len(ids) - 1 for ids in new_ids])
        starts = torch.tensor([row.num_cached for row in rows])
        input_ids = _pad_right(new_ids)
        positions = starts[:, None] + torch.arange(input_ids.shape[1])[None]
        slots = torch.tensor([row.slot for row in rows])
        plan = self._pool.prepare(slots.to(self._device), positions.to(self._device))
        for row in rows:
            row.num_cached = len(row.ids)
        if self._short_pass is not None:
            return self._short_pass(input_ids.to(self._device), last.to(self._device), self._pool).float().cpu()
        logits = self._model(
            input_ids=input_ids.to(self._device),
            # Padding repeats its row's last position: behind it, the model may have none.
            position_ids=plan.positions.minimum((starts + last)[:, None].to(self._device)),
            attention_mask=plan.attention_mask(),
            past_key_values=self._pool,
            use_cache=True,
            logits_to_keep=0 if input_ids.shape[1] > 1 else 1,
        ).logits
        return logits[torch.arange(len(rows)), last.clamp(max=logits.shape[1] - 1)].float().cpu()

    @torch.inference_mode()
    def _plain_logits(self, sequences: Sequence[list[int]]) -> Tensor:
        """The model's own forward pass over whole sequences, with nothing kept: slow, and right for any model."""
        input_ids = _pad_right(sequences)
        lengths = torch.tensor([len(ids) for ids in sequences])
        mask = torch.arange(input_ids.shape[1])[None] < lengths[:, None]
        logits = self._model(
            input_ids=input_ids.to(self._device), attention_mask=mask.long().to(self._device), use_cache=False
        ).logits
        return logits[torch.arange(len(sequences)), lengths - 1].float().cpu()

    def _is_cache_exact(self) -> bool:
        """Prove on a probe that pooled rows give the model's own logits; sliding windows and recurrences may not."""
        size = min(self._model.config.get_text_config().vocab_size, 1000)
        ids = [int(i) for i in np.random.default_rng(0).integers(0, size, 14)]
        rows = [_Row(self._pool.acquire(), ids[:5]), _Row(self._pool.acquire(), ids[:9])]
        try:
            self._pooled_logits(rows)
            rows[0].ids, rows[1].ids = ids[:7], ids
            pooled = self._pooled_logits(rows)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
            return False
        finally:
            self._pool = self._new_pool()
        plain = self._plain_logits([ids[:7], ids])
        is_half = self._model.dtype.itemsize < 4
        tolerance = _HALF_CACHE_TOLERANCE * float(plain.abs().max()) if is_half else _CACHE_TOLERANCE
        return bool((pooled - plain).abs().max() < tolerance)


def _attention_window(model: PreTrainedModel) -> int | None:
    """The longest sequence in which every layer lets every token see all earlier ones; None: any."""
    config = model.config.get_text_config()
    if set(getattr(config, "layer_types", None) or ()) == {"full_attention"}:
        return None
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min((window for window in windows if window), default=None)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    if a == b[: len(a)]:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _pad_right(sequences: Sequence[list[int]]) -> Tensor:
    width = max(len(ids) for ids in sequences)
    return torch.tensor([ids + [0] * (width - len(ids)) for ids in sequences])


def _chunks_within(jobs: Sequence[_Job], max_tokens: int) -> list[list[_Job]]:
    chunks: list[list[_Job]] = []
    for job in jobs:
        width = len(job.row.ids) - job.row.num_cached
        if chunks and (len(chunks[-1]) + 1) * width <= max_tokens:
            chunks[-1].append(job)
        else:
            chunks.append([job])
    return chunks
