"""A run comes in; how it stands now goes out: state, progress, who waits for whom, failures, findings.

The page, the report and `turnwise status` show the same object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turnwise.report.run_dir import TIME_SECTIONS
from turnwise.view.run_files import RunFiles, read_json, setting
from turnwise.view.state import find_workers, silent_s

_SHOWN = (
    "rollout/success",
    "rollout/return",
    "eval/success",
    "eval/return",
    "learn/entropy",
    "learn/approx_kl",
    "learn/clip_fraction",
    "rollout/in_group_std",
    "rollout/errors",
    "rollout/tokens_per_s",
    "sync/staleness_mean",
    "buffer/experiences_left",
)


def describe_status(run: RunFiles) -> dict[str, Any]:
    """Everything about how a run stands, as plain data for JSON."""
    summary = run.summary
    rows = with_last_evaluation(run.metrics, summary)
    progress = _progress(run.directory.latest_checkpoint())
    last = rows[-1] if rows else {}
    return {
        "run": str(run.path),
        "recipe": run.settings.get("recipe"),
        "env": setting(run.settings, "env.type"),
        "seed": setting(run.settings, "run.seed"),
        "loop": setting(run.settings, "loop.type"),
        "engine": setting(run.settings, "engine.type"),
        "cluster": setting(run.settings, "cluster.type"),
        "state": str(run.state),
        "step": last.get("step", 0),
        "steps": setting(run.settings, "learn.steps"),
        "time_s": last.get("time_s"),
        "silent_s": round(silent_s(run.directory), 1),
        "policy_version": (summary or progress).get("policy_version"),
        "checkpoints": run.directory.checkpoint_steps(),
        "recorded_steps": _ends(run.recorded_steps),
        "explored": run.explorer_metrics[-1].get("step") if run.explorer_metrics else None,
        "workers": [asdict(worker) for worker in find_workers(run.path)],
        "waits": run.waits,
        "resumes": run.resumes,
        "failures": dict((summary or progress).get("failures") or {}),
        "findings": run.findings,
        "audit": _audit(last),
        "latest": _newest(rows),
        "time_split": {name: sum(row.get(f"time/{name}_s") or 0.0 for row in rows) for name in TIME_SECTIONS},
        "queues": {name: value for name, value in last.items() if name.startswith("buffer/")},
        "manifest": run.manifest,
    }


def with_last_evaluation(rows: list[dict[str, Any]], summary: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The evaluation at the end of a run is in its summary alone; on a curve it is the last point."""
    if not rows or summary is None or summary.get("steps") != rows[-1].get("step"):
        return rows
    told = {f"eval/{name}": summary.get(f"{name}_after") for name in ("success", "return")}
    return [*rows[:-1], {**{name: value for name, value in told.items() if value is not None}, **rows[-1]}]


def _progress(checkpoint: Path | None) -> Mapping[str, Any]:
    return (read_json(checkpoint / "progress.json") or {}) if checkpoint is not None else {}


def _audit(last: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in last.items() if name.startswith("audit/")}


def _newest(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """What was measured; a success that nobody says is None where there is a return."""
    found = {name: _latest(rows, name) for name in _SHOWN}
    unknown = {name for name in found if found.get(name.replace("/success", "/return")) is not None}
    return {name: value for name, value in found.items() if value is not None or name in unknown}


def _latest(rows: list[dict[str, Any]], name: str) -> float | None:
    return next((row[name] for row in reversed(rows) if row.get(name) is not None), None)


def _ends(steps: list[int]) -> dict[str, int] | None:
    return {"first": steps[0], "last": steps[-1], "count": len(steps)} if steps else None
