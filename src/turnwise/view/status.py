"""Status of a run: state, progress, blocked waits, failed episodes, findings.

The page, the report and `turnwise status` show the same object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnwise.infra.untrusted import format_success_rate
from turnwise.report.console import format_duration, print_trajectory, printable
from turnwise.report.document import Document
from turnwise.report.run_dir import TIME_SECTIONS
from turnwise.report.token_log_reader import RecordedToken
from turnwise.types import Trajectory
from turnwise.view.episodes import TokenTexts
from turnwise.view.run_files import RunFiles, clean_summary, find_workers, read_json, setting, silent_s

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
    final = {f"eval/{name}": summary.get(f"{name}_after") for name in ("success", "return")}
    return [*rows[:-1], {**{name: value for name, value in final.items() if value is not None}, **rows[-1]}]


def _progress(checkpoint: Path | None) -> Mapping[str, Any]:
    return clean_summary(read_json(checkpoint / "progress.json") or {}) if checkpoint is not None else {}


def _audit(last: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in last.items() if name.startswith("audit/")}


def _newest(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Latest value of each shown metric; success is None if there is a return without one."""
    found = {name: _latest(rows, name) for name in _SHOWN}
    unknown = {name for name in found if found.get(name.replace("/success", "/return")) is not None}
    return {name: value for name, value in found.items() if value is not None or name in unknown}


def _latest(rows: list[dict[str, Any]], name: str) -> float | None:
    return next((row[name] for row in reversed(rows) if row.get(name) is not None), None)


def _ends(steps: list[int]) -> dict[str, int] | None:
    return {"first": steps[0], "last": steps[-1], "count": len(steps)} if steps else None


_STATE_STYLES = {"running": "bold cyan", "ended": "bold green", "collapsed": "bold red", "killed": "bold yellow"}


def to_document(status: Mapping[str, Any]) -> Document:
    """What `turnwise status` prints of `describe_status`."""
    state = status["state"]
    lists = {
        "works": [describe_worker(one) for one in status["workers"] if one["is_there"]],
        "waits": [Text(describe_wait(wait), style="yellow") for wait in status["waits"]],
        "failed": [f"{count} episodes: {cause}" for cause, count in status["failures"].items()],
        "finding": [f"step {one.get('step')}, {one.get('kind')}: {one.get('message')}" for one in status["findings"]],
    }
    facts = {
        "run": status["run"],
        "recipe": f"{status['recipe']} on {status['env']}, seed {status['seed']}",
        "state": Text(state, style=_STATE_STYLES[state]).append(_silence(status), style="not bold dim"),
        "step": f"{status['step']} of {status['steps']}{_taken(status)}",
        **{name: format_success_rate(value, ".4g") for name, value in status["latest"].items()},
        "checkpoints": ", ".join(map(str, status["checkpoints"][-5:])) or "none yet",
        **{name: values for name, values in lists.items() if values},
    }
    return Document(facts=facts, data=status)


def _silence(status: Mapping[str, Any]) -> str:
    if status["state"] not in ("running", "killed"):
        return ""
    return f"  nothing written for {format_duration(status['silent_s'])}"


def _taken(status: Mapping[str, Any]) -> str:
    return "" if status["time_s"] is None else f", after {format_duration(status['time_s'])}"


def describe_worker(worker: Mapping[str, Any]) -> str:
    """`trainer: process 12 on host, since …`."""
    known = [f"process {worker['pid']}" if worker["pid"] else "", f"on {worker['host']}" if worker["host"] else ""]
    since = f", since {worker['since']}" if worker["since"] else ""
    return f"{worker['role']}: {' '.join(filter(None, known)) or 'a process'}{since}"


def describe_wait(wait: Mapping[str, Any]) -> str:
    """`the trainer waits for experiences, for 12 s of 600 s`."""
    waited = f", for {format_duration(wait['waited_s'])}" if "waited_s" in wait else ""
    deadline = wait.get("deadline_s")
    bound = f" of {format_duration(deadline)}" if isinstance(deadline, int | float) else ""
    return printable(f"{wait.get('who')} waits for {wait.get('for')}{waited}{bound}")


def print_episode(console: Console, trajectory: Trajectory, tokens: Sequence[RecordedToken], texts: TokenTexts) -> None:
    """Print an episode turn by turn, then the numbers of every sampled token that is in the token log."""
    print_trajectory(console, trajectory)
    sampled = [token for token in tokens if token.is_sampled]
    if not sampled:
        return
    names = ("turn", "token", "log-prob", "entropy", "value", "return", "advantage", "ratio", "clipped")
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name == "token" else "right", no_wrap=True)
    for token in sampled:
        numbers = (token.behavior_logprob, token.entropy, token.value, token.return_)
        table.add_row(
            str(token.turn + 1),
            Text(repr(texts.of(token.token_id)), style="cyan"),
            *(f"{number:.3f}" for number in numbers),
            Text(f"{token.advantage:+.3f}", style="green" if token.advantage > 0 else "red"),
            f"{token.last_ratio:.3f}",
            "clipped" if token.is_clipped else "",
        )
    console.print()
    console.print(table)
