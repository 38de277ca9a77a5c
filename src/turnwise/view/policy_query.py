"""A place in an episode comes in; what a checkpoint of its run would say there goes out, asked live.

The question is made from the record: exactly the ids that stood before the token, and the checkpoint nearest to the
weights that sampled it. Who answers is given from above (`PolicyBackend`): this room loads no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from turnwise.config.kinds import ADVANTAGE_ESTIMATORS, AdvantageEstimator
from turnwise.errors import RunError, TurnwiseError
from turnwise.report.token_log_reader import StepTokens
from turnwise.types import MAX_ALTERNATIVES, Annotations, Experience, FloatArray
from turnwise.view.episodes import TokenTexts, plain, tokens_of
from turnwise.view.run_files import RunFiles, read_json, setting

NUM_ALTERNATIVES = 10
MAX_NEW_TOKENS = 64
_NOBODY = "The page was opened without anybody who could load a model: start it with `turnwise view`."


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyQuery:
    """What to ask of a policy on disk. Everything is plain: it goes to another process."""

    folder: Path
    """A checkpoint; its policy is a Hugging Face folder inside."""
    dtype: str
    """`model.dtype` of the run: how weights are held."""
    prefix_ids: tuple[int, ...]
    temperature: float
    num_alternatives: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPrediction:
    """The likeliest tokens behind the prefix, and the greedy way on from it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the distribution at the temperature of the question; at temperature 1 where that is 0."""
    continuation_ids: tuple[int, ...]


class PolicyBackend(Protocol):
    """Who can be asked: answers within a deadline, or raises a TurnwiseError that says why not."""

    def ask(self, question: PolicyQuery) -> PolicyPrediction: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPolicy:
    """A checkpoint that can be asked."""

    step: int
    policy_version: int
    folder: Path

    def describe(self) -> dict[str, int]:
        return {"step": self.step, "policy_version": self.policy_version}


def find_policies(run: RunFiles) -> list[SavedPolicy]:
    """The checkpoints of a run that hold a model, ascending."""
    found = []
    for step in run.directory.checkpoint_steps():
        folder = run.directory.step_checkpoint(step)
        version = (read_json(folder / "progress.json") or {}).get("policy_version", step)
        if (folder / "policy" / "config.json").is_file() and isinstance(version, int):
            found.append(SavedPolicy(step=step, policy_version=version, folder=folder))
    return found


def choose_policy(policies: Sequence[SavedPolicy], version: int, *, step: int | None = None) -> SavedPolicy:
    """The one of a step; otherwise the nearest at or before a version, and the first where all are later."""
    if not policies:
        raise RunError("this run has no checkpoint on disk to ask. Train with report.checkpoint_every set.")
    if step is not None:
        chosen = next((policy for policy in policies if policy.step == step), None)
        if chosen is None:
            known = ", ".join(str(policy.step) for policy in policies)
            raise RunError(f"checkpoint: '{step}' given; there are those of steps {known}.")
        return chosen
    earlier = [policy for policy in policies if policy.policy_version <= version]
    return earlier[-1] if earlier else policies[0]


def query_policy(
    voice: PolicyBackend | None, run: RunFiles, told: Mapping[str, Any], texts: TokenTexts, words: Mapping[str, str]
) -> dict[str, Any]:
    """`told` is the episode as the page knows it; `words` say the place, and where wanted checkpoint and length.

    Where the model cannot answer, `why_not` says why: that is an answer too.
    """
    tokens = told["tokens"]
    if tokens is None:
        raise RunError("the tokens of this episode are not on disk, so nobody can be asked what came next.")
    place = _number(words, "place", 0, len(tokens["token_id"]) - 1)
    version = _version_of(told, tokens["turn"][place])
    step = _number(words, "checkpoint", 0, 10**9) if words.get("checkpoint") else None
    policy = choose_policy(find_policies(run), version, step=step)
    if voice is None:
        raise RunError(_NOBODY)
    question = PolicyQuery(
        folder=policy.folder,
        dtype=str(setting(run.settings, "model.dtype", "float32")),
        prefix_ids=_prefix(tokens, place),
        temperature=_temperature(run, is_eval=bool(told["is_eval"])),
        num_alternatives=min(NUM_ALTERNATIVES, MAX_ALTERNATIVES),
        max_new_tokens=_number({"new": "24", **words}, "new", 1, MAX_NEW_TOKENS),
    )
    try:
        answer = voice.ask(question)
    except TurnwiseError as error:
        return {"why_not": str(error)}
    return {
        "checkpoint": policy.describe(),
        "sampled_by": version if tokens["is_sampled"][place] else None,
        "temperature": question.temperature,
        "said": tokens["token_id"][place],
        "alternatives": [
            {"token_id": token, "text": texts.of(token), "logprob": logprob}
            for token, logprob in zip(answer.token_ids, answer.logprobs, strict=True)
            if math.isfinite(logprob)
        ],
        "continuation": texts.of_all(answer.continuation_ids),
    }


def _prefix(tokens: Mapping[str, Any], place: int) -> tuple[int, ...]:
    """All that the model had read: its own row up to the place, whole from its first token."""
    start = place - tokens["position"][place]
    if start < 0 or tokens["segment_index"][start] != tokens["segment_index"][place] or tokens["position"][start] != 0:
        raise RunError("what stood before this token is not on record whole, so nobody can be asked what came next.")
    if start == place:
        raise RunError("nothing stands before the first token: choose a later one.")
    return tuple(tokens["token_id"][start:place])


def _version_of(told: Mapping[str, Any], turn: int) -> int:
    """Which weights sampled a turn; those of the first turn for what was given."""
    turns = {one["index"]: one["policy_version"] for one in told["turns"]}
    return int(turns.get(turn, next(iter(turns.values()), 0)))


def _temperature(run: RunFiles, *, is_eval: bool) -> float:
    found = (
        setting(run.settings, "eval.temperature", 0.0) if is_eval else setting(run.settings, "rollout.temperature", 1.0)
    )
    return float(found) if isinstance(found, int | float) and 0 <= found < math.inf else 1.0


def _number(words: Mapping[str, str], name: str, low: int, high: int) -> int:
    given = words.get(name, "")
    try:
        number = int(given)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise RunError(f"{name}: '{given}' given; expected a number from {low} to {high}.")
    return number


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
    for name in ADVANTAGE_ESTIMATORS.names():
        if name == trained_with:
            continue
        try:
            estimator = ADVANTAGE_ESTIMATORS.find(name)()
            if why := _missing(estimator, tokens):
                left_out[name] = why
            else:
                advantages[name] = _apply(estimator, experiences, annotations)
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


def _missing(estimator: AdvantageEstimator, tokens: StepTokens) -> str:
    if estimator.needs_values and not tokens.has_values:
        return "it needs a critic, and this run had none"
    if estimator.needs_groups and not _has_siblings(tokens):
        return "it compares siblings, and this run played every task once"
    if estimator.needs_greedy and np.isnan(tokens.rows.greedy_returns).any():
        return "it needs a greedy play of every task, and this run made none"
    return ""


def _has_siblings(tokens: StepTokens) -> bool:
    groups = [trajectory.group for trajectory in tokens.rows.trajectory_ids]
    return len(set(groups)) < len(groups)


def _apply(estimator: AdvantageEstimator, experiences: Sequence[Experience], annotations: Annotations) -> FloatArray:
    of_experience = {sample.experience.id: sample.advantages for sample in estimator(experiences, annotations)}
    return np.concatenate([of_experience[experience.id] for experience in experiences]).astype(np.float32)
