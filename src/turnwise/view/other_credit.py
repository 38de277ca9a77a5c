"""The tokens of an update come in; the credit that every rule would have given them goes out.

The rule of the run is taken from the record and not computed again. Every other registered rule has its default
settings, and is left out with its reason where it needs what the run did not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from turnwise.config.component import CREDITS
from turnwise.report.token_log_reader import StepTokens
from turnwise.types import Annotations, Experience, FloatArray, Sample
from turnwise.view.tokens import plain, tokens_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCredit:
    """[tokens] the advantages of a whole update under each rule, and why some rules have none."""

    trained_with: str
    advantages: Mapping[str, FloatArray]
    left_out: Mapping[str, str]


def compute_credit(tokens: StepTokens, trained_with: str) -> StepCredit:
    """Under every rule; over what is on record of the update."""
    experiences, annotations = tokens.experiences(), tokens.annotations()
    advantages: dict[str, FloatArray] = {}
    left_out: dict[str, str] = {}
    for name in CREDITS:
        if name == trained_with:
            continue
        rule = cast(Any, CREDITS.get_target(name))
        if why := _missing(rule, tokens):
            left_out[name] = why
            continue
        try:
            advantages[name] = _apply(rule, experiences, annotations)
        except Exception as error:  # noqa: BLE001 - a user's rule may raise whatever it likes, and the others count
            left_out[name] = f"{type(error).__name__}: {error}"
    return StepCredit(
        trained_with=trained_with, advantages={trained_with: tokens.batch.advantages, **advantages}, left_out=left_out
    )


def describe_credit(credit: StepCredit, tokens: StepTokens, trajectory: str) -> dict[str, Any] | None:
    """Of one trajectory; None where it is not on record."""
    where = tokens_of(tokens, trajectory)
    if where is None:
        return None
    return {
        "trained_with": credit.trained_with,
        "is_complete": tokens.is_complete,
        "rules": {name: plain(values[where]) for name, values in credit.advantages.items()},
        "left_out": dict(credit.left_out),
    }


def _missing(rule: object, tokens: StepTokens) -> str:
    if getattr(rule, "needs_values", False) and not tokens.has_values:
        return "it needs a critic, and this run had none"
    if getattr(rule, "needs_groups", False) and not _has_siblings(tokens):
        return "it compares siblings, and this run played every task once"
    if getattr(rule, "needs_greedy", False) and np.isnan(tokens.rows.greedy_returns).any():
        return "it needs a greedy play of every task, and this run made none"
    return ""


def _has_siblings(tokens: StepTokens) -> bool:
    groups = [trajectory.group for trajectory in tokens.rows.trajectory_ids]
    return len(set(groups)) < len(groups)


def _apply(rule: Any, experiences: Sequence[Experience], annotations: Annotations) -> FloatArray:
    params = getattr(rule, "Params", None)
    samples: list[Sample] = rule(params() if params is not None else None)(experiences, annotations)
    of_experience = {sample.experience.id: sample.advantages for sample in samples}
    return np.concatenate([of_experience[experience.id] for experience in experiences]).astype(np.float32)
