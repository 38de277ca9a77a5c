"""Rows of prompts: without duplicates, and split for good.

In come prompts with or without a reference response; out come two splits that share no prompt. It refuses to know where
the rows were written and who answers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.errors import TaskError
from turnwise.infra.seeds import fingerprint


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt, and an answer to imitate where one is given."""

    prompt: str
    response: str | None = None
    content: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)
    """The whole row, for a reward function; empty where it was a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """All prompts of one source, each in exactly one split, in the order of the source."""

    source: str
    train: tuple[PromptRow, ...]
    eval: tuple[PromptRow, ...]
    num_duplicates: int

    @property
    def has_responses(self) -> bool:
        return all(row.response is not None for row in (*self.train, *self.eval))

    def describe(self) -> str:
        counts = f"{self.source}: {len(self.train)} prompts for training and {len(self.eval)} for evaluation"
        return f"{counts}; {self.num_duplicates} duplicates dropped." if self.num_duplicates else f"{counts}."


def split_rows(rows: Sequence[PromptRow], *, eval_share: float, source: str) -> PromptSet:
    """Every prompt goes where its own hash says, whatever stands beside it; the first of equal prompts stays."""
    unique = list({row.prompt: row for row in reversed(rows)}.values())[::-1]
    if len(unique) < 2:
        raise TaskError(
            f"{source} holds {len(unique)} different prompts; expected at least 2, one for training and one for "
            "evaluation. Add prompts."
        )
    places = {row.prompt: _place(row.prompt) for row in unique}
    # A share may give all prompts of a small file to one split; the prompt nearest to the border then changes sides.
    lowest, highest = min(places.values()), max(places.values())
    border = min(max(eval_share, lowest), highest)
    in_eval = {prompt for prompt, place in places.items() if place < border or place == lowest}
    return PromptSet(
        source=source,
        train=tuple(row for row in unique if row.prompt not in in_eval),
        eval=tuple(row for row in unique if row.prompt in in_eval),
        num_duplicates=len(rows) - len(unique),
    )


def hold_out(rows: Sequence[PromptRow], held_out: Sequence[PromptRow], *, source: str) -> PromptSet:
    """Two sources; a prompt that is in both is held out."""
    for_eval = {row.prompt: row for row in reversed(held_out)}
    for_train = {row.prompt: row for row in reversed(rows) if row.prompt not in for_eval}
    if not for_train:
        raise TaskError(
            f"{source} holds no prompt that env.eval_path does not hold too; expected at least 1. Add prompts."
        )
    return PromptSet(
        source=source,
        train=tuple(for_train.values())[::-1],
        eval=tuple(for_eval.values())[::-1],
        num_duplicates=len(rows) + len(held_out) - len(for_train) - len(for_eval),
    )


def _place(prompt: str) -> float:
    """A number from 0 to 1 that depends on the prompt alone, in every process."""
    return fingerprint(prompt) / 2**64
