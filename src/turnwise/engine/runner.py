"""One model and its paged keys and values: rows of tokens in, the logits behind their last tokens out.

Rows that begin alike are computed once, long ones in pieces, and nothing that is made grows with the square of a row's
length. A model for which paged keys and values are not exact is run without them. It knows nothing of requests or
sampling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from turnwise.engine.kv_pool import BLOCK_TOKENS, BlockPool, Row, common_prefix, pad_right
from turnwise.engine.llama_forward import LlamaPass, fits

_PASS_TOKENS = 8_192
"""Most padded new tokens in one forward pass; bounds memory without slowing small models down."""
_PASS_SIGHT = 1 << 22
"""Most pairs of new token and key in a pass that looks back, per head: 16 MB of scores or of a mask."""
_PASS_KEYS = 1 << 18
"""Most padded keys of all rows in a pass that looks back: where they are gathered, a copy of one layer's is made."""
_CACHE_TOLERANCE = 1e-3
_HALF_CACHE_TOLERANCE = 0.05
"""Of the largest logit, where weights are in half precision: rounding is below 1 %, a wrong mask above 15 %."""
_KEPT_BLOCKS = 64
"""A pool of so many is kept while nobody holds any."""
_REFUSALS = (TypeError, ValueError, RuntimeError, AttributeError, IndexError)
"""What a model raises that cannot work with the pool."""


