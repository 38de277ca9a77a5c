"""The hook that checks every batch before its update, and every update afterwards.

It filters experiences, adds metrics, and raises an `AuditError` that names the wrong token and what wrote it. It
computes nothing that the learner computes anyway, except for a sample of tokens that it has scored before the update.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from turnwise.audit.recompute import check_credit, check_penalties, check_rows, check_update
from turnwise.audit.records import (
    Rescorer,
    batch_finding,
    check_digests,
    check_finite,
    check_gap,
    check_members,
    check_seals,
    check_staleness,
    choose_rows,
    default_tolerance,
    describe_all,
    is_comparable,
    measure_gaps,
)
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import AuditError, Finding
from turnwise.hooks import Hook, UpdateInputs
from turnwise.infra.atomic_files import append_line
from turnwise.protocols import Learner
from turnwise.types import Experience, FloatArray, Metrics, Sample, StepReport

log = logging.getLogger(__name__)

AUDIT_FILE = "audit.jsonl"
"""Every breach of a run, one JSON object per line; there from the first one on."""


class BatchAudit(Hook):
    """The audit of one run."""

    def __init__(
        self,
        settings: TurnwiseSettings,
        learner: Learner,
        *,
        max_staleness: int | None,
        digest_weights: Callable[[], int | None] = lambda: None,
        run_path: Path | None = None,
    ) -> None:
        """`max_staleness` bounds how old a batch can be in this loop; None where nothing does.

        `digest_weights` returns a digest of the policy, by which a replay compares its own; None: they are elsewhere.
        """
        self._settings = settings
        self._learner = learner
        self._rescorer = learner if isinstance(learner, Rescorer) else None
        self._max_staleness = max_staleness
        self._path = None if run_path is None else run_path / AUDIT_FILE
        self._digest_weights = digest_weights
        self._numbers: dict[str, float] = {}
        self._weights: int | None = None
        self.seconds = 0.0
        """What auditing has taken so far; no metric of a step, which is the same whenever it is computed."""
        self._kept: tuple[Experience, FloatArray] | None = None
        """A row of the first batch, and what the reference said about it."""

    def metrics(self) -> Metrics:
        """Of the newest batch, and of the update since the last call."""
        weights, self._weights = self._weights, None
        found = {f"audit/{name}": value for name, value in self._numbers.items()}
        return found if weights is None else {**found, "audit/weights": float(weights)}

    # --- before an update ----------------------------------------------------------------------------------------

    def filter_experiences(self, experiences: Sequence[Experience]) -> list[Experience]:
        """Return the experiences that may be trained on: all, or with `on_breach: quarantine` the valid groups."""
        started_s = time.perf_counter()
        breaches = self._check(experiences) if experiences else []
        bad = {breach.details["group"] for breach in breaches}
        admitted = [e for e in experiences if e.id.trajectory.group not in bad]
        self._numbers = {
            "breaches": float(len(breaches)),
            "quarantined_groups": float(len(bad)),
            "unsealed": float(sum(e.provenance is None for e in experiences)),
            **{name: value for name, value in self._numbers.items() if name == "gap"},
        }
        if breaches:
            self._report(breaches)
        self.seconds += time.perf_counter() - started_s
        return admitted

    def _check(self, experiences: Sequence[Experience]) -> list[Finding]:
        """What needs the least comes first: where the form is broken, nobody is asked about the content."""
        checks: list[Callable[[], list[Finding]]] = [
            lambda: check_members(experiences, group_size=self._settings.rollout.group_size),
            lambda: check_finite(experiences),
            lambda: check_digests(experiences),
            lambda: check_seals(experiences),
            lambda: check_staleness(
                experiences, policy_version=self._learner.policy_version, max_staleness=self._max_staleness
            ),
            lambda: self._rescore(experiences),
        ]
        for check in checks:
            if breaches := check():
                return breaches
        return []

    def _rescore(self, experiences: Sequence[Experience]) -> list[Finding]:
        self._numbers.pop("gap", None)
        max_tokens, version = self._settings.audit.rescored_tokens, self._learner.policy_version
        rows = choose_rows(self._comparable(experiences), seed=version, max_tokens=max_tokens)
        if self._rescorer is None or max_tokens == 0 or not rows:
            return []
        return self._compare(rows, self._rescorer.logprobs_of(rows, "policy"))

    def _comparable(self, experiences: Sequence[Experience]) -> list[Experience]:
        version, temperature = self._learner.policy_version, self._settings.rollout.temperature
        return [e for e in experiences if is_comparable(e, policy_version=version, temperature=temperature)]

    def _compare(self, rows: Sequence[Experience], scored: Sequence[FloatArray]) -> list[Finding]:
        settings, breaches = self._settings, []
        for gap in measure_gaps(rows, scored):
            max_gap = default_tolerance(settings.audit.max_gap, settings.model.dtype, gap.engine)
            breaches += check_gap(gap, max_gap=max_gap)
            self._numbers["gap"] = max(gap.mean, self._numbers.get("gap", 0.0))
        return breaches

    def on_batch(self, inputs: UpdateInputs) -> None:
        """Recompute what the estimator and packing made of the experiences, unless a trainer overrides a stage."""
        if not inputs.is_default:
            return
        started_s = time.perf_counter()
        seed, samples, annotations = self._learner.policy_version, inputs.samples, inputs.annotations
        breaches = check_rows(inputs.experiences, samples, inputs.batch)
        breaches = breaches or check_penalties(samples, annotations, self._settings.learn.kl)
        breaches = breaches or check_credit(samples, annotations, self._settings.credit, seed=seed)
        breaches = breaches or self._check_reference(samples)
        if breaches:
            self._tell(breaches)
            raise _stop(breaches, "Nothing was learnt from it.")
        self.seconds += time.perf_counter() - started_s

    def _check_reference(self, samples: Sequence[Sample]) -> list[Finding]:
        """The reference is frozen: what it says about a row of the first batch, it says for ever."""
        if self._rescorer is None or self._settings.learn.kl.type == "none":
            return []
        if self._kept is None:
            row = samples[0].experience
            self._kept = row, self._rescorer.logprobs_of([row], "reference")[0]
            return []
        row, expected = self._kept
        found = self._rescorer.logprobs_of([row], "reference")[0]
        gap = float(np.abs(found - expected).mean())
        if gap <= default_tolerance("auto", self._settings.model.dtype, "local"):
            return []
        said = f"log-probs that are {gap:.3g} nats per token away"
        return [
            batch_finding(
                "reference",
                f"the reference, about {row.id}",
                expected="what it said at first: it is frozen",
                found=said,
                wrote="the learner",
            )
        ]

    # --- after an update -----------------------------------------------------------------------------------------

    def on_update(self, inputs: UpdateInputs, report: StepReport) -> None:
        """Check all tokens that the update met before its first optimizer step, if they are of its own version."""
        started_s, samples, batch = time.perf_counter(), inputs.samples, inputs.batch
        if (trace := report.trace) is not None:
            version, temperature = report.policy_version - 1, self._settings.rollout.temperature
            scored = np.split(trace.proximal_logprobs, batch.row_starts[1:-1])
            fresh = [
                (sample.experience, row)
                for sample, row, steps in zip(samples, scored, trace.proximal_steps.tolist(), strict=True)
                if steps == 0 and is_comparable(sample.experience, policy_version=version, temperature=temperature)
            ]
            breaches = self._compare([row[0] for row in fresh], [row[1] for row in fresh]) if fresh else []
            self._refuse(breaches)
        self._refuse(check_update(batch, report, self._settings.learn, dtype=self._settings.model.dtype))
        self.seconds += time.perf_counter() - started_s
        self._weights = self._digest_weights()

    # --- what is done about it -----------------------------------------------------------------------------------

    def _report(self, breaches: Sequence[Finding]) -> None:
        self._tell(breaches)
        if self._settings.audit.on_breach == "stop" or any(breach.details["group"] is None for breach in breaches):
            raise _stop(breaches, "Nothing was learnt from it. audit.on_breach=quarantine leaves such groups out.")
        groups = sorted({str(breach.details["group"]) for breach in breaches})
        log.warning("audit: %d groups are left out of the batch\n%s", len(groups), describe_all(breaches))

    def _refuse(self, breaches: Sequence[Finding]) -> None:
        if breaches:
            self._tell(breaches)
            raise _stop(breaches, "The update was made; nothing of it is published or saved.")

    def _tell(self, breaches: Sequence[Finding]) -> None:
        if self._path is not None:
            for breach in breaches:
                told = {"policy_version": self._learner.policy_version, **breach.details}
                append_line(self._path, json.dumps(told))


def _stop(breaches: Sequence[Finding], hint: str) -> AuditError:
    message = (
        f"Batch audit failed: {len(breaches)} records do not match what was sampled.\n{describe_all(breaches)}\n{hint}"
    )
    return AuditError(message, check=breaches[0].kind)