class ModelRunner:
    """Runs forward passes; see the module's text."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = model.device
        self._pool = self._new_pool()
        self._longest_pooled = _attention_window(model)
        """Behind a window, layers forget and the pool does not; the probe is too short to show it."""
        self._short_pass = LlamaPass(model) if fits(model) else None
        if self._short_pass is not None and not self._is_cache_exact():
            self._short_pass = None
        self.keeps_cache = self._short_pass is not None or self._is_cache_exact()

    @property
    def num_cached_tokens(self) -> int:
        """Room for so many tokens is held by rows, blocks that they share counted once."""
        return self._pool.num_held * BLOCK_TOKENS

    def continue_with(self, row: Row, ids: list[int]) -> None:
        """Give a row its next tokens; of what it has cached, what they begin with stays."""
        self._pool.cut(row, common_prefix(row.ids[: row.num_cached], ids))
        row.ids = ids

    def forget(self, row: Row) -> None:
        self._pool.cut(row, 0)
        # A rollout has ended: an update, or another rollout, can use the memory.
        if self._pool.num_held == 0 and self._pool.num_blocks > _KEPT_BLOCKS:
            self.release_all()

    def release_all(self) -> None:
        """Nothing that was computed will be asked for: rows that were there are nobody's."""
        self._pool.let_go()
        self._pool = self._new_pool()

    def can_copy(self, row: Row) -> bool:
        """Whether a row could stand for others with the same tokens, or be a copy of one: nothing of it is computed."""
        return row.num_cached == 0 and self._is_pooled(row)

    def copy_rows(self, rows: Sequence[Row], copies: Sequence[Row]) -> None:
        """Give rows of which nothing is computed what is computed of others with the same tokens."""
        self._pool.copy(rows, copies)

    def rows_to_compute_first(self, rows: Sequence[Row]) -> list[bool]:
        """Which rows to compute now; the others begin with a block that one of these computes, and find it then."""
        claimed: set[object] = set()
        is_first = []
        for row in rows:
            key = None
            if self._is_pooled(row):
                self._pool.adopt(row)
                key = self._pool.next_key(row)
            is_first.append(key is None or key not in claimed)
            claimed.add(key)
        return is_first

    def next_logits(self, rows: Sequence[Row]) -> Tensor:
        """[rows, vocabulary] from the pool where it is exact, else from whole sequences."""
        pooled = [i for i, row in enumerate(rows) if self._is_pooled(row)]
        for i in pooled:
            self._compute_beginning(rows[i])
        lots = _lots(pooled, rows)
        logits = [self._pooled_logits([rows[i] for i in lot]) for lot in lots]
        plain = [] if len(pooled) == len(rows) else [i for i, row in enumerate(rows) if not self._is_pooled(row)]
        if plain:
            logits.append(self._plain_logits([rows[i].ids for i in plain]))
        order = [i for lot in lots for i in lot] + plain
        table = logits[0] if len(logits) == 1 else torch.cat(logits)
        if order == list(range(len(rows))):
            return table
        return table[torch.tensor(order, device=table.device).argsort()]

    def _is_pooled(self, row: Row) -> bool:
        return self.keeps_cache and (self._longest_pooled is None or len(row.ids) <= self._longest_pooled)

    def _compute_beginning(self, row: Row) -> None:
        """All of a long row but a last piece that fits into one pass."""
        if row.num_new <= BLOCK_TOKENS:
            return
        if row.num_new > _piece(row):
            self._pool.make_room(-(-len(row.ids) // BLOCK_TOKENS) - len(row.blocks))
        while row.num_new > (limit := _piece(row)):
            self._pooled_logits([row], [row.start + limit])

    @torch.inference_mode()
    def _pooled_logits(self, rows: Sequence[Row], ends: Sequence[int] | None = None) -> Tensor:
        """One forward pass over each row's new tokens up to its end."""
        ends = [len(row.ids) for row in rows] if ends is None else ends
        input_ids = pad_right([row.ids[row.start : end] for row, end in zip(rows, ends, strict=True)]).to(self._device)
        self._pool.prepare(rows, ends, self._device)
        logits = self._own_pass(input_ids) if self._short_pass is None else self._short_pass(input_ids, self._pool)
        self._pool.advance(rows, ends)
        return logits

    def _own_pass(self, input_ids: Tensor) -> Tensor:
        """The model's own forward pass over the pool."""
        plan = self._pool.plan
        # From the start on, full attention needs no mask but the order, which takes no memory.
        is_plain = plan.is_from_start and self._longest_pooled is None
        with _last_alone(self._model, plan.last):
            logits = self._model(
                input_ids=input_ids,
                position_ids=plan.positions,
                attention_mask=None if is_plain else plan.attention_mask(),
                past_key_values=self._pool,
                use_cache=True,
            ).logits
        return logits[:, 0]

    @torch.inference_mode()
    def _plain_logits(self, sequences: Sequence[list[int]]) -> Tensor:
        """The model's own forward pass over whole sequences, with nothing kept: slow, and right for any model."""
        input_ids = pad_right(sequences).to(self._device)
        lengths = torch.tensor([len(ids) for ids in sequences], device=self._device)
        mask = torch.arange(input_ids.shape[1], device=self._device)[None] < lengths[:, None]
        with _last_alone(self._model, lengths - 1):
            logits = self._model(input_ids=input_ids, attention_mask=mask.long(), use_cache=False).logits
        return logits[:, 0]

    def _new_pool(self) -> BlockPool:
        return BlockPool(self._model.config.get_text_config().num_hidden_layers)

    # --- the proof -----------------------------------------------------------------------------------------------

    def _is_cache_exact(self) -> bool:
        """Prove on probes that pooled rows give the model's own logits; sliding windows and recurrences may not."""
        config = self._model.config.get_text_config()
        ids = np.random.default_rng(0).integers(0, min(config.vocab_size, 1000), 3 * BLOCK_TOKENS).tolist()
        longest = getattr(config, "max_position_embeddings", None) or len(ids)
        probes = [[(5, 9), (7, 14)]]
        if self._longest_pooled is None and longest >= len(ids) - 6:
            # Pieces of more than a block, and rows of several.
            probes.append([(5, 9), (40, 80), (45, 90)])
        return all(self._is_probe_exact(ids, lengths) for lengths in probes)

    def _is_probe_exact(self, ids: list[int], lengths: list[tuple[int, int]]) -> bool:
        rows = [Row(), Row()]
        pooled = None
        try:
            for ends in lengths:
                for row, end in zip(rows, ends, strict=True):
                    row.ids = ids[:end]
                pooled = self._pooled_logits(rows)
        except _REFUSALS:
            return False
        finally:
            self._pool = self._new_pool()
        assert pooled is not None
        plain = self._plain_logits([row.ids for row in rows]).float()
        is_half = self._model.dtype.itemsize < 4
        tolerance = _HALF_CACHE_TOLERANCE * float(plain.abs().max()) if is_half else _CACHE_TOLERANCE
        return bool((pooled.float() - plain).abs().max() < tolerance)


@contextmanager
def _last_alone(model: PreTrainedModel, last: Tensor) -> Iterator[None]:
    """Inside, the model's output layer sees each row's last token alone: no table of all tokens' logits is made."""
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Module)

    def keep_last(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (hidden,) = given
        return (hidden[torch.arange(len(hidden), device=hidden.device), last][:, None],)

    hook = head.register_forward_pre_hook(keep_last)
    try:
        yield
    finally:
        hook.remove()


def _attention_window(model: PreTrainedModel) -> int | None:
    """The longest sequence in which every layer lets every token see all earlier ones; None: any."""
    config = model.config.get_text_config()
    if set(getattr(config, "layer_types", None) or ()) == {"full_attention"}:
        return None
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min((window for window in windows if window), default=None)


def _piece(row: Row) -> int:
    """How many new tokens of a row fit into one pass."""
    if row.start == 0:
        return _PASS_TOKENS
    return min(_PASS_TOKENS, max(BLOCK_TOKENS, _PASS_SIGHT // len(row.ids)))


def _lots(numbers: Sequence[int], rows: Sequence[Row]) -> list[list[int]]:
    """Rows of about the same length in one pass, as many as fit; those that look back apart from those that do not."""
    if not numbers:
        return []
    shapes = {i: (rows[i].num_cached > 0, rows[i].num_new, len(rows[i].ids)) for i in numbers}
    kinds, widths, lengths = zip(*shapes.values(), strict=True)
    if len(set(kinds)) == 1 and max(widths) == min(widths) and _fits(len(numbers), kinds[0], widths[0], max(lengths)):
        return [list(numbers)]
    lots: list[list[int]] = []
    num_keys = 0
    for i in sorted(numbers, key=shapes.__getitem__):
        looks_back, width, length = shapes[i]
        num_keys = max(num_keys, length)
        if lots and shapes[lots[-1][0]][0] == looks_back and _fits(len(lots[-1]) + 1, looks_back, width, num_keys):
            lots[-1].append(i)
        else:
            lots.append([i])
            num_keys = length
    return lots


def _fits(num_rows: int, looks_back: bool, width: int, num_keys: int) -> bool:
    """Whether so many rows, padded to this width, go into one pass."""
    size = num_rows * width
    is_in_sight = not looks_back or (size * num_keys <= _PASS_SIGHT and num_rows * num_keys <= _PASS_KEYS)
    return size <= _PASS_TOKENS and is_in_sight
